"""The points of a fit: log x, y in the space of the fit, weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from isotune.errors import InputError

ROUNDING = 1e-12  # of the values' size: less change is rounding


@dataclass(frozen=True)
class Points:
    """What is fitted: log x, y in the space of the fit, weights 1/variance."""

    log_x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    has_known_errors: bool
    warnings: tuple[str, ...] = ()

    @property
    def reference(self) -> float:
        """The middle of log x: exponents act on log x - reference, so that nothing overflows."""
        return float(self.log_x.mean())

    def take(self, rows: np.ndarray) -> Points:
        return replace(self, log_x=self.log_x[rows], y=self.y[rows], weight=self.weight[rows])


def usable_points(
    x: ArrayLike,
    y: ArrayLike,
    weights: ArrayLike | None,
    standard_errors: ArrayLike | None,
    min_points: int,
    law: str,
    *,
    log: bool,
) -> Points:
    x_all, y_all = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x_all.ndim != 1 or x_all.shape != y_all.shape:
        raise InputError(f"x and y must be rows of one length: these have shapes {x_all.shape} and {y_all.shape}")
    usable = np.isfinite(x_all) & np.isfinite(y_all)
    if np.any(x_all[usable] <= 0) or (log and np.any(y_all[usable] <= 0)):
        what = "x and y" if log else "x"
        raise InputError(
            f"{what} of a {law} must be above 0: leave the other points out" + ' or take space="plain"' * log
        )
    num_usable = int(usable.sum())
    weight = point_weights(len(x_all), weights, standard_errors)[usable]
    x_used, y_used = x_all[usable], y_all[usable]
    if num_usable < min_points or len(np.unique(x_used)) < min_points:
        different = len(np.unique(x_used))
        raise InputError(f"{num_usable} points at {different} different x: a {law} takes {min_points} different x")
    warnings = () if num_usable == len(x_all) else (f"{len(x_all) - num_usable} points are not finite and left out",)
    if log:
        # An error of y is an error dy/y of log y.
        weight = weight * y_used**2 if standard_errors is not None else weight
        y_used = np.log(y_used)
    return Points(np.log(x_used), y_used, weight, standard_errors is not None, warnings)


def is_constant(values: np.ndarray) -> bool:
    """Whether all values are one, rounding aside."""
    return float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max())


def point_weights(count: int, weights: ArrayLike | None, standard_errors: ArrayLike | None) -> np.ndarray:
    """Weights in units of 1/variance: 1/standard_errors^2, or the weights with mean 1, or ones."""
    if weights is not None and standard_errors is not None:
        raise InputError("weights and standard_errors were both given: give one, errors are weights 1/error^2")
    given = weights if standard_errors is None else standard_errors
    name = "weights" if standard_errors is None else "standard_errors"
    array = np.ones(1) if given is None else np.asarray(given, dtype=float)
    if array.shape not in ((), (1,), (count,)) or not np.all(np.isfinite(array) & (array > 0)):
        raise InputError(f"{name} must be positive numbers, one for each of the {count} points")
    array = np.broadcast_to(array, (count,))
    return array**-2.0 if standard_errors is not None else array * (count / float(array.sum() or 1.0))
