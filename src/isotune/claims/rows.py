"""Rows of tables by the names of claims.toml: `small_late` is a part of the grid of batch 4 in tables/nano.

Some tables of claims.toml share a folder. `nano-small`, `nano-large`, `nano-type1`, `nano-type2` and
`nano-square-root` are told apart by batch size and switch, `nano-perturbed`, `nano-beta2-...` and `nano-init-...` by
their setup; of the variants, `nano-late` has the usual one. Diverged runs are left out and counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from isotune.analyze.curves import ADAM_BETA2, memory_times
from isotune.claims.rules import Rules
from isotune.errors import InputError
from isotune.recipe import Recipe, canonical
from isotune.runs import Trajectory
from isotune.runs.tables import DecayRecord, RunRecord, Table, read_table

SMALL_BATCH, LARGE_BATCH, LARGEST_BATCH = 4, 64, 256
TYPE_1_SWITCH_TOKENS, TYPE_2_SWITCH_TOKENS = 262_144, 1_048_576  # [windows.after_switch]
USUAL_BETA2 = ADAM_BETA2
INIT_CENTRE = (-10.0, -3.0)  # log2 LR and log2 WD that scaled inits are counterparts of ([rows.init])
# Where the note of a set asks for fewer cells than the grid has.
ENOUGH_CELLS = {"large_above_3": 12, "type1_below_1": 9}
# Sets without a place in the file: all cells of the table that have these seeds.
EXTRA_ROWS: dict[str, dict[str, Any]] = {
    "small32_seeds": {"table": "small32", "cells": 4, "seeds": [0, 1, 2, 3], "parts": ["trunk", "decay"]},
    "small32_large_seeds": {"table": "small32-large", "cells": 6, "seeds": [0, 1, 2, 3], "parts": ["trunk", "decay"]},
}
SWEEPS = {
    "nano-small": "nano-small",
    "nano-large": "nano-large",
    "nano-type1": "nano-switch",
    "nano-type2": "nano-switch",
    "nano-square-root": "nano-switch",
    "nano-batch-256": "nano-batch-256",
    "nano-late": "nano-late",
    "nano-perturbed": "nano-perturbed",
    "nano-beta2-0.9": "nano-beta2-0.9",
    "nano-beta2-0.99": "nano-beta2-0.99",
    "nano-init-<s>": "nano-init-0.25, nano-init-0.5, nano-init-2 and nano-init-4",
    "small32": "small32-small",
    "small32-large": "small32-large",
    "small32-perturbed": "small32-perturbed",
}
SEED_SWEEPS = {
    "nano-small": "nano-seeds",
    "nano-large": "nano-large-seeds",
    "small32": "small32-seeds",
    "small32-large": "small32-large-seeds",
}


class RowsMissing(Exception):
    """Rows that a judge needs are not in the tables; the message names them and the sweep that would make them."""


@dataclass(frozen=True)
class Run:
    """A trunk with its decays by budget, at its place in the grid; a square-root run at its place before the switch."""

    record: RunRecord
    log2_lr: float
    log2_wd: float
    table: Table = field(repr=False, compare=False)
    decays: dict[int, DecayRecord] = field(repr=False, compare=False)

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def cell(self) -> tuple[float, float]:
        return self.log2_lr, self.log2_wd

    @property
    def log2_elr(self) -> float:
        return self.log2_lr + self.log2_wd

    @property
    def trajectory(self) -> Trajectory:
        return self.table.trajectory(self.record.run)

    def final_val_loss(self, budget: int) -> float:
        """NaN where the decay diverged."""
        loss = self.decay(budget).final_val_loss
        return math.nan if loss is None else loss

    def decay(self, budget: int) -> DecayRecord:
        if budget not in self.decays:
            raise RowsMissing(f"the decay at {budget:,} tokens of LR 2^{self.log2_lr:g}, WD 2^{self.log2_wd:g}")
        return self.decays[budget]


@dataclass(frozen=True)
class RowSet:
    """The finished runs of a set, in the order of LR, WD and seed."""

    name: str
    table: str
    runs: tuple[Run, ...]
    num_diverged: int
    num_wanted: int  # cells times seeds
    sweep: str

    @property
    def log2_lr(self) -> np.ndarray:
        return np.array([run.log2_lr for run in self.runs])

    @property
    def log2_wd(self) -> np.ndarray:
        return np.array([run.log2_wd for run in self.runs])

    @property
    def log2_elr(self) -> np.ndarray:
        return np.array([run.log2_elr for run in self.runs])

    @property
    def seeds(self) -> np.ndarray:
        return np.array([run.seed for run in self.runs])

    @property
    def num_cells(self) -> int:
        return len({run.cell for run in self.runs})

    @property
    def trajectories(self) -> list[Trajectory]:
        return [run.trajectory for run in self.runs]

    @property
    def missing(self) -> str:
        """What is not there, in words; nothing if all is."""
        num_there = len(self.runs) + self.num_diverged
        if num_there >= self.num_wanted:
            return ""
        how_many = f"{num_there} of {self.num_wanted} runs" if num_there else "none"
        return f"{self.name} ({how_many}; sweep {self.sweep})"

    def where(self, keep: Callable[[Run], bool]) -> RowSet:
        """The same set with fewer runs."""
        return replace(self, runs=tuple(run for run in self.runs if keep(run)))

    def by_place(self) -> dict[tuple[float, float, int], Run]:
        """(log2 LR, log2 WD, seed) -> run."""
        return {(run.log2_lr, run.log2_wd, run.seed): run for run in self.runs}

    def final_val_losses(self, budget: int) -> np.ndarray:
        """The loss on 4,096 windows at the decays' ends, a value per run; NaN where a decay diverged."""
        return np.array([run.final_val_loss(budget) for run in self.runs])


class Tables:
    """The folder `tables/`, read when something of it is asked for."""

    def __init__(self, folder: str | Path, rules: Rules) -> None:
        self.folder, self.rules = Path(folder), rules
        if not self.folder.is_dir():
            raise InputError(f"{folder} is no folder: give the repository's tables/ with --tables")
        self._read: dict[str, Table | None] = {}
        self._runs: dict[str, list[Run]] = {}
        self._sets: dict[tuple[str, str | None], RowSet] = {}

    def rows(self, name: str, table: str | None = None) -> RowSet:
        """The set of this name in claims.toml; of several tables, `table` names one."""
        key = (name, table)
        if key not in self._sets:
            self._sets[key] = self._selected(name, table)
        return self._sets[key]

    def finished(self, table: str) -> list[Run]:
        """All finished runs of a table of claims.toml."""
        return [run for run in self._all_runs(table) if run.record.status == "finished"]

    def describe(self) -> dict[str, str]:
        """The folders that were read, and how complete they are."""
        found = {}
        for name, table in self._read.items():
            if table is not None:
                whole = {True: "whole", False: "in part", None: "without a plan"}[table.is_complete]
                found[name] = f"{len(table.runs())} trunks, {len(table.decays())} decays, {whole}"
        return found

    def _selected(self, name: str, table: str | None) -> RowSet:
        wanted = EXTRA_ROWS.get(name) or self.rules.rows.get(name)
        if wanted is None:
            raise InputError(f"{self.rules.path} has no rows {name!r}: use {', '.join(self.rules.rows)}")
        names = [each.strip() for each in wanted["table"].split(",")]
        if table is not None:
            names = [table]
        runs = [run for each in names for run in self._all_runs(each)]
        runs = [run for run in runs if _is_inside(run, wanted) and run.seed in wanted["seeds"]]
        if len(wanted["seeds"]) > 1 and "learning_rate" not in wanted:
            runs = _with_all_seeds(runs, wanted["seeds"])
        runs.sort(key=lambda run: (run.log2_lr, run.log2_wd, run.seed))
        finished = tuple(run for run in runs if run.record.status == "finished")
        diverged = sum(run.record.status == "diverged" for run in runs)
        cells = ENOUGH_CELLS.get(name, wanted["cells"])
        num_wanted = cells * len(wanted["seeds"]) * len(names)
        return RowSet(name, ", ".join(names), finished, diverged, num_wanted, _sweep(names, wanted))

    def _all_runs(self, table: str) -> list[Run]:
        """All trunks of a table of claims.toml, diverged ones too."""
        if table not in self._runs:
            self._runs[table] = list(self._runs_of(table))
        return self._runs[table]

    def _runs_of(self, table: str) -> Iterable[Run]:
        source = self._open(_folder_of(table))
        if source is None:
            return
        decays: dict[str, dict[int, DecayRecord]] = {}
        for decay in source.decays():
            if decay.status in ("finished", "diverged"):
                decays.setdefault(decay.run, {})[decay.tokens] = decay
        for record in source.runs():
            recipe = source.recipe(record.run)
            if record.kind == "trunk" and _is_of(table, record, recipe):
                lr, wd = _place(recipe)
                place = round(math.log2(lr), 6), round(math.log2(wd), 6)
                yield Run(record, *place, source, decays.get(record.run, {}))

    def _open(self, name: str) -> Table | None:
        if name not in self._read:
            folder = self.folder / name
            self._read[name] = read_table(folder) if (folder / "manifest.json").exists() else None
        return self._read[name]


@dataclass(frozen=True)
class Rows:
    """What a judge sees: sets and windows by name. In a replication each name stands for its counterpart there.

    `part` is the set (or table) that is judged, where the parts of a claim are judged apart.
    """

    tables: Tables
    part: str | None = None
    replication: tuple[str, ...] = ()  # the sets of small32 that take the place of nano's

    @property
    def is_replication(self) -> bool:
        return bool(self.replication)

    def __getitem__(self, name: str) -> RowSet:
        """The set's runs; RowsMissing if there are none."""
        rows = self.find(name)
        if not rows.runs:
            raise RowsMissing(rows.missing or f"{name} (no run is left)")
        return rows

    def find(self, name: str) -> RowSet:
        """The set, empty if nothing of it is there."""
        if not self.is_replication:
            table = self.part if name not in (self.part, None) and self._part_is_table(name) else None
            return self.tables.rows(name, table)
        counterpart = self._counterpart(name)
        if counterpart is None:
            raise RowsMissing(f"{name} has no counterpart in {', '.join(self.replication)}")
        rows = self.tables.rows(counterpart)
        return self._split_by_memory(name, rows)

    def has(self, name: str) -> bool:
        """Whether any run of the set is there."""
        try:
            return bool(self.find(name).runs)
        except RowsMissing:
            return False

    def missing(self, names: Sequence[str]) -> list[str]:
        """What is not there of these sets, in words."""
        return [words for name in names if (words := self.find(name).missing)]

    def window(self, name: str, key: str = "tokens") -> tuple[float, float]:
        """(start, end) of a window in tokens."""
        start, end = self._window_values(name, key)
        return float(start), float(end)

    def edges(self, name: str = "octaves") -> list[float]:
        return [float(edge) for edge in self._window_values(name, "edges")]

    def windows_between(self, name: str = "octaves") -> list[tuple[float, float]]:
        """Neighbouring edges as windows."""
        return list(itertools.pairwise(self.edges(name)))

    def budgets(self, name: str = "budgets", rows: RowSet | None = None, min_budget: float = 0) -> list[int]:
        """The budgets of a window; in a replication those of its rows at the same places in the order."""
        planned = [int(budget) for budget in self.tables.rules.windows[name]["budgets"]]
        kept = [budget for budget in planned if budget >= min_budget]
        if not self.is_replication:
            return kept
        if rows is None:
            raise RowsMissing("a replication takes its budgets from rows: none were given")
        there = sorted({budget for run in rows.runs for budget in run.decays})
        return there[-len(kept) :]

    def _window_values(self, name: str, key: str) -> list[float]:
        window = self.tables.rules.windows[name]
        if self.is_replication:
            key = f"small32_{key}"
            if key not in window:
                raise RowsMissing(f"window {name} has no {key}")
        return list(window[key])

    def _part_is_table(self, name: str) -> bool:
        tables = self.tables.rules.rows.get(name, {}).get("table", "")
        return self.part in [each.strip() for each in tables.split(",")] and "," in tables

    def _counterpart(self, name: str) -> str | None:
        if name.endswith("_seeds"):
            return "small32_large_seeds" if name.startswith("large") else "small32_seeds"
        for begin, ours in (
            # small32_large: for a claim that is judged at both batches
            ("small_", ("small32_late", "small32_all", "small32_surface", "small32_large")),
            ("large_", ("small32_large",)),
        ):
            if name.startswith(begin):
                return next((each for each in ours if each in self.replication), None)
        if name == "perturbed_late":
            return "small32_perturbed"
        return None

    def _split_by_memory(self, name: str, rows: RowSet) -> RowSet:
        """Sets that are cut in n are cut at the same n: all of window late below 1, or above 3; early below max_n."""

        def n_at(run: Run, tokens: float) -> float:
            trajectory = run.trajectory
            return float(np.interp(tokens, trajectory.tokens, memory_times(trajectory)))

        if name in ("large_below_1", "large_above_3"):
            start, end = self.window("late")
            if name == "large_below_1":
                return rows.where(lambda run: n_at(run, end) < 1)
            return rows.where(lambda run: n_at(run, start) > 3)
        if name == "small_early":
            end, most = self.window("early")[1], self.tables.rules.windows["early"]["max_n"]
            return rows.where(lambda run: n_at(run, end) < most)
        return rows


def _folder_of(table: str) -> str:
    if table in ("small32", "small32-large"):
        return "small32"
    if table.startswith("small32-"):
        return "small32-variants"
    is_variant = table.startswith(("nano-late", "nano-perturbed", "nano-beta2", "nano-init", "nano-normalised"))
    return "nano-variants" if is_variant else "nano"


def _is_of(table: str, record: RunRecord, recipe: Recipe) -> bool:
    """Whether the run belongs to this table of claims.toml; `nano-ramp` and normalised models are planned nowhere."""
    switch = _switch_kind(recipe)
    usual = record.beta2 == USUAL_BETA2 and record.init_scale == 1 and record.init_perturbation == 0
    if table in ("nano-small", "nano-late", "small32"):  # nano-late in a folder of its own
        return usual and switch == "none" and record.batch_size == SMALL_BATCH
    if table in ("nano-large", "small32-large"):
        return usual and switch == "none" and record.batch_size == LARGE_BATCH
    if table == "nano-batch-256":
        return usual and switch == "none" and record.batch_size == LARGEST_BATCH
    if table in ("nano-type1", "nano-type2", "nano-square-root"):
        return usual and switch == table.removeprefix("nano-")
    if switch != "none" or record.batch_size != SMALL_BATCH:
        return False
    if table in ("nano-perturbed", "small32-perturbed"):
        return record.init_perturbation > 0
    if table.startswith("nano-beta2-"):
        return record.beta2 == float(table.removeprefix("nano-beta2-"))
    if table == "nano-init-<s>":
        octaves = math.log2(record.init_scale)
        lr, wd = math.log2(record.learning_rate), math.log2(record.weight_decay)
        at = INIT_CENTRE[0] + octaves, INIT_CENTRE[1] - octaves
        return octaves != 0 and math.isclose(lr, at[0]) and math.isclose(wd, at[1])
    return False


def _switch_kind(recipe: Recipe) -> str:
    """none, type1, type2, square-root or another. The switch's place tells type 1, where any LR and WD may follow."""
    phases = canonical(recipe.phases)
    constant = [phase for phase in phases if phase.is_constant]
    if len(constant) == 1:
        return "none"
    if len(constant) != 2 or constant[0].batch_size == constant[1].batch_size:
        return "another"
    before, main = constant
    position = sum(phase.tokens for phase in phases[: phases.index(main)])
    if position == TYPE_1_SWITCH_TOKENS:
        return "type1"
    if position != TYPE_2_SWITCH_TOKENS or main.weight_decay != before.weight_decay:
        return "another"
    ratio = main.peak_learning_rate / before.peak_learning_rate
    if ratio == 1:
        return "type2"
    return "square-root" if math.isclose(ratio, math.sqrt(main.batch_size / before.batch_size)) else "another"


def _place(recipe: Recipe) -> tuple[float, float]:
    """(LR, WD); before the switch where the square-root rule changes LR."""
    if _switch_kind(recipe) == "square-root":
        first = next(phase for phase in recipe.phases if phase.is_constant)
        return first.peak_learning_rate, first.weight_decay
    return recipe.learning_rate, recipe.weight_decay


def _is_inside(run: Run, wanted: dict[str, Any]) -> bool:
    places = {
        "learning_rate": run.log2_lr,
        "weight_decay": run.log2_wd,
        "effective_learning_rate": run.log2_elr,
    }
    return all(
        wanted[key][0] - 1e-3 <= place <= wanted[key][1] + 1e-3 for key, place in places.items() if key in wanted
    )


def _with_all_seeds(runs: list[Run], seeds: list[int]) -> list[Run]:
    """The runs of cells that have all the seeds."""
    by_cell: dict[tuple[float, float], set[int]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, set()).add(run.seed)
    return [run for run in runs if by_cell[run.cell] >= set(seeds)]


def _sweep(tables: list[str], wanted: dict[str, Any]) -> str:
    if "sweep" in wanted:
        return str(wanted["sweep"])
    seeded = len(wanted["seeds"]) > 1
    if not wanted.get("planned", True) and not all(table in SWEEPS for table in tables):
        return f"none planned; {wanted.get('note', 'see claims.toml')}"
    return " and ".join(
        dict.fromkeys(SEED_SWEEPS.get(table, SWEEPS.get(table, table)) if seeded else SWEEPS[table] for table in tables)
    )
