"""What decays gain over their trunks, and the noise of the trunks there ([definitions] gain, noise_at, free_at)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotune.analyze.decay import LOSS_POINTS, Decay, TrunkReading, read_trunk
from isotune.claims.rows import RowSet, RowsMissing, Run
from isotune.errors import InputError


@dataclass(frozen=True)
class Gains:
    """Of each run and budget, [runs x budgets], for the runs that have finite decays at all of these budgets."""

    rows: RowSet
    budgets: tuple[int, ...]
    trunk_loss: np.ndarray
    decayed_loss: np.ndarray
    noise: np.ndarray
    free: np.ndarray
    log_line_loss: np.ndarray  # of the trunk, off a line in log tokens, which follows a bent curve better

    @property
    def gain(self) -> np.ndarray:
        return self.trunk_loss - self.decayed_loss

    @property
    def log2_elr(self) -> np.ndarray:
        return self.rows.log2_elr

    def as_decays(self, group: np.ndarray) -> list[Decay]:
        """All of them, one by one, budgets behind each other; `group` [runs] is what is left out together."""
        return [
            Decay(
                TrunkReading(
                    float(budget),
                    float(self.trunk_loss[run, index]),
                    float(self.noise[run, index]),
                    float(self.free[run, index]),
                    float(2.0 ** self.log2_elr[run]),
                ),
                float(self.decayed_loss[run, index]),
                float(group[run]),
            )
            for index, budget in enumerate(self.budgets)
            for run in range(len(self.gain))
        ]


def find_gains(rows: RowSet, budgets: Sequence[int]) -> Gains:
    """What the decays of these runs gained."""
    found = {
        run.record.run: np.array([_gain(run, budget) for budget in budgets])
        for run in rows.runs
        if all(budget in run.decays for budget in budgets)
    }
    found = {name: values for name, values in found.items() if np.isfinite(values).all()}
    if not found:
        raise RowsMissing(rows.missing or f"{rows.name} (no run has decays and noise at all budgets)")
    values = np.array(list(found.values()))
    return Gains(rows.where(lambda run: run.record.run in found), tuple(budgets), *np.moveaxis(values, 2, 0))


def trunk_loss(tokens: np.ndarray, losses: np.ndarray, at: float) -> float:
    """The loss at this position by a straight line through the six evaluations nearest to it."""
    nearest = np.argsort(np.abs(tokens - at), kind="stable")[:LOSS_POINTS]
    if len(nearest) < LOSS_POINTS:
        return math.nan
    return float(np.polynomial.polynomial.polyfit((tokens[nearest] - at) / at, losses[nearest], 1)[0])


def _gain(run: Run, budget: int) -> tuple[float, ...]:
    """Trunk loss, decayed loss, noise, free estimate and loss off a log line, half a decay past the branch."""
    decay, trajectory = run.decays[budget], run.trajectory
    if decay.val_loss is None:
        return (math.nan,) * 5
    at = decay.branch_tokens + decay.decay_tokens / 2
    tokens, losses = trajectory.measured("val_loss")
    after_warmup = tokens > run.record.warmup_tokens
    try:
        reading = read_trunk(trajectory, at)
    except InputError:
        return (math.nan,) * 5
    loss = trunk_loss(tokens[after_warmup], losses[after_warmup], at)
    return loss, decay.val_loss, reading.scaled_noise, reading.free_noise, reading.loss
