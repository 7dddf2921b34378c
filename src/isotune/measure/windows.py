"""Noise over a window of measured steps: means and ratios of means, with intervals that cover.

Single steps scatter (T up to 100 times its median, gradient_sq_norm even below 0), drift, and resemble their
neighbours. So a window is summarised by means, a ratio is a ratio of means, and intervals rest on a few slow waves:

    e      = the n values minus a parabola through them
    rho    = the neighbours' correlation in e, corrected for its bias, plus 1.5 standard errors 1/sqrt(n); 0 to .95
    S      = mean over the m = n^(1/3) (2 to 32) slowest waves of  <e, wave>^2 * spectrum(0) / spectrum(wave)
    kappa  = skewness(e) / sqrt(n (1 - rho) / (1 + rho)),  the skewness of the mean
    t      = (mean - truth) / sqrt(S/n):  Student's with m degrees of freedom, once kappa is undone

Slow waves see what correlated neighbours do to a mean (the equally weighted cosine estimator: Müller 2007, Lazarus
et al. 2018), the spectrum of AR(1) carries them on to frequency 0, the parabola keeps a drift from passing as scatter,
and Hall's cubic (1992) lengthens the side of the heavy tail. A ratio's interval holds every r for which the interval
of mean(numerator - r * denominator) holds 0 (Fieller). The truth is the mean of the true values over the window.

Assumed: steps in order, measured at an even cadence; a drift without jumps; a finite variance; a window of 20 values,
of 100 if neighbours correlate by .7 or .8.

Where it fails: fewer than 12 values get no interval, and below 20 heavy tails cost coverage. Windows worth fewer than 6
independent values get a warning. A slow wandering that hides under independent scatter goes unnoticed, as T's does in
a noise scale far above the batch size: at a correlation of .8, nominal 90 % can be 80 % over 50 steps. A jump makes
intervals too wide. The numbers are in `proofs/results/noise_coverage.json`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from isotune.errors import InputError
from isotune.recipe.quantities import require_choice, require_positive_int, show

Side = Literal["both", "lower", "upper"]

MIN_VALUES = 12  # fewer give no interval
MIN_EFFECTIVE_NUMBER = 6.0  # fewer give an interval with a warning
LARGE_SHARE = 1 / 3  # of the sum, in one value: the interval then rests on a single step
TREND_DEGREE = 2
WAVES = (2, 32)  # beyond the most, Student's quantile hardly moves
CAUTION = 1.5  # standard errors on top of the neighbours' correlation: its error is costly on one side only
MAX_CORRELATION = 0.95
MAX_SKEWNESS = 2.0  # of a mean; Hall's cubic is made for small ones
SETTLING_MEMORIES = 3.0  # memories 1/(1 - beta2) of Adam's v until it has settled

_UNKNOWN = (-math.inf, math.inf, math.nan)  # low, high, effective number


@dataclass(frozen=True)
class Estimate:
    """A number, the interval that holds the truth with probability `level`, and what is wrong with it."""

    value: float
    low: float  # -inf where nothing bounds it
    high: float
    level: float
    num_values: int
    num_missing: int = 0  # rows where something was not measured
    effective_number: float = math.nan  # independent values that would say as much
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchVerdict:
    """Whether the batch is small (below the noise scale) or large, and the mean of T - B*g2 that says so."""

    verdict: Literal["small", "large", "undecided"]
    margin: Estimate


@dataclass(frozen=True)
class Window:
    """An estimate over positions above `start` and up to `end`."""

    start: float
    end: float
    estimate: Estimate


def noise_scale(
    noise_trace: ArrayLike, gradient_sq_norm: ArrayLike, *, level: float = 0.9, side: Side = "both"
) -> Estimate:
    """The noise scale in sequences, mean(T) / mean(g2): at this batch size noise and gradient are equally large.

    Its upper end is infinite, and a warning says so, where the gradient is not told from 0.
    """
    return window_ratio(noise_trace, gradient_sq_norm, level=level, side=side)


def batch_verdict(
    noise_trace: ArrayLike, gradient_sq_norm: ArrayLike, batch_size: ArrayLike, *, level: float = 0.9
) -> BatchVerdict:
    """Small, large or undecided: is the batch below the noise scale?

    No ratio is formed: noise_scale > B  <=>  mean(T - B*g2) > 0. A verdict errs with probability (1 - level)/2.
    """
    trace, signal, batch = _as_columns(noise_trace, gradient_sq_norm, _positive("batch_size", batch_size))
    margin = window_mean(trace - batch * signal, level=level)
    if margin.low > 0:
        return BatchVerdict("small", margin)
    return BatchVerdict("large" if margin.high < 0 else "undecided", margin)


def scaled_noise(
    noise_trace: ArrayLike,
    learning_rate: ArrayLike,
    batch_size: ArrayLike,
    clip_factor: ArrayLike | None = None,
    *,
    level: float = 0.9,
    side: Side = "both",
) -> Estimate:
    """The noise that the optimizer sees, (LR/B) * mean(c^2 T) / mean(c); without clip factors (LR/B) * mean(T).

    T is measured before clipping, the preconditioner sqrt(v) is built after it: hence c^2 for T and 1/c for sqrt(v).
    """
    scale = np.asarray(learning_rate, dtype=float) / _positive("batch_size", batch_size)
    return _clip_corrected(noise_trace, scale, clip_factor, level, side)


def scaled_noise_value(
    noise_trace: ArrayLike, learning_rate: ArrayLike, batch_size: ArrayLike, clip_factor: ArrayLike | None = None
) -> float:
    """The value of `scaled_noise` without its interval, which takes far longer."""
    scale = np.asarray(learning_rate, dtype=float) / _positive("batch_size", batch_size)
    (numerator, *clip), _ = _measured(*_clip_corrected_columns(noise_trace, scale, clip_factor))
    return _ratio(_mean(numerator), _mean(clip[0])) if clip else _mean(numerator)


def scaled_gradient(
    gradient_sq_norm: ArrayLike,
    learning_rate: ArrayLike,
    clip_factor: ArrayLike | None = None,
    *,
    level: float = 0.9,
    side: Side = "both",
) -> Estimate:
    """The gradient that the optimizer sees, LR * mean(c^2 g2) / mean(c); without clip factors LR * mean(g2)."""
    return _clip_corrected(gradient_sq_norm, np.asarray(learning_rate, dtype=float), clip_factor, level, side)


def window_mean(values: ArrayLike, *, level: float = 0.9, side: Side = "both") -> Estimate:
    """The mean of a window with its interval; `side` lower or upper gives one bound, held with probability `level`.

    >>> estimate = window_mean([1.0, 2.0] * 20 + [float("nan")])
    >>> estimate.value, estimate.num_values, estimate.num_missing
    (1.5, 40, 1)
    """
    (x,), num_missing = _measured(values)
    estimate = _name_wild_step(_start(_mean(x), x, num_missing, level), x)
    low, high, effective_number = _limits(x, _two_sided(level, side))
    if len(x) and x.min() >= 0:
        low = max(low, 0.0)
    return _finish(estimate, low, high, effective_number, side)


def window_ratio(numerator: ArrayLike, denominator: ArrayLike, *, level: float = 0.9, side: Side = "both") -> Estimate:
    """mean(numerator) / mean(denominator) with its interval; the denominator's true mean is known to be positive.

    The interval holds r where the interval of mean(numerator - r * denominator) holds 0. A denominator that is not told
    from 0 leaves a lower bound only; if the numerator is not either, nothing.
    """
    (a, b), num_missing = _measured(numerator, denominator)
    estimate = _name_wild_step(_start(_ratio(_mean(a), _mean(b)), a, num_missing, level), a)
    two_sided = _two_sided(level, side)
    if len(a) < MIN_VALUES:
        return _finish(estimate, *_UNKNOWN, side)
    bounded = _limits(b, two_sided)[0] > 0
    if not bounded and _limits(a, two_sided)[0] <= 0:
        estimate = _warn(estimate, "neither mean is told from 0: nothing is known about the ratio")
        return _finish(estimate, *_UNKNOWN, side)
    # r from -inf to inf is an angle from -90 to 90 degrees: r = tan(angle) * scale.
    scale = (_largest(a) or 1.0) / (_largest(b) or 1.0)
    middle = math.atan2(_mean(a), _mean(b) * scale)

    def limits(angle: float) -> tuple[float, float, float]:
        return _limits(math.cos(angle) * a - math.sin(angle) * scale * b, two_sided)

    if _mean(b) <= 0 and limits(math.pi / 2)[0] > 0:
        estimate = _warn(estimate, "the denominator contradicts a positive mean: nothing is known about the ratio")
        return _finish(estimate, *_UNKNOWN, side)
    first = -math.pi / 2 if bounded else 0.0
    low = scale * math.tan(_root(lambda angle: limits(angle)[0], first, min(middle, math.pi / 2)))
    if bounded:
        high = scale * math.tan(_root(lambda angle: limits(angle)[1], middle, math.pi / 2))
    else:
        high = math.inf
        estimate = _warn(estimate, "the denominator's interval includes 0: only a lower bound")
    return _finish(estimate, low, high, limits(middle)[2], side)


def window_trimmed_mean(values: ArrayLike, *, trim: float = 0.1, level: float = 0.9, side: Side = "both") -> Estimate:
    """The mean of a typical step: of the values without the smallest and largest `trim` of them, with its interval.

    Single wild steps do not move it. It estimates the trimmed mean of the values' distribution; for skewed values, as
    T's are, that lies below the mean: good to show and to compare, no substitute in a noise scale. The interval is that
    of the mean of clip(values, ends of the middle) / (1 - 2 trim); a strong drift makes it too wide.
    """
    if not 0 <= trim < 0.5:
        raise InputError(f"trim={show(trim)} must be from 0 to below 0.5: the fraction cut off at each end")
    (x,), num_missing = _measured(values)
    num_cut = int(trim * len(x))
    middle = np.sort(x)[num_cut : len(x) - num_cut]
    estimate = _start(_mean(middle), x, num_missing, level)
    if len(x) < MIN_VALUES:
        return _finish(estimate, *_UNKNOWN, side)
    clipped = np.clip(x, middle[0], middle[-1])
    influences = estimate.value + (clipped - _mean(clipped)) * (len(x) / len(middle))
    return _finish(estimate, *_limits(influences, _two_sided(level, side)), side)


def per_window(
    positions: ArrayLike, edges: Sequence[float], estimate: Callable[..., Estimate], *columns: ArrayLike
) -> tuple[Window, ...]:
    """An estimate for each window between neighbouring edges, of the rows with start < position <= end.

    Positions are tokens (or steps) seen after the row's step, so a row at an edge belongs to the window that it ends.

        per_window(tokens, [0, 1e6, 2e6], noise_scale, noise_trace, gradient_sq_norm)
    """
    if len(edges) < 2 or any(start >= end for start, end in itertools.pairwise(edges)):
        raise InputError(f"edges={show(edges)} must be two or more positions that go up")
    position, *rows = _as_columns(positions, *columns)
    windows = []
    for start, end in itertools.pairwise(edges):
        inside = (start < position) & (position <= end)
        windows.append(Window(float(start), float(end), estimate(*(column[inside] for column in rows))))
    return tuple(windows)


def after_switch_mask(steps: ArrayLike, batch_size: ArrayLike, beta2: float) -> np.ndarray:
    """True on rows less than 3/(1 - beta2) steps after a change of the batch size: Adam's v has not settled there.

    Counted from the first row with the new batch, so sparse rows are masked a little longer; where the batch size is
    missing, it is the last known one.

    >>> after_switch_mask([1, 2, 3, 4, 5, 6], [4, 4, 8, 8, 8, 8], beta2=0.0)
    array([False, False,  True,  True,  True, False])
    """
    if not 0 <= beta2 < 1:
        raise InputError(f"beta2={show(beta2)} must be from 0 to below 1")
    step, batch = _as_columns(steps, batch_size)
    if np.any(np.diff(step) <= 0) or np.isnan(step).any():
        raise InputError("steps must go up from row to row")
    batch = _carried_forward(batch)
    switched = np.zeros(len(step), dtype=bool)
    switched[1:] = (batch[1:] != batch[:-1]) & ~np.isnan(batch[:-1])
    last_switch = np.maximum.accumulate(np.where(switched, step, -np.inf))
    num_settling_steps = round(SETTLING_MEMORIES / (1 - beta2), 6)  # 3/(1 - .95) is 60, not 60.00000000000005
    return step - last_switch < num_settling_steps


def steps_of_tokens(tokens: ArrayLike, batch_size: ArrayLike, sequence_length: int) -> np.ndarray:
    """The steps at each row, counted from the first, for runs that log tokens only: each took batch_size sequences."""
    position, batch = _as_columns(tokens, batch_size)
    tokens_per_step = _carried_forward(batch) * require_positive_int("sequence_length", sequence_length)
    return np.concatenate([[0.0], np.cumsum(np.diff(position) / tokens_per_step[1:])])[: len(position)]


def _clip_corrected(
    values: ArrayLike, scale: np.ndarray, clip_factor: ArrayLike | None, level: float, side: Side
) -> Estimate:
    numerator, *clip = _clip_corrected_columns(values, scale, clip_factor)
    if not clip:
        return window_mean(numerator, level=level, side=side)
    return window_ratio(numerator, clip[0], level=level, side=side)


def _clip_corrected_columns(values: ArrayLike, scale: np.ndarray, clip_factor: ArrayLike | None) -> list[np.ndarray]:
    """What is averaged, and with clip factors c what its mean is divided by the mean of."""
    if clip_factor is None:
        x, factor = _as_columns(values, scale)
        return [factor * x]
    x, factor, clip = _as_columns(values, scale, _positive("clip_factor", clip_factor))
    if np.any(clip > 1):
        raise InputError(f"clip_factor={show(float(np.nanmax(clip)))} must be at most 1: it is min(1, clip / norm)")
    return [factor * clip**2 * x, clip]


def _as_columns(*columns: ArrayLike) -> list[np.ndarray]:
    """The columns as float rows of equal length; single numbers are repeated."""
    arrays = [np.asarray(column, dtype=float) for column in columns]
    lengths = {len(array) for array in arrays if array.ndim == 1}
    if any(array.ndim > 1 for array in arrays) or len(lengths) != 1:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise InputError(f"columns must be rows of one length, or single numbers: these have shapes {shapes}")
    return [np.broadcast_to(array, (next(iter(lengths)),)) for array in arrays]


def _measured(*columns: ArrayLike) -> tuple[list[np.ndarray], int]:
    """The rows where every column was measured, and how many were not."""
    arrays = _as_columns(*columns)
    if any(np.isinf(array).any() for array in arrays):
        raise InputError("values must be finite, or NaN where nothing was measured: cut the run before it diverged")
    there = ~np.any([np.isnan(array) for array in arrays], axis=0)
    return [array[there] for array in arrays], int(len(there) - there.sum())


def _positive(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if np.any(array <= 0):
        raise InputError(f"{name}={show(float(np.nanmin(array)))} must be above 0")
    return array


def _carried_forward(values: np.ndarray) -> np.ndarray:
    """The values, NaN replaced by the last one before."""
    last = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(len(values))))
    return values[last]


def _mean(x: np.ndarray) -> float:
    return float(x.sum()) / len(x) if len(x) else math.nan


def _ratio(numerator: float, denominator: float) -> float:
    """The ratio, infinite where scatter has pushed the denominator below 0."""
    return math.inf if denominator <= 0 else numerator / denominator


def _largest(x: np.ndarray) -> float:
    return max(float(x.max()), -float(x.min()))


def _two_sided(level: float, side: Side) -> float:
    """The level of the two-sided interval that has the wanted bound as an end."""
    require_choice("side", side, ("both", "lower", "upper"))
    lowest = 0.0 if side == "both" else 0.5
    if not lowest < level < 1:
        raise InputError(f"level={show(level)} must be above {lowest:g} and below 1, such as 0.9")
    return level if side == "both" else 2 * level - 1


def _start(value: float, x: np.ndarray, num_missing: int, level: float) -> Estimate:
    """An estimate that knows nothing but its value yet."""
    estimate = Estimate(value, -math.inf, math.inf, level, len(x), num_missing)
    if len(x) < MIN_VALUES:
        values = "1 value is" if len(x) == 1 else f"{len(x)} values are"
        return _warn(estimate, f"{values} too few for an interval: it takes {MIN_VALUES}")
    return estimate


def _name_wild_step(estimate: Estimate, x: np.ndarray) -> Estimate:
    """The estimate, warned if a single value decides about the mean."""
    total = float(np.abs(x).sum())
    if len(x) < MIN_VALUES or _largest(x) <= LARGE_SHARE * total:
        return estimate
    return _warn(estimate, f"a single step makes {_largest(x) / total:.0%} of the sum: compare with the trimmed mean")


def _finish(estimate: Estimate, low: float, high: float, effective_number: float, side: Side) -> Estimate:
    if effective_number < MIN_EFFECTIVE_NUMBER:
        worth = f"{estimate.num_values} values are worth {effective_number:.1f} independent ones"
        estimate = _warn(estimate, f"{worth}: the interval may be too narrow, take a longer window")
    return replace(
        estimate,
        low=-math.inf if side == "upper" else low,
        high=math.inf if side == "lower" else high,
        effective_number=effective_number,
    )


def _warn(estimate: Estimate, warning: str) -> Estimate:
    return replace(estimate, warnings=(*estimate.warnings, warning))


def _root(function: Callable[[float], float], start: float, end: float) -> float:
    """Where the function, positive at the start and not positive at the end, reaches 0."""
    from scipy.optimize import brentq  # takes longer to import than all the rest

    if function(start) <= 0:
        return start
    return end if function(end) >= 0 else float(brentq(function, start, end, xtol=1e-8, rtol=1e-8))


def _limits(x: np.ndarray, level: float) -> tuple[float, float, float]:
    """(low, high) of the mean and the effective number of values; the equations are the module's."""
    n = len(x)
    if n < MIN_VALUES:
        return _UNKNOWN
    mean = _mean(x)
    trend, waves, cosines = _shapes(n)
    e = x - trend @ (x @ trend)
    size = _largest(e)
    if size <= 1e-14 * _largest(x):
        return mean, mean, float(n)
    e /= size
    square_sum = float(e @ e)
    correlation = _correlation(e, square_sum)
    rho = min(max(correlation + CAUTION / math.sqrt(n), 0.0), MAX_CORRELATION)
    spectrum_ratio = (1 + rho**2 - 2 * rho * cosines) / (1 - rho) ** 2  # AR(1): at frequency 0 over at the wave
    long_run_variance = float((e @ waves) ** 2 @ spectrum_ratio) / len(cosines)
    skewness = _skewness(e, square_sum) / math.sqrt(_worth(n, rho))
    skewness = min(max(skewness, -MAX_SKEWNESS), MAX_SKEWNESS)
    error = size * math.sqrt(long_run_variance / n)
    t = float(stdtrit(len(cosines), 0.5 + level / 2))
    low, high = mean - error * _skewed(t, skewness), mean - error * _skewed(-t, skewness)
    return low, high, _worth(n, min(max(correlation, 0.0), MAX_CORRELATION))


@lru_cache(maxsize=64)
def _shapes(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Orthonormal columns for the trend and for the slow waves beside it, and cos(frequency) of the waves."""
    num_waves = min(max(int(math.cbrt(n)), WAVES[0]), WAVES[1])
    orders = np.arange(TREND_DEGREE + 1, TREND_DEGREE + 1 + num_waves)  # the trend has taken the slower ones
    u = (np.arange(n) + 0.5) / n
    powers = [u**power for power in range(TREND_DEGREE + 1)]
    columns = np.linalg.qr(np.column_stack([*powers, *(np.cos(np.pi * order * u) for order in orders)]))[0]
    columns.setflags(write=False)
    return columns[:, : TREND_DEGREE + 1], columns[:, TREND_DEGREE + 1 :], np.cos(np.pi * orders / n)


def _correlation(e: np.ndarray, square_sum: float) -> float:
    """The neighbours' correlation in what a trend left over.

    Taking out k columns makes neighbours look less alike, by about (k + (k + 3) * correlation) / n.
    """
    k = TREND_DEGREE + 1
    correlation = float(e[1:] @ e[:-1]) / square_sum
    return correlation + (k + (k + 3) * correlation) / len(e)


def _skewness(e: np.ndarray, square_sum: float) -> float:
    """The third moment over the second's power 3/2, both corrected for the k columns that were taken out."""
    n, k = len(e), TREND_DEGREE + 1
    third = float(e @ (e * e)) * n / ((n - k) * (n - k - 1))
    return third / (square_sum / (n - k)) ** 1.5


def _worth(n: int, correlation: float) -> float:
    """How many independent values tell as much about a mean as n with this correlation between neighbours."""
    return n * (1 - correlation) / (1 + correlation)


def _skewed(t: float, skewness: float) -> float:
    """The quantile of (mean - truth) / error that is t once the skewness is undone: the inverse of Hall's cubic.

    t = s + k s^2/3 + k^2 s^3/27 + k/6   <=>   s = 3/k ((1 + k (t - k/6))^(1/3) - 1)
    """
    if abs(skewness) < 1e-6:
        return t
    return 3 / skewness * (math.cbrt(1 + skewness * (t - skewness / 6)) - 1)
