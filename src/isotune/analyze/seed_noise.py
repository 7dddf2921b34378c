"""What a seed adds to losses, beyond what it adds to all cells alike.

Two runs of one seed see the same data. Where their trajectories are near each other, in LR and in n = LR * WD * steps,
so is what the seed does to them: along WD at n << 1 the noise is the same to a hundredth of it, between LRs an octave
apart it is another. Noise that is independent from cell to cell would be wrong twice: many WDs at one LR would seem to
average it out, and cells with more seeds would seem to lie off their neighbours.

    covariance of cells a, b at budgets j, k = deviation_j * deviation_k * correlation_jk * g_a * g_b *
        ((1 - own) * exp(-((u_a - u_b) / lr_length)^2 / 2 - ((z_aj - z_bk) / memory_length)^2 / 2) + own * [a = b])

with u = log2 LR, z = log2(1 + n), and g = 2^(growth * (u - reference)): a higher LR has more noise.

Fitted by restricted maximum likelihood to cells with several seeds, where the loss of each cell and the level of each
seed are free: this tells how large the noise is and how it changes with LR. How far along n it is shared is told by
how rough the losses of the first seed are along WD, given that size; what is free there is a quadratic in z at each LR.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

LR_LENGTHS = (0.25, 0.5, 0.8, 1.2, 2.0)  # octaves
MEMORY_LENGTHS = (0.1, 0.2, 0.35, 0.6, 1.0, 2.0)
OWN_SHARES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
GROWTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # octaves of noise per octave of LR
USUAL = (0.5, 0.35, 0.01, 0.5)  # the likely shape where seeds say little; one deviation off: factors of 2, 2, 10; .5
Shape = tuple[float, float, float, float]  # lr_length, memory_length, own, growth
NEAR = 0.02  # of the best of its LR: where the loss is a quadratic in z
MIN_FREEDOM = 4  # contrasts between seeds and cells: fewer say nothing


@dataclass(frozen=True)
class SeedNoise:
    """The noise of one run of a family, by its cell's u and z at each budget."""

    deviations: np.ndarray  # of each budget
    correlations: np.ndarray  # between budgets
    lr_length: float = 1.0
    memory_length: float = 1.0
    own: float = 1.0  # part of the variance that a run has by itself
    growth: float = 0.0  # octaves of noise per octave of LR
    reference: float = 0.0  # log2 LR of the deviations
    last: float = math.inf  # highest log2 LR that has seeds: noise is not extrapolated to higher ones
    level: float = 0.0  # deviation of what a seed adds to all cells alike

    def nearness(self, u: np.ndarray, z: np.ndarray, other_z: np.ndarray | None = None) -> np.ndarray:
        """[cells x cells] covariances over the squared deviation, without the correlations of budgets."""
        other_z = z if other_z is None else other_z
        far = ((u[:, None] - u) / self.lr_length) ** 2 + ((z[:, None] - other_z) / self.memory_length) ** 2
        shared = (1 - self.own) * np.exp(-far / 2) + self.own * np.eye(len(u))
        grown = 2.0 ** (self.growth * (np.minimum(u, self.last) - self.reference))
        return np.asarray(grown[:, None] * grown * shared)

    def root(self, u: np.ndarray, z: np.ndarray) -> np.ndarray:
        """A root of the covariance of all cells and budgets, in the order (budget, cell); z is cells x budgets."""
        count = len(self.deviations)
        blocks = [
            [
                self.deviations[j] * self.deviations[k] * self.correlations[j, k] * self.nearness(u, z[:, j], z[:, k])
                for k in range(count)
            ]
            for j in range(count)
        ]
        covariance = np.block(blocks)
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def combine_seeds(losses: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(losses, covariance of their errors) of cells at the level of the first seed, from losses of seeds x cells at one
    budget (NaN: not there) whose noise has this covariance over cells. What a seed adds to all cells alike is free. A
    cell that the first seed lacks is NaN."""
    seed, cell = np.nonzero(np.isfinite(losses) & np.isfinite(losses[0]))
    kept, column = np.unique(cell, return_inverse=True)
    total = covariance[np.ix_(cell, cell)] * (seed[:, None] == seed) + 1e-12 * np.eye(len(cell))
    effects = np.hstack([np.eye(len(kept))[column], seed[:, None] == np.unique(seed)[1:]]).astype(float)
    root = np.linalg.cholesky(total)
    whitened, values = np.linalg.solve(root, effects), np.linalg.solve(root, losses[seed, cell])
    errors = np.linalg.inv(whitened.T @ whitened)
    found = np.full(losses.shape[1], np.nan)
    found[kept] = (errors @ whitened.T @ values)[: len(kept)]
    spread = np.zeros_like(covariance)
    spread[np.ix_(kept, kept)] = errors[: len(kept), : len(kept)]
    return found, spread


def fit_noise(u: np.ndarray, z: np.ndarray, by_seed: dict[int, np.ndarray]) -> SeedNoise | None:
    """From losses of cells x budgets by seed, NaN where there is none; None where seeds are too few."""
    losses = np.array(list(by_seed.values()))  # [seeds x cells x budgets]
    if any(_freedom_of_seeds(losses[:, :, budget]) < MIN_FREEDOM for budget in range(losses.shape[2])):
        return None
    reference = float(u[int(np.nanargmin(losses[0, :, -1]))])
    data = [_Both.of(u - reference, z[:, budget], losses[:, :, budget]) for budget in range(losses.shape[2])]
    shape = _most_likely(lambda *shape: sum(one.likelihood(*shape) for one in data) + _log_prior(*shape))
    deviations = np.array([one.across_seeds.deviation(*shape) for one in data])
    several = (np.isfinite(losses).sum(axis=0) >= 2).any(axis=1)
    return SeedNoise(
        deviations, _correlations(losses), *shape, reference, float(u[several].max()), level=_level(losses)
    )


def _freedom_of_seeds(losses: np.ndarray) -> int:
    """Contrasts between seeds and cells, of losses of seeds x cells."""
    several = np.isfinite(losses) & (np.isfinite(losses).sum(axis=0) >= 2)
    return int(several.sum() - several.any(axis=0).sum() - several.any(axis=1).sum() + 1) if several.any() else 0


def _most_likely(likelihood: Callable[..., float]) -> Shape:
    """The best shape: one value after the other is chosen, until none changes."""
    choices = (LR_LENGTHS, MEMORY_LENGTHS, OWN_SHARES, GROWTHS)
    found: Shape = USUAL
    before: Shape | None = None
    while found != before:
        before = found
        for place, values in enumerate(choices):
            tried = [(*found[:place], value, *found[place + 1 :]) for value in values]
            found = max(tried, key=lambda shape: likelihood(*shape))  # type: ignore[assignment]
    return found


def _log_prior(lr_length: float, memory_length: float, own: float, growth: float) -> float:
    """Seeds at one WD do not tell how far along n noise is shared, and those at one LR not how far along LR."""
    off = np.log2([lr_length / USUAL[0], memory_length / USUAL[1], (own / USUAL[2]) ** math.log10(2)])
    return float(-(off @ off) / 2 - ((growth - USUAL[3]) / 0.5) ** 2 / 2)


@dataclass(frozen=True)
class _Both:
    """What seeds say, and what the first one's roughness along WD does."""

    across_seeds: _Contrasts
    along_decay: _Contrasts | None

    @staticmethod
    def of(u: np.ndarray, z: np.ndarray, losses: np.ndarray) -> _Both:
        several = np.isfinite(losses) & (np.isfinite(losses).sum(axis=0) >= 2)
        bowls = _bowls(u, z, losses[0])
        near = np.abs(bowls).sum(axis=1) > 0
        rough = _Contrasts.of(u, z, losses[:1], near[None], bowls) if near.any() else None
        return _Both(_Contrasts.of(u, z, losses, several, np.eye(len(u))), rough)

    def likelihood(self, *shape: float) -> float:
        likelihood, variance = self.across_seeds.profile(*shape)
        return likelihood + (0.0 if self.along_decay is None else self.along_decay.likelihood(variance, *shape))


@dataclass(frozen=True)
class _Contrasts:
    """Some losses at one budget, and what is free in them."""

    u: np.ndarray
    z: np.ndarray
    seed: np.ndarray
    values: np.ndarray
    free: np.ndarray  # [values x effects]

    @staticmethod
    def of(u: np.ndarray, z: np.ndarray, losses: np.ndarray, chosen: np.ndarray, effects: np.ndarray) -> _Contrasts:
        """Of the losses of seeds x cells that are chosen; effects of cells, and a level of each seed, are free."""
        seed, cell = np.nonzero(chosen)
        free = np.hstack([effects[cell], seed[:, None] == np.unique(seed)[1:]]).astype(float)
        vectors, sizes, _ = np.linalg.svd(free, full_matrices=False)
        return _Contrasts(u[cell], z[cell], seed, losses[seed, cell], vectors[:, sizes > 1e-9 * sizes[0]])

    @property
    def freedom(self) -> int:
        return len(self.values) - self.free.shape[1]

    def profile(self, *shape: float) -> tuple[float, float]:
        """(restricted log likelihood, variance) at the most likely variance."""
        squares, logs = self._squares(*shape)
        variance = max(1e-16, squares / self.freedom)
        return -self.freedom * math.log(variance) / 2 - logs, variance

    def deviation(self, *shape: float) -> float:
        return math.sqrt(self.profile(*shape)[1])

    def likelihood(self, variance: float, *shape: float) -> float:
        """Restricted, logarithm, at this variance."""
        squares, logs = self._squares(*shape)
        return -squares / variance / 2 - self.freedom * math.log(variance) / 2 - logs

    def _squares(self, *shape: float) -> tuple[float, float]:
        """(the sum of squares that noise must explain, logarithm of the determinants' root)"""
        covariance = SeedNoise(np.ones(1), np.ones((1, 1)), *shape).nearness(self.u, self.z)
        covariance = covariance * (self.seed[:, None] == self.seed)
        root = np.linalg.cholesky(covariance + 1e-9 * np.diag(np.diag(covariance)))
        free, values = (solve_triangular(root, right, lower=True) for right in (self.free, self.values))
        inner = np.linalg.cholesky(free.T @ free)
        explained = solve_triangular(inner, free.T @ values, lower=True)
        logs = float(np.log(np.diag(root)).sum() + np.log(np.diag(inner)).sum())
        return float(values @ values - explained @ explained), logs


def _bowls(u: np.ndarray, z: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """[cells x effects] a quadratic in z at each LR, where the loss is near the best of this LR; zeros elsewhere."""
    columns = [np.zeros(len(u))]
    for rate in np.unique(u):
        here = (u == rate) & np.isfinite(losses)
        near = here & (losses <= np.min(losses, where=here, initial=np.inf) * (1 + NEAR))
        if near.sum() > 3:
            columns += [np.where(near, z**power, 0.0) for power in range(3)]
    return np.column_stack(columns)


def _level(losses: np.ndarray) -> float:
    """Of seeds, over the cells that all of them have at the last budget."""
    last = losses[:, np.isfinite(losses[:, :, -1]).all(axis=0), -1]
    return float(last.mean(axis=1).std(ddof=1)) if last.shape[1] else 0.0


def _correlations(losses: np.ndarray) -> np.ndarray:
    """Between budgets, of residuals after cells and seeds, over cells that have the first seeds."""
    count = losses.shape[2]
    products, sizes = np.zeros((count, count)), np.zeros(count)
    several = np.isfinite(losses).all(axis=2)
    for cell in np.flatnonzero(several.sum(axis=0) >= 2):
        own = losses[several[:, cell], cell]
        level = np.array(
            [
                np.nanmean(losses[seed][several[seed] & (several.sum(axis=0) >= 2)], axis=0)
                for seed in np.flatnonzero(several[:, cell])
            ]
        )
        residual = own - level
        residual = residual - residual.mean(axis=0)
        products += residual.T @ residual
        sizes += (residual**2).sum(axis=0)
    scale = np.sqrt(np.maximum(sizes, 1e-300))
    correlations = products / np.outer(scale, scale)
    return 0.9 * correlations + 0.1 * np.eye(count)  # few residuals: kept away from the edge
