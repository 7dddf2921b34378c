"""A family of a table as arrays: what every question about it would be answered, and what it costs to ask.

A cell is a pair (LR, WD). A family has the trunks of one setup, batch size and warm-up, and their decays at the table's
budgets. A cell is there if its trunk and all decays of seed 0 are, or if it diverged.

Noise of seeds, as `seed_bootstrap` of experiments/claims.toml: for the m cells that have all of S seeds,

    r = loss - cell mean - seed mean + grand mean,   times sqrt(m S / ((m - 1)(S - 1)))

which leaves out what a seed does to all cells alike. A table without seeds knows of no noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from truth import smooth_truth

from isotune.errors import InputError
from isotune.runs import RunInfo, Trajectory
from isotune.runs.tables.contents import DecayRecord, RunRecord
from isotune.runs.tables.reader import Table
from isotune.runs.words import describe_history


@dataclass(frozen=True)
class Landscape:
    """Cells x budgets of losses, with the curves of the trunks. NaN: diverged."""

    table: str
    family: str
    log2_lr: np.ndarray
    log2_wd: np.ndarray
    budgets: tuple[int, ...]  # ascending
    branches: tuple[int, ...]  # where the decay to each budget leaves the trunk
    losses: np.ndarray = field(repr=False)  # of seed 0
    means: np.ndarray = field(repr=False)  # over seeds, each less what it does to all cells
    num_seeds: np.ndarray = field(repr=False)
    residuals: np.ndarray = field(repr=False)  # rows over budgets; none where no cell has more seeds
    trunk_ends: np.ndarray = field(repr=False)  # how far each trunk was trained
    has_diverged: np.ndarray = field(repr=False)  # whether the trunk ended there for that reason
    decay_ends: np.ndarray = field(repr=False)  # the budget, or where the decay diverged before it
    curves: tuple[Trajectory, ...] = field(repr=False)
    tokens_per_step: int = 1
    warmup_tokens: int = 0
    _truths: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_losses(
        cls,
        log2_lr: ArrayLike,
        log2_wd: ArrayLike,
        budgets: Sequence[int],
        losses: ArrayLike,
        decay_tokens: int,
        *,
        curve: Callable[[int, np.ndarray], np.ndarray] | None = None,
        residuals: ArrayLike | None = None,
        tokens_per_step: int = 1,
        name: str = "made",
    ) -> Landscape:
        """One that is made of arrays: losses of cells x budgets, `curve(cell, tokens)` the loss at constant LR.

        Without a curve the trunks have the decayed losses at the budgets. A cell whose losses are NaN from some budget
        on diverged where the decay to that budget branches.
        """
        x, y, values = (np.asarray(column, dtype=float) for column in (log2_lr, log2_wd, losses))
        branches = tuple(budget - decay_tokens for budget in budgets)
        if min(branches) < 0 or values.shape != (len(x), len(budgets)):
            raise InputError(
                f"losses of shape {values.shape} must be cells x budgets, and a decay no longer than these"
            )
        bad = np.isnan(values)
        diverged = bad.any(axis=1)
        ends = np.where(diverged, np.array(branches)[np.argmax(bad, axis=1)], budgets[-1])
        at = np.unique(np.concatenate([np.linspace(0, budgets[-1], 65).astype(int), budgets]))
        curve = curve or (lambda cell, tokens: np.interp(tokens, budgets, values[cell]))
        return cls(
            table=name,
            family=name,
            log2_lr=x,
            log2_wd=y,
            budgets=tuple(budgets),
            branches=branches,
            losses=values,
            means=values,
            num_seeds=np.ones(len(x), dtype=int),
            residuals=np.zeros((0, len(budgets))) if residuals is None else np.asarray(residuals, dtype=float),
            trunk_ends=ends,
            has_diverged=diverged,
            decay_ends=np.broadcast_to(np.array(budgets), values.shape),
            curves=tuple(
                _made_curve(2.0 ** x[i], 2.0 ** y[i], at[at <= ends[i]], curve(i, at[at <= ends[i]]))
                for i in range(len(x))
            ),
            tokens_per_step=tokens_per_step,
        )

    @property
    def num_cells(self) -> int:
        return len(self.log2_lr)

    @cached_property
    def noise_deviations(self) -> np.ndarray:
        """Of one run's loss at each budget; NaN where no cell has more than one seed."""
        if not len(self.residuals):
            return np.full(len(self.budgets), math.nan)
        return np.asarray(np.sqrt(np.mean(self.residuals**2, axis=0)))

    def truth(self, budget: int) -> np.ndarray:
        """The smooth loss of each cell at a budget; infinite where it diverged."""
        if budget not in self._truths:
            column = self.budgets.index(budget)
            errors = self.noise_deviations[column] / np.sqrt(self.num_seeds)
            self._truths[budget] = smooth_truth(self.log2_lr, self.log2_wd, self.means[:, column], errors)
        return self._truths[budget]

    def regrets(self, budget: int) -> np.ndarray:
        """truth / lowest truth - 1, of each cell."""
        truth = self.truth(budget)
        return truth / truth.min() - 1

    def grid_price(self, budget: int) -> int:
        """Tokens of a run to the budget in each cell, with nothing shared."""
        return self.num_cells * budget

    @cached_property
    def fingerprint(self) -> str:
        """Of all that a replay and its score depend on, the curves by their losses."""
        digest = hashlib.sha256(repr((self.table, self.family, self.budgets, self.branches)).encode())
        arrays = [self.log2_lr, self.log2_wd, self.losses, self.means, self.residuals, self.trunk_ends, self.decay_ends]
        arrays += [curve.columns["val_loss"] for curve in self.curves]
        for array in arrays:
            digest.update(np.ascontiguousarray(array, dtype=float).tobytes())
        return digest.hexdigest()[:12]


def table_landscapes(table: Table) -> dict[str, Landscape]:
    """The families of a table that have cells, by name: "batch 4"."""
    members: dict[str, list[RunRecord]] = {}
    roots = dict.fromkeys(run.root for run in table.runs())
    for run in table.runs():
        if run.kind == "trunk" and not run.init_perturbation:
            history = describe_history(table.recipe(run.run))
            name = f"batch {run.batch_size}" + (f" after {history}" if history else "")
            name += f", root {run.root}" if len(roots) > 1 else ""
            members.setdefault(name, []).append(run)
    made = {name: _landscape(table, name, runs) for name, runs in sorted(members.items())}
    return {name: landscape for name, landscape in made.items() if landscape is not None}


def relabelled(landscape: Landscape, order: np.ndarray, family: str) -> Landscape:
    """The same cells, where cell i now holds what cell order[i] held: for negative controls."""
    taken = {
        name: getattr(landscape, name)[order]
        for name in ("losses", "means", "num_seeds", "trunk_ends", "has_diverged", "decay_ends")
    }
    curves = tuple(
        _with_settings(landscape.curves[old], 2.0 ** landscape.log2_lr[new], 2.0 ** landscape.log2_wd[new])
        for new, old in enumerate(order)
    )
    return replace(landscape, family=family, curves=curves, **taken)


# From a table


def _landscape(table: Table, family: str, runs: Sequence[RunRecord]) -> Landscape | None:
    first = {(run.learning_rate, run.weight_decay): run for run in runs if run.seed == 0}
    decays = {run.run: {row.tokens: row for row in table.decays(run.run)} for run in runs}
    lengths = [row.decay_tokens for rows in decays.values() for row in rows.values()]
    if not lengths:
        return None
    length = max(set(lengths), key=lengths.count)
    decays = {run: {d: row for d, row in rows.items() if row.decay_tokens == length} for run, rows in decays.items()}
    budgets = sorted({tokens for run in first.values() for tokens in decays[run.run]})
    cells = [key for key, run in sorted(first.items()) if all(_is_there(run, decays[run.run].get(d)) for d in budgets)]
    if not cells:
        return None
    trunks = [first[cell] for cell in cells]
    by_seed = {
        seed: _losses(cells, [run for run in runs if run.seed == seed], decays, budgets)
        for seed in sorted({run.seed for run in runs})
    }
    residuals, levels = seed_residuals(by_seed)
    aligned = np.array([by_seed[seed] - level for seed, level in levels.items()])
    has_seed = ~np.isnan(aligned).any(axis=2)
    counts = np.maximum(1, has_seed.sum(axis=0))
    means = np.where(has_seed[..., None], aligned, 0.0).sum(axis=0) / counts[:, None]
    # A cell that diverged at some budget keeps what seed 0 has: nobody wants it.
    means = np.where(has_seed.any(axis=0)[:, None], means, by_seed[0])
    return Landscape(
        table=table.name,
        family=family,
        log2_lr=np.log2([lr for lr, _ in cells]),
        log2_wd=np.log2([wd for _, wd in cells]),
        budgets=tuple(budgets),
        branches=tuple(budget - length for budget in budgets),
        losses=by_seed[0],
        means=means,
        num_seeds=counts,
        residuals=residuals,
        trunk_ends=np.array([run.end_tokens for run in trunks]),
        has_diverged=np.array([run.diverged_at_tokens is not None for run in trunks]),
        decay_ends=np.array([[_decay_end(decays[run.run].get(d), d) for d in budgets] for run in trunks]),
        curves=tuple(table.trajectory(run.run) for run in trunks),
        tokens_per_step=trunks[0].batch_size * trunks[0].sequence_length,
        warmup_tokens=trunks[0].warmup_tokens,
    )


def _is_there(run: RunRecord, decay: DecayRecord | None) -> bool:
    """Whether the table knows how this ends; a trunk that diverged has no decays behind."""
    if decay is None:
        return run.diverged_at_tokens is not None
    return decay.status == "diverged" or decay.final_val_loss is not None


def _decay_end(decay: DecayRecord | None, budget: int) -> int:
    return budget if decay is None else decay.end_tokens


def _losses(
    cells: Sequence[tuple[float, float]],
    runs: Sequence[RunRecord],
    decays: dict[str, dict[int, DecayRecord]],
    budgets: Sequence[int],
) -> np.ndarray:
    """Of one seed, cells x budgets; NaN where there is none, or it diverged."""
    found = {(run.learning_rate, run.weight_decay): decays[run.run] for run in runs}
    rows = [[found.get(cell, {}).get(budget) for budget in budgets] for cell in cells]
    values = [
        [math.nan if row is None or row.final_val_loss is None else row.final_val_loss for row in r] for r in rows
    ]
    return np.array(values)


def seed_residuals(by_seed: dict[int, np.ndarray]) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Residual vectors over budgets, and by seed what it adds to all cells at each budget, against seed 0.

    From the block of cells with all of the first so many seeds that has most degrees of freedom.
    """
    seeds = list(by_seed)
    levels = {seeds[0]: np.zeros(by_seed[seeds[0]].shape[1])}
    best, block = 0, None
    for count in range(2, len(seeds) + 1):
        stack = np.array([by_seed[seed] for seed in seeds[:count]])
        stack = stack[:, ~np.isnan(stack).any(axis=(0, 2))]
        freedom = (stack.shape[1] - 1) * (count - 1)
        if freedom > best:
            best, block = freedom, stack
    if block is None:
        return np.zeros((0, len(levels[seeds[0]]))), levels
    num_seeds, num_cells, num_budgets = block.shape
    residuals = block - block.mean(axis=0) - block.mean(axis=1, keepdims=True) + block.mean(axis=(0, 1))
    levels |= {seeds[i]: (block[i] - block[0]).mean(axis=0) for i in range(1, num_seeds)}
    factor = math.sqrt(num_cells * num_seeds / ((num_cells - 1) * (num_seeds - 1)))
    return factor * residuals.reshape(-1, num_budgets), levels


# Curves


def _made_curve(lr: float, wd: float, tokens: np.ndarray, losses: np.ndarray) -> Trajectory:
    info = RunInfo(
        learning_rate=lr,
        weight_decay=wd,
        batch_size="unknown",
        sequence_length="unknown",
        weight_decay_convention="coupled",
        schedule="constant",
        seed=0,
        status="finished",
        source="made",
        decay_tokens=0,
    )
    settings = {"learning_rate": np.full(len(tokens), lr), "weight_decay": np.full(len(tokens), wd)}
    return Trajectory({"tokens": tokens, "val_loss": np.asarray(losses, dtype=float)} | settings, info)


def _with_settings(curve: Trajectory, lr: float, wd: float) -> Trajectory:
    """A curve under another LR and WD; LR * noise stays, so that `scaled_noise` does."""
    info = curve.info
    ratio = lr / float(info.learning_rate)
    columns = dict(curve.columns)
    for name in columns:
        if "noise_trace" in name or "root_moment" in name or "gradient_sq_norm" in name:
            columns[name] = columns[name] / ratio
    columns["learning_rate"] = columns["learning_rate"] * ratio
    columns["weight_decay"] = np.full(len(curve.tokens), wd)
    return Trajectory(columns, replace(info, learning_rate=lr, weight_decay=wd))
