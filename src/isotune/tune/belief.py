"""What is believed of the loss over LR, WD and budget: a Gaussian process whose prior knows the trajectory invariance.

The logarithm of the loss at (LR, WD, D') is a trend plus two smooth departures. Per observation x, relative to the
budget D that is tuned for:

    d = log2 D'/D            how far from the target budget: 0 there, negative below
    u = log2 LR - reference  - drift * d            LR, along the drift of its optimum with the budget
    z = log2(1 + n)          n = LR * WD * steps:   0 where memory has not turned over (n << 1), so that WD cannot
                                                    matter; log2 ELR plus a constant where it has (n >> 1)

    log L = trend(u, z, d) + departure(u, z, d) + gap(u, z; d) + noise

The trend is a cubic in u and a quadratic in z and d with Gaussian coefficients, so everything is linear and exact. The
gap grows with the distance from the target budget (Brownian in d): a short run says less about a long one. That WD
matters through z alone is the prior; a rival without it, smooth in log LR and log WD, stands beside it, and what is
observed decides between them by their marginal likelihoods.

The model is local: far above the best of its budget a loss says that it is bad, not how the bowl bends, so its noise
is raised with its excess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import linalg

# Constants of the prior. They describe relative losses (log L) per octave and were set on tables/nano, small batch.
CURVATURE = 0.008  # per octave^2 of LR
DRIFT, DRIFT_DEVIATION = -0.35, 0.2  # octaves of the best LR per octave of budget
DEPARTURE = 0.004
GAP = 0.006  # per square root of an octave of budget
NOISE = 0.002  # of a loss: seed and evaluation
EXCESS, EXCESS_FROM = 0.25, 0.02  # noise per excess over the best of the same budget, from where on
INVARIANCE_ODDS = 4.0  # that WD matters through n alone, before anything is seen
MAX_OBSERVATIONS = 400  # the lowest of each budget; the rest could not change an answer

Points = np.ndarray  # [points x 4]: log2 LR, log2 WD, log2 steps (NaN if unknown), log2 D'/D


@dataclass(frozen=True)
class Kernel:
    """A trend with Gaussian coefficients, and departures from it that are smooth in some coordinates."""

    name: str
    coordinates: Callable[[Points], np.ndarray] = field(repr=False)  # [points x 3], the last one d
    terms: Callable[[np.ndarray], np.ndarray] = field(repr=False)  # coordinates -> [points x terms]
    mean: np.ndarray = field(repr=False)
    deviation: np.ndarray = field(repr=False)
    scales: np.ndarray = field(repr=False)  # lengths over which departures change
    departure: float = DEPARTURE
    gap: float = GAP

    def expected(self, points: Points) -> np.ndarray:
        return self.terms(self.coordinates(points)) @ self.mean

    def covariance(self, first: Points, second: Points) -> np.ndarray:
        a, b = self.coordinates(first), self.coordinates(second)
        trend = (self.terms(a) * self.deviation**2) @ self.terms(b).T
        a, b = a / self.scales, b / self.scales
        across = _square_distances(a[:, :2], b[:, :2])
        along = (a[:, 2:] - b[:, 2:].T) ** 2
        below = np.minimum(-first[:, 3:], -second[:, 3:].T)
        nearness = np.exp(-across / 2)
        return trend + nearness * (self.departure**2 * np.exp(-along / 2) + self.gap**2 * np.maximum(below, 0.0))

    def variance(self, points: Points) -> np.ndarray:
        """The diagonal of the covariance of these points."""
        trend = ((self.terms(self.coordinates(points)) * self.deviation) ** 2).sum(axis=1)
        return trend + self.departure**2 + self.gap**2 * np.maximum(-points[:, 3], 0.0)


@dataclass(frozen=True)
class Observations:
    """Log losses at points, each with the standard deviation of its noise."""

    points: Points
    values: np.ndarray
    noise: np.ndarray

    def __len__(self) -> int:
        return len(self.values)


NOTHING = Observations(np.zeros((0, 4)), np.zeros(0), np.zeros(0))


def invariant_kernel(reference_log2_lr: float, deviation_octaves: float) -> Kernel:
    """WD matters through n alone: not at all where n << 1, as ELR where n >> 1."""

    def coordinates(points: Points) -> np.ndarray:
        lr, wd, steps, d = points.T
        return np.column_stack([lr - reference_log2_lr - DRIFT * d, np.log2(1 + 2.0 ** (lr + wd + steps)), d])

    def terms(c: np.ndarray) -> np.ndarray:
        u, z, d = c.T
        return np.column_stack([np.ones(len(u)), d, d * d, u, u * u, u**3, u * d, u * u * d, z, z * z, z * u, z * d])

    mean = [0, -0.08, 0.008, 0, CURVATURE, -0.0015, 0, 0, 0.002, 0.009, 0, 0]
    slope = 2 * CURVATURE * deviation_octaves
    turn = 2 * CURVATURE * DRIFT_DEVIATION
    deviation = [3, 0.05, 0.01, slope, 0.005, 0.0015, turn, 0.002, 0.006, 0.005, 0.003, 0.004]
    return Kernel("invariant", coordinates, terms, np.array(mean), np.array(deviation), np.array([1.5, 1.2, 1.5]))


def plain_kernel(reference_log2_lr: float, reference_log2_wd: float) -> Kernel:
    """No invariance: smooth in log LR, log WD and log budget."""

    def coordinates(points: Points) -> np.ndarray:
        lr, wd, _, d = points.T
        return np.column_stack([lr - reference_log2_lr, (wd - reference_log2_wd) / 1.5, d])

    def terms(c: np.ndarray) -> np.ndarray:
        u, v, d = c.T
        return np.column_stack([np.ones(len(u)), d, d * d, u, v, u * u, v * v, u * v, u * d, v * d])

    mean = np.array([0, -0.08, 0.008, 0, 0, 0.006, 0.006, 0, 0, 0])
    deviation = np.array([3, 0.05, 0.01, 0.03, 0.03, 0.006, 0.006, 0.006, 0.006, 0.006])
    return Kernel("plain", coordinates, terms, mean, deviation, np.array([1.5, 1.5, 1.5]), departure=0.01)


@dataclass(frozen=True)
class Belief:
    """Kernels with their weights, given what was observed."""

    kernels: tuple[Kernel, ...]
    weights: np.ndarray
    observations: Observations
    _solved: tuple[tuple[np.ndarray, np.ndarray], ...] = field(repr=False)  # (Cholesky factor, whitened residual)

    def mean_and_deviation(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """Of the log loss at points, over all kernels."""
        means, variances = zip(
            *((given.mean, given.variance()) for given in self._given(points)),
            strict=True,
        )
        mean = self.weights @ np.array(means)
        variance = self.weights @ (np.array(variances) + (np.array(means) - mean) ** 2)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def covariance(self, first: Points, second: Points) -> np.ndarray:
        """[first x second] of the log losses, over all kernels."""
        pairs = list(zip(self._given(first), self._given(second), strict=True))
        means = [self.weights @ np.array([pair[side].mean for pair in pairs]) for side in (0, 1)]
        total = np.zeros((len(first), len(second)))
        for weight, kernel, (a, b) in zip(self.weights, self.kernels, pairs, strict=True):
            own = kernel.covariance(first, second) - a.explained.T @ b.explained
            total += weight * (own + np.outer(a.mean - means[0], b.mean - means[1]))
        return total

    def draws(self, points: Points, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count x points] joint draws of the log loss, each from one of the kernels."""
        shares = rng.multinomial(count, self.weights)
        drawn = []
        for share, kernel, given in zip(shares, self.kernels, self._given(points), strict=True):
            if share:
                covariance = kernel.covariance(points, points) - given.explained.T @ given.explained
                root = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(points)))
                drawn.append(given.mean + rng.standard_normal((share, len(points))) @ root.T)
        return np.concatenate(drawn)

    def _given(self, points: Points) -> list[_Given]:
        """Each kernel's posterior at points."""
        found = []
        for kernel, (root, residual) in zip(self.kernels, self._solved, strict=True):
            explained = np.zeros((0, len(points)))
            if len(residual):
                seen = kernel.covariance(self.observations.points, points)
                explained = linalg.solve_triangular(root, seen, lower=True, check_finite=False)
            found.append(_Given(kernel.expected(points) + explained.T @ residual, explained, kernel, points))
        return found


@dataclass(frozen=True)
class _Given:
    """One kernel at points: its mean, and what the observations explain, as columns whose squares add up."""

    mean: np.ndarray
    explained: np.ndarray
    kernel: Kernel
    points: Points

    def variance(self) -> np.ndarray:
        return self.kernel.variance(self.points) - (self.explained**2).sum(axis=0)


def believe(kernels: Sequence[Kernel], odds: Sequence[float], observations: Observations) -> Belief:
    """The posterior; `odds` are the kernels' prior weights, up to a factor."""
    observed = _lowest(observations)
    log_weights = np.log(np.asarray(odds, dtype=float))
    solved = []
    for index, kernel in enumerate(kernels):
        if not len(observed):
            solved.append((np.zeros((0, 0)), np.zeros(0)))
            continue
        covariance = kernel.covariance(observed.points, observed.points) + np.diag(observed.noise**2 + 1e-12)
        root = np.linalg.cholesky(covariance)
        residual = linalg.solve_triangular(root, observed.values - kernel.expected(observed.points), lower=True)
        log_weights[index] -= float(residual @ residual) / 2 + float(np.log(np.diag(root)).sum())
        solved.append((root, residual))
    weights = np.exp(log_weights - log_weights.max())
    return Belief(tuple(kernels), weights / weights.sum(), observed, tuple(solved))


def with_noise(points: Points, values: np.ndarray, noise: float | np.ndarray = NOISE) -> Observations:
    """Observations whose noise is raised where they are far above the best of their budget."""
    noise = np.broadcast_to(np.asarray(noise, dtype=float), values.shape)
    excess = np.zeros(len(values))
    for d in np.unique(points[:, 3].round(6)) if len(points) else ():
        here = np.abs(points[:, 3] - d) < 1e-5
        excess[here] = values[here] - values[here].min()
    return Observations(points, values, np.hypot(noise, EXCESS * np.maximum(0.0, excess - EXCESS_FROM)))


def _lowest(observations: Observations) -> Observations:
    """Of very many observations those with the least noise: raised noise is what a bad loss has."""
    if len(observations) <= MAX_OBSERVATIONS:
        return observations
    kept = np.sort(np.argsort(observations.noise, kind="stable")[:MAX_OBSERVATIONS])
    return Observations(observations.points[kept], observations.values[kept], observations.noise[kept])


def _square_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(0.0, (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T)
