"""How sure the zero of the contrasts of runs is (shift.py): standard errors, and how well they are known.

Runs are drawn anew around their smooth curves (run_noise.py) and contrasted. Contrasts are not linear in the runs, so
draws have to tell their variance; but what a few hundred draws happen to be moves it by some percent, and the same
draws move it alike in every sweep of one shape. The linear part of the contrasts has a variance that is known exactly:
by how much the draws miss that, so much is taken from what they say of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotune.analyze.run_noise import RunNoise

NUM_NOISE_DRAWS = 300
MIN_SHARE = 0.25  # of the variance by noise alone, which is left where runs scatter less than their noise
_CHUNK_VALUES = 1 << 14  # draws at a time that stay in the cache


@dataclass(frozen=True)
class Zero:
    """Where c passes 0, as a linear function of the settings, and what is linear in c around it."""

    zero: np.ndarray  # [k]: constant, slopes
    influence: np.ndarray  # how much each c moves them, [k x triangles * points]
    leftover: np.ndarray  # from c to the triangles' mean residuals, [triangles x triangles * points]


@dataclass(frozen=True)
class ZeroErrors:
    """Standard errors of a zero's coefficients, each with its degrees of freedom."""

    errors: np.ndarray
    freedom: np.ndarray
    offsets: float  # what stays with a run, in units of the noise along it (variances); below 0 by chance


def contrasts(values: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    """c of each triangle at each point, for values [... x runs x points]."""
    far, equal, third = (values[..., column, :] for column in triangles.T)
    at_equal_lr, at_equal_elr = (equal - third) ** 2, (equal - far) ** 2
    size = at_equal_lr + at_equal_elr
    return (at_equal_lr - at_equal_elr) / np.where(size > 0, size, 1.0)


def zero_errors(zeros: Sequence[Zero], c: np.ndarray, triangles: np.ndarray, noise: RunNoise) -> list[ZeroErrors]:
    """The errors of each zero: those of the noise along the runs, and of offsets as far as the triangles' scatter asks.

    Degrees of freedom are Satterthwaite's: the variance of each run is known from its own points, that of the offsets
    from the scatter.
    """
    maps = np.concatenate([rows for one in zeros for rows in (one.influence, one.leftover)]).T
    slopes = np.concatenate([_slopes(one.influence, triangles, noise.smooth) for one in zeros])
    drawn, added, linear = _draw(maps, slopes, triangles, noise)
    by_run = _linear_variances(slopes, noise)
    measured = c.ravel() @ maps
    found, begin, first = [], 0, 0
    for one in zeros:
        middle, last = begin + len(one.influence), first + len(one.influence)
        end = middle + len(one.leftover)
        own = by_run[first:last]
        by_noise = _corrected(drawn[:, begin:middle], linear[:, first:last], own.sum(axis=1))
        by_offsets = added[:, begin:middle].var(axis=0, ddof=1)
        offsets, deviation = _offsets(measured[middle:end], drawn[:, middle:end], added[:, middle:end])
        variances = np.maximum(by_noise + offsets * by_offsets, MIN_SHARE * by_noise)
        alike = (own**2).sum(axis=1) / own.sum(axis=1) ** 2  # 1 if one run decides, 1 / runs if all do alike
        doubt = 2 * by_noise**2 * alike / noise.num_free + (deviation * by_offsets) ** 2
        freedom = 2 * np.maximum(variances, by_noise) ** 2 / doubt
        found.append(ZeroErrors(np.sqrt(variances), freedom, offsets))
        begin, first = end, last
    return found


def _draw(
    maps: np.ndarray, slopes: np.ndarray, triangles: np.ndarray, noise: RunNoise
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[draws x columns]: what noise gives, what offsets add to it, and the linear part of what noise gives."""
    to_linear = slopes.reshape(len(slopes), -1).T
    rng = np.random.default_rng(0)
    step = max(1, _CHUNK_VALUES // len(maps))
    by_noise, by_offsets, linear = [], [], []
    for begin in range(0, NUM_NOISE_DRAWS, step):
        values = noise.draw(min(step, NUM_NOISE_DRAWS - begin), rng)
        offsets = np.sqrt(noise.variances) * rng.standard_normal(values.shape[:2])
        first = contrasts(values, triangles).reshape(len(values), -1) @ maps
        second = contrasts(values + offsets[..., None], triangles).reshape(len(values), -1) @ maps
        by_noise.append(first)
        by_offsets.append(second - first)
        linear.append((values - noise.smooth).reshape(len(values), -1) @ to_linear)
    return np.concatenate(by_noise), np.concatenate(by_offsets), np.concatenate(linear)


def _slopes(influence: np.ndarray, triangles: np.ndarray, smooth: np.ndarray) -> np.ndarray:
    """How much each point of each run moves the zero, by way of c: [k x runs x points].

    dc = 4 A B (B dA - A dB) / (A^2 + B^2)^2,  A = equal - third,  B = equal - far
    """
    far, equal, third = (smooth[column] for column in triangles.T)
    a, b = equal - third, equal - far
    size = a**2 + b**2
    steep = 4 * a * b / np.where(size > 0, size, 1.0) ** 2
    of_c = influence.reshape(len(influence), *a.shape)
    by_a, by_b = of_c * steep * b, -of_c * steep * a
    member = np.eye(len(smooth))
    parts = zip(triangles.T, (-by_b, by_a + by_b, -by_a), strict=True)
    return np.asarray(sum(member[:, column] @ part for column, part in parts))


def _linear_variances(slopes: np.ndarray, noise: RunNoise) -> np.ndarray:
    """The variance that the noise of each run gives to a linear function of the runs, [k x runs]."""
    points = np.arange(slopes.shape[2])
    correlations = noise.correlation ** np.abs(points[:, None] - points)
    return np.einsum("krt,krt->kr", slopes @ correlations, slopes) * noise.variances


def _corrected(drawn: np.ndarray, linear: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Variances of the drawn columns, less what the draws of their linear parts miss: a control variate."""
    found, of_linear = drawn.var(axis=0, ddof=1), linear.var(axis=0, ddof=1)
    covariances = ((drawn - drawn.mean(axis=0)) * (linear - linear.mean(axis=0))).sum(axis=0) / (len(drawn) - 1)
    is_random = (found > 0) & (of_linear > 0)
    one = np.ones_like(found)
    shared = np.divide(covariances**2, found * of_linear, out=0 * one, where=is_random)
    return found * (1 + shared * (np.divide(exact, of_linear, out=one, where=is_random) - 1))


def _offsets(measured: np.ndarray, drawn: np.ndarray, added: np.ndarray) -> tuple[float, float]:
    """How large offsets of runs are, as variances in units of their noise, and the standard deviation of that.

    They are what the triangles' scatter exceeds that of noise alone by, over what offsets as large as the noise add to
    it. Where it happens to fall short they are negative: if chance counted in one direction only, errors would be too
    large on average.
    """
    expected, more = (float(part.var(axis=0, ddof=1).sum()) for part in (drawn, added))
    if not expected > 0 or not more > 0:
        return 0.0, 0.0
    scatter = float((measured**2).sum())
    chance = float(((drawn - drawn.mean(axis=0)) ** 2).sum(axis=1).std(ddof=1)) / expected
    return (scatter - expected) / more, chance * max(scatter, expected) / more
