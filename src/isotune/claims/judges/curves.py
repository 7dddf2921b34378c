"""C01, C03, C04, C05 and C08: which loss curves are alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isotune.analyze.curves import memory_times
from isotune.analyze.distances import Floor, corrected_distances, relative_distances
from isotune.analyze.invariance import Invariance
from isotune.claims.definitions import (
    GUESSED_NOISE,
    UNKNOWN_NOISE,
    Noise,
    Window,
    cell_weights,
    curves,
    equal_pairs,
    group_ratio,
    interval,
    overlap,
    pair_means,
    pair_slope,
    paired_error,
    seed_noise,
    share_estimate,
    shares_and_tests,
    tests_and_shares,
    twin_floor,
    twin_noise,
    twin_pairs,
    window_means,
)
from isotune.claims.judging import judges
from isotune.claims.rows import Rows, RowSet, RowsMissing, Run
from isotune.claims.rules import Entry, Estimate, Measured

NO_FLOOR = Floor(np.zeros(0), math.nan, math.nan)


@judges("C01")
def c01(rows: Rows, entry: Entry) -> Measured:
    """Early, curves with the same LR overlap whatever the WD."""
    early, window = rows["small_early"], rows.window("early")
    noise, floor = noise_and_floor(rows, "perturbed_early", "val_loss", window)
    found = tests_and_shares(early, window_means(early, "val_loss", window), noise, entry)
    distances = relative_distances(curves(early, "val_loss", window))
    pairs = equal_pairs(early.log2_lr)
    far = pairs & (np.abs(early.log2_wd[:, None] - early.log2_wd) > 2 - 1e-6)
    return Measured(
        statistics={
            **shares_and_tests(found, "lr_share", "elr_share", "p_lr"),
            "overlap_share": overlap(distances, pairs, floor, early, entry),
        },
        num_cells=early.num_cells,
        shown={
            "overlap_share of WD 4x apart or more": overlap(distances, far, floor, early, entry),
            "share of pairs under the paper's 0.005": _share_under(distances, pairs, entry["overlap_threshold"]),
            "p_wd": found.p_wd,
            **shown_noise(noise, floor),
        },
        notes=found.warnings,
        would_decide="more twins of early cells (nano-perturbed)",
    )


@judges("C03")
def c03(rows: Rows, entry: Entry) -> Measured:
    """Later, curves with the same ELR overlap although LR differs by 8x."""
    late, window = rows["small_late"], rows.window("late")
    noise, floor = noise_and_floor(rows, "perturbed_late", "val_loss", window)
    found = tests_and_shares(late, window_means(late, "val_loss", window), noise, entry)
    distances = relative_distances(curves(late, "val_loss", window))
    pairs = equal_pairs(late.log2_elr)
    pairs &= np.abs(late.log2_lr[:, None] - late.log2_lr) < math.log2(entry["min_lr_ratio"]) + 1e-6
    return Measured(
        statistics={
            **shares_and_tests(found, "elr_share", "lr_share", "p_wd"),
            "overlap_share": overlap(distances, pairs, floor, late, entry),
            "lr_ratio": Estimate(_widest_lr_ratio(late)),
        },
        num_cells=late.num_cells,
        shown={
            "share of pairs under the paper's 0.005": _share_under(distances, pairs, entry["overlap_threshold"]),
            "mean distance of these pairs": _mean(distances, pairs),
            "angle in degrees": found.angle.degrees,
            "elr_share of train_loss": share_estimate(_train_loss_check(rows, late, window, entry).elr_share),
            **_cells_with_n_above_1(rows, window, entry),
            **shown_noise(noise, floor),
        },
        notes=found.warnings,
        would_decide="twins and seeds of the cells of small_late, and LR 2^-6 on the same ELR",
    )


@judges("C04")
def c04(rows: Rows, entry: Entry) -> Measured:
    """Distances are far smaller within an ELR group than between groups."""
    first, window = rows["small_late"], rows.window("late")
    late = _with_more_lrs(rows, first)
    noise, floor = noise_and_floor(rows, "perturbed_late", "val_loss", window)
    groups = _Groups(late, window)
    shown: dict[str, Any] = {
        "ratio for neighbouring ELR groups": _mean(groups.distances, groups.neighbours) / groups.mean_within,
        "mean distance within, between": [groups.mean_within, _mean(groups.distances, groups.between)],
        "share under 0.005 within, between": [
            _share_under(groups.distances, pairs, entry["max_distance"]) for pairs in (groups.within, groups.between)
        ],
        **shown_noise(noise, floor),
    }
    would_decide = "LRs between the octaves on the same ELR, which add cells to every group; none are planned"
    if late is first:
        sweep = "" if rows.is_replication else " (sweep nano-late)"
        would_decide = f"LR 2^-6 and 2^-12 on the same ELR, which add cells to every group{sweep}"
    else:
        before = _Groups(first, window)
        shown |= {
            "small_late alone: ratio": before.ratio(entry),
            "small_late alone: share_gap": before.share_gap(floor, entry),
            "runs of late_wide that diverged": rows.find("late_wide").num_diverged,
        }
    return Measured(
        statistics={"ratio": groups.ratio(entry), "share_gap": groups.share_gap(floor, entry)},
        num_cells=late.num_cells,
        shown=shown,
        would_decide=would_decide,
    )


@judges("C05")
def c05(rows: Rows, entry: Entry) -> Measured:
    """Curves of a smaller ELR align slightly less well."""
    late, window = rows["small_late"], rows.window("late")
    _, floor = noise_and_floor(rows, "perturbed_late", "val_loss", window)
    distances = relative_distances(curves(late, "val_loss", window))
    return Measured(
        statistics={"alignment_slope": alignment_slope(distances, floor, late, entry)},
        num_cells=late.num_cells,
        shown={
            "alignment_slope at n from 3 to 5 in every group": _slope_at_equal_n(late, floor, entry),
            "mean distance by log2 ELR": _mean_by_group(distances, late.log2_elr),
            "slope without floor": pair_slope(
                np.log2(np.maximum(distances, 1e-12)), equal_pairs(late.log2_elr), late, entry
            ),
        },
        would_decide="seeds and twins of the cells of small_late",
    )


@judges("C08")
def c08(rows: Rows, entry: Entry) -> Measured:
    """The collapse along ELR persists after the decay."""
    late = rows["small_late"]
    budget = rows.budgets("last_budget", late)[-1]
    earlier = rows.budgets("budgets", late)[-2]
    found, noise = _after_decay(rows, late, budget, entry)
    before, _ = _after_decay(rows, late.where(lambda run: run.log2_elr > -10.01), earlier, entry)
    return Measured(
        statistics=shares_and_tests(found, "elr_share", "lr_share", "p_wd"),
        num_cells=found.num_cells,
        shown={
            f"elr_share at budget {earlier:,}": share_estimate(before.elr_share),
            "angle in degrees": found.angle.degrees,
            "standard deviation of a cell": math.sqrt(noise.variance) if noise.is_known else math.nan,
        },
        notes=found.warnings,
        would_decide="seeds of the cells of small_late",
    )


def noise_and_floor(rows: Rows, twins: str, column: str, window: Window) -> tuple[Noise, Floor]:
    """The noise of a cell's window mean and the floor of its curves: from twins; small32's noise is that of its seeds.

    Twins may lie beside the judged cells, so their runs are looked for in the whole grid. Without twins there is no
    floor, and nano's noise is guessed, for numbers that are only shown.
    """
    pairs = twin_pairs(rows["small_all"], rows[twins]) if rows.has(twins) and rows.has("small_all") else []
    floor = twin_floor(pairs, column, window) if pairs else NO_FLOOR
    if rows.is_replication:
        return seeds_noise(rows, "small_seeds", column, window), floor

    def value(runs: Sequence[Run]) -> np.ndarray:
        return window_means(runs, column, window)

    return (twin_noise(pairs, value) if pairs else GUESSED_NOISE), floor


def seeds_noise(rows: Rows, name: str, column: str, window: Window) -> Noise:
    """The noise of a cell's window mean from the seeds of a set."""
    unknown = UNKNOWN_NOISE if rows.is_replication else GUESSED_NOISE
    if not rows.has(name):
        return unknown
    seeded = rows[name]
    try:
        return seed_noise(seeded, window_means(seeded, column, window))
    except RowsMissing:
        return unknown


def shown_noise(noise: Noise, floor: Floor) -> dict[str, Any]:
    """The floor and the noise of a cell, as they are shown beside a claim."""
    deviation = math.sqrt(noise.variance) if noise.is_known else math.nan
    return {
        "floor: pairs, median, 95th percentile": [len(floor.distances), floor.median, floor.percentile_95],
        "standard deviation of a cell": deviation,
    }


def alignment_slope(distances: np.ndarray, floor: Floor, rows: RowSet, entry: Entry) -> Estimate:
    """The slope of log2 corrected distance of pairs of equal ELR on log2 ELR, beside the LR ratio of the pair."""
    if len(floor.distances) < entry["min_floor_pairs"]:
        return Estimate(math.nan, reason=f"the floor has {len(floor.distances)} pairs")
    values = np.log2(np.maximum(corrected_distances(distances, floor.median), floor.median / 2))
    return pair_slope(values, equal_pairs(rows.log2_elr), rows, entry)


class _Groups:
    """C04's pairs: curves of the same ELR, of another, and of the next one."""

    def __init__(self, rows: RowSet, window: Window) -> None:
        self.rows, self.curves = rows, curves(rows, "val_loss", window)
        self.distances = relative_distances(self.curves)
        self.within = equal_pairs(rows.log2_elr)
        self.between = ~self.within & ~np.eye(len(self.within), dtype=bool)
        self.neighbours = self.between & (np.abs(rows.log2_elr[:, None] - rows.log2_elr) < 1.01)
        self.mean_within = _mean(self.distances, self.within)

    def ratio(self, entry: Entry) -> Estimate:
        return group_ratio(self.curves, self.rows.log2_elr, self.rows, entry)

    def share_gap(self, floor: Floor, entry: Entry) -> Estimate:
        if len(floor.distances) < entry["min_floor_pairs"]:
            return Estimate(math.nan, reason=f"the floor has {len(floor.distances)} pairs")
        close = (self.distances <= floor.percentile_95).astype(float)
        weights = cell_weights(self.rows, entry)
        drawn = pair_means(weights, close, self.within) - pair_means(weights, close, self.between)
        return interval(_mean(close, self.within) - _mean(close, self.between), drawn, entry.level)


def _with_more_lrs(rows: Rows, late: RowSet) -> RowSet:
    """small_late with late_wide, once that is all there: a part of it must not decide."""
    if not rows.has("late_wide") or rows.find("late_wide").missing:
        return late
    more = rows["late_wide"].runs
    return replace(late, runs=tuple(sorted((*late.runs, *more), key=lambda run: (run.log2_lr, run.log2_wd, run.seed))))


def _mean(values: np.ndarray, pairs: np.ndarray) -> float:
    return float(values[pairs].mean()) if pairs.any() else math.nan


def _share_under(distances: np.ndarray, pairs: np.ndarray, threshold: float) -> float:
    return _mean((distances <= threshold).astype(float), pairs)


def _widest_lr_ratio(rows: RowSet) -> float:
    spans = [np.ptp(rows.log2_lr[np.isclose(rows.log2_elr, elr)]) for elr in np.unique(rows.log2_elr)]
    return float(2.0 ** max(spans))


def _train_loss_check(rows: Rows, late: RowSet, window: Window, entry: Entry) -> Invariance:
    noise, _ = noise_and_floor(rows, "perturbed_late", "train_loss", window)
    return tests_and_shares(late, window_means(late, "train_loss", window), noise, entry)


def _cells_with_n_above_1(rows: Rows, window: Window, entry: Entry) -> dict[str, Any]:
    """ELR 2^-13 and 2^-12 in the last quarter, which the paper would count too."""
    if rows.is_replication:
        return {}
    grid = rows["small_all"].where(lambda run: -13.01 < run.log2_elr < -11.99)
    if grid.num_cells < 6:
        return {}
    quarter = (window[1] * 0.75, window[1])
    found = tests_and_shares(grid, window_means(grid, "val_loss", quarter), GUESSED_NOISE, entry)
    return {"elr_share at ELR 2^-13 and 2^-12, last quarter": share_estimate(found.elr_share)}


def _slope_at_equal_n(late: RowSet, floor: Floor, entry: Entry) -> Estimate:
    """The same slope where every group is read at n from 3 to 5; groups with fewer than four points are left out."""
    distances = np.full((len(late.runs), len(late.runs)), np.nan)
    for elr in np.unique(late.log2_elr):
        members = np.flatnonzero(np.isclose(late.log2_elr, elr))
        runs = [late.runs[index] for index in members]
        n = memory_times(runs[0].trajectory)
        tokens = runs[0].trajectory.tokens[(n >= 3) & (n <= 5)]
        if not len(tokens):
            continue
        try:
            values = curves(runs, "val_loss", (float(tokens[0]), float(tokens[-1])), int(entry["min_points"]))
        except RowsMissing:
            continue
        distances[np.ix_(members, members)] = relative_distances(values)
    kept = [index for index in range(len(late.runs)) if not np.isnan(distances[index, index])]
    places = {late.runs[index].cell for index in kept}
    fewer = late.where(lambda run: run.cell in places)
    if len(np.unique(fewer.log2_elr)) < 2:
        return Estimate(math.nan, reason="fewer than two groups have four evaluations there")
    inside = np.where(np.isnan(distances), 1.0, distances)[np.ix_(kept, kept)]  # pairs of other ELR are not used
    return alignment_slope(inside, floor, fewer, entry)


def _mean_by_group(distances: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    found = {}
    for label in np.unique(labels):
        pairs = equal_pairs(labels) & np.isclose(labels, label)[:, None]
        if pairs.any():
            found[f"{label:g}"] = _mean(distances, pairs)
    return found


def _after_decay(rows: Rows, late: RowSet, budget: int, entry: Entry) -> tuple[Invariance, Noise]:
    """Tests and shares of the final losses; noise of seeds and of the evaluation windows."""
    losses = late.final_val_losses(budget)
    finite = {run.cell for run, loss in zip(late.runs, losses, strict=True) if math.isfinite(loss)}
    late, losses = late.where(lambda run: run.cell in finite), losses[np.isfinite(losses)]
    noise = UNKNOWN_NOISE if rows.is_replication else GUESSED_NOISE
    if rows.has("small_seeds"):
        seeded = rows["small_seeds"].where(lambda run: budget in run.decays)
        try:
            of_seeds = seed_noise(seeded, seeded.final_val_losses(budget))
            noise = Noise(of_seeds.variance + _window_noise(late, budget), of_seeds.freedom)
        except RowsMissing:
            pass
    return tests_and_shares(late, losses, noise, entry), noise


def _window_noise(late: RowSet, budget: int) -> float:
    """Half the mean square error of neighbours' differences on their common windows, as the noise of one cell."""
    places = late.by_place()
    errors = []
    for run in late.runs:
        for lr, wd in ((run.log2_lr + 1, run.log2_wd - 1), (run.log2_lr, run.log2_wd + 1)):
            other = places.get((lr, wd, run.seed))
            if other is not None:
                errors.append(paired_error(run.decay(budget), other.decay(budget)))
    known = [error for error in errors if not math.isnan(error)]
    return float(np.mean(np.square(known))) / 2 if known else 0.0
