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
from functools import cached_property

import numpy as np
from scipy import linalg

# Constants of the prior. They describe relative losses (log L) per octave and were set on tables/nano, small batch.
CURVATURE = 0.008  # per octave^2 of LR
DRIFT, DRIFT_DEVIATION = -0.25, 0.25  # octaves of the best LR per octave of budget: nano has -.4, the paper about 0
DEPARTURE = 0.004
GAP = 0.006  # per square root of an octave of budget
NOISE = 0.002  # of a loss: seed and evaluation
EXCESS, EXCESS_FROM = 0.25, 0.02  # noise per excess over the best of the same budget, from where on
INVARIANCE_ODDS = 4.0  # that WD matters through n alone, before anything is seen
MAX_OBSERVATIONS = 300  # the lowest of each budget; the rest could not change an answer

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

    def place(self, points: Points) -> Placed:
        """The points as this kernel sees them, computed once."""
        coordinates = self.coordinates(points)
        terms = self.terms(coordinates)
        return Placed(terms @ self.mean, terms * self.deviation, coordinates[:, :2] / self.scales[:2], points[:, 3])

    def covariance(self, first: Placed, second: Placed) -> np.ndarray:
        """[first x second] before anything is observed."""
        nearness = np.exp(_square_distances(first.across, second.across) / -2)
        return first.terms @ second.terms.T + nearness * self._along(first.budget, second.budget)

    def variance(self, placed: Placed) -> np.ndarray:
        """The diagonal of the covariance of these points."""
        return (placed.terms**2).sum(axis=1) + self.departure**2 + self.gap**2 * np.maximum(-placed.budget, 0.0)

    def _along(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """What depends on the budgets alone, of which there are few."""
        (a, row), (b, column) = (np.unique(budget, return_inverse=True) for budget in (first, second))
        near = self.departure**2 * np.exp(((a[:, None] - b) / self.scales[2]) ** 2 / -2)
        both = near + self.gap**2 * np.maximum(0.0, np.minimum(-a[:, None], -b))
        return both[row][:, column]


@dataclass(frozen=True)
class Placed:
    """Points under a kernel: expected log losses, terms in units of their deviations, scaled coordinates, budgets."""

    expected: np.ndarray
    terms: np.ndarray
    across: np.ndarray
    budget: np.ndarray

    def some(self, chosen: slice) -> Placed:
        return Placed(self.expected[chosen], self.terms[chosen], self.across[chosen], self.budget[chosen])


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
    _solved: tuple[_Solved, ...] = field(repr=False)

    def at(self, points: Points) -> Posterior:
        """The log losses at these points."""
        placed, means, explained = [], [], []
        for kernel, solved in zip(self.kernels, self._solved, strict=True):
            here = kernel.place(points)
            known = np.zeros((0, len(points)))
            if len(solved.residual):
                seen = kernel.covariance(solved.placed, here)
                known = linalg.solve_triangular(solved.root, seen, lower=True, check_finite=False)
            placed.append(here)
            means.append(here.expected + known.T @ solved.residual)
            explained.append(known)
        return Posterior(self.kernels, self.weights, tuple(placed), np.array(means), tuple(explained))


@dataclass(frozen=True)
class Posterior:
    """The log losses at some points: each kernel's, and of all together."""

    kernels: tuple[Kernel, ...]
    weights: np.ndarray
    _placed: tuple[Placed, ...] = field(repr=False)
    _means: np.ndarray = field(repr=False)  # [kernels x points]
    _explained: tuple[np.ndarray, ...] = field(repr=False)  # [observations x points], whose squares add up

    @cached_property
    def mean(self) -> np.ndarray:
        return np.asarray(self.weights @ self._means)

    @cached_property
    def deviation(self) -> np.ndarray:
        own = [
            kernel.variance(placed) - (known**2).sum(axis=0)
            for kernel, placed, known in zip(self.kernels, self._placed, self._explained, strict=True)
        ]
        return np.sqrt(np.maximum(0.0, self.weights @ (np.array(own) + (self._means - self.mean) ** 2)))

    def covariance(self, first: slice, second: slice) -> np.ndarray:
        """[first x second] over all kernels."""
        total = 0.0
        for index, weight in enumerate(self.weights):
            apart = self._means[index] - self.mean
            total = total + weight * (self._own(index, first, second) + np.outer(apart[first], apart[second]))
        return np.asarray(total)

    def draws(self, chosen: slice, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count x chosen] joint draws, each from one of the kernels."""
        drawn = []
        for index, share in enumerate(rng.multinomial(count, self.weights)):
            mean = self._means[index][chosen]
            if share:
                covariance = self._own(index, chosen, chosen)
                root = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(mean)))
                drawn.append(mean + rng.standard_normal((share, len(mean))) @ root.T)
        return np.concatenate(drawn)

    def _own(self, index: int, first: slice, second: slice) -> np.ndarray:
        placed, known = self._placed[index], self._explained[index]
        prior = self.kernels[index].covariance(placed.some(first), placed.some(second))
        return np.asarray(prior - known[:, first].T @ known[:, second])


@dataclass(frozen=True)
class _Solved:
    """The observations under one kernel: Cholesky factor of their covariance, and their residual whitened by it."""

    placed: Placed
    root: np.ndarray
    residual: np.ndarray


def believe(kernels: Sequence[Kernel], odds: Sequence[float], observations: Observations) -> Belief:
    """The posterior; `odds` are the kernels' prior weights, up to a factor."""
    observed = _lowest(observations)
    log_weights = np.log(np.asarray(odds, dtype=float))
    solved = []
    for index, kernel in enumerate(kernels):
        placed = kernel.place(observed.points)
        covariance = kernel.covariance(placed, placed) + np.diag(observed.noise**2 + 1e-12)
        root = np.linalg.cholesky(covariance)
        residual = observed.values - placed.expected
        if len(observed):
            residual = linalg.solve_triangular(root, residual, lower=True, check_finite=False)
        log_weights[index] -= float(residual @ residual) / 2 + float(np.log(np.diag(root)).sum())
        solved.append(_Solved(placed, root, residual))
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
