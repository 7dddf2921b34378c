"""Runs at constant LR, L(t) = L0 + A (LR t)^-alpha: one alpha for all of them.

Neighbouring points of a training curve resemble each other. There s^2 is multiplied by tau = (1 + rho)/(1 - rho), rho
the neighbours' correlation of the residuals, and n points count as n/tau.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.laws.acceptance import CommonError
from isotune.analyze.laws.points import Points, is_constant, usable_points
from isotune.analyze.laws.prediction import Prediction, predict_at
from isotune.analyze.laws.profile import ProfileFit, fit_profile
from isotune.analyze.laws.projection import (
    accepted_exponents,
    exponent_interval,
    exponents_below,
    project,
    search_exponent,
    searched_range,
)
from isotune.analyze.laws.scatter import MISFIT_LEVEL, Interval, student_quantile
from isotune.errors import InputError
from isotune.recipe.quantities import require_positive

MIN_POINTS_CURVE = 6
MAX_CORRELATION = 0.95
NUM_ALPHAS = 25  # of alpha's interval, at which all floors are fitted
CORRELATION_CAUTION = 0.5  # standard errors 1/sqrt(n) on top of the neighbours' correlation


@dataclass(frozen=True)
class TrainingCurve:
    """One run's L(t) = floor + amplitude * (LR t)^-alpha; floor and amplitude at the alpha of all runs."""

    learning_rate: float
    floor: float  # L0
    floor_interval: Interval
    amplitude: float  # A
    amplitude_interval: Interval
    own_alpha: float  # fitted to this run alone
    own_alpha_interval: Interval
    own_floor: float
    own_floor_interval: Interval
    relative_error: float  # root mean square of fit / loss - 1, at the alpha of all runs
    correlation: float  # of neighbouring residuals
    num_points: int
    warnings: tuple[str, ...] = ()
    _fit: ProfileFit | None = field(default=None, repr=False, compare=False)

    def predict(self, time: float) -> Prediction:
        """The curve's value at this time, in the unit of the times that were fitted, with its interval."""
        assert self._fit is not None
        return predict_at(self._fit, time * self.learning_rate, measurement=False)


@dataclass(frozen=True)
class TrainingCurves:
    """Runs that share one alpha in L(t) = L0 + A (LR t)^-alpha."""

    alpha: float
    alpha_interval: Interval
    runs: tuple[TrainingCurve, ...]
    r_squared: float  # of all losses, each around its run's mean
    level: float
    warnings: tuple[str, ...] = ()
    floors_error: CommonError | None = field(default=None, repr=False, compare=False)  # how they move with alpha


def fit_training_curves(
    times: Sequence[ArrayLike],
    losses: Sequence[ArrayLike],
    learning_rates: ArrayLike,
    *,
    level: float = 0.9,
) -> TrainingCurves:
    """The curves L(t) = L0 + A (LR t)^-alpha of runs at constant LR: alpha common to all, L0 and A of each run.

    Times are steps after the start (or anything proportional), in order, warm-up left out. Each run weighs by its own
    scatter, and its points by how independent they are. Fitted alone a run says little about L0: `own_floor` and
    `own_alpha` are there to compare.
    """
    rates = np.atleast_1d(np.asarray(learning_rates, dtype=float))
    if not len(times) == len(losses) == len(rates) or len(times) == 0:
        counts = f"{len(times)} times, {len(losses)} losses and {len(rates)} learning rates"
        raise InputError(f"{counts}: a run needs one of each, and there must be a run")
    alone = [_fit_alone(*run, level) for run in zip(times, losses, rates, strict=True)]
    if all(is_constant(run.data.y) for run in alone):
        raise InputError("the losses do not change along any run: there is no curve to fit")
    bounds = (min(run.fit.bounds[0] for run in alone), 0.0)

    def objective(exponents: np.ndarray) -> np.ndarray:
        total = np.zeros(len(exponents))
        for run in alone:
            total += project("saturating", run.data, exponents).square_sum / run.variance
        return total

    best = search_exponent(objective, bounds)
    lowest = float(objective(np.array([best]))[0])
    excess = max(0.0, lowest - sum(run.fit.square_sum / run.variance for run in alone))
    disagreement, warnings = _disagreement(excess, len(alone))
    num_free = sum(run.num_independent - 2 for run in alone) - 1
    alpha_reach = disagreement * student_quantile(num_free, level) ** 2
    span = exponents_below(objective, best, lowest + alpha_reach, bounds)
    some = span[np.linspace(0, len(span) - 1, NUM_ALPHAS).round().astype(int)]
    reaches = [disagreement * student_quantile(run.num_independent - 2, level) ** 2 for run in alone]
    exponents = exponents_below(objective, best, lowest + max(reaches), bounds)
    departures = objective(exponents) - lowest
    fits = [
        _at_shared_exponent(run, best, exponents, departures, reach) for run, reach in zip(alone, reaches, strict=True)
    ]
    alpha_low, alpha_high = exponent_interval(span, bounds, cut=(True, False))
    return TrainingCurves(
        alpha=abs(best),
        alpha_interval=(abs(alpha_high), abs(alpha_low)),
        runs=tuple(_training_curve(run, fit) for run, fit in zip(alone, fits, strict=True)),
        r_squared=_pooled_r_squared(alone, best),
        level=level,
        warnings=warnings if alpha_high < 0 else (*warnings, "alpha may be 0: the curves have no floor yet"),
        floors_error=CommonError(
            _floor_shifts(alone, some, best),
            np.clip((objective(some) - lowest) / alpha_reach, 0.0, 1.0),
        ),
    )


@dataclass(frozen=True)
class _Alone:
    """One run fitted by itself, with the scatter that its points count by."""

    data: Points
    learning_rate: float
    fit: ProfileFit
    variance: float  # of an independent point: residual variance times tau
    correlation: float
    num_independent: float


def _fit_alone(times: ArrayLike, losses: ArrayLike, learning_rate: float, level: float) -> _Alone:
    rate = require_positive("learning_rate", float(learning_rate))
    time = np.asarray(times, dtype=float)
    if time.ndim == 1 and np.any(np.diff(time) <= 0):
        raise InputError("times of a run must go up: neighbouring points are taken for neighbours in time")
    data = usable_points(time * rate, losses, None, None, MIN_POINTS_CURVE, "training curve", log=False)
    limits = (searched_range(data.log_x, None)[0], 0.0)
    fit = fit_profile("saturating", data, level=level, bounds=limits)
    correlation = _neighbours(data.y - fit.fitted(data.log_x))
    cautious = min(max(correlation + CORRELATION_CAUTION / math.sqrt(len(data.y)), 0.0), MAX_CORRELATION)
    tau = (1 + cautious) / (1 - cautious)
    num_independent = max(len(data.y) / tau, 4.0)
    scale = replace(fit.scale, variance=fit.scale.variance * tau, quantile=student_quantile(num_independent - 3, level))
    ceiling = fit.square_sum + scale.reach

    exponents = accepted_exponents("saturating", data, fit.exponent, ceiling, limits)
    accepted = project("saturating", data, exponents)
    fit = replace(
        fit,
        scale=scale,
        exponents=exponents,
        accepted=accepted,
        room=np.maximum(ceiling - accepted.square_sum, 0.0),
        exponent_interval=exponent_interval(exponents, limits, cut=(True, False)),
    )
    rounding = 1e-26 * float(np.mean(data.y**2))
    return _Alone(data, rate, fit, max(scale.variance, rounding), correlation, num_independent)


def _at_shared_exponent(
    run: _Alone, best: float, exponents: np.ndarray, departures: np.ndarray, reach: float
) -> ProfileFit:
    """The run's fit at the exponent of all runs; accepted are the exponents that all runs together accept."""
    kept = exponents[departures <= reach]
    return replace(
        run.fit,
        exponent=best,
        at_best=project("saturating", run.data, np.array([best])),
        exponents=kept,
        accepted=project("saturating", run.data, kept),
        room=(reach - departures[departures <= reach]) * run.variance,
    )


def _floor_shifts(runs: Sequence[_Alone], exponents: np.ndarray, best: float) -> np.ndarray:
    """[exponents x runs]: by how much floors move; not finite where an exponent of 0 leaves none."""
    at = np.append(exponents, best)
    floors = np.column_stack([project("saturating", run.data, at).floors(at) for run in runs])
    with np.errstate(invalid="ignore"):
        return np.asarray(floors[:-1] - floors[-1])


def _neighbours(residual: np.ndarray) -> float:
    """The correlation of neighbouring residuals, corrected for what fitting k = 3 parameters takes from it."""
    k, n = 3, len(residual)
    square_sum = float(residual @ residual)
    correlation = float(residual[1:] @ residual[:-1]) / square_sum if square_sum > 0 else 0.0
    return correlation + (k + (k + 3) * correlation) / n


def _training_curve(run: _Alone, fit: ProfileFit) -> TrainingCurve:
    floor, amplitude = fit.natural()
    floor_interval, amplitude_interval = fit.natural_intervals()
    own_low, own_high = run.fit.exponent_interval
    fitted = fit.fitted(run.data.log_x)
    warnings = list(run.data.warnings)
    if run.num_independent < 10:
        worth = f"{len(run.data.y)} points are worth {run.num_independent:.0f} independent ones"
        warnings.append(f"{worth}: the intervals may be too narrow")
    return TrainingCurve(
        learning_rate=run.learning_rate,
        floor=floor,
        floor_interval=floor_interval,
        amplitude=amplitude,
        amplitude_interval=amplitude_interval,
        own_alpha=abs(run.fit.exponent),
        own_alpha_interval=(abs(own_high), abs(own_low)),
        own_floor=run.fit.natural()[0],
        own_floor_interval=run.fit.natural_intervals()[0],
        relative_error=float(np.sqrt(np.mean((fitted / run.data.y - 1) ** 2))),
        correlation=run.correlation,
        num_points=len(run.data.y),
        warnings=tuple(warnings),
        _fit=fit,
    )


def _disagreement(excess: float, num_runs: int) -> tuple[float, tuple[str, ...]]:
    """By how much the runs' own exponents scatter more than their errors say, and the warning."""
    from scipy.special import chdtrc

    if num_runs < 2 or chdtrc(num_runs - 1, excess) >= MISFIT_LEVEL:
        return 1.0, ()
    ratio = excess / (num_runs - 1)
    note = f"the runs' own alphas scatter {math.sqrt(ratio):.1f} times as much as their errors: intervals are widened"
    return ratio, (note,)


def _pooled_r_squared(runs: list[_Alone], exponent: float) -> float:
    residual = total = 0.0
    for run in runs:
        residual += float(project("saturating", run.data, np.array([exponent])).square_sum[0])
        total += float(np.sum((run.data.y - run.data.y.mean()) ** 2))
    return 1 - residual / total if total > 0 else math.nan
