"""What the scatter of points around a fit says about their errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isotune.errors import InputError
from isotune.recipe.quantities import show

Interval = tuple[float, float]
MISFIT_LEVEL = 0.01  # of the test whether scatter exceeds the given standard errors
NO_INTERVAL: Interval = (-math.inf, math.inf)


@dataclass(frozen=True)
class ErrorScale:
    """What a residual sum says about errors: their variance in units of 1/weight, and the quantile for intervals."""

    variance: float
    quantile: float  # of one estimate over its error: Student's, or Gaussian
    pair_quantile: float  # of a pair's length in units of its errors, sqrt(2 F)
    is_misfit: bool = False  # scatter beyond the given standard errors

    @property
    def reach(self) -> float:
        """How far above its minimum the weighted sum of squares may lie: variance * quantile^2."""
        return self.variance * self.quantile**2


def error_scale(square_sum: float, num_free: float, level: float, *, known: bool) -> ErrorScale:
    """The errors' variance in units of 1/weight and the quantile of intervals, from a weighted residual sum.

    With known standard errors the variance is 1 and the quantile Gaussian, unless the scatter is too large for that
    (chi-squared test at 1 %): the variance is then taken from the scatter, as it is where nothing is known.
    """
    from scipy.special import chdtrc, ndtri

    if not 0 < level < 1:
        raise InputError(f"level={show(level)} must be above 0 and below 1, such as 0.9")
    if known and (num_free <= 0 or chdtrc(num_free, square_sum) >= MISFIT_LEVEL):
        return ErrorScale(1.0, float(ndtri(0.5 + level / 2)), math.sqrt(-2 * math.log1p(-level)))
    if num_free <= 0:
        return ErrorScale(math.nan, math.inf, math.inf)
    pair_quantile = math.sqrt(num_free * math.expm1(-2 / num_free * math.log1p(-level)))  # F with 2 degrees is closed
    return ErrorScale(square_sum / num_free, student_quantile(num_free, level), pair_quantile, is_misfit=known)


def student_quantile(num_free: float, level: float) -> float:
    """Student's quantile, with one degree of freedom at least."""
    from scipy.special import stdtrit

    return float(stdtrit(max(num_free, 1.0), 0.5 + level / 2))
