"""What a seed adds to losses, beyond what it adds to all cells alike.

Two runs of one seed see the same data. Where their trajectories are near each other, in LR and in n = LR * WD * steps,
so is what the seed does to them: along WD at n << 1 the noise is the same to a hundredth of it, between LRs an octave
apart it is another. Noise that is independent from cell to cell would be wrong twice: many WDs at one LR would seem to
average it out, and cells with more seeds would seem to lie off their neighbours.

    covariance of cells a, b at budgets j, k = deviation_j * deviation_k * correlation_jk * (own_a * [a = b] +
        (1 - own) * exp(-((u_a - u_b) / lr_length)^2 / 2 - ((z_aj - z_bk) / memory_length)^2 / 2))

with u = log2 LR and z = log2(1 + n). What a run has by itself is chaos: what the smallest change does to it. It grows
with LR, own_a = own * 2^(2 * growth * (u_a - reference)), from nothing that matters to several times of what is shared.

Fitted by restricted maximum likelihood to cells with several seeds, where the loss of each cell and the level of each
seed are free. How rough the losses of one seed are along WD would tell more of how far noise is shared there, but the
losses have a shape of their own, and that part was taken for noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

LR_LENGTHS = (0.25, 0.5, 0.8, 1.2, 2.0)  # octaves
MEMORY_LENGTHS = (0.1, 0.2, 0.35, 0.6, 1.0, 2.0)
OWN_SHARES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
GROWTHS = (0.0, 1.0, 2.0, 3.0)  # octaves of a run's own deviation per octave of LR
USUAL = (0.8, 0.6, 0.01, 1.0)  # the likely shape where seeds say little; one deviation off: factors of 2, 2 and 10; 1
# Where nothing was fitted: luck is rather taken off too far along n than not far enough.
FOR_MEANS = (0.8, 1.0, 0.01, 1.0)
USUAL_LEVEL = 1e4  # variance of what a seed adds to all cells alike, over that of what it adds to one: all but free
Shape = tuple[float, float, float, float]  # lr_length, memory_length, own, growth
MIN_FREEDOM = 4  # contrasts between seeds and cells: fewer say nothing


@dataclass(frozen=True)
class SeedNoise:
    """The noise of one run of a family, by its cell's u and z at each budget."""

    deviations: np.ndarray  # of each budget
    correlations: np.ndarray  # between budgets
    lr_length: float = 1.0
    memory_length: float = 1.0
    own: float = 1.0  # the part of the variance at LR 2^reference that a run has by itself
    growth: float = 0.0
    reference: float = 0.0
    level: float = 0.0  # deviation of what a seed adds to all cells alike

    def nearness(self, u: np.ndarray, z: np.ndarray, other_z: np.ndarray | None = None) -> np.ndarray:
        """[cells x cells] covariances over the squared deviation, without the correlations of budgets."""
        closeness = _closeness(u, z, z if other_z is None else other_z, self.lr_length, self.memory_length)
        return _nearness(closeness, u - self.reference, self.own, self.growth)

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


def _closeness(u: np.ndarray, z: np.ndarray, other_z: np.ndarray, lr_length: float, memory_length: float) -> np.ndarray:
    far = ((u[:, None] - u) / lr_length) ** 2 + ((z[:, None] - other_z) / memory_length) ** 2
    return np.asarray(np.exp(-far / 2))


def _nearness(closeness: np.ndarray, u: np.ndarray, own: float | np.ndarray, growth: float | np.ndarray) -> np.ndarray:
    """[... x cells x cells]; u = 0 is the reference. With `own` and `growth` of shape [shapes x 1], of all shapes."""
    alone = np.asarray(own * 4.0 ** (growth * u))
    shared = 1 - np.asarray(own)[..., None] if np.ndim(own) else 1 - own
    return np.asarray(shared * closeness + alone[..., None] * np.eye(len(closeness)))


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


def cell_means(
    u: np.ndarray,
    z: np.ndarray,
    cell: np.ndarray,
    seed: np.ndarray,
    values: np.ndarray,
    noise: SeedNoise | None = None,
) -> np.ndarray:
    """Losses of the cells over their runs, at the level of the average seed, from the cell and the seed of each run;
    the usual noise, unless it is known.

    By generalised least squares: what other seeds say of a seed's luck at a cell is taken off its neighbours too, which
    may have that seed alone. Where every cell has every seed, these are means.

    A cell with one seed says nothing of others, since its loss is free: cells with several are fitted without it, and
    the luck of its seed that they show is taken off it. So the work grows with cells of several seeds alone.
    """
    noise = noise or _usual_noise(u)
    cell, seed, values = _mean_runs(cell, seed, values)
    of_several = np.bincount(cell, minlength=len(u))[cell] >= 2
    means = np.full(len(u), np.nan)
    means[cell[~of_several]] = values[~of_several]
    for rows in _connected(cell, seed, of_several):
        its, column = np.unique(cell[rows], return_inverse=True)
        means[its] = _fitted_means(u[its], z[its], column, seed[rows], values[rows], noise)
        for one in np.unique(seed[rows]):
            known, alone = rows[seed[rows] == one], np.flatnonzero(~of_several & (seed == one))
            if len(alone):
                luck = values[known] - means[cell[known]]
                weights = np.linalg.solve(_covariance(noise, u[cell[known]], z[cell[known]]), luck)
                means[cell[alone]] -= _between(noise, u, z, cell[alone], cell[known]) @ weights
    return means


def cell_mean_errors(
    u: np.ndarray, z: np.ndarray, cell: np.ndarray, seed: np.ndarray, noise: SeedNoise | None = None
) -> np.ndarray:
    """Covariance of the errors of `cell_means`, over the squared deviation of one run's noise; cubic in the cells."""
    covariance = _covariance(noise or _usual_noise(u), u, z)
    weights = np.zeros_like(covariance)
    for one in np.unique(seed):
        its = np.unique(cell[seed == one])
        weights[np.ix_(its, its)] += np.linalg.inv(covariance[np.ix_(its, its)])
    return np.linalg.inv(weights)


def _usual_noise(u: np.ndarray) -> SeedNoise:
    return SeedNoise(np.ones(1), np.ones((1, 1)), *FOR_MEANS, reference=float(np.median(u)))


def _covariance(noise: SeedNoise, u: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Of one seed's noise at these cells, over the squared deviation, with its level."""
    return np.asarray(noise.nearness(u, z) + USUAL_LEVEL)


def _between(noise: SeedNoise, u: np.ndarray, z: np.ndarray, cells: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The same between different cells."""
    far = ((u[cells, None] - u[others]) / noise.lr_length) ** 2 + (
        (z[cells, None] - z[others]) / noise.memory_length
    ) ** 2
    return np.asarray((1 - noise.own) * np.exp(-far / 2) + USUAL_LEVEL)


def _mean_runs(cell: np.ndarray, seed: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cell, seed, mean value) of runs that agree in both; seeds are counted from 0."""
    pairs, run = np.unique(
        np.column_stack([cell, np.unique(seed, return_inverse=True)[1]]), axis=0, return_inverse=True
    )
    run = run.ravel()
    return pairs[:, 0], pairs[:, 1], np.bincount(run, weights=values) / np.bincount(run)


def _connected(cell: np.ndarray, seed: np.ndarray, kept: np.ndarray) -> list[np.ndarray]:
    """The kept runs in groups between which neither a cell nor a seed is shared."""
    rows = np.flatnonzero(kept)
    if not len(rows):
        return []
    num_cells = int(cell.max()) + 1
    size = num_cells + int(seed.max()) + 1
    links = sparse.coo_matrix((np.ones(len(rows)), (cell[rows], num_cells + seed[rows])), shape=(size, size))
    group = csgraph.connected_components(links, directed=False)[1][cell[rows]]
    order = np.argsort(group, kind="stable")
    return [rows[part] for part in np.split(order, np.flatnonzero(np.diff(group[order])) + 1)]


def _fitted_means(
    u: np.ndarray, z: np.ndarray, cell: np.ndarray, seed: np.ndarray, values: np.ndarray, noise: SeedNoise
) -> np.ndarray:
    """`cell_means` of runs one for each cell and seed, all cells at once."""
    if len(cell) == len(u) * len(np.unique(seed)):  # every cell has every seed
        return np.asarray(np.bincount(cell, weights=values) / np.bincount(cell))
    covariance = _covariance(noise, u, z)
    weights, weighted = np.zeros_like(covariance), np.zeros(len(u))
    for one in np.unique(seed):
        its = cell[seed == one]
        inverse = np.linalg.inv(covariance[np.ix_(its, its)])
        weights[np.ix_(its, its)] += inverse
        weighted[its] += inverse @ values[seed == one]
    return np.linalg.solve(weights, weighted)


def fit_noise(u: np.ndarray, z: np.ndarray, by_seed: dict[int, np.ndarray]) -> SeedNoise | None:
    """From losses of cells x budgets by seed, NaN where there is none; None where seeds are too few."""
    losses = np.array(list(by_seed.values()))  # [seeds x cells x budgets]
    if any(_freedom_of_seeds(losses[:, :, budget]) < MIN_FREEDOM for budget in range(losses.shape[2])):
        return None
    reference = float(u[int(np.nanargmin(losses[0, :, -1]))])
    data = [_Contrasts.of(u - reference, z[:, budget], losses[:, :, budget]) for budget in range(losses.shape[2])]
    shape = _most_likely(data)
    deviations = np.array([one.deviation(*shape) for one in data])
    noise = SeedNoise(deviations, _correlations(losses), *shape, reference=reference)
    return replace(noise, level=_level(noise, u, z[:, -1], losses[:, :, -1]))


def _freedom_of_seeds(losses: np.ndarray) -> int:
    """Contrasts between seeds and cells, of losses of seeds x cells."""
    several = np.isfinite(losses) & (np.isfinite(losses).sum(axis=0) >= 2)
    return int(several.sum() - several.any(axis=0).sum() - several.any(axis=1).sum() + 1) if several.any() else 0


def _most_likely(data: Sequence[_Contrasts]) -> Shape:
    """The best shape of all: they trade off, so that one value after the other would end beside it."""
    shapes = list(itertools.product(LR_LENGTHS, MEMORY_LENGTHS, OWN_SHARES, GROWTHS))
    likelihoods = [
        np.sum([one.likelihoods(*lengths) for one in data], axis=0)
        for lengths in itertools.product(LR_LENGTHS, MEMORY_LENGTHS)
    ]
    return shapes[int(np.argmax(np.ravel(likelihoods) + [_log_prior(*shape) for shape in shapes]))]


def _log_prior(lr_length: float, memory_length: float, own: float, growth: float) -> float:
    """Seeds at one WD do not tell how far along n noise is shared, and those at one LR not how far along LR."""
    off = np.log2([lr_length / USUAL[0], memory_length / USUAL[1], (own / USUAL[2]) ** math.log10(2)])
    return float(-(off @ off) / 2 - (growth - USUAL[3]) ** 2 / 2)


@dataclass(frozen=True)
class _Contrasts:
    """Differences of losses at one budget in which neither a cell's loss nor a seed's level is left."""

    u: np.ndarray  # of each loss
    z: np.ndarray
    seed: np.ndarray
    basis: np.ndarray  # [losses x contrasts], orthonormal
    values: np.ndarray  # of each contrast

    @staticmethod
    def of(u: np.ndarray, z: np.ndarray, losses: np.ndarray) -> _Contrasts:
        """Of losses of seeds x cells where there are several seeds."""
        seed, cell = np.nonzero(np.isfinite(losses) & (np.isfinite(losses).sum(axis=0) >= 2))
        free = np.hstack([np.eye(len(u))[cell], seed[:, None] == np.unique(seed)[1:]]).astype(float)
        vectors, sizes, _ = np.linalg.svd(free)
        basis = vectors[:, np.sum(sizes > 1e-9 * sizes[0]) :]
        return _Contrasts(u[cell], z[cell], seed, basis, basis.T @ losses[seed, cell])

    def deviation(self, *shape: float) -> float:
        """The one at which seeds are expected to scatter as much as they do, each cell and seed alike. The most likely
        one would follow the many small differences along WD, and how well their shape is met."""
        return float(self._deviations(self._covariances(*shape)))

    def likelihoods(self, lr_length: float, memory_length: float) -> np.ndarray:
        """Restricted, logarithms, at those deviations: of all own shares and growths at once, in their order."""
        own, growth = np.array(list(itertools.product(OWN_SHARES, GROWTHS))).T[..., None]
        covariances = self._covariances(lr_length, memory_length, own, growth)
        deviations = self._deviations(covariances)
        roots = np.linalg.cholesky(covariances + 1e-9 * np.eye(len(self.values)))
        squares = (np.linalg.solve(roots, self.values[:, None]) ** 2).sum(axis=(1, 2))
        logs = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        return np.asarray(-squares / deviations**2 / 2 - len(self.values) * np.log(deviations) - logs)

    def _deviations(self, covariances: np.ndarray) -> np.ndarray:
        scatter = self.values @ self.values
        return np.sqrt(np.maximum(1e-16, scatter / np.trace(covariances, axis1=-2, axis2=-1)))

    def _covariances(
        self, lr_length: float, memory_length: float, own: float | np.ndarray, growth: float | np.ndarray
    ) -> np.ndarray:
        """Of the contrasts, for losses of deviation one."""
        closeness = _closeness(self.u, self.z, self.z, lr_length, memory_length) * (self.seed[:, None] == self.seed)
        return np.asarray(self.basis.T @ _nearness(closeness, self.u, own, growth) @ self.basis)


def _level(noise: SeedNoise, u: np.ndarray, z: np.ndarray, losses: np.ndarray) -> float:
    """How much seeds' means at the last budget, over the cells that all seeds have, vary beyond their noise."""
    everywhere = np.isfinite(losses).all(axis=0)
    if not everywhere.any():
        return 0.0
    of_noise = noise.deviations[-1] ** 2 * noise.nearness(u[everywhere], z[everywhere]).mean()
    return math.sqrt(max(0.0, float(losses[:, everywhere].mean(axis=1).var(ddof=1)) - of_noise))


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
