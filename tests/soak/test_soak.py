"""The soak in short: `make soak` does 200 kills."""

from __future__ import annotations

from tests.soak.soak import BLOCK, soak


def test_a_few_kills_lose_no_step():
    report = soak(8, seed=1, longest=0.3)
    assert report.passed, report
    assert report.kills >= 8
    assert report.resumes > 0
    assert report.released > 0
    assert report.released <= report.reserved <= report.released + BLOCK * report.kills


def test_a_ledger_that_is_paid_late_is_caught():
    report = soak(8, seed=2, longest=0.2, late=True)
    assert report.under_reports > 0
