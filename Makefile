# Everything a newcomer needs: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench

# Real data sets live in ./data, or in the folder that GNOMON_DATA names, or, when it is there, beside the checkout.
SHARED := $(wildcard ../shared/data)
export GNOMON_DATA ?= $(if $(SHARED),$(abspath $(SHARED)),$(abspath data))

.PHONY: help setup demo quick test browser soak bench lint format types clean figures experiments
.DEFAULT_GOAL := help

help:
	@echo "make demo    train a classifier of handwritten digits at epsilon = 1, compare methods, and write a report page"
	@echo "make quick   lint and the fast tests, in about a minute"
	@echo "make test    lint, types, tests and doctests: everything that must pass"
	@echo "make browser install headless Chromium (Debian, as root), in which make test opens the report pages; they are skipped without it"
	@echo "make soak    200 kills, random models for an hour, every planted bug, 1000 audits of an honest step, a live federation killed (about two hours)"
	@echo "make bench   step time and memory against plain SGD and other libraries (two hours); BENCH='--only GPT-2' for options"
	@echo "make lint    format check and lint only"
	@echo "make experiments  tables and figures of the papers, days; FAST=--fast for minutes each, EXPERIMENTS='a b' for some"
	@echo "make figures draw the pictures of README and docs again"
	@echo "make setup   create .venv and install; the other targets do it when needed"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Gnomon needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

demo: $(STAMP)
	mkdir -p runs
	$(BIN)/gnomon train --data digits --target-epsilon 1 --out runs/demo --overwrite --ledger runs/demo-ledger.sqlite
	OMP_NUM_THREADS=1 $(BIN)/gnomon compare --data digits --noise-multipliers 5,10,20 --seeds 1 --out runs/demo-compare \
	  --methods dp-sgd,pdp,pcdp,dp-lsgd:local-steps=5,local-lr=0.2,public-only
	$(BIN)/gnomon report runs/demo-compare runs/demo --out runs/demo-report.html

quick: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow" tests

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --durations 40 --doctest-modules src tests

browser:
	command -v chromium > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

soak: $(STAMP)
	mkdir -p runs
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak/soak.py --kills 200 --report runs/soak.json
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.fuzz --minutes 60
	OMP_NUM_THREADS=1 GNOMON_SOAK=1 $(BIN)/python -m pytest -q -n 2 tests/audit tests/release tests/randomness tests/federated/test_deployment.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/audit_repetitions.py 1000

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_STAMP)
	$(BIN)/python benchmarks/steps.py $(BENCH)
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/diagnose.py

# All that docs/results.md reports. It goes on from the finished cells in experiments/results: stop it and start it again
# at will. One that fails does not stop the others. Short runs (FAST=--fast) stay apart, in runs.
EXPERIMENTS ?= $(notdir $(basename $(wildcard src/gnomon/studies/reproduce/experiments/*.yaml))) federated local-steps compressed
RESULTS ?= $(if $(FAST),runs/reproduce,experiments/results)
SHORT_STEPS := $(if $(FAST),--private-records 2000 --epochs 1 --epsilons 2 --seeds 1)

# CIFAR-10 may lie there in packed form, with a script beside it that writes all data sets in their official ones.
PACKED := $(wildcard $(GNOMON_DATA)/unpack.py)
CIFAR := $(if $(PACKED),data/cifar-10-batches-bin/batches.meta.txt)

data/cifar-10-batches-bin/batches.meta.txt: | $(STAMP)
	$(BIN)/python $(PACKED) data

experiments: export GNOMON_DATA := $(if $(PACKED),$(abspath data),$(GNOMON_DATA))
experiments: $(STAMP) $(CIFAR)
	export OMP_NUM_THREADS=1; failed=; for name in $(EXPERIMENTS); do \
	  case $$name in \
	    federated) $(BIN)/python experiments/federated.py $(FAST) --out $(RESULTS)/federated ;; \
	    local-steps) $(BIN)/python experiments/local_steps.py $(SHORT_STEPS) --out $(RESULTS)/local-steps ;; \
	    compressed) $(BIN)/python experiments/compressed.py ;; \
	    *) $(BIN)/gnomon reproduce $$name $(FAST) --out $(RESULTS) ;; \
	  esac || { code=$$?; [ $$code -lt 128 ] || exit $$code; failed="$$failed $$name"; }; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

figures: $(STAMP)
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/figures/draw.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
