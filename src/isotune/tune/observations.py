"""What was observed: losses at points, each with its noise, and no more of them than can be used.

The model is local: far above the best of its budget a loss says that it is bad, not how the bowl bends, so its noise
is raised with its excess.

What a run has by itself is chaos, what the smallest change does to it, and grows with LR (analyze/seed_noise.py finds
one to three octaves per octave in the tables): a single run at a high LR may be lucky by much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from isotune.tune.kernels import SEED_LEVEL, SEED_NOISE, Places, Points, distinct, seed_covariance, shared_covariance

NOISE = 0.0015  # of a loss, by itself, up to the middle of the range of LR
NOISE_GROWTH, MAX_NOISE = 0.75, 0.05  # octaves of it per octave of LR above the middle; where it ends
EXCESS, EXCESS_FROM = 0.25, 0.02  # noise per excess over the best of the same budget, from where on
RATE, DECAY, BUDGET, SEED = 0, 1, 3, 4  # columns of points
CELL = (BUDGET, RATE, DECAY)
LEVEL = 3.0  # of log losses
MAX_OBSERVATIONS = 56  # more take time: seeds of a cell are then taken together, and what says least is left out


@dataclass(frozen=True)
class Repeats:
    """What is left of the seeds of cells that were taken together: which they were, and how much they scattered."""

    seeds: np.ndarray
    shares: np.ndarray  # [observations x seeds], of each observation's mean
    squares: np.ndarray  # of each cell, of what its seeds were off their mean
    freedom: np.ndarray  # how many of these count: at one LR, cells of the same seeds say the same
    variance: np.ndarray  # what its runs have by themselves

    def shares_at(self, seeds: np.ndarray) -> np.ndarray:
        """[points x seeds]: 1 where a point has that seed."""
        return np.asarray(seeds[:, None] == self.seeds, dtype=float)

    def log_likelihoods(self, scatters: Sequence[float]) -> np.ndarray:
        """[scatters]: of what they scattered by, if seeds scatter by so much."""
        variance = np.square(scatters)[:, None] * (SEED_NOISE**2 + SEED_LEVEL**2) + self.variance
        return np.asarray((self.freedom * np.log(variance) + self.squares / variance).sum(axis=1) / -2)


class Groups:
    """Which points have the same LR, WD, budget or seed, or several of these; each is found out once."""

    def __init__(self, points: Points):
        self._points = points
        self._ranks: dict[tuple[int, ...], tuple[int, np.ndarray]] = {}

    def ranks(self, *columns: int) -> tuple[int, np.ndarray]:
        """(how many rows of these columns differ, the rank of each point's among them)."""
        if columns not in self._ranks:
            if len(columns) == 1:
                found, which = distinct(self._points[:, columns[0]].round(6))
            else:
                (_, before), (count, last) = self.ranks(*columns[:-1]), self.ranks(columns[-1])
                found, which = distinct(before * count + last)
            self._ranks[columns] = len(found), which
        return self._ranks[columns]


@dataclass(frozen=True)
class Observations:
    """Log losses at points, each with the standard deviation of its noise; or means over seeds of such ones."""

    points: Points
    values: np.ndarray
    noise: np.ndarray
    repeats: Repeats | None = None  # where these are means; the points then have no seeds
    groups: Groups | None = field(default=None, repr=False)  # of the points, where they are known

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def level(self) -> float:
        """What is taken off all values, so that the unit of the loss does not matter; nothing where the lowest loss is
        between .22 and 4.5, since the prior has room for LEVEL on either side."""
        return LEVEL * round(float(self.values.min()) / LEVEL) if len(self.values) else 0.0

    def some(self, chosen: np.ndarray) -> Observations:
        repeats = self.repeats and replace(self.repeats, shares=self.repeats.shares[chosen])
        return Observations(self.points[chosen], self.values[chosen], self.noise[chosen], repeats)

    def seed_covariance(self, own: Places, others: Places | None = None) -> np.ndarray | float:
        """[others x observations] of what seeds do, where the observations have these places; without others, of the
        observations themselves."""
        if self.repeats is None:
            return seed_covariance(own if others is None else others, own)
        shares = self.repeats.shares
        if others is None:
            return shared_covariance(own, own, shares @ shares.T)
        if np.isnan(others.seeds).all():
            return 0.0
        return shared_covariance(others, own, self.repeats.shares_at(others.seeds) @ shares.T)


def own_noise(octaves_above_middle: np.ndarray) -> np.ndarray:
    """What a run with such an LR has by itself, standard deviations of log losses.

    >>> own_noise(np.array([-2.0, 0.0, 4.0])).tolist()
    [0.0015, 0.0015, 0.012]
    """
    return np.asarray(np.minimum(MAX_NOISE, NOISE * 2.0 ** (NOISE_GROWTH * np.maximum(0.0, octaves_above_middle))))


def with_noise(points: Points, values: np.ndarray, noise: float | np.ndarray = NOISE) -> Observations:
    """Observations whose noise is raised where their cell is far above the best of its budget.

    It is a cell's mean that is held against the best: of several seeds the lucky one would else be believed, and the
    others not.
    """
    groups, means = Groups(points), values
    if len(points) and np.any(points[:, SEED] != points[0, SEED]):
        _, cell = groups.ranks(*CELL)
        means = (np.bincount(cell, weights=values) / np.bincount(cell))[cell]
    return Observations(points, values, raised_noise(groups.ranks(BUDGET)[1], means, noise), groups=groups)


def raised_noise(which_budget: np.ndarray, expected: np.ndarray, noise: float | np.ndarray = NOISE) -> np.ndarray:
    """The noise of observations of which this is expected: what is bad for its budget says little."""
    excess = _above_lowest(which_budget, expected)
    return np.hypot(noise, EXCESS * np.maximum(0.0, excess - EXCESS_FROM))


def fewer(observations: Observations) -> Observations:
    """No more observations than can be used: of very many, whatever their order, the means of cells over their seeds;
    of these those with the least noise, and of equal ones those where a bowl through all of them is lowest."""
    if len(observations) <= MAX_OBSERVATIONS:
        return observations
    merged = _means_of_cells(observations)
    if len(merged) <= MAX_OBSERVATIONS:
        return merged
    lr, wd, _, d, _ = merged.points.T
    order = np.lexsort((lr, wd, d, merged.values, _height(merged).round(9), merged.noise.round(6)))
    return merged.some(order[:MAX_OBSERVATIONS])


def _means_of_cells(observations: Observations) -> Observations:
    """Runs of one cell and budget as one, which has a share of each of their seeds."""
    points, values, noise = observations.points, observations.values, observations.noise
    if np.all(points[:, SEED] == points[0, SEED]):
        return observations
    groups = observations.groups or Groups(points)
    num_cells, cell = groups.ranks(*CELL)
    first = np.full(num_cells, len(points))
    np.minimum.at(first, cell, np.arange(len(points)))
    seeds, seed = distinct(points[:, SEED])
    weights = noise**-2.0
    total = np.bincount(cell, weights=weights)
    means = np.bincount(cell, weights=weights * values) / total
    shares = np.zeros((num_cells, len(seeds)))
    np.add.at(shares, (cell, seed), np.where(np.isnan(points[:, SEED]), 0.0, weights / total[cell]))
    merged = points[first].copy()
    merged[:, SEED] = np.nan
    repeats = Repeats(seeds, shares, *_scatter(groups, values, noise))
    return Observations(merged, means, np.sqrt(1 / total), repeats)


def _scatter(groups: Groups, values: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(squares, freedom, variance) of the seeds of each cell about their mean. Cells of one LR, budget and seed share
    its luck: together they count as one."""
    _, cell = groups.ranks(*CELL)
    number = np.bincount(cell)
    off = values - (np.bincount(cell, weights=values) / number)[cell]
    (rates, _), (alike, _) = groups.ranks(BUDGET, RATE), groups.ranks(BUDGET, RATE, SEED)
    share = (alike - rates) / max(1, len(values) - len(number))
    squares = np.bincount(cell, weights=off**2)
    return share * squares, share * (number - 1), np.bincount(cell, weights=noise**2) / number


def _height(observations: Observations) -> np.ndarray:
    """How far each lies above the lowest of its budget on the quadratic surface that fits all best."""
    lr, wd, _, d, _ = (observations.points - observations.points.mean(axis=0)).T
    surface = np.array([np.ones(len(d)), d, d * d, lr, lr * lr, lr * d, wd, wd * wd, wd * lr, wd * d])
    weighed = surface * observations.noise**-2.0
    normal = weighed @ surface.T
    diagonal = normal.reshape(-1)[:: len(normal) + 1]
    diagonal += 1e-9 * diagonal + 1e-9  # what the points do not tell stays small, and breaks nothing
    coefficients = lapack.dposv(normal, weighed @ observations.values)[1]
    groups = observations.groups or Groups(observations.points)
    return _above_lowest(groups.ranks(BUDGET)[1], coefficients @ surface)


def _above_lowest(which_budget: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How far each value is above the lowest one of its budget."""
    lowest = np.full(int(which_budget.max(initial=0)) + 1, np.inf)
    np.minimum.at(lowest, which_budget, values)
    return np.asarray(values - lowest[which_budget])
