"""What a seed adds to losses, beyond what it adds to all cells alike.

Two runs of one seed see the same data. Where their trajectories are near each other, in LR and in n = LR * WD * steps,
so is what the seed does to them: along WD at n << 1 the noise is the same to a hundredth of it, between LRs an octave
apart it is another. Noise that is independent from cell to cell would be wrong twice: many WDs at one LR would seem to
average it out, and cells with more seeds would seem to lie off their neighbours.

    covariance of cells a, b at budgets j, k = deviation_j * deviation_k * correlation_jk *
        ((1 - own) * exp(-((u_a - u_b) / lr_length)^2 / 2 - ((z_aj - z_bk) / memory_length)^2 / 2) + own * [a = b])

with u = log2 LR, z = log2(1 + n). Fitted by restricted maximum likelihood to the cells that have several seeds, where
the loss of each cell and the level of each seed are free.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

LR_LENGTHS = (0.25, 0.5, 0.8, 1.2, 2.0)  # octaves
MEMORY_LENGTHS = (0.1, 0.2, 0.35, 0.6, 1.0, 2.0)
OWN_SHARES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
USUAL = (0.5, 0.35, 0.01)  # the likely shape where seeds say little; a factor of 2, 2 and 10 off is one deviation
MIN_FREEDOM = 4  # contrasts between seeds and cells: fewer say nothing


@dataclass(frozen=True)
class SeedNoise:
    """The noise of one run of a family, by its cell's u and z at each budget."""

    deviations: np.ndarray  # of each budget
    correlations: np.ndarray  # between budgets
    lr_length: float = 1.0
    memory_length: float = 1.0
    own: float = 1.0  # part of the variance that a run has by itself

    def nearness(self, u: np.ndarray, z: np.ndarray, other_z: np.ndarray | None = None) -> np.ndarray:
        """[cells x cells] correlations, without those of budgets."""
        other_z = z if other_z is None else other_z
        far = ((u[:, None] - u) / self.lr_length) ** 2 + ((z[:, None] - other_z) / self.memory_length) ** 2
        return np.asarray((1 - self.own) * np.exp(-far / 2) + self.own * np.eye(len(u)))

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
    data = [_Contrasts.of(u, z[:, budget], losses[:, :, budget]) for budget in range(losses.shape[2])]
    if any(one is None or one.freedom < MIN_FREEDOM for one in data):
        return None
    known = [one for one in data if one is not None]
    shapes = list(itertools.product(LR_LENGTHS, MEMORY_LENGTHS, OWN_SHARES))
    likelihoods = [sum(one.likelihood(*shape)[0] for one in known) + _log_prior(*shape) for shape in shapes]
    best = shapes[int(np.argmax(likelihoods))]
    deviations = np.array([one.likelihood(*best)[1] for one in known])
    return SeedNoise(deviations, _correlations(losses), *best)


def _log_prior(lr_length: float, memory_length: float, own: float) -> float:
    """Seeds at one WD do not tell how far along n noise is shared, and those at one LR not how far along LR."""
    off = np.log2([lr_length / USUAL[0], memory_length / USUAL[1], (own / USUAL[2]) ** math.log10(2)])
    return float(-(off @ off) / 2)


@dataclass(frozen=True)
class _Contrasts:
    """The losses of cells with several seeds at one budget, and what is free in them: cells and seeds."""

    u: np.ndarray
    z: np.ndarray
    seed: np.ndarray
    values: np.ndarray
    free: np.ndarray  # [values x effects]

    @staticmethod
    def of(u: np.ndarray, z: np.ndarray, losses: np.ndarray) -> _Contrasts | None:
        there = np.isfinite(losses)
        there[:, there.sum(axis=0) < 2] = False
        seed, cell = np.nonzero(there)
        if not len(seed):
            return None
        effects = np.hstack([cell[:, None] == np.unique(cell), seed[:, None] == np.unique(seed)[1:]]).astype(float)
        vectors, sizes, _ = np.linalg.svd(effects, full_matrices=False)
        return _Contrasts(u[cell], z[cell], seed, losses[seed, cell], vectors[:, sizes > 1e-9])

    @property
    def freedom(self) -> int:
        return len(self.values) - self.free.shape[1]

    def likelihood(self, lr_length: float, memory_length: float, own: float) -> tuple[float, float]:
        """(restricted log likelihood, deviation) at these shapes."""
        noise = SeedNoise(np.ones(1), np.ones((1, 1)), lr_length, memory_length, own)
        covariance = noise.nearness(self.u, self.z) * (self.seed[:, None] == self.seed)
        root = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(self.values)))
        free, values = np.linalg.solve(root, self.free), np.linalg.solve(root, self.values)
        inner = np.linalg.cholesky(free.T @ free)
        explained = np.linalg.solve(inner, free.T @ values)
        variance = max(1e-16, float(values @ values - explained @ explained)) / self.freedom
        logs = 2 * np.log(np.diag(root)).sum() + 2 * np.log(np.diag(inner)).sum()
        return float(-self.freedom * np.log(variance) / 2 - logs / 2), float(np.sqrt(variance))


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
