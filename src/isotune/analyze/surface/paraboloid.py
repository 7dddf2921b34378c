"""Least squares: the coefficients of a paraboloid, their covariance, and whether it is one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isotune.analyze.laws import ErrorScale, error_scale

NUM_COEFFICIENTS = 6
COMFORTABLE_CELLS = 9  # fewer within the margin: it is widened
MIN_SINGULAR_VALUE = 1e-7  # of the scaled design, over the largest: below, the cells do not fix a paraboloid
# Below, a fit that seems to have its minimum inside the grid mostly has residuals that are small by chance, and its
# intervals are too narrow: so it is with 3 x 3 grids, and hardly any more with 4 x 3.
MIN_FREEDOM = 5
CUBIC_LEVEL = 0.01  # of the test whether cubic terms matter


@dataclass(frozen=True)
class Paraboloid:
    cells: np.ndarray
    weight: np.ndarray
    center: np.ndarray
    coefficients: np.ndarray
    unit_covariance: np.ndarray  # V: the covariance is scale.variance times this
    square_sum: float
    scale: ErrorScale

    @property
    def has_errors(self) -> bool:
        return math.isfinite(self.scale.reach)

    @property
    def covariance(self) -> np.ndarray:
        return self.scale.variance * self.unit_covariance

    @property
    def hessian(self) -> np.ndarray:
        _, _, _, c3, c4, c5 = self.coefficients
        return np.array([[2 * c3, c4], [c4, 2 * c5]])


def least_squares(cells: np.ndarray, weight: np.ndarray, known: bool, level: float) -> Paraboloid:
    center = cells[:, :2].mean(axis=0)
    x, y = (cells[:, :2] - center).T
    root = np.sqrt(weight)
    design = root[:, None] * basis(x, y)
    size = np.linalg.norm(design, axis=0)
    orthogonal, triangle = np.linalg.qr(design / size)
    inverse = np.linalg.inv(triangle) / size[:, None]
    coefficients = inverse @ (orthogonal.T @ (root * cells[:, 2]))
    residual = root * cells[:, 2] - design @ coefficients
    square_sum = float(residual @ residual)
    # Rounding leaves about this much of a perfect paraboloid.
    rounding = 1e-28 * float(weight @ cells[:, 2] ** 2)
    scale = error_scale(square_sum + rounding, len(cells) - NUM_COEFFICIENTS, level, known=known)
    return Paraboloid(cells, weight, center, coefficients, inverse @ inverse.T, square_sum, scale)


def basis(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """1, x, y, x^2, xy, y^2 in the last axis."""
    return np.stack([np.ones_like(x * y), x + 0 * y, y + 0 * x, x * x + 0 * y, x * y, y * y + 0 * x], axis=-1)


def gradient_basis(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """G: the derivatives of the basis by x and by y, in the last two axes."""
    zero, one = np.zeros_like(x * y), np.ones_like(x * y)
    by_x = np.stack([zero, one, zero, 2 * x + zero, y + zero, zero], axis=-1)
    by_y = np.stack([zero, zero, one, zero, x + zero, 2 * y + zero], axis=-1)
    return np.stack([by_x, by_y], axis=-2)


def fit_warnings(fit: Paraboloid, known: bool) -> list[str]:
    """What is wrong with the fit; `known` are the cells' errors."""
    warnings = []
    num_free = len(fit.cells) - NUM_COEFFICIENTS
    if not fit.has_errors:
        warnings.append("6 cells for 6 coefficients: no intervals")
    elif num_free < MIN_FREEDOM and not (known and not fit.scale.is_misfit):
        degrees = "1 degree" if num_free == 1 else f"{num_free} degrees"
        warnings.append(
            f"{len(fit.cells)} cells leave {degrees} of freedom, too few to know the noise: a minimum that looks to be "
            "inside the grid is less certain than its intervals say; add cells"
        )
    if fit.scale.is_misfit:
        times = math.sqrt(fit.scale.variance)
        warnings.append(
            f"losses scatter {times:.1f} times as much as their standard errors say: the loss is no paraboloid within "
            "the margin; intervals are widened, a smaller margin may fit better"
        )
    if _cubic_p_value(fit) < CUBIC_LEVEL:
        warnings.append(
            "the loss is no paraboloid within the margin (cubic terms matter): the minimum may lie outside its "
            "interval; a smaller margin may fit better"
        )
    return warnings


def _cubic_p_value(fit: Paraboloid) -> float:
    """Of the F test whether x^3, x^2 y, x y^2 and y^3 improve the fit; 1 where cells are too few to say."""
    from scipy.special import fdtrc

    x, y = (fit.cells[:, :2] - fit.center).T
    root = np.sqrt(fit.weight)
    loss = root * fit.cells[:, 2]
    num_free = len(x) - NUM_COEFFICIENTS - 4
    if num_free < 3 or fit.square_sum <= 1e-24 * float(loss @ loss):
        return 1.0
    design = root[:, None] * np.column_stack([basis(x, y), x**3, x**2 * y, x * y**2, y**3])
    columns, sizes, _ = np.linalg.svd(design / np.linalg.norm(design, axis=0), full_matrices=False)
    columns = columns[:, sizes > MIN_SINGULAR_VALUE * sizes[0]]
    num_cubic = columns.shape[1] - NUM_COEFFICIENTS
    if num_cubic < 1:
        return 1.0
    num_free = len(x) - columns.shape[1]
    residual = loss - columns @ (columns.T @ loss)
    left = float(residual @ residual)
    return float(fdtrc(num_cubic, num_free, (fit.square_sum - left) / num_cubic * num_free / left)) if left > 0 else 0.0
