"""The direction of (log2 LR, log2 WD) in which a value changes, as an angle with its interval.

The index is the angle theta for which the value is best a cubic in cos(theta) log2 LR + sin(theta) log2 WD: 0 degrees
is LR, 45 ELR, 90 WD. Its interval holds every angle whose residuals an F test does not tell from the best angle's; and
all angles, unless the best one explains more than it would of noise, for which the angle is free as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from isotune.analyze.distances import BOOTSTRAP_DRAWS, MAX_FAILED_DRAWS, draw_cells
from isotune.errors import InputError

VALUES_AT_A_TIME = 1 << 20  # more cells do not take more memory
MIN_ANGLE_CELLS = 7  # four coefficients and an angle, and something left over
ANGLE_STEP = 0.5  # degrees
FIRST_ANGLE = -45.0
NULL_DRAWS = 2000
NULL_STEP = 2.0  # degrees: what a direction explains changes slowly
SALIENT_BOUNDARY = 22.5  # degrees: halfway between LR and ELR
RARE = 1e-3  # a chance below it is not looked at more closely
ROUNDING = 1e-12  # of the values' size: less scatter is rounding


@dataclass(frozen=True)
class Angle:
    """The index LR^a WD^b in degrees, atan2(b, a): 0 is LR, 45 ELR, 90 WD. Half turns are equal."""

    degrees: float
    low: float
    high: float
    level: float
    unexplained: float  # residual mean square of the cubic, over the variance of the values
    reason: str = ""


def index_angle(
    log2_lr: ArrayLike, log2_wd: ArrayLike, value: ArrayLike, *, level: float = 0.9, random_seed: int = 0
) -> Angle:
    """The angle theta with the least residual of value = cubic in cos(theta) log2 LR + sin(theta) log2 WD.

    The interval holds every angle with R(theta) <= R_min * (1 + F / (n - 5)), F the quantile of F(1, n - 5): exact
    for normal errors of a straight index, wide where the cubic fits badly. It is the whole half circle if values
    without any index have a direction this good in more than 1 - level of all cases.
    """
    x, y, z = as_columns(log2_lr, log2_wd, value)
    freedom = len(z) - 5
    total = float(((z - z.mean()) ** 2).sum())
    if len(z) < MIN_ANGLE_CELLS or total <= (ROUNDING * np.abs(z).max(initial=0.0)) ** 2 * len(z):
        few = len(z) < MIN_ANGLE_CELLS
        why = f"{len(z)} cells are too few for an angle: it takes {MIN_ANGLE_CELLS}" if few else "all values are equal"
        return Angle(math.nan, math.nan, math.nan, level, math.nan, why)
    coarse = FIRST_ANGLE + ANGLE_STEP * np.arange(round(180 / ANGLE_STEP))
    weights = np.ones((1, len(z)))
    first = coarse[int(np.argmin(_residuals(x, y, z, coarse, weights)[0]))]
    turns = np.concatenate([coarse - first, np.linspace(-ANGLE_STEP, ANGLE_STEP, 51)])
    turns = np.unique(np.round((turns + 90) % 180 - 90, 6))  # from the best angle, -90 to 90
    residuals = _residuals(x, y, z, first + turns, weights)[0]
    best = int(np.argmin(residuals))
    quantile = float(special.fdtri(1, freedom, level))
    limit = residuals[best] * (1 + quantile / freedom) + 1e-14 * total
    low, high = _around(turns, residuals, limit)
    if _chance(x, y, 1 - residuals[best] / total, random_seed) > 1 - level:
        low, high = turns[best] - 90.0, turns[best] + 90.0
    degrees = float((first + turns[best] - FIRST_ANGLE) % 180 + FIRST_ANGLE)
    shift = degrees - turns[best]
    unexplained = residuals[best] / freedom / (total / (len(z) - 1))
    wide = high - low >= 175
    return Angle(
        degrees,
        float(low + shift),
        float(high + shift),
        level,
        float(unexplained),
        "no angle is ruled out" if wide else "",
    )


def bootstrap_angle(
    log2_lr: ArrayLike,
    log2_wd: ArrayLike,
    value: ArrayLike,
    *,
    level: float = 0.9,
    draws: int = BOOTSTRAP_DRAWS,
    random_seed: int = 0,
) -> Angle:
    """The angle with the percentile interval of a cell bootstrap: cells are drawn with replacement."""
    x, y, z = as_columns(log2_lr, log2_wd, value)
    angle = index_angle(x, y, z, level=level)
    if angle.reason:
        return angle
    drawn = angle_draws(x, y, z, draw_cells(len(z), draws, random_seed))
    turns = (drawn[np.isfinite(drawn)] - angle.degrees + 90) % 180 - 90
    if len(turns) < (1 - MAX_FAILED_DRAWS) * len(drawn):
        return Angle(angle.degrees, math.nan, math.nan, level, angle.unexplained, "too few draws give an angle")
    low, high = np.quantile(turns[:draws], [(1 - level) / 2, (1 + level) / 2])
    return Angle(
        angle.degrees, angle.degrees + float(low), angle.degrees + float(high), level, angle.unexplained, angle.reason
    )


def angle_draws(log2_lr: ArrayLike, log2_wd: ArrayLike, value: ArrayLike, weights: np.ndarray) -> np.ndarray:
    """The angle for each row of weights [draws x cells], on the grid of half degrees; NaN with under seven cells."""
    x, y, z = as_columns(log2_lr, log2_wd, value)
    angles = FIRST_ANGLE + ANGLE_STEP * np.arange(round(180 / ANGLE_STEP))
    best = angles[np.argmin(_residuals(x, y, z, angles, weights), axis=1)]
    return np.where((weights > 0).sum(axis=1) >= MIN_ANGLE_CELLS, best, np.nan)


def passing_point(positions: ArrayLike, degrees: ArrayLike, boundary: float = SALIENT_BOUNDARY) -> float:
    """The position at which an angle first passes the boundary, log-linear between windows; NaN if it never does.

    Past it from the start: the first position, which then is an upper bound.

    >>> passing_point([1e5, 4e5, 16e5], [2.5, 12.5, 32.5])
    800000.0
    """
    position, angle = np.log2(np.asarray(positions, dtype=float)), np.asarray(degrees, dtype=float)
    past = np.flatnonzero(angle >= boundary)
    if not len(past):
        return math.nan
    after = int(past[0])
    if after == 0:
        return float(2.0 ** position[0])
    part = (boundary - angle[after - 1]) / (angle[after] - angle[after - 1])
    return float(round(2.0 ** (position[after - 1] + part * (position[after] - position[after - 1])), 6))


def as_columns(log2_lr: ArrayLike, log2_wd: ArrayLike, value: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """LR, WD and values as rows of one length; curves are averaged, what is not finite is refused."""
    x, y, z = (np.asarray(column, dtype=float) for column in (log2_lr, log2_wd, value))
    if z.ndim == 2:
        z = z.mean(axis=1)
    if not (x.ndim == y.ndim == z.ndim == 1 and len(x) == len(y) == len(z)):
        raise InputError(f"LR, WD and values must be rows of one length: these are {x.shape}, {y.shape}, {z.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(z).all()):
        raise InputError("LR, WD and values must be finite: leave out runs that diverged or were not measured")
    return x, y, z


def _residuals(x: np.ndarray, y: np.ndarray, z: np.ndarray, angles: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Residual sums of squares of the cubic in each direction, [weights x angles]; a few angles at a time."""
    part = max(1, VALUES_AT_A_TIME // len(x))
    parts = [_residuals_at(x, y, z, angles[k : k + part], weights) for k in range(0, len(angles), part)]
    return np.concatenate(parts, axis=1)


def _residuals_at(x: np.ndarray, y: np.ndarray, z: np.ndarray, angles: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The normal equations hold nothing but sums of u^k and z u^k: one product of weights with all powers."""
    x, y, z = x - x.mean(), y - y.mean(), z - z.mean()
    theta = np.deg2rad(angles)
    u = np.outer(x, np.cos(theta)) + np.outer(y, np.sin(theta))
    u /= np.abs(u).max(axis=0) + 1e-300
    powers = np.empty((11, *u.shape))
    powers[0] = 1.0
    for k in range(1, 7):
        np.multiply(powers[k - 1], u, out=powers[k])
    np.multiply(powers[:4], z[:, None], out=powers[7:])
    sums = np.matmul(weights, powers)  # [11 x weights x angles]
    matrix = [[sums[i + j] for j in range(4)] for i in range(4)]
    right = [sums[7 + i] for i in range(4)]
    residual = np.broadcast_to((weights @ (z * z))[:, None], right[0].shape).copy()
    floor = 1e-9 * sums[0]
    for k in range(4):  # elimination; a power that the others explain leaves its pivot at 0
        pivot = matrix[k][k]
        inverse = np.where(pivot > floor, 1 / np.where(pivot > floor, pivot, 1.0), 0.0)
        residual -= right[k] ** 2 * inverse
        for i in range(k + 1, 4):
            factor = matrix[i][k] * inverse
            right[i] = right[i] - factor * right[k]
            for j in range(i, 4):
                matrix[i][j] = matrix[j][i] = matrix[i][j] - factor * matrix[k][j]
    return np.maximum(residual, 0.0)


def _chance(x: np.ndarray, y: np.ndarray, explained: float, random_seed: int) -> float:
    """How often the best direction explains this share of normal noise, or more.

    A cubic in any direction is one of the cubics in both settings, which have nine terms beside the constant. So it is
    at least as rare as that they explain this much, which is known without drawing.
    """
    u, v = (x - x.mean()) / (np.ptp(x) or 1.0), (y - y.mean()) / (np.ptp(y) or 1.0)
    terms = np.column_stack([u**i * v**j for i in range(4) for j in range(4 - i) if i + j])
    basis = _orthonormal(terms - terms.mean(axis=0))
    num_terms, rest = basis.shape[1], len(x) - 1 - basis.shape[1]
    if rest > 0 and special.betainc(rest / 2, num_terms / 2, 1 - explained) < RARE:
        return 0.0
    rng = np.random.default_rng(random_seed)
    noise = rng.standard_normal((NULL_DRAWS, num_terms))
    squares = (noise**2).sum(axis=1) + (rng.chisquare(rest, NULL_DRAWS) if rest else 0.0)
    theta = np.deg2rad(FIRST_ANGLE + NULL_STEP * np.arange(round(180 / NULL_STEP)))
    largest = np.zeros(NULL_DRAWS)
    for cosine, sine in zip(np.cos(theta), np.sin(theta), strict=True):
        along = cosine * (x - x.mean()) + sine * (y - y.mean())
        powers = (along / (np.abs(along).max() + 1e-300))[:, None] ** np.arange(1, 4)
        direction = _orthonormal(basis.T @ (powers - powers.mean(axis=0)))
        largest = np.maximum(largest, ((noise @ direction) ** 2).sum(axis=1))
    return float(np.mean(largest >= explained * squares))


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > 1e-6 * sizes[0]])


def _around(turns: np.ndarray, residuals: np.ndarray, limit: float) -> tuple[float, float]:
    """The first and the last turn at or below the limit, by interpolation to where the limit is passed."""
    inside = np.flatnonzero(residuals <= limit)
    ends = []
    for edge, outward in ((int(inside[0]), -1), (int(inside[-1]), 1)):
        beyond = edge + outward
        if not 0 <= beyond < len(turns):
            ends.append(float(turns[edge]))
            continue
        part = (limit - residuals[edge]) / (residuals[beyond] - residuals[edge])
        ends.append(float(turns[edge] + part * (turns[beyond] - turns[edge])))
    return ends[0], ends[1]
