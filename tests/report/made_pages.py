"""Sources for pages: runs from a known truth, some of them with names that would like to be scripts."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "analyze"))
from made_sweeps import BUDGETS, drifting_optimum, with_info

from isotune.report.figures import figures_of
from isotune.report.findings import find
from isotune.report.page import Origin, make_page
from isotune.runs.trajectory import Trajectory

SCRIPT = "<script>alert(1)</script>"
LABEL = "</script><img src=x onerror=alert(2)>"
ORIGIN = Origin(
    command=f"isotune report '{SCRIPT}'",
    source=SCRIPT,
    made_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    versions={"isotune": "1.2.3", "commit": "abc"},
)
LR, WD = np.arange(-11.0, -6.0), np.arange(-7.0, -2.0)


def hundred_runs():
    """25 cells with a trunk and three decays each; the first is named like a script."""
    runs = [_bent(run) for run in drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:3], lr=LR, wd=WD)]
    named = [with_info(run, source=f"runs.csv:run-{index:03d}") for index, run in enumerate(runs)]
    named[0] = with_info(runs[0], source=SCRIPT, setup=SCRIPT)
    return [named[0], *(with_info(run, setup=SCRIPT) for run in named[1:])]


def _bent(run):
    """With a curve that depends on LR and WD; the last value is what the planted optimum made it."""
    loss, bend = run.columns["val_loss"].copy(), 0.02 * np.log2(run.info.learning_rate * run.info.weight_decay**0.3)
    loss[:-1] += bend * (1 - run.tokens[:-1] / BUDGETS[3])
    return Trajectory(run.columns | {"val_loss": loss}, run.info)


def diverged(run):
    return with_info(run, status="diverged")


def with_nans(run):
    return Trajectory(run.columns | {"val_loss": np.full(len(run.tokens), np.nan)}, run.info)


def shortened(run, points=6):
    return Trajectory({name: values[:points] for name, values in run.columns.items()}, run.info)


def page_of(runs, *, label="runs.csv", figures=None, accounts=(), **options):
    findings = find(runs, label=label, **options)
    figures = figures_of(findings) if figures is None else figures
    return make_page(findings, figures, origin=ORIGIN, accounts=accounts)
