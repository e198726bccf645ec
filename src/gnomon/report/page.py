"""One self-contained HTML page about runs: no network, no outside script, style or font."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gnomon.accounting import digits
from gnomon.errors import SettingError
from gnomon.figures.comparison import comparison_pictures
from gnomon.figures.diagnostics import diagnostic_pictures
from gnomon.figures.picture import Picture
from gnomon.figures.training import training_pictures
from gnomon.ledger.identity import is_name
from gnomon.report.claim import claims, doubts
from gnomon.report.read import ComparedRow, ComparedRuns, Found, Reproduction, SavedRun, read_run
from gnomon.report.repeat import compare_command, run_command
from gnomon.report.reproduction import of_reproduction
from gnomon.report.section import Section, Table, environment_of
from gnomon.runs.folder import PICTURES, clear_folder
from gnomon.statement.consistency import recompute_epsilon
from gnomon.statement.explanation import describe_neighbours, explain, unit_noun
from gnomon.statement.statement import TOTAL_NOT_STATED
from gnomon.studies.store import made_with, made_words
from gnomon.version import __version__

TEMPLATES = Path(__file__).parent / "templates"
UNFINISHED = "The run has no privacy statement yet: it did not finish."
WRITTEN = ".pictures"
"""The file beside pictures that lists those a page wrote."""
UNCHECKED = "Epsilon could not be recomputed from the statement's numbers: this page takes it at its word."


def report(folders: Sequence[Path], out: Path | None = None, *, unprotected: bool = True, figures: bool = True) -> Path:
    """Write the page about run folders, and its pictures as PNG and SVG files beside it; returns its path.

    `unprotected=False` leaves out everything that was computed on private data without noise, so that the page may
    be handed on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = (Path(place) / "metrics.jsonl").write_text('{"epoch": 1, "epsilon": 0.5}')
    ...     page = report([Path(place)])
    ...     page.name, "Privacy spent while training" in page.read_text()
    ('report.html', True)
    """
    if not folders:
        raise SettingError("run", None, "at least one folder of a run")
    read = [_read(folder, unprotected) for folder in folders]
    found, sections = [run for run, _ in read], _named([said for _, said in read])
    overview = _overview(found)
    path = out if out is not None else (folders[0] / "report.html" if len(folders) == 1 else Path("report.html"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(sections, overview))
        if figures:
            _save(sections, path.with_name(f"{path.stem}-figures"))
    except OSError as error:
        raise SettingError("out", str(path), f"a file that can be written ({error.strerror})") from None
    return path


def _read(folder: Path, unprotected: bool) -> tuple[Found, Section]:
    """A folder and what to say about it. Where its files do not fit together the folder is named."""
    try:
        found = read_run(folder, unprotected=unprotected)
        return found, section(found)
    except SettingError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        allowed = f"one with files as gnomon writes them; something in it is damaged or was edited ({told})"
        raise SettingError("run", str(folder), allowed) from error


def _save(sections: Sequence[Section], folder: Path) -> None:
    """The pictures of the page as files. Those of an earlier page go first: they may show what this one leaves out.

    Pictures that no page wrote stay: `WRITTEN` lists those that one did.
    """
    listed, own = folder / WRITTEN, folder.name == "report-figures"
    try:
        earlier = [Path(name).name for name in listed.read_text().splitlines()]
    except (OSError, UnicodeDecodeError):
        earlier = []
    clear_folder(folder, PICTURES if own else [*(escape(name) for name in earlier if name), WRITTEN])
    drawn = [picture for one in sections for picture in one.drawn]
    for picture in drawn:
        picture.save(folder)
    if drawn and not own:
        listed.write_text("".join(f"{picture.file}.{ending}\n" for picture in drawn for ending in ("png", "svg")))


def render(sections: Sequence[Section], overview: Table | None = None) -> str:
    """The page as text. Everything that comes from a run is escaped.

    >>> render([Section("<script>", "a", "run", [], "gnomon train")]).count("&lt;script&gt;") > 0
    True
    """
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    environment.globals["digits"] = digits
    parts = {name: Markup((TEMPLATES / name).read_text()) for name in ("page.css", "sort.js")}
    titles = [one.title for one in sections]
    title = " and ".join(titles) if len(titles) < 3 else f"{len(titles)} runs"
    return environment.get_template("page.html").render(
        title=title,
        sections=sections,
        overview=overview,
        css=parts["page.css"],
        script=parts["sort.js"],
        version=__version__,
        written=f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        raw=any(picture.unprotected for one in sections for picture in one.drawn),
    )


def section(found: Found) -> Section:
    """What to say about one folder."""
    if isinstance(found, Reproduction):
        return of_reproduction(found)
    return _of_comparison(found) if isinstance(found, ComparedRuns) else _of_training(found)


def _of_training(run: SavedRun) -> Section:
    statement = run.statement
    config = {key.replace("-", "_"): value for key, value in run.config.items()}
    seconds = run.history[-1].get("seconds") if run.history else None
    doubtful, claim = doubts(run), claims(run)
    return Section(
        title=f"{config.get('method', run.name)} on {config.get('data', 'unknown data')}",
        slug=run.name,
        kind="run",
        pictures=training_pictures(run.history, run.public_only.get("accuracy"), claim=claim or not statement),
        inside=diagnostic_pictures(run.diagnostics),
        command=run_command(config, deployed=run.deployed),
        repeatable=not run.deployed,
        promise=doubtful or (explain(statement) if statement else [UNFINISHED]),
        guarantee=claim,
        facts=_facts(run) + ([("training time", _seconds(seconds))] if seconds is not None else []),
        terms=_terms(statement) if statement else [],
        caveats=[
            *statement.get("caveats", []),
            *([UNCHECKED] if claim and recompute_epsilon(statement) is None else []),
        ],
        not_covered=list(statement.get("not_covered", [])),
        ledger=_ledger(run.ledger, statement.get("delta")),
        audit=run.audit,
        environment=environment_of(run.environment),
        seeded=config.get("insecure_noise_seed") is not None,
    )


def _facts(run: SavedRun) -> list[tuple[str, str]]:
    last = run.history[-1] if run.history else {}
    statement = run.statement
    facts = []
    if last.get("validation/accuracy") is not None:
        early = isinstance(last.get("step"), int) and last["step"] < statement.get("steps", 0)
        name = f"test accuracy after {last['step']:,} steps" if early else "test accuracy"
        facts.append((name, f"{100 * last['validation/accuracy']:.1f} %"))
    if run.public_only.get("accuracy") is not None:
        facts.append(("public records alone, epsilon 0", f"{100 * run.public_only['accuracy']:.1f} %"))
    if statement:
        facts.append(("epsilon", digits(statement.get("epsilon")) if claims(run) else "no claim"))
        facts.append(("delta", f"{statement['delta']:g}"))
        facts.append(("noisy steps", f"{statement['steps']:,}"))
    return facts


def _terms(statement: dict[str, Any]) -> list[tuple[str, str]]:
    unit, adjacency = statement["unit"], statement["adjacency"]
    return [
        ("protected unit", unit),
        ("neighbouring data", f"{describe_neighbours(adjacency, unit)} ({adjacency})"),
        ("method", statement["method"]),
        ("sampling", statement["sampler"]),
        ("accountant", statement["accountant"]),
        ("noise multiplier", f"{statement['noise_multiplier']:.6g} clip bounds"),
        ("clip bound", "none" if statement["max_grad_norm"] is None else f"{statement['max_grad_norm']:g}"),
        ("divisor", f"{statement['expected_batch_size']:g} {unit_noun(unit)}s a step (declared, not counted)"),
        ("noisy steps released", f"{statement['steps']:,}"),
    ]


def _ledger(ledger: dict[str, Any], delta: float | None) -> list[tuple[str, str]]:
    if not ledger:
        return []
    if not is_name(str(ledger.get("dataset"))):  # also of an earlier version, which stated the total of any data set
        return [("epsilon of all runs together", TOTAL_NOT_STATED)]
    spent, budget = digits(ledger.get("epsilon")), ledger.get("budget")
    terms = ([] if delta is None else [f"delta = {delta:g}"]) + ([ledger["adjacency"]] if "adjacency" in ledger else [])
    said = [
        ("epsilon of all runs together", f"{spent} ({', '.join(terms)})" if terms else spent),
        ("runs", str(ledger.get("runs", "unknown"))),
        ("steps reserved", str(ledger.get("steps", "unknown"))),
    ]
    if budget:
        word = ", both for settings fixed before the first result" if budget.get("declared") else ""
        said.append(("budget", f"epsilon {budget['epsilon']:.15g} at delta = {budget['delta']:g}{word}"))
    return said


def _of_comparison(found: ComparedRuns) -> Section:
    plan = found.plan
    command = ""
    if plan:
        command = compare_command(
            plan["settings"],
            plan["methods"],
            plan["noise_multipliers"],
            plan["seeds"],
            plan.get("target_epsilons", ()),
        )
    settings: dict[str, Any] = plan.get("settings") or next(
        (cell["settings"] for cell in found.cells if "settings" in cell), {}
    )
    data = settings.get("data", found.name)
    made = made_words(made_with(found.cells))
    methods = dict.fromkeys(row.method for row in found.rows)
    epsilons = [row.epsilon for row in found.rows if row.noise_multiplier is not None]
    facts = [("methods", str(len(methods))), ("runs", str(sum(row.seeds for row in found.rows)))]
    if epsilons:
        facts.append(("epsilon", f"{digits(min(epsilons), significant=3)} to {digits(max(epsilons), significant=3)}"))
    return Section(
        title=f"{len(methods)} methods on {data}",
        slug=found.name,
        kind="comparison",
        pictures=comparison_pictures(found.rows, found.cells),
        command=command,
        promise=[
            "This is a study, not a release: its noise was seeded so that it can be repeated, so no run in it makes a "
            "privacy claim. Each epsilon is what the settings would promise with secret noise, for that one run alone.",
            "Choosing the best of several runs by results on private data would cost more than any one of them.",
        ],
        guarantee=False,
        facts=facts,
        table=_rows(found.rows),
        environment=[*([("runs", made)] if made else []), *environment_of(found.environment)],
        seeded=True,
    )


def _rows(rows: Sequence[ComparedRow]) -> Table:
    heads = ("method", "noise multiplier", "epsilon", "accuracy, %", "± over seeds, points", "seeds", "seconds a run")
    cells = [
        (
            (row.method, row.method),
            ("none" if row.noise_multiplier is None else f"{row.noise_multiplier:g}", row.noise_multiplier or 0.0),
            (digits(row.epsilon), row.epsilon),
            (f"{100 * row.mean:.1f}", row.mean),
            ("–", "") if row.deviation is None else (f"{100 * row.deviation:.1f}", row.deviation),
            (str(row.seeds), row.seeds),
            (f"{row.seconds:.1f}", row.seconds),
        )
        for row in rows
    ]
    return Table("Every method at every noise level. Click a head to sort.", heads, cells)


def _overview(found: Sequence[Found]) -> Table | None:
    """The training runs of a page side by side."""
    runs = [one for one in found if isinstance(one, SavedRun)]
    if len(runs) < 2:
        return None
    rows: list[tuple[tuple[str, float | str], ...]] = []
    for run in runs:
        last = run.history[-1] if run.history else {}
        accuracy, epsilon = last.get("validation/accuracy"), run.statement.get("epsilon")
        claim = "yes" if claims(run) else "no"
        epsilon = epsilon if claim == "yes" else None
        rows.append(
            (
                (run.name, run.name),
                (str(run.config.get("method", "unknown")), str(run.config.get("method", ""))),
                (str(run.config.get("data", "unknown")), str(run.config.get("data", ""))),
                ("–" if epsilon is None else digits(epsilon), float("inf") if epsilon is None else epsilon),
                (claim, claim),
                ("–" if accuracy is None else f"{100 * accuracy:.1f}", -1.0 if accuracy is None else accuracy),
            )
        )
    heads = ("run", "method", "data", "epsilon", "guarantee", "accuracy, %")
    return Table("The runs of this page. Click a head to sort.", heads, rows)


def _named(sections: list[Section]) -> list[Section]:
    """Pictures of several runs get names that differ."""
    if len(sections) == 1:
        return sections
    return [
        dataclasses.replace(one, pictures=_renamed(one.pictures, prefix), inside=_renamed(one.inside, prefix))
        for one, prefix in ((one, f"{number}-{one.slug}") for number, one in enumerate(sections, 1))
    ]


def _renamed(pictures: Sequence[Picture], prefix: str) -> list[Picture]:
    return [dataclasses.replace(picture, name=f"{prefix}-{picture.name}") for picture in pictures]


def _seconds(value: float) -> str:
    if value < 90:
        return f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 5400 else f"{value / 3600:.1f} h"
