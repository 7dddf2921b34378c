"""C11 to C16: large batches and batch switches."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from isotune.analyze.distances import relative_distances
from isotune.claims.definitions import (
    Window,
    angle,
    bin_curves,
    cell_weights,
    curves,
    equal_pairs,
    group_ratio,
    interval,
    mean_estimate,
    noise_readings,
    pair_means,
    shares_and_tests,
    tests_and_shares,
    window_means,
)
from isotune.claims.judges.curves import seeds_noise
from isotune.claims.judging import judges
from isotune.claims.rows import LARGE_BATCH, LARGEST_BATCH, SMALL_BATCH, Rows, RowSet, RowsMissing
from isotune.claims.rules import Entry, Estimate, Measured
from isotune.measure import windows
from isotune.runs import Trajectory

MIN_READINGS = 20  # of a third of a run
STILL_SMALL = 4  # times the small batch: the paper's 2048 against 512
Side = Literal["small", "large"]  # of a batch, against the noise scale
SUFFIXES = {"half": "", "one": "_p1"}  # of the columns with the preconditioner's power p = 1/2 and 1


@judges("C11")
def c11(rows: Rows, entry: Entry) -> Measured:
    """A large batch shows invariance to LR only."""
    return _invariance_of_part(rows, entry, "late", ("lr_share", "wd_share", "elr_share", "p_lr"))


@judges("C13")
def c13(rows: Rows, entry: Entry) -> Measured:
    """Large-batch training from one small-batch checkpoint shows ELR invariance of the loss."""
    return _invariance_of_part(rows, entry, "after_switch", ("elr_share", "lr_share", "p_wd"))


@judges("C14")
def c14(rows: Rows, entry: Entry) -> Measured:
    """Switching the batch shows ELR invariance too, in its noise as well; that of Type 1 does not clearly collapse."""
    loss = _invariance_of_part(rows, entry, "after_switch", ("elr_share", "lr_share", "p_wd"))
    assert rows.part is not None
    window = rows.window("after_switch")
    type2 = rows[rows.part]
    ratio, draws = _noise_ratio(type2, window, entry)
    statistics = loss.statistics | {"noise_ratio": ratio}
    shown = dict(loss.shown)
    if rows.has("type1_above_3"):
        type1_ratio, type1_draws = _noise_ratio(rows["type1_above_3"], window, entry, stream=1)
        shown["noise_ratio of Type 1, n > 3"] = type1_ratio
        lead = math.log(ratio.value) - math.log(type1_ratio.value)
        statistics["noise_lead"] = interval(lead, draws - type1_draws, entry.level)
    else:
        statistics["noise_lead"] = Estimate(math.nan, reason="no rows of Type 1")
    if rows.has("type1_below_1"):
        shown["noise_ratio of Type 1, n < 1"] = _noise_ratio(rows["type1_below_1"], window, entry)[0]
    return Measured(statistics, type2.num_cells, shown, loss.notes, would_decide=loss.would_decide)


@judges("C12")
def c12(rows: Rows, entry: Entry) -> Measured:
    """Steps, not tokens, drive the shift from LR to ELR."""
    small, large = _same_cells(rows["small_common"], rows["large_common"])
    late = rows.window("late")
    matched = [rows.window("matched_steps", key) for key in ("small_tokens", "large_tokens")]

    def difference(windows_: list[Window]) -> tuple[Estimate, list[float]]:
        found = [
            angle(which, window_means(which, "train_loss", window), entry)
            for which, window in zip((small, large), windows_, strict=True)
        ]
        degrees = [each for each, _ in found]
        value = (degrees[0] - degrees[1] + 90) % 180 - 90
        drawn = found[0][1] - found[1][1]
        drawn = value + (drawn - value + 90) % 180 - 90
        return interval(value, drawn, entry.level), degrees

    by_steps, step_degrees = difference(matched)
    by_tokens, token_degrees = difference([late, late])
    return Measured(
        statistics={"step_difference": by_steps, "token_difference": by_tokens},
        num_cells=small.num_cells,
        shown={
            "angles at matched steps (small, large batch)": step_degrees,
            "angles late (small, large batch)": token_degrees,
        },
        would_decide="seeds of small_common and large_common",
    )


@judges("C15")
def c15(rows: Rows, entry: Entry) -> Measured:
    """The preconditioned noise scale stays above four times the small batch and below the large one."""
    small, window = rows["small_all"], rows.window("whole")
    asked: dict[str, tuple[str, int, Side]] = {
        "above_4": ("small_all", SMALL_BATCH, "small"),
        "above_16": ("small_all", STILL_SMALL * SMALL_BATCH, "small"),
        "below_256": ("batch_256", LARGEST_BATCH, "large"),
        "below_64": ("large_common", LARGE_BATCH, "large"),
        "below_256_at_batch_4": ("small_all", LARGEST_BATCH, "large"),
    }
    found: dict[str, Estimate] = {}
    scales: dict[str, Any] = {}
    for name, (row_set, batch, side) in asked.items():
        for power, suffix in SUFFIXES.items():
            if rows.has(row_set):
                found[f"{name}_{power}"] = share_on_side(rows[row_set], suffix, batch, side, window, entry.level)
            else:
                found[f"{name}_{power}"] = Estimate(math.nan, reason=f"no run of batch {batch} is there")
        if rows.has(row_set):
            scales[f"median noise scale of the runs of {row_set} (p = 1/2, p = 1)"] = [
                float(np.median([_scale(run.trajectory, suffix, window) for run in rows[row_set].runs]))
                for suffix in SUFFIXES.values()
            ]
    left_out = tuple(name for name in entry.statistic if name.startswith("below") and rows.is_replication)
    return Measured(
        {name: found[name] for name in entry.statistic if name not in left_out},
        small.num_cells,
        {name: value for name, value in found.items() if name not in entry.statistic} | scales,
        left_out=left_out,
        would_decide="more readings at batch 256 on probes of 32 sequences (sweep nano-batch-256): more or longer runs",
    )


@judges("C16")
def c16(rows: Rows, entry: Entry) -> Measured:
    """The batch-size scheduler has a higher preconditioned noise scale than plain large-batch training."""
    type2, large = _same_cells(rows["type2_common"], rows["large_common"])
    window = rows.window("late")
    statistics: dict[str, Estimate] = {}
    shown: dict[str, Any] = {}
    num_cells = type2.num_cells
    for power, suffix in SUFFIXES.items():
        scales = [
            [_scale_estimate(run.trajectory, suffix, window, entry.level) for run in s.runs] for s in (type2, large)
        ]
        bounded = [
            math.isfinite(first.high) and math.isfinite(second.high) and min(first.value, second.value) > 0
            for first, second in zip(*scales, strict=True)
        ]
        told = {run.cell for run, keep in zip(type2.runs, bounded, strict=True) if keep}
        kept = type2.where(lambda run, told=told: run.cell in told)  # type: ignore[misc]
        leads = np.array(
            [
                math.log2(first.value / second.value)
                for first, second, keep in zip(*scales, bounded, strict=True)
                if keep
            ]
        )
        num_cells = min(num_cells, kept.num_cells)
        shown[f"cells left out (p {power}), no upper end"] = type2.num_cells - kept.num_cells
        if kept.num_cells < 2:
            statistics[f"lead_{power}"] = Estimate(math.nan, reason="too few cells have a bounded noise scale")
        else:
            statistics[f"lead_{power}"] = mean_estimate(leads, kept, entry)
    shown["lead at equal val_loss, p = 1/2"] = _lead_at_equal_loss(type2, large, window)
    return Measured(statistics, num_cells, shown, would_decide="seeds of type2_common and large_common")


def share_on_side(which: RowSet, suffix: str, batch_size: float, right: Side, window: Window, level: float) -> Estimate:
    """The share of the runs' thirds in which the batch is on this side of the noise scale.

    Its low end counts the thirds in which that is shown, its high end those in which the opposite is not.
    """
    verdicts = [
        verdict for run in which.runs for verdict in third_verdicts(run.trajectory, suffix, batch_size, window, level)
    ]
    if not verdicts:
        raise RowsMissing(f"{which.name} has no third with {MIN_READINGS} noise readings")
    wrong: Side = "large" if right == "small" else "small"
    values = [each.margin.value > 0 if right == "small" else each.margin.value < 0 for each in verdicts]
    words = [each.verdict for each in verdicts]
    return Estimate(float(np.mean(values)), words.count(right) / len(words), 1 - words.count(wrong) / len(words))


def third_verdicts(
    trajectory: Trajectory, suffix: str, batch_size: float, window: Window, level: float
) -> list[windows.BatchVerdict]:
    """windows.batch_verdict in each third of the window's readings; none where these are too few."""
    noise, signal = _noise_and_signal(trajectory, suffix, window)
    if len(noise) < 3 * MIN_READINGS:
        return []
    parts = zip(np.array_split(noise, 3), np.array_split(signal, 3), strict=True)
    return [windows.batch_verdict(*part, batch_size, level=level) for part in parts]


def _invariance_of_part(rows: Rows, entry: Entry, window_name: str, names: tuple[str, ...]) -> Measured:
    """Shares and p-values of the window's mean val_loss in the part; noise from the large batch's seeds."""
    assert rows.part is not None
    part, window = rows[rows.part], rows.window(window_name)
    values = window_means(part, "val_loss", window)
    noise = seeds_noise(rows, "large_seeds", "val_loss", window)
    found = tests_and_shares(part, values, noise, entry)
    return Measured(
        statistics=shares_and_tests(found, *names),
        num_cells=part.num_cells,
        shown={
            "angle in degrees": Estimate(found.angle.degrees, found.angle.low, found.angle.high),
            "standard deviation of a cell": math.sqrt(noise.variance) if noise.is_known else math.nan,
            "p_wd, p_lr": [found.p_wd, found.p_lr],
            "ratio of distances, ELR groups": _loss_ratio(part, window, part.log2_elr, entry),
            "ratio of distances, LR groups": _loss_ratio(part, window, part.log2_lr, entry),
        },
        notes=found.warnings,
        would_decide=f"seeds of the cells of {rows.part}",
    )


def _loss_ratio(part: RowSet, window: Window, groups: np.ndarray, entry: Entry) -> Estimate:
    return group_ratio(curves(part, "val_loss", window), groups, part, entry)


def _noise_ratio(part: RowSet, window: Window, entry: Entry, stream: int = 0) -> tuple[Estimate, np.ndarray]:
    """The group ratio by ELR of the scaled_noise curves, and draws of its logarithm; a stream per table."""
    values = bin_curves(part, "scaled_noise", window)
    ratio = group_ratio(values, part.log2_elr, part, entry)
    distances = relative_distances(values)
    sizes = {elr: int((part.log2_elr == elr).sum()) for elr in np.unique(part.log2_elr)}
    large = np.array([sizes[elr] >= 2 for elr in part.log2_elr])
    pairs = large[:, None] & large
    within = equal_pairs(part.log2_elr) & pairs
    between = ~equal_pairs(part.log2_elr) & pairs & ~np.eye(len(large), dtype=bool)
    weights = cell_weights(part, entry, stream)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = np.log(pair_means(weights, distances, between)) - np.log(pair_means(weights, distances, within))
    return ratio, drawn


def _same_cells(first: RowSet, second: RowSet) -> tuple[RowSet, RowSet]:
    """Both sets on the cells and seeds that they share, in one order."""
    shared = first.by_place().keys() & second.by_place().keys()
    if not shared:
        raise RowsMissing(f"{first.name} and {second.name} share no cell")
    kept = [rows.where(lambda run: (run.log2_lr, run.log2_wd, run.seed) in shared) for rows in (first, second)]
    return kept[0], kept[1]


def _noise_and_signal(trajectory: Trajectory, suffix: str, window: Window) -> tuple[np.ndarray, np.ndarray]:
    noise = noise_readings(trajectory, f"precond_noise_trace{suffix}", window)[0]
    signal = noise_readings(trajectory, f"precond_gradient_sq_norm{suffix}", window)[0]
    return noise, signal


def _scale_estimate(trajectory: Trajectory, suffix: str, window: Window, level: float) -> windows.Estimate:
    return windows.noise_scale(*_noise_and_signal(trajectory, suffix, window), level=level)


def _scale(trajectory: Trajectory, suffix: str, window: Window) -> float:
    noise, signal = _noise_and_signal(trajectory, suffix, window)
    return float(noise.mean() / signal.mean()) if signal.mean() > 0 else math.inf


def _lead_at_equal_loss(type2: RowSet, large: RowSet, window: Window) -> float:
    """The mean lead once a straight line of log2 noise scale on val_loss over both sets' cells is taken out.

    Common slope, one intercept per set: the difference of intercepts.
    """
    values, losses, is_type2 = [], [], []
    for which, flag in ((type2, 1.0), (large, 0.0)):
        mean_losses = window_means(which, "val_loss", window)
        for run, loss in zip(which.runs, mean_losses, strict=True):
            scale = _scale(run.trajectory, "", window)
            if math.isfinite(scale) and scale > 0:
                values.append(math.log2(scale))
                losses.append(loss)
                is_type2.append(flag)
    if len(values) < 4:
        return math.nan
    design = np.column_stack([is_type2, losses, np.ones(len(values))])
    return float(np.linalg.lstsq(design, np.array(values), rcond=None)[0][0])
