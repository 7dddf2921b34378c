"""How far curves lie apart, and whether groups of them (equal LR, equal ELR) lie closer together than others.

    relative distance   ||a - b|| / sqrt((||a||^2 + ||b||^2) / 2)
    corrected           sqrt(max(0, d^2 - median(floor)^2)), what is left once chance is taken out
    overlap             d at or below the 95th percentile of the floor's distances

A floor is made of pairs that differ by chance alone: a run and its perturbed twin, or two seeds of one setting.
Intervals are cell bootstraps: settings are drawn with replacement, all seeds of one together, and a setting is never
compared with its own copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import get_blas_funcs

from isotune.analyze.curves import log2_settings
from isotune.errors import InputError
from isotune.recipe.quantities import show
from isotune.runs.trajectory import RunInfo

OVERLAP_THRESHOLD = 0.005  # the paper's, shown beside ours
FLOOR_QUANTILE = 0.95
MIN_FLOOR_PAIRS = 8
BOOTSTRAP_DRAWS = 2000
MAX_FAILED_DRAWS = 0.1  # more make an interval missing
SAME_OCTAVES = 0.01  # settings closer than this, in log2, are one
# Below this share of the curves' own size a product has lost too many digits of a difference.
_CANCELLED: dict[type[np.floating], float] = {np.float32: 1e-2, np.float64: 1e-5}
_VANISHED = 1e-30  # of the largest value, squared: single precision loses what is smaller
_SMALL_PRODUCT = 1 << 26  # of curves x curves x points: takes a few milliseconds in double precision
_MANY_CLOSE = 0.02  # of all pairs
_LARGE = 1e18  # such sums of squares, and their inverses, are numbers of single precision
_CHUNK_VALUES = 1 << 22
_BLOCK_ROWS = 64
_REFERENCE_CURVES = 32


@dataclass(frozen=True)
class GroupDistances:
    """Mean distances within and between groups, their ratio with its interval, and the matrix of group averages."""

    within: float
    between: float
    ratio: float  # between / within
    low: float
    high: float
    level: float
    groups: tuple[Hashable, ...]
    matrix: np.ndarray  # [groups x groups]; NaN where there is no pair
    num_within: int
    num_between: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Floor:
    """Distances of pairs that differ by chance alone."""

    distances: np.ndarray
    median: float
    percentile_95: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class OverlapShare:
    """The share of pairs that lie no farther apart than chance puts them; .95 were all of them equal."""

    share: float
    low: float
    high: float
    level: float
    num_pairs: int
    paper_share: float  # at or below the paper's 0.005
    warnings: tuple[str, ...] = ()


def relative_distances(values: ArrayLike) -> np.ndarray:
    """The relative distance of every curve to every other, [runs x runs], for curves [runs x points].

    ||a - b||^2 = <a,a> + <b,b> - 2 <a,b>: one matrix product, of what is left of the curves without their mean curve
    and without their levels, whose differences are added. Pairs so close that this loses digits are subtracted point by
    point. Errors are below 1e-9 of a distance; many curves get single precision, and errors below 1e-4.

    >>> relative_distances([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]).round(3).tolist()
    [[0.0, 0.0, 1.414], [0.0, 0.0, 1.414], [1.414, 1.414, 0.0]]
    """
    curves = np.asarray(values, dtype=float)
    if curves.ndim != 2:
        raise InputError(f"values must be finite numbers, a row per curve: these have shape {curves.shape}")
    squares = _square_norms(curves)
    if not 1 / _LARGE < squares.max(initial=0.0) < _LARGE:  # in single precision they would overflow or vanish
        size = float(np.abs(curves).max(initial=0.0))
        if not math.isfinite(size):
            raise InputError(f"values must be finite numbers, a row per curve: of these {curves.shape} some are not")
        if size == 0:
            return np.zeros((len(curves), len(curves)))
        curves = curves * 2.0 ** -math.frexp(size)[1]  # a power of two, so nothing is rounded
        squares = _square_norms(curves)
    is_small = curves.size * len(curves) <= _SMALL_PRODUCT
    distances, first, second = _by_product(curves, squares, np.float64 if is_small else np.float32)
    if not is_small and len(first) > _MANY_CLOSE * distances.size:  # another product is faster than to subtract them
        distances, first, second = _by_product(curves, squares, np.float64)
    _subtract_pairs(distances, first, second, curves)
    np.fill_diagonal(distances, 0.0)
    return distances


def _square_norms(curves: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray((curves[:, None, :] @ curves[:, :, None])[:, 0, 0])


def _by_product(
    curves: np.ndarray, squares: np.ndarray, precision: type[np.floating]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distances by one product in this precision, and the pairs (first, second) that lost digits.

    Half the square of a distance is (<a,a> + <b,b>) / 2 - <a,b>, a relative one's is that over (|a|^2 + |b|^2) / 4.
    """
    left, levels = _without_levels(curves, precision)
    norms = (squares / 4).astype(precision) + np.finfo(precision).tiny  # two curves of zeros are 0 apart
    # Until the loop is through with them, scalar products; above the diagonal only, in the order that BLAS wants.
    unset = np.empty((len(left), len(left)), precision, order="F")
    distances = get_blas_funcs("syrk", (left,))(1.0, left.T, c=unset, trans=1, lower=1, overwrite_c=1).T
    own = np.diagonal(distances) / 2
    cancelled = _CANCELLED[precision]
    most = 2 * cancelled * float(own.max()) + _VANISHED
    pairs = []
    below = np.tri(_BLOCK_ROWS, k=-1, dtype=bool)
    room = np.empty((2, min(_BLOCK_ROWS, len(curves)) * len(curves)), precision)  # once: new memory is slow at first
    for begin in range(0, len(curves), _BLOCK_ROWS):  # a few rows at a time, from the diagonal on, stay in the cache
        rows, columns = slice(begin, begin + _BLOCK_ROWS), slice(begin, None)
        corner, shape = distances[rows, rows], distances[rows, columns].shape
        np.copyto(corner, corner.T, where=below[: len(corner), : len(corner)])
        block, scratch = room[:, : shape[0] * shape[1]].reshape(2, *shape)
        np.subtract(levels[rows, None], levels[columns], out=block)
        block *= block
        block += np.add(own[rows, None], own[columns], out=scratch)
        block -= distances[rows, columns]
        np.fill_diagonal(block, np.inf)  # a curve and itself
        if block.min() <= most:
            i, j = np.nonzero(block <= most)
            close = block[i, j] <= cancelled * (own[begin + i] + own[begin + j]) + _VANISHED
            i, j = i[close], j[close]
            block[i, j] = 0.0
            pairs.append(begin + np.array([i, j])[:, i < j])
        block /= np.add(norms[rows, None], norms[columns], out=scratch)
        distances[columns, rows] = np.sqrt(block, out=distances[rows, columns]).T
    first, second = np.concatenate([np.zeros((2, 0), dtype=int), *pairs], axis=1)
    return distances, first, second


def _without_levels(curves: np.ndarray, precision: type[np.floating]) -> tuple[np.ndarray, np.ndarray]:
    """(curves without a mean curve and without their level; levels, half of whose squared differences are left out).

    Curves differ most in their level. Without it, what a product rounds off is a share of less. Any curve in the middle
    of them will do for the mean, so some of them are enough.
    """
    num_runs, num_points = curves.shape
    mean = curves[:: max(1, num_runs // _REFERENCE_CURVES)].mean(axis=0)
    weights = np.full(num_points, 1 / num_points, precision)
    left, levels = np.empty(curves.shape, precision), np.empty(num_runs, precision)
    for begin in range(0, num_runs, _BLOCK_ROWS):
        rows = slice(begin, begin + _BLOCK_ROWS)
        its = np.subtract(curves[rows], mean, out=left[rows], casting="same_kind")
        levels[rows] = its @ weights
        its -= levels[rows, None]
    return left, levels * precision(math.sqrt(num_points / 2))


def group_labels(
    infos: Sequence[RunInfo],
    *,
    learning_rate: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: float = 0.0,
    tolerance_octaves: float = SAME_OCTAVES,
) -> np.ndarray:
    """A label per run, log2 of LR^a * WD^b * B^c; runs whose products agree up to rounding share it.

    group_labels(infos, learning_rate=1) groups by LR, with weight_decay=1 too by ELR. WD is meant as coupled: for
    independent runs it is ELR / LR.
    """
    if learning_rate == weight_decay == batch_size == 0:
        raise InputError("nothing to group by: give an exponent, such as learning_rate=1, weight_decay=1 for ELR")
    label = np.zeros(len(infos))
    if learning_rate or weight_decay:
        log2_lr, log2_wd = log2_settings(infos)
        label += learning_rate * log2_lr + weight_decay * log2_wd
    if batch_size:
        sizes = [info.batch_size for info in infos]
        if "unknown" in sizes:
            raise InputError("the batch_size of a run is unknown: say what it was")
        label += batch_size * np.log2(np.array(sizes, dtype=float))
    return same_up_to(label, tolerance_octaves)


def same_up_to(values: ArrayLike, tolerance: float = SAME_OCTAVES) -> np.ndarray:
    """The values, each replaced by the smallest of its group; a group is nowhere wider than `tolerance`.

    Values in a row, each close to the next, may lead far away. Such a row is cut at its widest gap, and its parts
    likewise, until every group is narrow enough.

    >>> same_up_to([1.0, 2.0, 1.001, 2.5]).tolist()
    [1.0, 2.0, 1.0, 2.5]
    """
    array = np.asarray(values, dtype=float)
    order = np.argsort(array, kind="stable")
    ordered = array[order]
    gaps = np.diff(ordered)
    begins = np.flatnonzero(np.concatenate([[True], gaps > tolerance])[: len(array)])
    labels = np.empty_like(array)
    rows = list(itertools.pairwise([*begins.tolist(), len(array)]))
    while rows:
        begin, end = rows.pop()
        if ordered[end - 1] - ordered[begin] > tolerance:
            cut = begin + 1 + int(np.argmax(gaps[begin : end - 1]))
            rows += [(begin, cut), (cut, end)]
        else:
            labels[order[begin:end]] = ordered[begin]
    return labels


def group_distances(
    distances: ArrayLike,
    labels: Sequence[Hashable] | np.ndarray,
    *,
    cells: Sequence[Hashable] | np.ndarray | None = None,
    seeds: Sequence[Hashable] | np.ndarray | None = None,
    min_group_size: int = 2,
    level: float = 0.9,
    draws: int = BOOTSTRAP_DRAWS,
    random_seed: int = 0,
) -> GroupDistances:
    """Mean distance of pairs in one group and in different groups, and their ratio with its cell bootstrap interval.

    `cells` says which runs share a setting (left out: none do), `seeds` keeps pairs of different seeds out. Groups of
    fewer than `min_group_size` cells are left out. A ratio of 1 says that the grouping means nothing.
    """
    d = np.asarray(distances, dtype=float)
    groups, group = _index(labels)
    _, cell = _index(range(len(d)) if cells is None else cells)
    if d.shape != (len(group), len(group)) or len(cell) != len(group):
        raise InputError(f"distances of shape {d.shape} need as many labels and cells: these are {len(group)} labels")
    sizes = np.array([len(set(cell[group == index])) for index in range(len(groups))])
    large = sizes[group] >= min_group_size
    pairs = large[:, None] & large & (cell[:, None] != cell)
    if seeds is not None:
        seed = _index(seeds)[1]
        pairs &= seed[:, None] == seed
    same = pairs & (group[:, None] == group)
    other = pairs & (group[:, None] != group)
    kept = [index for index in range(len(groups)) if sizes[index] >= min_group_size]
    member = np.eye(len(groups))[group][:, kept]
    counts = member.T @ pairs @ member
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = np.where(counts > 0, member.T @ np.where(pairs, d, 0.0) @ member / counts, np.nan)
    num_within, num_between = int(same.sum()) // 2, int(other.sum()) // 2
    names = tuple(groups[index] for index in kept)
    if not num_within or not num_between:
        missing = "no two runs are in one group" if not num_within else "all runs are in one group"
        within = float(d[same].mean()) if num_within else math.nan
        between = float(d[other].mean()) if num_between else math.nan
        nothing = (math.nan, math.nan, math.nan)
        return GroupDistances(
            within, between, *nothing, level, names, matrix, num_within, num_between, (f"no ratio: {missing}",)
        )

    def log_ratio(weights: np.ndarray) -> np.ndarray:
        within = _pair_mean(weights, d, same)
        between = _pair_mean(weights, d, other)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.log(between) - np.log(within)

    within, between = float(d[same].mean()), float(d[other].mean())
    drawn = draw_cells(int(cell.max()) + 1, draws, random_seed)[:, cell]
    low, high, warnings = bootstrap_interval(log_ratio(drawn), level)
    ratio = between / within if within > 0 else math.inf
    return GroupDistances(
        within,
        between,
        ratio,
        math.exp(low),
        math.exp(high),
        level,
        names,
        matrix,
        num_within,
        num_between,
        warnings,
    )


def floor_of_pairs(values: ArrayLike, pairs: Sequence[tuple[int, int]]) -> Floor:
    """The distances of the named pairs of curves, such as runs and their perturbed twins."""
    curves = np.asarray(values, dtype=float)
    distances = np.array([relative_distances(curves[list(pair)])[0, 1] for pair in pairs])
    if not len(distances):
        return Floor(distances, math.nan, math.nan, ("no floor: there is no pair that differs by chance alone",))
    few = f"the floor rests on {len(distances)} pairs, {MIN_FLOOR_PAIRS} are needed to judge by it"
    warnings = (few,) if len(distances) < MIN_FLOOR_PAIRS else ()
    return Floor(distances, float(np.median(distances)), float(np.quantile(distances, FLOOR_QUANTILE)), warnings)


def seed_pairs(infos: Sequence[RunInfo]) -> list[tuple[int, int]]:
    """Pairs of runs that differ in nothing but their seed."""
    settings = [
        (info.learning_rate, info.weight_decay, info.batch_size, info.schedule, info.weight_decay_convention)
        for info in infos
    ]
    runs = range(len(infos))
    return [
        (i, j) for i in runs for j in runs if i < j and settings[i] == settings[j] and infos[i].seed != infos[j].seed
    ]


def corrected_distances(distances: ArrayLike, floor: float) -> np.ndarray:
    """sqrt(max(0, d^2 - floor^2)): what is left of distances once chance is taken out."""
    return np.sqrt(np.maximum(0.0, np.asarray(distances, dtype=float) ** 2 - floor**2))


def overlap_share(
    distances: ArrayLike,
    pairs: np.ndarray,
    floor: Floor,
    *,
    cells: Sequence[Hashable] | np.ndarray | None = None,
    level: float = 0.9,
    draws: int = BOOTSTRAP_DRAWS,
    random_seed: int = 0,
) -> OverlapShare:
    """The share of the pairs (a symmetric mask [runs x runs]) at or below the floor's 95th percentile."""
    d = np.asarray(distances, dtype=float)
    _, cell = _index(range(len(d)) if cells is None else cells)
    pairs = np.asarray(pairs, dtype=bool) & (cell[:, None] != cell)
    num_pairs = int(pairs.sum()) // 2
    if not num_pairs or len(floor.distances) < MIN_FLOOR_PAIRS:
        why = floor.warnings if num_pairs else ("there is no pair to compare",)
        return OverlapShare(math.nan, math.nan, math.nan, level, num_pairs, math.nan, why)
    close = (d <= floor.percentile_95).astype(float)
    drawn = draw_cells(int(cell.max()) + 1, draws, random_seed)[:, cell]
    low, high, warnings = bootstrap_interval(_pair_mean(drawn, close, pairs), level)
    paper_share = float((d[pairs] <= OVERLAP_THRESHOLD).mean())
    return OverlapShare(float(close[pairs].mean()), low, high, level, num_pairs, paper_share, warnings)


def draw_cells(num_cells: int, draws: int, random_seed: int) -> np.ndarray:
    """How often each cell is drawn, [draws x cells], some more than asked for: a tenth may have to be replaced."""
    rng = np.random.default_rng(random_seed)
    extra = math.ceil(draws / (1 - MAX_FAILED_DRAWS))
    return rng.multinomial(num_cells, np.full(num_cells, 1 / num_cells), size=extra).astype(float)


def bootstrap_interval(statistics: np.ndarray, level: float) -> tuple[float, float, tuple[str, ...]]:
    """The percentile interval of the draws that could be computed; none where more than a tenth could not."""
    if not 0 < level < 1:
        raise InputError(f"level={show(level)} must be above 0 and below 1, such as 0.9")
    valid = np.isfinite(statistics)
    if np.mean(~valid) > MAX_FAILED_DRAWS:
        return math.nan, math.nan, (f"no interval: {np.mean(~valid):.0%} of the bootstrap draws give no value",)
    wanted = math.floor(len(statistics) * (1 - MAX_FAILED_DRAWS))
    low, high = np.quantile(statistics[valid][:wanted], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high), ()


def _subtract_pairs(distances: np.ndarray, first: np.ndarray, second: np.ndarray, curves: np.ndarray) -> None:
    """Replaces the distances of these pairs by those of curves subtracted point by point."""
    step = max(1, _CHUNK_VALUES // max(1, curves.shape[1]))
    norms = np.einsum("ij,ij->i", curves, curves) / 2 + np.finfo(float).tiny if len(first) else np.zeros(0)
    for begin in range(0, len(first), step):
        i, j = first[begin : begin + step], second[begin : begin + step]
        difference = curves[i] - curves[j]
        squares = np.einsum("ij,ij->i", difference, difference) / (norms[i] + norms[j])
        distances[i, j] = distances[j, i] = np.sqrt(squares)


def _pair_mean(weights: np.ndarray, values: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """For each row of weights w the mean of values over pairs, each pair (i, j) counted w_i * w_j times."""
    total = np.einsum("di,di->d", weights @ np.where(pairs, values, 0.0), weights)
    count = np.einsum("di,di->d", weights @ pairs.astype(float), weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count


def _index(labels: Sequence[Hashable] | np.ndarray) -> tuple[list[Hashable], np.ndarray]:
    """The distinct labels in order (of appearance where they cannot be sorted), and each one's number."""
    items: list[Hashable] = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    distinct: list[Hashable] = list(dict.fromkeys(items))
    numbers = [label for label in distinct if isinstance(label, int | float)]
    if len(numbers) == len(distinct):
        distinct = [*sorted(numbers)]
    place = {label: index for index, label in enumerate(distinct)}
    return distinct, np.array([place[label] for label in items], dtype=int)
