"""y = floor + amplitude * x^exponent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.laws.acceptance import CommonError
from isotune.analyze.laws.points import is_constant, usable_points
from isotune.analyze.laws.prediction import Prediction, predict_at, predict_left_out, r_squared, relative_errors
from isotune.analyze.laws.profile import ProfileFit, fit_profile
from isotune.analyze.laws.scatter import Interval
from isotune.errors import InputError

MIN_POINTS_SATURATING = 4


@dataclass(frozen=True)
class SaturatingPowerLaw:
    """y = floor + amplitude * x^exponent, with intervals; the floor is approached where x^exponent goes to 0."""

    floor: float
    floor_interval: Interval
    amplitude: float
    amplitude_interval: Interval
    exponent: float
    exponent_interval: Interval
    r_squared: float
    leave_one_out_r_squared: float
    leave_one_out_errors: tuple[float, ...]  # predicted / measured - 1
    residual_deviation: float
    level: float
    num_points: int
    warnings: tuple[str, ...] = ()
    _fit: ProfileFit | None = field(default=None, repr=False, compare=False)

    def value_at(self, x: ArrayLike) -> np.ndarray:
        """The law's values."""
        return self.floor + self.amplitude * np.asarray(x, dtype=float) ** self.exponent

    def predict(self, x: float, *, measurement: bool = False) -> Prediction:
        """The law's value at x with its interval; with `measurement` the interval of a new measured value."""
        assert self._fit is not None
        return predict_at(self._fit, x, measurement)


def fit_saturating_power_law(
    x: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    standard_errors: ArrayLike | None = None,
    groups: Sequence[object] | None = None,
    exponent_bounds: Interval | None = None,
    robust: bool = False,
    common: CommonError | None = None,
    level: float = 0.9,
) -> SaturatingPowerLaw:
    """The law y = floor + amplitude * x^exponent through points with positive x, by least squares on y.

    Any signs are allowed: L0 = L01 + L02 ELR^L03 rises from its floor, L(D) = E + B D^-beta falls towards it. An
    exponent near 0 is a straight line in log x, without a floor: where the interval of the exponent reaches 0, the
    floor's is infinite. `common` is an error that all y share, which their scatter does not show.

    >>> law = fit_saturating_power_law([1, 2, 4, 8, 16], [3, 2, 1.5, 1.25, 1.125])
    >>> round(law.floor, 6), round(law.amplitude, 6), round(law.exponent, 6)
    (1.0, 2.0, -1.0)
    """
    data = usable_points(x, y, weights, standard_errors, MIN_POINTS_SATURATING, "saturating power law", log=False)
    if is_constant(data.y):
        raise InputError(f"all {len(data.y)} values are {data.y[0]:g}: they do not change, so there is no law of them")
    fit = fit_profile("saturating", data, level=level, robust=robust, bounds=exponent_bounds, common=common)
    left_out = predict_left_out(fit, data, groups, robust)
    floor, amplitude = fit.natural()
    floor_interval, amplitude_interval = fit.natural_intervals()
    warnings = [*data.warnings, *fit.warnings]
    if math.isfinite(fit.scale.reach) and (math.isinf(floor_interval[0]) or math.isinf(floor_interval[1])):
        warnings.append("the floor is not identified: a power law without bend fits as well; take a wider range of x")
    return SaturatingPowerLaw(
        floor=floor,
        floor_interval=floor_interval,
        amplitude=amplitude,
        amplitude_interval=amplitude_interval,
        exponent=fit.exponent,
        exponent_interval=fit.exponent_interval,
        r_squared=r_squared(data.y, fit.fitted(data.log_x), data.weight),
        leave_one_out_r_squared=r_squared(data.y, left_out, data.weight),
        leave_one_out_errors=relative_errors(left_out, data.y),
        residual_deviation=fit.residual_deviation,
        level=level,
        num_points=len(data.y),
        warnings=tuple(warnings),
        _fit=fit,
    )
