"""The table of runs: one row each, with its numbers as data so that a script can sort them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isotune.analyze.curves import effective_learning_rate
from isotune.analyze.families import FINAL
from isotune.errors import InputError
from isotune.recipe import format_number, format_tokens
from isotune.report.findings import Findings
from isotune.report.page.html import Html, element
from isotune.report.words import count
from isotune.runs.trajectory import RunInfo, Trajectory

COLUMNS = ("LR", "WD", "ELR", "batch", "seed", "tokens", "final loss", "status", "name")
CHOICES = ("LR", "WD", "batch", "seed", "status")  # columns with a list to choose from
MOST_CHOICES = 40


@dataclass(frozen=True)
class Cell:
    """What is shown and, of a number, what is sorted by; NaN sorts last."""

    text: str
    value: float | None = None


def show_runs(findings: Findings) -> Html:
    """The filters and the table."""
    if not findings.trajectories:
        return element("p", "There are no runs.")
    rows = [_cells(run, findings) for run in findings.trajectories]
    header = element("tr", *(_heading(name) for name in COLUMNS))
    body = [element("tr", *(_show(cell) for cell in row)) for row in rows]
    table = element(
        "table",
        element("caption", "All runs; a column's name sorts by it", class_="unseen"),
        element("thead", header),
        element("tbody", *body),
        id="run-table",
    )
    shown = element("p", count(len(rows), "run"), id="run-count", role="status", data_total=str(len(rows)))
    return element(
        "div",
        _filters(rows),
        shown,
        element("div", table, class_="wide tall", tabindex="0", role="region", aria_label="Runs"),
        id="run-list",
    )


def _cells(run: Trajectory, findings: Findings) -> tuple[Cell, ...]:
    info = run.info
    tokens = float(run.tokens[-1]) if len(run.tokens) else 0.0
    loss = _final_loss(run, findings.loss)
    return (
        _number(info.learning_rate),
        _number(info.weight_decay),
        _number(_elr(info)),
        _number(info.batch_size),
        _number(info.seed),
        Cell(format_tokens(tokens), tokens),
        Cell(f"{loss:.4f}" if math.isfinite(loss) else "none", loss),
        Cell(info.status),
        Cell(_name(info, findings.label)),
    )


def _number(value: float | int | str) -> Cell:
    if isinstance(value, str):
        return Cell(value, math.nan)
    return Cell(str(value) if isinstance(value, int) else format_number(value), float(value))


def _elr(info: RunInfo) -> float | str:
    try:
        return effective_learning_rate(info)
    except InputError:
        return "unknown"


def _final_loss(run: Trajectory, loss: str) -> float:
    """Of the evaluation on many windows, where there was one; a run that diverged has none."""
    if run.info.status == "diverged":
        return math.nan
    final = run.last(FINAL) if loss == "val_loss" else math.nan
    return final if math.isfinite(final) else run.last(loss)


def _name(info: RunInfo, label: str) -> str:
    """What sets the run's source apart from the others'; runs of our own are known by what no other column says."""
    own = info.source.removeprefix(label).lstrip(":/\\")
    return own or _schedule(info)


def _schedule(info: RunInfo) -> str:
    """ "decay of 131K, after batch 4 until 1.05M"; all phases where LR was never constant, or nobody knows."""
    if info.has_plateau is not True or isinstance(info.decay_tokens, str):
        return info.schedule
    words = [f"decay of {format_tokens(info.decay_tokens)}" if info.decay_tokens else "constant LR"]
    words += [f"after {info.history}"] if info.history else []
    words += ["perturbed init"] if info.perturbation else []
    return ", ".join(words)


def _order(cell: Cell) -> tuple[float, str]:
    value = 0.0 if cell.value is None else cell.value
    return (math.inf if math.isnan(value) else value, cell.text)


def _heading(name: str) -> Html:
    return element("th", element("button", name, type="button"), scope="col", aria_sort="none")


def _show(cell: Cell) -> Html:
    if cell.value is None:
        return element("td", cell.text)
    return element("td", cell.text, class_="number", data_value="" if math.isnan(cell.value) else repr(cell.value))


def _filters(rows: Sequence[tuple[Cell, ...]]) -> Html:
    """A field for words, and a list for each column with a few different values."""
    search = element(
        "label", "Words ", element("input", type="search", id="run-words", placeholder="finished 2^-10 ...")
    )
    lists = []
    for name in CHOICES:
        column = COLUMNS.index(name)
        different = {row[column].text: row[column] for row in rows}
        if 1 < len(different) <= MOST_CHOICES:
            ordered = sorted(different.values(), key=_order)
            options = [element("option", "all", value=""), *(element("option", cell.text) for cell in ordered)]
            lists.append(element("label", f"{name} ", element("select", *options, data_column=str(column))))
    clear = element("button", "Clear", type="button", id="run-clear")
    return element("form", search, *lists, clear, class_="filters", id="run-filters", aria_label="Filter the runs")
