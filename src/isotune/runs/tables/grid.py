"""A column of a table as grids over learning rate and weight decay, one for each kind of run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from isotune.errors import InputError
from isotune.recipe import Ramp, Recipe, falling_tokens, format_tokens
from isotune.runs.tables.contents import RunRecord
from isotune.runs.tables.reader import Table
from isotune.runs.words import describe_history

FINAL = "final_val_loss"


@dataclass(frozen=True)
class Cell:
    """The values of one learning rate and weight decay, by seed; NaN where a run diverged."""

    values: dict[int, float]

    @property
    def has_diverged(self) -> bool:
        return any(math.isnan(value) for value in self.values.values())

    def has(self, seeds: Iterable[int]) -> bool:
        return all(seed in self.values for seed in seeds)

    def mean(self, seeds: Sequence[int]) -> float:
        return sum(self.values[seed] for seed in seeds) / len(seeds)


@dataclass(frozen=True)
class Grid:
    """A column at a budget, for runs that differ in nothing but learning rate, weight decay and seed."""

    column: str
    tokens: int
    batch_size: int
    root: str
    path: str  # what sets these runs apart: their decay, their batch switches
    cells: dict[tuple[float, float], Cell]  # (learning rate, weight decay) -> cell

    @property
    def learning_rates(self) -> list[float]:
        return sorted({lr for lr, _ in self.cells})

    @property
    def weight_decays(self) -> list[float]:
        return sorted({wd for _, wd in self.cells})

    @property
    def seeds(self) -> list[int]:
        """Those that cells are compared by: the one that most cells have, and all others that these cells have too.

        A seed moves a loss by more than neighbours differ, so that means over other seeds would compare seeds.
        """
        numbers = Counter(seed for cell in self.cells.values() for seed in cell.values)
        usual = min(numbers, key=lambda seed: (-numbers[seed], seed))
        alike = [cell for cell in self.cells.values() if usual in cell.values]
        return sorted(seed for seed in numbers if all(seed in cell.values for cell in alike))

    @property
    def other_seeds(self) -> list[int]:
        """Those that only some cells have."""
        return sorted({seed for cell in self.cells.values() for seed in cell.values} - set(self.seeds))

    @property
    def means(self) -> dict[tuple[float, float], float]:
        """Over `seeds`, of the cells that have them; NaN where a run of any seed diverged: nobody wants such a cell."""
        seeds = self.seeds
        alike = {key: cell for key, cell in self.cells.items() if cell.has_diverged or cell.has(seeds)}
        return {key: math.nan if cell.has_diverged else cell.mean(seeds) for key, cell in alike.items()}

    @property
    def best(self) -> tuple[float, float] | None:
        """The cell with the lowest mean; None if all diverged."""
        finite = {key: mean for key, mean in self.means.items() if not math.isnan(mean)}
        return min(finite, key=finite.__getitem__, default=None)


def make_grids(
    table: Table,
    column: str | None = None,
    *,
    tokens: Sequence[int] = (),
    seed: int | None = None,
    batch_sizes: Sequence[int] = (),
) -> list[Grid]:
    """Grids of a column at these budgets (by default each batch size's largest) and batch sizes (by default all).

    `final_val_loss`, the default where there are decays, is taken at their ends; other columns are read off the
    curves. A run that diverged before the budget counts as diverged there.
    """
    has_decays = any(row.final_val_loss is not None for row in table.decays())
    column = column or (FINAL if has_decays else "val_loss")
    _require_column(table, column)
    _require_known(table, "seed", [] if seed is None else [seed], {run.seed for run in table.runs()})
    _require_known(table, "batch size", batch_sizes, {run.batch_size for run in table.runs()})

    def is_asked_for(reading: _Reading) -> bool:
        run = reading.run
        return (seed is None or run.seed == seed) and (not batch_sizes or run.batch_size in batch_sizes)

    values = _final_losses(table) if column == FINAL else _curve_values(table, column, tokens)
    readings = [reading for reading in values if is_asked_for(reading)]
    diverged = [reading for reading in _divergences(table) if is_asked_for(reading)]
    grids: list[Grid] = []
    for batch_size in sorted({reading.run.batch_size for reading in readings}):
        alike = [reading for reading in readings if reading.run.batch_size == batch_size]
        for budget in tokens or [max(reading.tokens for reading in alike)]:
            grids += _grids_at(column, budget, alike, diverged)
    if not grids:
        raise InputError(_nothing_there(table, column, readings))
    return grids


@dataclass(frozen=True)
class _Reading:
    """A value of one run at one budget; NaN if it diverged, from there on."""

    run: RunRecord
    tokens: int
    switches: str
    decay: str
    value: float = math.nan

    @property
    def kind(self) -> tuple[str, int, int, str]:
        return self.run.root, self.run.batch_size, self.run.warmup_tokens, self.switches


def _final_losses(table: Table) -> Iterator[_Reading]:
    for row in table.decays():
        if row.final_val_loss is not None or row.status == "diverged":
            value = math.nan if row.final_val_loss is None else row.final_val_loss
            yield _Reading(table.contents.runs[row.run], row.tokens, *_path(table.recipe(row.decay)), value)


def _curve_values(table: Table, column: str, tokens: Sequence[int]) -> Iterator[_Reading]:
    finished = [run for run in table.runs() if run.status == "finished"]
    for run in finished:
        at, values = table.trajectory(run.run).measured(column)
        for budget in tokens or (_common_budget(finished, run.batch_size),):
            if len(at) and at[0] <= budget <= run.tokens:
                value = float(values[-1]) if budget > at[-1] else table.value(run.run, column, budget)
                yield _Reading(run, budget, *_path(table.recipe(run.run)), value)


def _common_budget(runs: Sequence[RunRecord], batch_size: int) -> int:
    """The largest one that at least half of the runs with this batch size reach."""
    ends = sorted((run.tokens for run in runs if run.batch_size == batch_size), reverse=True)
    return ends[(len(ends) - 1) // 2]


def _divergences(table: Table) -> Iterator[_Reading]:
    for run in table.runs():
        if run.diverged_at_tokens is not None:
            yield _Reading(run, run.diverged_at_tokens, *_path(table.recipe(run.run)))


def _grids_at(column: str, budget: int, readings: Sequence[_Reading], diverged: Sequence[_Reading]) -> Iterator[Grid]:
    here = [reading for reading in readings if reading.tokens == budget]
    for kind, decay in sorted({(reading.kind, reading.decay) for reading in here}):
        members = [reading for reading in here if (reading.kind, reading.decay) == (kind, decay)]
        # A run that diverged before its decay does not tell which decay it was meant for: it stands for all.
        members += [reading for reading in diverged if reading.kind == kind and reading.tokens <= budget]
        root, batch_size, _, switches = kind
        path = ", ".join(word for word in (switches, decay) if word)
        yield Grid(column, budget, batch_size, root, path, _cells(members))


def _cells(readings: Iterable[_Reading]) -> dict[tuple[float, float], Cell]:
    values: dict[tuple[float, float], dict[int, float]] = {}
    for reading in readings:
        key = (reading.run.learning_rate, reading.run.weight_decay)
        values.setdefault(key, {}).setdefault(reading.run.seed, reading.value)
    return {key: Cell(by_seed) for key, by_seed in sorted(values.items())}


def _path(recipe: Recipe) -> tuple[str, str]:
    """What a run does beside its main phase and warm-up: ("batch 4 until 1.28M", "decay of 128K")."""
    falling, ramp = falling_tokens(recipe), recipe.phases[-1].learning_rate
    shape = f" ({ramp.shape})" if isinstance(ramp, Ramp) and ramp.shape != "linear" else ""
    return describe_history(recipe), f"decay of {format_tokens(falling)}{shape}" if falling else ""


def _require_column(table: Table, column: str) -> None:
    names = {FINAL} | {name for curve in table.contents.curves.values() for name in curve} - {"tokens"}
    if column not in names:
        raise InputError(f"{table.folder} has no column {column!r}: choose one of {', '.join(sorted(names))}")


def _require_known(table: Table, what: str, asked: Sequence[int], known: set[int]) -> None:
    for value in asked:
        if value not in known:
            listed = ", ".join(map(str, sorted(known)))
            raise InputError(f"{table.folder} has no run of {what} {value}: choose among {listed}")


def _nothing_there(table: Table, column: str, readings: Sequence[_Reading]) -> str:
    budgets = sorted({reading.tokens for reading in readings})
    if budgets and column == FINAL:
        listed = ", ".join(format_tokens(budget) for budget in budgets)
        return f"{table.folder} has no decay that ends there: choose --tokens among {listed}"
    return f"{table.folder} has no {column} for these runs: ask for fewer tokens, or another seed or batch size"
