"""What a table holds, in memory: records of runs and decays, their curves, and what they were made with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from isotune.errors import InputError
from isotune.recipe import Ramp, Recipe, Setup, digest, falling_tokens, recipe_from_table, recipe_to_table
from isotune.runs.tables.prefixes import own_tokens, plain, trunk_of, warmup_tokens
from isotune.runs.trajectory import Status, WeightDecayConvention
from isotune.runs.words import describe_phases

Curve = dict[str, np.ndarray]  # `tokens` as int64, all else as float32 with NaN where nothing was measured
Kind = Literal["trunk", "whole"]

# Losses of windows are kept as multiples of this: three fifths of the size, and an error of .00007 in one window, of
# .000001 in a mean over 4,096.
WINDOW_LOSS_QUANTUM = 2.0**-12


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Which root, evaluation plan, numerics and code a row comes from; ids refer to the manifest."""

    root: str
    evaluation: str
    numerics: tuple[str, ...]  # more than one where a study mixed them
    commit: str
    commit_is_dirty: bool


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A row of runs.parquet: a trunk, or a run without any constant phase (`whole`)."""

    run: str  # the address of its last state
    kind: Kind
    root: str
    seed: int
    learning_rate: float
    weight_decay: float
    effective_learning_rate: float
    weight_decay_convention: WeightDecayConvention
    batch_size: int
    sequence_length: int
    tokens: int
    warmup_tokens: int
    memory_times: float
    schedule: str
    status: Status
    diverged_at_tokens: int | None
    tokens_trained: int  # its own share: what it has in common with another row is counted there
    core_seconds: float | None  # of that share
    num_parameters: int
    precision: str
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float
    init_std: float
    init_scale: float
    init_perturbation: float
    evaluation: str
    numerics: tuple[str, ...]
    commit: str
    commit_is_dirty: bool
    recipe: str  # as JSON

    @property
    def end_tokens(self) -> int:
        """How far it was trained."""
        return self.tokens if self.diverged_at_tokens is None else self.diverged_at_tokens


@dataclass(frozen=True, kw_only=True)
class DecayRecord:
    """A row of decays.parquet: the end of a run whose learning rate falls, from where it leaves its trunk."""

    decay: str  # the address of its last state; for a whole run, the run's
    run: str
    root: str
    seed: int
    learning_rate: float
    weight_decay: float
    batch_size: int
    branch_tokens: int
    decay_tokens: int
    tokens: int
    shape: str
    end_learning_rate: float
    status: Status
    diverged_at_tokens: int | None
    val_loss: float | None
    final_val_loss: float | None
    standard_error: float | None  # of final_val_loss, over windows
    window_losses: np.ndarray | None = field(compare=False)
    tokens_trained: int  # 0 for a whole run, whose row in runs.parquet has them
    core_seconds: float | None
    evaluation: str
    numerics: tuple[str, ...]
    commit: str
    commit_is_dirty: bool
    recipe: str

    @property
    def end_tokens(self) -> int:
        return self.tokens if self.diverged_at_tokens is None else self.diverged_at_tokens


Record = RunRecord | DecayRecord


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A whole table. Curves are kept by the id of their run or decay; a decay's begins behind its branch."""

    name: str
    description: str
    roots: dict[str, dict[str, Any]]  # id -> root, setup (both without a seed) and the corpus' name
    evaluations: dict[str, dict[str, Any]]
    numerics: dict[str, dict[str, Any]]
    planned: dict[str, dict[str, Any]] | None  # id -> root, seed, max_epochs, phases
    runs: dict[str, RunRecord]
    decays: dict[str, DecayRecord]
    curves: dict[str, Curve]

    def records(self) -> list[Record]:
        """The rows of runs and decays."""
        return [*self.runs.values(), *self.decays.values()]

    def fingerprint(self, root: str) -> str:
        return str(self.roots[root]["root"]["corpus"])

    def planned_recipes(self) -> dict[str, Recipe]:
        """The recipes of the plan, by the address of their last state."""
        return {run: self._planned_recipe(entry) for run, entry in (self.planned or {}).items()}

    def _planned_recipe(self, entry: Mapping[str, Any]) -> Recipe:
        setup = self.roots[entry["root"]]["setup"]
        changes = {"seed": entry["seed"], "max_epochs": entry["max_epochs"], "phases": json.loads(entry["phases"])}
        return recipe_from_table(setup | changes, "the plan of the table")


# Records


def run_record(
    recipe: Recipe, fingerprint: str, status: Status, diverged_at_tokens: int | None, provenance: Provenance
) -> RunRecord:
    """The row of a run, not yet priced."""
    setup = recipe.setup
    return RunRecord(
        run=recipe.state_id(fingerprint, recipe.tokens),
        kind="trunk" if trunk_of(recipe) is not None else "whole",
        seed=setup.seed,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        effective_learning_rate=recipe.effective_learning_rate,
        weight_decay_convention="coupled",
        batch_size=recipe.batch_size,
        sequence_length=setup.sequence_length,
        tokens=recipe.tokens,
        warmup_tokens=warmup_tokens(recipe),
        memory_times=recipe.memory_times,
        schedule=describe_phases(recipe.phases),
        status=status,
        diverged_at_tokens=diverged_at_tokens,
        tokens_trained=0,
        core_seconds=None,
        num_parameters=setup.model.num_parameters,
        precision=setup.precision,
        beta1=setup.optimizer.beta1,
        beta2=setup.optimizer.beta2,
        epsilon=setup.optimizer.epsilon,
        clip_norm=setup.optimizer.clip_norm,
        init_std=setup.init.std,
        init_scale=setup.init.scale,
        init_perturbation=setup.init.perturbation,
        recipe=recipe_text(recipe),
        **vars(provenance),
    )


def decay_record(
    recipe: Recipe,
    run: str,
    fingerprint: str,
    status: Status,
    diverged_at_tokens: int | None,
    measured: Mapping[str, Any],
    provenance: Provenance,
) -> DecayRecord:
    """The row of a decay, not yet priced; `measured` holds its losses."""
    ramp, falling = recipe.phases[-1].learning_rate, falling_tokens(recipe)
    assert isinstance(ramp, Ramp)
    return DecayRecord(
        decay=recipe.state_id(fingerprint, recipe.tokens),
        run=run,
        seed=recipe.setup.seed,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        batch_size=recipe.batch_size,
        branch_tokens=recipe.tokens - falling,
        decay_tokens=falling,
        tokens=recipe.tokens,
        shape=ramp.shape,
        end_learning_rate=ramp.end,
        status=status,
        diverged_at_tokens=diverged_at_tokens,
        tokens_trained=0,
        core_seconds=None,
        recipe=recipe_text(recipe),
        **measured,
        **vars(provenance),
    )


def recipe_text(recipe: Recipe) -> str:
    return json.dumps(recipe_to_table(plain(recipe)), separators=(",", ":"))


def read_recipe_text(record: Record) -> Recipe:
    """The recipe of a row, exactly."""
    name = record.run if isinstance(record, RunRecord) else record.decay
    return recipe_from_table(json.loads(record.recipe), f"the recipe of {name}")


# Identities


def root_entry(recipe: Recipe, fingerprint: str, corpus_name: str) -> dict[str, Any]:
    """What the manifest says of a root."""
    root = {name: value for name, value in recipe.setup.root(fingerprint).items() if name != "seed"}
    setup = {name: value for name, value in recipe_to_table(recipe).items() if name not in ("seed", "phases")}
    return {"root": root, "setup": setup, "corpus": corpus_name}


def root_id(setup: Setup, fingerprint: str) -> str:
    return digest({name: value for name, value in setup.root(fingerprint).items() if name != "seed"})


def fingerprint_of(setup: Setup, roots: Iterable[Mapping[str, Any]], remedy: str) -> str:
    """The corpus of a recipe, which only names it: the one that goes by this name in the table."""
    found = {entry["root"]["corpus"] for entry in roots if entry["setup"]["corpus"] == setup.corpus}
    if len(found) != 1:
        problem = "no corpus" if not found else f"{len(found)} corpora"
        raise InputError(f"the table knows {problem} by the name {setup.corpus!r}: {remedy}")
    return str(found.pop())


# Costs


def priced(contents: Contents) -> Contents:
    """The same table with every row's own tokens and core-seconds: what rows share is paid by the first of them."""
    runs, decays = {}, {}
    for root in sorted({row.root for row in contents.records()}):
        run_rows = sorted((row for row in contents.runs.values() if row.root == root), key=_run_order)
        decay_rows = sorted((row for row in contents.decays.values() if row.root == root), key=_decay_order)
        rows: list[Record] = [*run_rows, *decay_rows]
        shares = own_tokens((read_recipe_text(row), row.end_tokens) for row in rows)
        for row, tokens in zip(rows, shares, strict=True):
            if isinstance(row, RunRecord):
                seconds = _core_seconds(contents.curves[row.run], 0, row.end_tokens, tokens)
                runs[row.run] = dataclasses.replace(row, tokens_trained=tokens, core_seconds=seconds)
            else:
                seconds = _core_seconds(contents.curves[row.decay], row.branch_tokens, row.end_tokens, tokens)
                decays[row.decay] = dataclasses.replace(row, tokens_trained=tokens, core_seconds=seconds)
    return dataclasses.replace(contents, runs=runs, decays=decays)


def unique_tokens(recipes: Sequence[Recipe], roots: Sequence[str]) -> int:
    """The size of the recipes' prefix tree: what training them all costs."""
    total = 0
    for root in set(roots):
        total += sum(own_tokens([(r, r.tokens) for r, of in zip(recipes, roots, strict=True) if of == root]))
    return total


def _run_order(row: RunRecord) -> tuple[object, ...]:
    """Simple runs first: a batch switch shares its source's beginning, not the other way round."""
    num_phases = len(json.loads(row.recipe)["phases"])
    return num_phases, row.learning_rate, row.weight_decay, row.batch_size, row.tokens, row.run


def _decay_order(row: DecayRecord) -> tuple[object, ...]:
    return row.branch_tokens, row.decay_tokens, row.decay


def _core_seconds(curve: Curve, start_tokens: int, end_tokens: int, own: int) -> float | None:
    """Core-seconds of the last `own` tokens before the end; None if nobody noted the time."""
    if own == 0:
        return 0.0
    seconds = curve.get("core_seconds")
    if seconds is None or not len(seconds) or np.isnan(seconds[-1]):
        return None
    at, values = [start_tokens, *curve["tokens"].tolist()], [0.0, *seconds.tolist()]
    return float(np.interp(end_tokens, at, values) - np.interp(end_tokens - own, at, values))
