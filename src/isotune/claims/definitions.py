"""The [definitions] of claims.toml as functions; most of them are those of `isotune.analyze` with the claim's numbers.

curve               curves, bin_curves          relative_distance    analyze.distances.relative_distances
mean over a window  window_means                floor                twin_floor
overlap_share       overlap                     group_ratio          group_ratio
cell_noise          twin_noise, seed_noise      strength, shares,    tests_and_shares (analyze.invariance)
cell_bootstrap      cell_weights, interval      p_wd, p_lr
seed_bootstrap      grids.GridLosses.drawn      paired_windows       paired_error
angle               angle                       explained            explained
slope_across_elr    slope_across_elr
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from isotune.analyze.angle import angle_draws, index_angle
from isotune.analyze.curves import ADAM_BETA2, NOISE_SOURCES, setting_at_rows, steps_at_rows, warmup_end
from isotune.analyze.distances import (
    FLOOR_QUANTILE,
    Floor,
    bootstrap_interval,
    draw_cells,
    group_distances,
    overlap_share,
    relative_distances,
)
from isotune.analyze.invariance import Invariance, Share, invariance
from isotune.claims.rows import RowSet, RowsMissing, Run
from isotune.claims.rules import Entry, Estimate
from isotune.measure import windows
from isotune.runs import Trajectory
from isotune.runs.tables import DecayRecord

CURVE_SPACING = 61_440  # tokens between the points of a curve
READINGS_PER_BIN = 10  # of the noise: 122,880 tokens in nano
FEW_CELLS = 20  # below, a percentile interval of a slope or mean is too narrow
Window = tuple[float, float]
_STRETCH_COLUMNS = ("train_loss", "gradient_norm", "clip_factor", "clip_factor_sq")  # means since the row before


@dataclass(frozen=True)
class Noise:
    """The variance of a cell's value at a given seed, and the degrees of freedom of that estimate.

    Where neither twins nor seeds tell it, shares are missing, unless it may be guessed from what a term for each LR,
    WD and ELR leaves: for numbers that are shown while rows are not there.
    """

    variance: float
    freedom: float
    may_be_guessed: bool = False

    @property
    def is_known(self) -> bool:
        return not math.isnan(self.variance)


UNKNOWN_NOISE = Noise(math.nan, 0.0)
GUESSED_NOISE = Noise(math.nan, 0.0, may_be_guessed=True)


# Values of runs over windows


def curves(rows: RowSet | Sequence[Run], column: str, window: Window, min_points: int = 4) -> np.ndarray:
    """The column on multiples of 61,440 tokens inside the window and after the warm-up, [runs x points].

    All runs must be measured up to the window's last point; one with too few evaluations is RowsMissing.
    """
    runs = rows.runs if isinstance(rows, RowSet) else tuple(rows)
    if not runs:
        raise RowsMissing(f"no runs with {column}")
    if column in NOISE_SOURCES:
        return bin_curves(runs, column, window)
    measured = [run.trajectory.measured(column) for run in runs]
    begin = max([window[0], *(warmup_end(run.trajectory) for run in runs)])
    grid = grid_points((begin, window[1]))
    grid = grid[grid <= min([window[1], *(float(tokens[-1]) for tokens, _ in measured if len(tokens))])]
    for run, (tokens, _) in zip(runs, measured, strict=True):
        num_points = int(((window[0] <= tokens) & (tokens <= window[1])).sum())
        if num_points < min_points:
            raise RowsMissing(f"{_name(run)} has {num_points} of {min_points} values of {column} in the window")
    return np.array([np.interp(grid, tokens, values) for tokens, values in measured])


def grid_points(window: Window) -> np.ndarray:
    """Multiples of 61,440 tokens from the window's start to its end."""
    return CURVE_SPACING * np.arange(math.ceil(window[0] / CURVE_SPACING), math.floor(window[1] / CURVE_SPACING) + 1.0)


def bin_curves(rows: RowSet | Sequence[Run], column: str, window: Window) -> np.ndarray:
    """scaled_noise or scaled_gradient in bins of ten readings, [runs x bins]; bins are multiples of their length."""
    runs = rows.runs if isinstance(rows, RowSet) else tuple(rows)
    length = READINGS_PER_BIN * _reading_spacing(runs[0].trajectory, NOISE_SOURCES[column])
    edges = length * np.arange(math.ceil(window[0] / length), math.floor(window[1] / length) + 1)
    if len(edges) < 3:
        raise RowsMissing(f"the window from {window[0]:,.0f} to {window[1]:,.0f} tokens has no two bins of readings")
    bins = list(itertools.pairwise(edges.tolist()))
    values = np.array([[noise_over(run.trajectory, column, each).value for each in bins] for run in runs])
    return values[:, ~np.isnan(values).any(axis=0)]


def window_means(rows: RowSet | Sequence[Run], column: str, window: Window) -> np.ndarray:
    """A value per run: the mean of its curve; of columns that are means of stretches, of those inside the window."""
    runs = rows.runs if isinstance(rows, RowSet) else tuple(rows)
    if column in NOISE_SOURCES:
        return np.array([noise_over(run.trajectory, column, window).value for run in runs])
    if column in _STRETCH_COLUMNS:
        return np.array([_stretch_mean(run.trajectory, column, window) for run in runs])
    return curves(runs, column, window, min_points=1).mean(axis=1)


def noise_over(
    trajectory: Trajectory, column: str, window: Window, *, level: float = 0.9, corrected: bool = True
) -> windows.Estimate:
    """windows.scaled_noise (or scaled_gradient) of the readings with start < tokens <= end, on noise_clip_factor.

    Readings less than 60 steps after a batch switch are left out.
    """
    noise, rate, batch, clip = noise_readings(trajectory, NOISE_SOURCES[column], window)
    factors = clip if corrected else None
    if column == "scaled_noise":
        return windows.scaled_noise(noise, rate, batch, factors, level=level)
    return windows.scaled_gradient(noise, rate, factors, level=level)


def noise_readings(
    trajectory: Trajectory, source: str, window: Window
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(readings of the column, LR, batch size, clip factor) inside the window."""
    columns = trajectory.columns
    if source not in columns:
        raise RowsMissing(f"{source} was not measured in {trajectory.info.source}")
    tokens = trajectory.tokens
    batch = setting_at_rows(trajectory, "batch_size", trajectory.info.batch_size)
    rate = setting_at_rows(trajectory, "learning_rate", trajectory.info.learning_rate)
    settled = ~windows.after_switch_mask(steps_at_rows(trajectory), batch, ADAM_BETA2)
    clip = columns.get("noise_clip_factor", columns.get("clip_factor", np.ones(len(tokens))))
    inside = (window[0] < tokens) & (tokens <= window[1]) & settled & ~np.isnan(columns[source]) & ~np.isnan(clip)
    return columns[source][inside], rate[inside], batch[inside], clip[inside]


# Floors, distances and shares of pairs


def twin_pairs(rows: RowSet, twins: RowSet) -> list[tuple[Run, Run]]:
    """Each twin with its run of the same cell and seed; RowsMissing if a twin has none."""
    places = rows.by_place()
    pairs = []
    for twin in twins.runs:
        run = places.get((twin.log2_lr, twin.log2_wd, twin.seed))
        if run is None:
            raise RowsMissing(f"{_name(twin)} of {twins.name} has no run to compare with in {rows.name}")
        pairs.append((run, twin))
    return pairs


def twin_floor(pairs: Sequence[tuple[Run, Run]], column: str, window: Window) -> Floor:
    """The distances of runs and their perturbed twins on this column and window."""
    distances = np.array([relative_distances(curves(pair, column, window))[0, 1] for pair in pairs])
    if not len(distances):
        return Floor(distances, math.nan, math.nan, ("no twins",))
    return Floor(distances, float(np.median(distances)), float(np.quantile(distances, FLOOR_QUANTILE)))


def overlap(distances: np.ndarray, pairs: np.ndarray, floor: Floor, rows: RowSet, entry: Entry) -> Estimate:
    """The share of the pairs (a symmetric mask) at or below the floor's 95th percentile."""
    if len(floor.distances) < entry["min_floor_pairs"]:
        why = f"the floor has {len(floor.distances)} pairs, {entry['min_floor_pairs']:g} are needed"
        return Estimate(math.nan, reason=why)
    found = overlap_share(
        distances,
        pairs,
        floor,
        cells=[run.cell for run in rows.runs],
        level=entry.level,
        draws=entry.draws,
        random_seed=entry.random_seed,
    )
    return Estimate(found.share, found.low, found.high, ", ".join(found.warnings))


def group_ratio(values: np.ndarray, groups: np.ndarray, rows: RowSet, entry: Entry) -> Estimate:
    """Mean distance between groups over that within, for curves [runs x points]; groups of two cells or more."""
    found = group_distances(
        relative_distances(values),
        groups,
        cells=[run.cell for run in rows.runs],
        seeds=rows.seeds,
        level=entry.level,
        draws=entry.draws,
        random_seed=entry.random_seed,
    )
    return Estimate(found.ratio, found.low, found.high, ", ".join(found.warnings))


def pair_means(weights: np.ndarray, values: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """For each row of weights w the mean of values [runs x runs] over pairs, a pair (i, j) counted w_i * w_j times."""
    total = np.einsum("di,di->d", weights @ np.where(pairs, values, 0.0), weights)
    count = np.einsum("di,di->d", weights @ pairs.astype(float), weights)
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count


def equal_pairs(labels: np.ndarray) -> np.ndarray:
    """The symmetric mask of pairs of different runs with one label."""
    same = np.abs(labels[:, None] - labels) < 0.01
    np.fill_diagonal(same, False)
    return same


# The noise of a cell, tests and shares


def twin_noise(pairs: Sequence[tuple[Run, Run]], value: Callable[[Sequence[Run]], np.ndarray]) -> Noise:
    """Half the mean square difference of twins; `value` gives a number per run."""
    runs, twins = (value([pair[side] for pair in pairs]) for side in (0, 1))
    return Noise(float(np.mean((runs - twins) ** 2)) / 2, float(len(pairs)))


def seed_noise(rows: RowSet, values: np.ndarray) -> Noise:
    """The variance of what is left of cells x seeds once cell and seed means are taken out."""
    grid, _, _ = by_cell_and_seed(rows, values)
    if min(grid.shape) < 2:
        return UNKNOWN_NOISE
    freedom = (grid.shape[0] - 1) * (grid.shape[1] - 1)
    return Noise(float((_twice_centred(grid) ** 2).sum()) / freedom, float(freedom))


def by_cell_and_seed(rows: RowSet, values: np.ndarray) -> tuple[np.ndarray, list[tuple[float, float]], list[int]]:
    """Values [cells x seeds, ...] of the cells that have all seeds of the set, finite in all of them."""
    seeds = sorted(set(rows.seeds.tolist()))
    found: dict[tuple[float, float], dict[int, np.ndarray]] = {}
    for run, value in zip(rows.runs, values, strict=True):
        if np.isfinite(value).all():
            found.setdefault(run.cell, {})[run.seed] = value
    cells = [cell for cell, by_seed in found.items() if len(by_seed) == len(seeds)]
    if not cells:
        raise RowsMissing(f"no cell of {rows.name} has all its seeds")
    return np.array([[found[cell][seed] for seed in seeds] for cell in cells]), cells, seeds


def tests_and_shares(rows: RowSet, values: np.ndarray, noise: Noise, entry: Entry) -> Invariance:
    """p_wd, p_lr, elr_share and lr_share of a value per run."""
    found = invariance(
        rows.log2_lr,
        rows.log2_wd,
        values,
        cell_noise=noise.variance if noise.is_known else None,
        cell_noise_freedom=noise.freedom if noise.is_known else math.inf,
        alpha=entry["alpha"],
        equivalence_share=entry["equivalence_share"],
        level=entry.level,
        permutations=entry.permutations,
        random_seed=entry.random_seed,
    )
    if noise.is_known or noise.may_be_guessed:
        return found
    no_share = Share(math.nan, math.nan, math.nan, entry.level, "no seeds or twins tell the noise of a cell")
    return replace(found, elr_share=no_share, lr_share=no_share, wd_share=no_share)


def shares_and_tests(found: Invariance, *names: str) -> dict[str, Estimate]:
    """These statistics of a claim about invariance: elr_share, lr_share, wd_share, p_wd, p_lr."""
    values = {name: getattr(found, name) for name in names}
    return {
        name: share_estimate(value) if isinstance(value, Share) else p_estimate(value) for name, value in values.items()
    }


def share_estimate(share: Share) -> Estimate:
    return Estimate(share.value, share.low, share.high, share.reason)


def p_estimate(p: float) -> Estimate:
    """A p-value; it has no interval."""
    return Estimate(p, reason="too few cells share a stratum" if math.isnan(p) else "")


def angle(rows: RowSet, values: np.ndarray, entry: Entry) -> tuple[float, np.ndarray]:
    """The angle in degrees and its bootstrap draws, unwrapped around it; NaN where a draw has too few cells."""
    degrees = index_angle(rows.log2_lr, rows.log2_wd, values, level=entry.level).degrees
    drawn = angle_draws(rows.log2_lr, rows.log2_wd, values, cell_weights(rows, entry))
    return degrees, degrees + (drawn - degrees + 90) % 180 - 90


def slope_across_elr(rows: RowSet, values: np.ndarray, entry: Entry) -> Estimate:
    """Least-squares slope on log2 ELR with one intercept per LR, with its t interval or bootstrap, the wider."""
    design = np.column_stack([rows.log2_elr, _indicators(rows.log2_lr)])
    return slope_estimate(design, values, rows, entry)


def explained(values: np.ndarray, groups: np.ndarray) -> float:
    """Adjusted R^2 of a one-way grouping: 1 - (within mean square) / (total mean square)."""
    return float(weighted_explained(np.ones((1, len(values))), values, groups)[0])


def weighted_explained(weights: np.ndarray, values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """`explained` for each row of weights [draws x cells]; NaN where no group has more than one draw."""
    member = _indicators(groups)
    total = weights.sum(axis=1)
    centred = values - values.mean()
    grand = weights @ centred / total
    counts, sums = weights @ member, weights @ (member * centred[:, None])
    square_sum = weights @ centred**2
    with np.errstate(invalid="ignore", divide="ignore"):
        within = square_sum - np.where(counts > 0, sums**2 / counts, 0.0).sum(axis=1)
        freedom = total - (counts > 0).sum(axis=1)
        scatter = (square_sum - total * grand**2) / (total - 1)
        ratio = (within / freedom) / scatter
        return np.where((freedom > 0) & (scatter > 1e-12 * centred.var()), 1 - ratio, np.nan)


# Intervals


def cell_weights(rows: RowSet, entry: Entry, stream: int = 0) -> np.ndarray:
    """How often each run is drawn, [draws x runs]: cells with replacement, all seeds of a cell together.

    Tables that are drawn apart take different streams.
    """
    cells = sorted({run.cell for run in rows.runs})
    place = {cell: index for index, cell in enumerate(cells)}
    return draw_cells(len(cells), entry.draws, entry.random_seed + stream)[:, [place[run.cell] for run in rows.runs]]


def interval(value: float, draws: np.ndarray, level: float) -> Estimate:
    """The value with the percentile interval of its draws; missing where more than a tenth gave nothing."""
    low, high, warnings = bootstrap_interval(np.asarray(draws, dtype=float), level)
    return Estimate(value if not warnings else math.nan, low, high, ", ".join(warnings))


def slope_estimate(design: np.ndarray, values: np.ndarray, rows: RowSet, entry: Entry) -> Estimate:
    """The first coefficient of a least-squares fit: bootstrap interval, or the t interval where it is wider.

    The t interval counts with fewer than 20 cells only.
    """
    drawn = weighted_slopes(cell_weights(rows, entry), design, values)
    return wider(interval(first_slope(design, values), drawn, entry.level), t_slope(design, values, entry), rows)


def pair_slope(values: np.ndarray, pairs: np.ndarray, rows: RowSet, entry: Entry) -> Estimate:
    """The slope of values [runs x runs] of the pairs on log2 ELR, beside the pair's |log2 LR ratio| and a constant."""
    first, second = np.nonzero(np.triu(pairs))
    lr_ratio = np.abs(rows.log2_lr[first] - rows.log2_lr[second])
    design = np.column_stack([rows.log2_elr[first], np.ones(len(first)), lr_ratio])
    if len(first) < 4 or np.linalg.matrix_rank(design) < 3:
        return Estimate(math.nan, reason=f"{len(first)} pairs do not determine a slope")
    target = values[first, second]
    weights = cell_weights(rows, entry)
    drawn = weighted_slopes(weights[:, first] * weights[:, second], design, target)
    return wider(interval(first_slope(design, target), drawn, entry.level), t_slope(design, target, entry), rows)


def mean_estimate(values: np.ndarray, rows: RowSet, entry: Entry) -> Estimate:
    """The mean over cells: bootstrap interval, or with fewer than 20 cells the t interval where it is wider."""
    weights = cell_weights(rows, entry)
    found = interval(float(values.mean()), weights @ values / weights.sum(axis=1), entry.level)
    return wider(found, t_slope(np.ones((len(values), 1)), values, entry), rows)


def wider(found: Estimate, t_interval: Estimate, rows: RowSet) -> Estimate:
    """The bootstrap's interval, with fewer than 20 cells the wider of both."""
    if rows.num_cells >= FEW_CELLS or math.isnan(t_interval.low) or math.isnan(found.low):
        return found
    if t_interval.high - t_interval.low <= found.high - found.low:
        return found
    return Estimate(found.value, t_interval.low, t_interval.high)


def first_slope(design: np.ndarray, values: np.ndarray) -> float:
    return float(np.linalg.lstsq(design, values, rcond=None)[0][0])


def weighted_slopes(weights: np.ndarray, design: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The first coefficient for each row of weights; NaN where the drawn cells do not determine it."""
    return partial_slopes(weights, design[:, 0], design[:, 1:], np.broadcast_to(values, weights.shape))


def partial_slopes(weights: np.ndarray, x: np.ndarray, others: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The slope of values [draws x n] on x beside the columns of `others`, by weighted least squares for each draw."""
    targets = np.stack([np.broadcast_to(x, weights.shape), values], axis=2)
    if others.shape[1]:
        gram = np.einsum("dn,np,nq->dpq", weights, others, others, optimize=True)
        right = np.einsum("dn,np,dnt->dpt", weights, others, targets, optimize=True)
        targets = targets - others @ (np.linalg.pinv(gram, rcond=1e-10, hermitian=True) @ right)
    x_left, value_left = targets[:, :, 0], targets[:, :, 1]
    square = (weights * x_left**2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = (weights * x_left * value_left).sum(axis=1) / square
    return np.where(square > 1e-9 * float((x - x.mean()) @ (x - x.mean()) + 1e-300), slope, np.nan)


def paired_error(first: DecayRecord, second: DecayRecord) -> float:
    """Standard error of the difference of two final losses on the same windows."""
    if first.window_losses is None or second.window_losses is None:
        return math.nan
    difference = np.asarray(first.window_losses, dtype=float) - np.asarray(second.window_losses, dtype=float)
    return float(difference.std(ddof=1)) / math.sqrt(len(difference))


def t_slope(design: np.ndarray, values: np.ndarray, entry: Entry) -> Estimate:
    rank = int(np.linalg.matrix_rank(design))
    freedom = len(values) - rank
    if freedom < 1:
        return Estimate(math.nan)
    inverse = np.linalg.pinv(design.T @ design)
    rest = values - design @ (inverse @ (design.T @ values))
    slope = float((inverse @ (design.T @ values))[0])
    error = math.sqrt(float(rest @ rest) / freedom * float(inverse[0, 0]))
    reach = float(special.stdtrit(freedom, (1 + entry.level) / 2)) * error
    return Estimate(slope, slope - reach, slope + reach)


def _twice_centred(grid: np.ndarray) -> np.ndarray:
    """Cells x seeds (x budgets) without cell means and seed means."""
    return grid - grid.mean(axis=1, keepdims=True) - grid.mean(axis=0, keepdims=True) + grid.mean(axis=(0, 1))


def _indicators(labels: np.ndarray) -> np.ndarray:
    rounded = np.round(labels, 3)
    return (rounded[:, None] == np.unique(rounded)).astype(float)


def _stretch_mean(trajectory: Trajectory, column: str, window: Window) -> float:
    tokens, values = trajectory.measured(column)
    inside = (window[0] < tokens) & (tokens <= window[1])
    return float(values[inside].mean()) if inside.any() else math.nan


def _reading_spacing(trajectory: Trajectory, source: str) -> int:
    tokens, _ = trajectory.measured(source)
    return int(np.median(np.diff(tokens)))


def _name(run: Run) -> str:
    return f"LR 2^{run.log2_lr:g}, WD 2^{run.log2_wd:g}, seed {run.seed}"
