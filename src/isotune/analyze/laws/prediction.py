"""What is said about a fitted law: values elsewhere, values left out, how much it explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isotune.analyze.laws.points import Points
from isotune.analyze.laws.profile import ProfileFit
from isotune.analyze.laws.projection import best_exponent, project
from isotune.analyze.laws.robust import pulled_in
from isotune.analyze.laws.scatter import Interval
from isotune.errors import InputError
from isotune.recipe.quantities import require_positive

FAR_FACTOR = 4.0  # outside the data by more: a warning


@dataclass(frozen=True)
class Prediction:
    """A law's value at x, the interval that holds it with probability `level`, and how far outside the data x is."""

    x: float
    value: float
    low: float
    high: float
    level: float
    extrapolation_factor: float  # 1 inside the data, 10 at a tenth of the smallest or ten times the largest x
    warnings: tuple[str, ...] = ()


def predict_at(fit: ProfileFit, x: float, measurement: bool) -> Prediction:
    log_x = math.log(require_positive("x", x))
    low, high = fit.interval(*fit.value_weights(log_x), noise=fit.point_variance if measurement else 0.0)
    outside = max(fit.range[0] - log_x, log_x - fit.range[1], 0.0)
    factor = math.exp(outside)
    warnings = list(fit.warnings)
    if factor > FAR_FACTOR:
        warnings.append(f"x={x:.3g} is outside the data by a factor of {factor:.3g}: the law itself may not hold there")
    value = float(plain_values(fit, np.asarray(fit.value(log_x))))
    ends = plain_interval(fit, (low, high))
    factor = float(f"{factor:.12g}")
    return Prediction(float(x), value, *ends, fit.confidence, factor, tuple(warnings))


def predict_left_out(fit: ProfileFit, data: Points, groups: Sequence[object] | None, robust: bool) -> np.ndarray:
    """Each point's value by the law of the other points (or of the other groups), in the space of the fit."""
    if groups is None:
        labels = np.arange(len(data.y))
    else:
        labels = np.unique(np.asarray(groups), return_inverse=True)[1]
        if len(labels) != len(data.y):
            raise InputError(f"{len(labels)} groups for {len(data.y)} usable points: give one for each point")
    fitted_to = pulled_in(fit.kind, data, fit.bounds) if robust else data
    values = np.full(len(data.y), math.nan)
    num_parameters = 3 if fit.kind == "saturating" else 2
    for label in np.unique(labels):
        rows = labels != label
        rest = fitted_to.take(rows)
        if len(np.unique(rest.log_x)) < num_parameters:
            continue
        best = best_exponent(fit.kind, rest, fit.bounds)
        at_best = project(fit.kind, rest, np.array([best]))
        law = replace(fit, exponent=best, at_best=at_best, reference=rest.reference)
        values[~rows] = law.fitted(data.log_x[~rows])
    return values


def plain_values(fit: ProfileFit, values: np.ndarray) -> np.ndarray:
    """The values in plain space."""
    return np.exp(values) if fit.kind == "log power" else values


def plain_interval(fit: ProfileFit, interval: Interval) -> Interval:
    if fit.kind != "log power":
        return interval
    return math.exp(interval[0]), math.exp(interval[1])


def relative_errors(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, ...]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return tuple(float(error) for error in predicted / measured - 1)


def r_squared(y: np.ndarray, fitted: np.ndarray, weight: np.ndarray) -> float:
    """1 - residual over total sum of squares; nan where a value is missing."""
    total = float(weight @ (y - float(weight @ y) / float(weight.sum())) ** 2)
    return 1 - float(weight @ (y - fitted) ** 2) / total if total > 0 else math.nan
