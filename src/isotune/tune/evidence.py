"""How well each rival explains what was observed, and which of them have a chance.

A rival is a kernel at a size of its bowl, with seeds that scatter by so much. Under each of them the covariance of the
observations is a sum of the same few matrices: one for each set of the trend's terms that grow alike with the size, one
for departures, one for what seeds do; runs' own noise is added to the diagonal. So the covariances of all rivals that
are tried at once are one product of matrices, and what takes time is to factorise them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg import lapack

from isotune.tune.kernels import Kernel, Places
from isotune.tune.observations import Observations

LUCK = 4.0  # deviations below what is expected by the others
MIN_WEIGHT = 0.01  # rivals below are dropped
HOPELESS, NEAR = 25.0, 8.0  # in log likelihood below the best: where it is left, and how far its neighbours are tried
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6)  # of the largest variance, tried in turn: wide spaces have large ones
_MORE_THAN_ANY_RESIDUAL = 1e30


@dataclass(frozen=True)
class Rival:
    """One way in which the losses may be: a kernel, how steep the bowl is, and how much seeds scatter."""

    kernel: Kernel
    size: float
    scatter: float  # of seeds
    weight: float  # its probability


def slices_by_view(rivals: Sequence[Rival], most: int | None = None) -> list[slice]:
    """Those of each view, which stand together, or so many of them at the most."""
    views = [rival.kernel.view for rival in rivals]
    slices = []
    for view in dict.fromkeys(views):
        begin, end = views.index(view), views.index(view) + views.count(view)
        step = most or end - begin
        slices += [slice(at, min(at + step, end)) for at in range(begin, end, step)]
    return slices


@dataclass(frozen=True)
class Solved:
    """The observations under one rival: Cholesky factor of their covariance, and their residual whitened by it."""

    root: np.ndarray
    residual: np.ndarray

    @cached_property
    def inverse(self) -> np.ndarray:
        """Of the root: products with it take less time than solutions."""
        inverse = lapack.dtrtri(self.root, lower=1)[0]
        inverse *= _lower_triangle(len(inverse))  # what stands above the root's diagonal does not count
        return np.asarray(inverse)

    def luck(self) -> np.ndarray:
        """Half of what each observation is below what the others lead to expect, where that is more than LUCK
        deviations; else 0."""
        precision = np.einsum("ij,ij->j", self.inverse, self.inverse)
        below = -(self.residual @ self.inverse) / precision
        return np.where(below * np.sqrt(precision) > LUCK, below / 2, 0.0)


@dataclass(frozen=True, eq=False)
class Contest:
    """All rivals there are, each kernel at each size with each scatter: their odds, and what their covariances are
    made of. Terms are those of all views, one view after the other."""

    kernels: tuple[Kernel, ...]
    sizes: tuple[float, ...]
    scatters: tuple[float, ...]
    log_odds: np.ndarray  # [kernels x sizes x scatters]
    views: dict[str, Kernel]  # one kernel of each
    variances: np.ndarray  # [sets of terms that grow alike x terms], at a size of 1
    shares: np.ndarray  # [kernels x sizes x scatters x matrices]: of sets of terms, of each view's departures, of seeds
    means: np.ndarray  # [kernels x sizes x terms], expected coefficients

    @staticmethod
    def of(kernels: Mapping[Kernel, float], sizes: Mapping[float, float], scatters: Mapping[float, float]) -> Contest:
        """Kernels, sizes and scatters come with their odds, up to a factor."""
        return _contest(*(tuple(odds.items()) for odds in (kernels, sizes, scatters)))


@lru_cache(maxsize=32)
def _contest(*with_odds: tuple[tuple, ...]) -> Contest:
    kernels, sizes, scatters = (tuple(one for one, _ in pairs) for pairs in with_odds)
    by_kernel, by_size, by_scatter = (np.log([odds for _, odds in pairs]) for pairs in with_odds)
    views = {kernel.view: kernel for kernel in kernels}
    ends = np.cumsum([len(kernel.mean) for kernel in views.values()]).tolist()
    terms = {view: slice(end - len(views[view].mean), end) for view, end in zip(views, ends, strict=True)}
    alike = {}  # the variances of terms that grow alike, by kernel and power of the size
    means = np.zeros((len(kernels), len(sizes), ends[-1]))
    for index, kernel in enumerate(kernels):
        means[index, :, terms[kernel.view]] = [kernel.coefficients(size) for size in sizes]
        for power in set(kernel.powers.tolist()):
            alike[index, power] = np.zeros(ends[-1])
            alike[index, power][terms[kernel.view]] = np.where(kernel.powers == power, kernel.deviation**2, 0.0)
    variances = np.unique(list(alike.values()), axis=0)  # kernels of one view have most of them in common
    shares = np.zeros((len(kernels), len(sizes), len(scatters), len(variances) + len(views) + 1))
    for (index, power), its in alike.items():
        shares[index, :, :, (variances == its).all(axis=1).argmax()] = np.power(sizes, 2 * power)[:, None]
    for index, kernel in enumerate(kernels):
        departures = [[kernel.weights(size).departures] for size in sizes]
        shares[index, :, :, len(variances) + list(views).index(kernel.view)] = departures
    shares[..., -1] = np.square(scatters)
    log_odds = by_kernel[:, None, None] + by_size[:, None] + by_scatter
    return Contest(kernels, sizes, scatters, log_odds, views, variances, shares, means)


class Prepared:
    """The observations, whatever their noise: where they are, and the matrices that their covariances are sums of."""

    def __init__(self, contest: Contest, observed: Observations):
        self.places = Places.of(contest.views.values(), observed.points)
        self._contest, self._values = contest, observed.values - observed.level
        n, views = len(observed), self.places.views
        self._terms = np.concatenate([views[view].terms for view in contest.views], axis=1)
        matrices = np.zeros((contest.shares.shape[-1], n + 1, n + 1))  # with an empty border
        num_sets = len(contest.variances)
        np.matmul(self._terms * contest.variances[:, None], self._terms.T, out=matrices[:num_sets, :n, :n])
        for matrix, kernel in zip(matrices[num_sets:-1], contest.views.values(), strict=True):
            matrix[:n, :n] = kernel.shared(self.places, self.places).departures
        matrices[-1, :n, :n] = observed.seed_covariance(self.places)
        self._matrices = matrices.reshape(len(matrices), -1)

    def bordered(self, rivals: tuple[np.ndarray, ...]) -> np.ndarray:
        """The covariances under these rivals, their places in the contest, without runs' own noise; each has the
        residual for a border, above the diagonal alone."""
        n, (kernels, sizes, _) = len(self.places), rivals
        bordered = (self._contest.shares[rivals] @ self._matrices).reshape(-1, n + 1, n + 1)
        expected = self._contest.means[kernels, sizes] @ self._terms.T
        np.subtract(self._values, expected, out=bordered[:, :n, n])
        bordered[:, n, n] = _MORE_THAN_ANY_RESIDUAL
        return bordered


class Trials:
    """The rivals of a contest, each tried when it is asked for, since that takes most of the time."""

    def __init__(self, contest: Contest, observed: Observations, prepared: Prepared):
        self._contest, self._prepared = contest, prepared
        self._variances = observed.noise**2 + 1e-12
        self._odds = contest.log_odds
        if observed.repeats is not None:
            self._odds = self._odds + observed.repeats.log_likelihoods(contest.scatters)
        self._logs = np.full(self._odds.shape, -math.inf)  # of what each that was tried weighs, by odds and evidence
        self._which = np.full(self._odds.shape, -1)  # of the roots; -1: it was not tried
        self._roots: list[np.ndarray] = []

    def first(self) -> None:
        """Every second size and scatter, which is enough to see what is luck; to be called once."""
        sizes, scatters = _every_second(self._contest.sizes), _every_second(self._contest.scatters)
        wanted = np.zeros(self._logs.shape, dtype=bool)
        wanted[:, sizes, scatters] = True
        self._try(wanted)

    def worthwhile(self) -> None:
        """Those that may have a chance: of all kernels but those that are hopeless from the first, the sizes and
        scatters beside the best of its own; and what is beside anything that comes near the best of all."""
        if not self._roots:
            self.first()
        bests = self._logs.max(axis=(1, 2), keepdims=True)
        has_a_chance = bests > bests.max() - HOPELESS
        while True:
            wanted = ((self._logs == bests) & has_a_chance) | (self._logs > bests.max() - NEAR)
            wanted = _and_beside(wanted) & (self._which < 0)
            if not wanted.any():
                return
            self._try(wanted)
            bests = self._logs.max(axis=(1, 2), keepdims=True)

    def likeliest(self) -> Solved:
        """The observations under the likeliest rival of those that were tried."""
        return self._solved(int(self._which.flat[self._logs.argmax()]))

    def rivals(self) -> list[tuple[Rival, Solved]]:
        """Those of what was tried that have a chance, with their probabilities; those of one view stand together."""
        weights = np.exp(self._logs - self._logs.max())
        weights[weights < MIN_WEIGHT * weights.sum()] = 0.0
        weights /= weights.sum()
        contest, found = self._contest, []
        for kernel, size, scatter in np.argwhere(weights).tolist():
            weight = float(weights[kernel, size, scatter])
            rival = Rival(contest.kernels[kernel], contest.sizes[size], contest.scatters[scatter], weight)
            found.append((rival, self._solved(int(self._which[kernel, size, scatter]))))
        views = list(contest.views)
        return sorted(found, key=lambda one: views.index(one[0].kernel.view))

    def _try(self, wanted: np.ndarray) -> None:
        """All of the wanted ones, none of which may have been tried."""
        rivals = wanted.nonzero()
        roots = self._prepared.bordered(rivals)  # each transposed, which is the order of LAPACK
        n = len(self._variances)
        diagonals = roots.reshape(len(roots), -1)[:, : -n - 1 : n + 2]
        diagonals += self._variances
        for index, root in enumerate(roots.transpose(0, 2, 1)):
            if lapack.dpotrf(root, lower=1, overwrite_a=1, clean=0)[1]:
                root[:] = self._bordered_root(tuple(axis[index : index + 1] for axis in rivals))
        residuals = roots[:, :n, n]
        logs = np.log(diagonals).sum(axis=1) + np.einsum("ij,ij->i", residuals, residuals) / 2
        self._logs[rivals] = self._odds[rivals] - logs
        self._which[rivals] = np.arange(len(roots)) + len(self._roots)
        self._roots.extend(roots)

    def _bordered_root(self, rival: tuple[np.ndarray, ...]) -> np.ndarray:
        """The lower Cholesky factor of a covariance that is not quite positive definite, with a residual for a border:
        the factor's last row is the residual, whitened. Nothing above the diagonal is set to 0."""
        covariance = self._prepared.bordered(rival)[0].T
        variances = np.append(self._variances, 0.0)
        largest = float((covariance.diagonal() + variances)[:-1].max())
        for share in JITTERS:
            root, failed = lapack.dpotrf(covariance + np.diag(variances + share * largest), lower=1, clean=0)
            if not failed:
                return np.asarray(root)
        raise np.linalg.LinAlgError("the covariance of the observations is not positive definite")

    def _solved(self, which: int) -> Solved:
        root = self._roots[which]
        return Solved(root[:-1, :-1].T, root[:-1, -1])


def _and_beside(chosen: np.ndarray) -> np.ndarray:
    """What is chosen, and its neighbours by size and by scatter."""
    result = chosen.copy()
    result[:, 1:] |= chosen[:, :-1]
    result[:, :-1] |= chosen[:, 1:]
    result[:, :, 1:] |= chosen[:, :, :-1]
    result[:, :, :-1] |= chosen[:, :, 1:]
    return result


def _every_second(values: Sequence[float]) -> slice:
    return slice(1, None, 2) if len(values) > 1 else slice(None)


@lru_cache(maxsize=64)
def _lower_triangle(size: int) -> np.ndarray:
    return np.asfortranarray(np.tri(size))
