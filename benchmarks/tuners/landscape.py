"""A family of a table as arrays: what every question about it would be answered, and what it costs to ask.

A cell is a pair (LR, WD). A family has the trunks of one setup, batch size and warm-up, and their decays at the table's
budgets. A cell is there if its trunk and all decays of seed 0 are, or if it diverged.

Noise of seeds: analyze/seed_noise.py. A family without seeds knows of no noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.seed_noise import SeedNoise, combine_seeds, fit_noise
from isotune.analyze.truth import SmoothSurface, smooth_surface
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
    by_seed: dict[int, np.ndarray] = field(repr=False)  # the same of every seed, NaN also where it is not there
    noise: SeedNoise | None = field(repr=False)
    memory: np.ndarray = field(repr=False)  # log2(1 + n), cells x budgets, by which seeds' noise is shared
    trunk_ends: np.ndarray = field(repr=False)  # how far each trunk was trained
    has_diverged: np.ndarray = field(repr=False)  # whether the trunk ended there for that reason
    decay_ends: np.ndarray = field(repr=False)  # the budget, or where the decay diverged before it
    curves: tuple[Trajectory, ...] = field(repr=False)
    tokens_per_step: int = 1
    warmup_tokens: int = 0
    num_seeds: int = 1  # that a grid trains in each cell
    known_truths: np.ndarray | None = field(default=None, repr=False)  # where they need no fit
    known_rests: np.ndarray | None = field(default=None, repr=False)
    noise_log2_lr: np.ndarray | None = field(default=None, repr=False)  # where labels were moved: of the real cells

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
        noise: SeedNoise | None = None,
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
            by_seed={0: values},
            noise=noise,
            memory=np.zeros(values.shape),
            trunk_ends=ends,
            has_diverged=diverged,
            decay_ends=np.broadcast_to(np.array(budgets), values.shape),
            curves=tuple(
                _made_curve(2.0 ** x[i], 2.0 ** y[i], at[at <= ends[i]], curve(i, at[at <= ends[i]]))
                for i in range(len(x))
            ),
            tokens_per_step=tokens_per_step,
            known_truths=np.where(bad, math.inf, values),
        )

    @property
    def num_cells(self) -> int:
        return len(self.log2_lr)

    @cached_property
    def truths(self) -> np.ndarray:
        """The smooth loss of each cell at each budget; infinite where it diverged."""
        if self.known_truths is not None:
            return self.known_truths
        return np.column_stack([surface.truth(losses) for losses, surface in self._smooth])

    @cached_property
    def rests(self) -> np.ndarray:
        """Of each budget the deviation of what a run has by itself, beyond the noise that seeds tell of."""
        if self.known_rests is not None:
            return self.known_rests
        is_smooth = self.known_truths is None
        return np.array([surface.rest for _, surface in self._smooth] if is_smooth else [0.0] * len(self.budgets))

    @cached_property
    def _smooth(self) -> list[tuple[np.ndarray, SmoothSurface]]:
        """Of each budget the losses of cells over seeds, and the surface through them."""
        made = []
        for column in range(len(self.budgets)):
            losses, errors = self.losses[:, column], None
            if self.noise is not None:
                nearness = self.noise.nearness(self.log2_lr, self.memory[:, column])
                of_seeds = np.array([its[:, column] for its in self.by_seed.values()])
                losses, errors = combine_seeds(of_seeds, self.noise.deviations[column] ** 2 * nearness)
            made.append((losses, smooth_surface(self.log2_lr, self.log2_wd, losses, errors)))
        return made

    def truth(self, budget: int) -> np.ndarray:
        """The smooth loss of each cell at a budget."""
        return np.asarray(self.truths[:, self.budgets.index(budget)])

    @cached_property
    def _noise_root(self) -> np.ndarray | None:
        u = self.log2_lr if self.noise_log2_lr is None else self.noise_log2_lr
        return None if self.noise is None else self.noise.root(u, self.memory)

    def losses_of(self, seed: int, repeat: int = 0) -> np.ndarray:
        """Losses of a replay, cells x budgets: the table's own for seed 0 and where nothing is known of noise, else
        the truth with noise that is drawn anew, and for repeats a level."""
        root = self._noise_root
        if self.noise is None or root is None or (seed == 0 and repeat == 0):
            return self.losses
        rng = np.random.default_rng([seed, 1, repeat] if repeat else [seed, 1])
        drawn = root @ rng.standard_normal(root.shape[1])
        level = self.noise.level * rng.standard_normal() if repeat else 0.0
        made = self.truths + level + drawn.reshape(len(self.budgets), self.num_cells).T
        if self.rests.any():
            made += rng.standard_normal(made.shape) @ np.linalg.cholesky(self.noise.correlations).T * self.rests
        return np.where(np.isfinite(self.losses) & np.isfinite(made), made, self.losses)

    def mean_losses_of(self, seed: int) -> np.ndarray:
        """Losses of a replay, means over the seeds of each cell."""
        return np.mean([self.losses_of(seed, repeat) for repeat in range(self.num_seeds)], axis=0)

    def regrets(self, budget: int) -> np.ndarray:
        """truth / lowest truth - 1, of each cell."""
        truth = self.truth(budget)
        return truth / truth.min() - 1

    def grid_price(self, budget: int) -> int:
        """Tokens of a run to the budget with each seed in each cell, with nothing shared."""
        return self.num_cells * self.num_seeds * budget

    @cached_property
    def fingerprint(self) -> str:
        """Of all that a replay and its score depend on, the curves by their losses."""
        digest = hashlib.sha256(repr((self.table, self.family, self.budgets, self.branches)).encode())
        arrays = [self.log2_lr, self.log2_wd, self.losses, self.trunk_ends, self.decay_ends]
        arrays += [*self.by_seed.values(), self.memory, self.truths, self.rests]
        arrays += [] if self.noise is None else list(astuple(self.noise))
        arrays += [curve.columns["val_loss"] for curve in self.curves]
        arrays += [np.array(self.num_seeds)] if self.num_seeds > 1 else []
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
    curves = tuple(
        _with_settings(landscape.curves[old], 2.0 ** landscape.log2_lr[new], 2.0 ** landscape.log2_wd[new])
        for new, old in enumerate(order)
    )
    moved = {"noise_log2_lr": landscape.log2_lr[order], "curves": curves}
    return replace(landscape, family=family, **moved, **_held_by(landscape, order))


def restricted(landscape: Landscape, cells: np.ndarray) -> Landscape:
    """These cells alone, by number; their truth is what it was among all."""
    settings = {"log2_lr": landscape.log2_lr[cells], "log2_wd": landscape.log2_wd[cells]}
    curves = tuple(landscape.curves[cell] for cell in cells)
    return replace(landscape, **settings, curves=curves, **_held_by(landscape, cells))


def _held_by(landscape: Landscape, cells: np.ndarray) -> dict[str, Any]:
    """What these cells hold, but for settings and curves."""
    names = ("losses", "memory", "trunk_ends", "has_diverged", "decay_ends")
    held: dict[str, Any] = {name: getattr(landscape, name)[cells] for name in names}
    held["by_seed"] = {seed: losses[cells] for seed, losses in landscape.by_seed.items()}
    return held | {"known_truths": landscape.truths[cells], "known_rests": landscape.rests}


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
    log2_lr, log2_wd = (np.log2([cell[axis] for cell in cells]) for axis in (0, 1))
    tokens_per_step = trunks[0].batch_size * trunks[0].sequence_length
    memory = np.log2(1 + 2.0 ** (log2_lr + log2_wd)[:, None] * np.array(budgets) / tokens_per_step)
    return Landscape(
        table=table.name,
        family=family,
        log2_lr=log2_lr,
        log2_wd=log2_wd,
        budgets=tuple(budgets),
        branches=tuple(budget - length for budget in budgets),
        losses=by_seed[0],
        by_seed=by_seed,
        noise=fit_noise(log2_lr, memory, by_seed),
        memory=memory,
        trunk_ends=np.array([run.end_tokens for run in trunks]),
        has_diverged=np.array([run.diverged_at_tokens is not None for run in trunks]),
        decay_ends=np.array([[_decay_end(decays[run.run].get(d), d) for d in budgets] for run in trunks]),
        curves=tuple(table.trajectory(run.run) for run in trunks),
        tokens_per_step=tokens_per_step,
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
