"""A site starts a process for every message, so importing its code must not load plotting or web libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["gnomon.federated.deployment.site", "gnomon.federated.deployment.flower"])
def test_importing_a_site_loads_no_plotting_template_or_learning_library(module):
    code = f"import sys, {module}; print([name for name in ('matplotlib', 'jinja2', 'sklearn') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
