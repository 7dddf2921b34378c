"""y = coefficient * x^exponent, fitted in log space or to y itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.laws.points import usable_points
from isotune.analyze.laws.prediction import (
    Prediction,
    plain_interval,
    plain_values,
    predict_at,
    predict_left_out,
    r_squared,
    relative_errors,
)
from isotune.analyze.laws.profile import ProfileFit, fit_profile
from isotune.analyze.laws.scatter import Interval
from isotune.recipe.quantities import require_choice

MIN_POINTS_POWER = 3


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient * x^exponent, with intervals."""

    coefficient: float
    coefficient_interval: Interval
    exponent: float
    exponent_interval: Interval
    robust_exponent: float  # Theil and Sen's: the median slope between two points in log space
    r_squared: float  # in the space of the fit
    r_squared_plain: float  # of y itself
    leave_one_out_r_squared: float  # in the space of the fit, each point (or group) predicted from the others
    leave_one_out_errors: tuple[float, ...]  # predicted / measured - 1
    residual_deviation: float  # in the space of the fit
    space: Literal["log", "plain"]
    level: float
    num_points: int
    warnings: tuple[str, ...] = ()
    _fit: ProfileFit | None = field(default=None, repr=False, compare=False)

    def value_at(self, x: ArrayLike) -> np.ndarray:
        """The law's values."""
        return self.coefficient * np.asarray(x, dtype=float) ** self.exponent

    def predict(self, x: float, *, measurement: bool = False) -> Prediction:
        """The law's value at x with its interval; with `measurement` the interval of a new measured value."""
        assert self._fit is not None
        return predict_at(self._fit, x, measurement)


def fit_power_law(
    x: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    standard_errors: ArrayLike | None = None,
    groups: Sequence[object] | None = None,
    space: Literal["log", "plain"] = "log",
    robust: bool = False,
    level: float = 0.9,
) -> PowerLaw:
    """The power law through positive points, y = coefficient * x^exponent.

    log y = log(coefficient) + exponent * log x by least squares; `space="plain"` fits y itself. `weights` say how much
    a point counts (its number of seeds), `standard_errors` how large its error is, in units of y. Points of one group
    are left out together in the leave-one-out errors.

    >>> law = fit_power_law([1, 2, 4, 8], [3, 6, 12, 24])
    >>> round(law.exponent, 6), round(law.predict(80).value, 3), law.predict(80).extrapolation_factor
    (1.0, 240.0, 10.0)
    """
    require_choice("space", space, ("log", "plain"))
    data = usable_points(x, y, weights, standard_errors, MIN_POINTS_POWER, "power law", log=space == "log")
    fit = fit_profile("log power" if space == "log" else "power", data, level=level, robust=robust)
    left_out = predict_left_out(fit, data, groups, robust)
    measured = np.exp(data.y) if space == "log" else data.y
    theil_sen = _theil_sen(data.log_x, np.log(measured)) if np.all(measured > 0) else math.nan
    law = PowerLaw(
        coefficient=float(plain_values(fit, np.asarray(fit.value(0.0)))),
        coefficient_interval=plain_interval(fit, fit.interval(*fit.value_weights(0.0))),
        exponent=fit.exponent,
        exponent_interval=fit.exponent_interval,
        robust_exponent=theil_sen,
        r_squared=r_squared(data.y, fit.fitted(data.log_x), data.weight),
        r_squared_plain=r_squared(measured, plain_values(fit, fit.fitted(data.log_x)), np.ones_like(measured)),
        leave_one_out_r_squared=r_squared(data.y, left_out, data.weight),
        leave_one_out_errors=relative_errors(plain_values(fit, left_out), measured),
        residual_deviation=fit.residual_deviation,
        space=space,
        level=level,
        num_points=len(data.y),
        warnings=(*data.warnings, *fit.warnings),
        _fit=fit,
    )
    low, high = law.exponent_interval
    if not robust and not low <= theil_sen <= high and not math.isnan(theil_sen):
        note = (
            f"the median slope between points, {theil_sen:.3g}, is outside the exponent's interval: look for outliers"
        )
        law = replace(law, warnings=(*law.warnings, note))
    return law


def _theil_sen(log_x: np.ndarray, log_y: np.ndarray) -> float:
    first, second = np.triu_indices(len(log_x), 1)
    run = log_x[second] - log_x[first]
    apart = run != 0
    return float(np.median((log_y[second] - log_y[first])[apart] / run[apart]))
