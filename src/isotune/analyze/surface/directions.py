"""The direction that matters: of the largest curvature, and of the gradients; axial angles, with intervals."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from isotune.analyze.laws import ErrorScale, Interval
from isotune.analyze.surface.paraboloid import Paraboloid, gradient_basis

Factor = Literal["LR", "ELR", "WD"]
NAMED_DIRECTIONS: dict[Factor, float] = {"LR": 0.0, "ELR": 45.0, "WD": 90.0}
SALIENT_BOUNDARY = 22.5  # degrees: halfway between LR and ELR


def salient_direction(fit: Paraboloid, with_intervals: bool) -> tuple[float, Interval]:
    """Half the angle of (c3 - c5, c4): the direction of the largest second derivative."""
    rows = np.array([[0, 0, 0, 1, 0, -1], [0, 0, 0, 0, 1, 0]], dtype=float)
    covariance = rows @ fit.covariance @ rows.T if with_intervals else None
    return _half_angle(rows @ fit.coefficients, covariance, fit.scale)


def active_direction(fit: Paraboloid, with_intervals: bool) -> tuple[float, Interval]:
    """Half the angle of (M11 - M22, 2 M12), M = mean of gradient gradient' over the fitted cells.

    Both are quadratic forms c' Q c; errors of c add tr(Q C) to their means, and their covariances are
    4 c' Q1 C Q2 c + 2 tr(Q1 C Q2 C), of which the estimated c makes 4 tr(Q1 C Q2 C) more.
    """
    gradients = gradient_basis(*(fit.cells[:, :2] - fit.center).T)
    by_x, by_y = gradients[:, 0], gradients[:, 1]
    count = len(gradients)
    cross = by_x.T @ by_y
    forms = [(by_x.T @ by_x - by_y.T @ by_y) / count, (cross + cross.T) / count]
    c = fit.coefficients
    vector = np.array([c @ form @ c for form in forms])
    if not with_intervals:
        return _half_angle(vector, None, fit.scale)
    noise = fit.covariance
    vector = vector - [np.trace(form @ noise) for form in forms]
    covariance = np.empty((2, 2))
    for i, first in enumerate(forms):
        for j, second in enumerate(forms):
            middle = first @ noise @ second
            covariance[i, j] = 4 * c @ middle @ c - 2 * np.trace(middle @ noise)
    values, axes = np.linalg.eigh(covariance)
    smallest = 2 * min(float(np.trace(form @ noise @ form @ noise)) for form in forms)
    covariance = (axes * np.maximum(values, smallest)) @ axes.T
    return _half_angle(vector, covariance, fit.scale)


def _half_angle(vector: np.ndarray, covariance: np.ndarray | None, scale: ErrorScale) -> tuple[float, Interval]:
    """Half the vector's angle in degrees, and the half angles whose perpendicular component may be 0.

    Accepted are unit normals n with n' W n <= 0, W = vector vector' - quantile^2 covariance: those within
    arctan sqrt(-second / first) of the eigenvector of W's second (negative) eigenvalue. All of them if the vector is
    not told from 0: a pair of numbers at once, so by the F test. Noise alone then claims a direction in 1 - level of
    all cases.
    """
    angle = axial(math.degrees(math.atan2(vector[1], vector[0])) / 2)
    everything = (angle - 90.0, angle + 90.0)
    outer = np.outer(vector, vector)
    # vector' covariance^-1 vector > pair_quantile^2 is the same as a positive eigenvalue here, and divides by nothing.
    if covariance is None or np.linalg.eigvalsh(outer - scale.pair_quantile**2 * covariance)[1] <= 0:
        return angle, everything
    values, axes = np.linalg.eigh(outer - scale.quantile**2 * covariance)
    axis = axes[:, 1] * math.copysign(1.0, float(axes[:, 1] @ vector))
    middle = math.degrees(math.atan2(axis[1], axis[0])) / 2
    half = math.degrees(math.atan(math.sqrt(max(-values[0] / values[1], 0.0)))) / 2
    middle = angle + axial(middle - angle)
    return angle, (min(middle - half, angle), max(middle + half, angle))


def named_factor(interval: Interval) -> Factor | None:
    """The one of LR, ELR and WD from which a whole interval of directions is at most 22.5 degrees."""
    low, high = interval
    for name, angle in NAMED_DIRECTIONS.items():
        farthest = max(abs(axial(low - angle)), abs(axial(high - angle)))
        if high - low < 90 and farthest <= SALIENT_BOUNDARY:
            return name
    return None


def axial(degrees: float) -> float:
    """The same direction in (-90, 90]."""
    turned = math.remainder(degrees, 180.0)
    return 90.0 if turned == -90.0 else turned


def ratio_interval(fit: Paraboloid, angle: float, direction: Interval, with_intervals: bool) -> Interval:
    """Of |first / second| eigenvalue: Fieller's, at the fitted direction; infinite if the second may be 0."""
    if not with_intervals:
        return 0.0, math.inf
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    rows = np.array(
        [
            [0, 0, 0, 2 * cosine**2, 2 * cosine * sine, 2 * sine**2],
            [0, 0, 0, 2 * sine**2, -2 * cosine * sine, 2 * cosine**2],
        ]
    )
    _, (low, high) = _half_angle(rows @ fit.coefficients, rows @ fit.covariance @ rows.T, fit.scale)
    if high - low >= 180:
        return 0.0, math.inf
    # Twice these angles are arctan(second / first): 45 degrees are equal eigenvalues, 0 is no second one.
    tangents = [abs(math.tan(math.radians(2 * end))) if abs(2 * end) < 90 else math.inf for end in (low, high)]
    largest = max(tangents)
    smallest = 0.0 if low <= 0 <= high else min(tangents)
    lowest_ratio = 1 / largest if largest > 0 else math.inf
    if low > -22.5 and direction[1] - direction[0] < 180:
        lowest_ratio = max(lowest_ratio, 1.0)  # of two positive eigenvalues the first is the larger
    return lowest_ratio, 1 / smallest if smallest > 0 else math.inf
