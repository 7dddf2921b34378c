"""A table in memory: loaded once, then everything is a lookup."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.recipe import Recipe
from isotune.runs.study import settings_columns
from isotune.runs.tables.contents import (
    Contents,
    DecayRecord,
    Record,
    RunRecord,
    fingerprint_of,
    read_recipe_text,
    root_id,
)
from isotune.runs.tables.coverage import Coverage
from isotune.runs.tables.folder import read_contents
from isotune.runs.trajectory import Trajectory
from isotune.runs.words import run_info


def read_table(folder: str | Path) -> Table:
    """The table in this folder."""
    manifest, contents = read_contents(Path(folder))
    return Table(Path(folder), manifest, contents)


@dataclass(frozen=True)
class Table:
    """Runs, decays and curves by their ids; what is asked for twice is made once."""

    folder: Path
    manifest: dict[str, Any] = field(repr=False)
    contents: Contents = field(repr=False)
    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.contents.name

    @property
    def is_complete(self) -> bool | None:
        """Whether all that was planned is there; None if the table knows of no plan."""
        complete = self.manifest["complete"]
        return None if complete is None else bool(complete)

    def runs(self) -> list[RunRecord]:
        """The trunks and whole runs."""
        return list(self.contents.runs.values())

    def decays(self, run: str | None = None) -> list[DecayRecord]:
        """The decays of a run, or of all runs, early ones first."""
        if run is not None and run not in self.contents.runs:
            raise self._unknown(run)
        if "decays" not in self._made:
            by_run: dict[str | None, list[DecayRecord]] = {None: []}
            for row in sorted(self.contents.decays.values(), key=lambda row: (row.branch_tokens, row.tokens)):
                by_run[None].append(row)
                by_run.setdefault(row.run, []).append(row)
            self._made["decays"] = by_run
        return list(self._made["decays"].get(run, []))

    def recipe(self, name: str) -> Recipe:
        """The recipe of a run or decay."""
        key = ("recipe", name)
        if key not in self._made:
            self._made[key] = read_recipe_text(self._record(name))
        recipe: Recipe = self._made[key]
        return recipe

    def trajectory(self, name: str) -> Trajectory:
        """What was measured along a run or decay, from the very beginning; `train_loss` and the like are means."""
        key = ("trajectory", name)
        if key not in self._made:
            self._made[key] = self._trajectory(name)
        trajectory: Trajectory = self._made[key]
        return trajectory

    def value(self, name: str, column: str, tokens: float) -> float:
        """A column of a run or decay at a position, between measured points on a line; NaN outside of them."""
        key = ("points", name, column)
        points = self._made.get(key)
        if points is None:
            points = self._made[key] = self._points(name, column)
        at, values = points
        index = bisect_left(at, tokens)
        if index == len(at):
            return math.nan
        if at[index] == tokens:
            return float(values[index])
        if index == 0:
            return math.nan
        share = (tokens - at[index - 1]) / (at[index] - at[index - 1])
        return float(values[index - 1] + share * (values[index] - values[index - 1]))

    def has(self, recipe: Recipe, corpus_fingerprint: str | None = None) -> bool:
        """Whether the table tells how the recipe ends, so that nobody need train it.

        A recipe shorter than a stored trunk is there; one that ends in a decay needs that decay's row. The corpus is
        known by its fingerprint, or by the name under which the table's runs knew it.
        """
        if "coverage" not in self._made:
            self._made["coverage"] = Coverage.of(self.contents)
        coverage: Coverage = self._made["coverage"]
        return coverage.has(self._root(recipe, corpus_fingerprint), recipe)

    def planned(self) -> list[Recipe]:
        """The recipes that the table is meant to hold; none if it knows of no plan."""
        return list(self.contents.planned_recipes().values())

    def missing(self) -> list[Recipe]:
        """Those of them that it does not tell the end of."""
        missing = set(self.manifest["missing"])
        return [recipe for run, recipe in self.contents.planned_recipes().items() if run in missing]

    def _root(self, recipe: Recipe, fingerprint: str | None) -> str:
        if fingerprint is None:
            remedy = "give its corpus_fingerprint"
            fingerprint = fingerprint_of(recipe.setup, self.contents.roots.values(), remedy)
        return root_id(recipe.setup, fingerprint)

    def _record(self, name: str) -> Record:
        record = self.contents.runs.get(name) or self.contents.decays.get(name)
        if record is None:
            raise self._unknown(name)
        return record

    def _unknown(self, name: str) -> InputError:
        return InputError(f"{self.folder} has no run {name!r}: take one of those that runs() and decays() list")

    def _trajectory(self, name: str) -> Trajectory:
        record, recipe, curve = self._record(name), self.recipe(name), self._curve(name)
        columns = curve | settings_columns(recipe, curve["tokens"])
        for values in columns.values():
            values.flags.writeable = False
        return Trajectory(columns, run_info(recipe, record.status, str(self.folder)))

    def _points(self, name: str, column: str) -> tuple[list[int], list[float]]:
        """Where a column was measured, and what; settings are derived from the recipe, which takes longer."""
        curve = self._curve(name)
        if column in ("step", "learning_rate", "weight_decay", "batch_size"):
            curve = self.trajectory(name).columns
        values = curve.get(column, np.full(len(curve["tokens"]), np.nan))
        there = ~np.isnan(values)
        return curve["tokens"][there].tolist(), values[there].tolist()

    def _curve(self, name: str) -> dict[str, np.ndarray]:
        """The measured columns from the very beginning, a decay's behind its trunk's."""
        key = ("curve", name)
        if key not in self._made:
            record = self._record(name)
            curve = {column: _widened(values) for column, values in self.contents.curves[name].items()}
            if isinstance(record, DecayRecord):
                curve = _behind(self._curve(record.run), record.branch_tokens, curve)
            self._made[key] = curve
        made: dict[str, np.ndarray] = self._made[key]
        return made


def _widened(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64 if values.dtype == np.int64 else np.float64)


def _behind(trunk: dict[str, np.ndarray], branch_tokens: int, curve: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A decay's curve with the part of the trunk that it continues."""
    if "core_seconds" in curve and "core_seconds" in trunk:
        spent = np.interp(branch_tokens, [0, *trunk["tokens"]], [0.0, *trunk["core_seconds"]])
        curve["core_seconds"] = curve["core_seconds"] + spent
    before = trunk["tokens"] <= branch_tokens
    joined = {}
    for name in dict.fromkeys((*trunk, *curve)):
        first = trunk.get(name, np.full(len(before), np.nan))[before]
        joined[name] = np.concatenate((first, curve.get(name, np.full(len(curve["tokens"]), np.nan))))
    return joined
