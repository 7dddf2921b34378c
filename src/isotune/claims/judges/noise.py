"""C06, C07 and C10: gradient noise and gradient norm along ELR."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from isotune.analyze.angle import passing_point
from isotune.analyze.distances import relative_distances
from isotune.claims.definitions import (
    GUESSED_NOISE,
    Window,
    angle,
    bin_curves,
    cell_weights,
    explained,
    group_ratio,
    interval,
    noise_over,
    noise_readings,
    p_estimate,
    slope_estimate,
    tests_and_shares,
    weighted_explained,
    window_means,
)
from isotune.claims.judges.curves import alignment_slope, noise_and_floor, shown_noise
from isotune.claims.judging import judges
from isotune.claims.rows import Rows, RowSet
from isotune.claims.rules import Entry, Estimate, Measured
from isotune.measure import windows
from isotune.runs import Trajectory


@judges("C06")
def c06(rows: Rows, entry: Entry) -> Measured:
    """The gradient noise collapses along ELR too, earlier than the loss, equally well at every ELR."""
    late, window = rows["small_late"], rows.window("late")
    values = bin_curves(late, "scaled_noise", window)
    _, floor = noise_and_floor(rows, "perturbed_late", "scaled_noise", window)
    means = np.log2(window_means(late, "scaled_noise", window))
    found = tests_and_shares(late, means, GUESSED_NOISE, entry)
    lead, crossings = _crossing_lead(rows, entry)
    free = np.array([free_curve(run.trajectory, window) for run in late.runs])
    return Measured(
        statistics={
            "noise_ratio": group_ratio(values, late.log2_elr, late, entry),
            "p_wd": p_estimate(found.p_wd),
            "crossing_lead": lead,
            "quality_slope": alignment_slope(relative_distances(values), floor, late, entry),
        },
        num_cells=late.num_cells,
        shown={
            "ratio of the free estimator": group_ratio(free, late.log2_elr, late, entry),
            "ratio of the uncorrected noise": group_ratio(_uncorrected(late, window), late.log2_elr, late, entry),
            **crossings,
            **shown_noise(GUESSED_NOISE, floor),
        },
        notes=found.warnings,
        would_decide="seeds of the cells of small_common and small_late",
    )


@judges("C07")
def c07(rows: Rows, entry: Entry) -> Measured:
    """The gradient norm clusters along ELR."""
    late, window = rows["small_late"], rows.window("late")
    estimates = {
        run.cell: noise_over(run.trajectory, "scaled_gradient", window, level=entry.level) for run in late.runs
    }
    told = late.where(lambda run: estimates[run.cell].low > 0)
    if told.num_cells < 3:
        reason = Estimate(math.nan, reason=f"{told.num_cells} cells have a gradient that is told from 0")
        return Measured(dict.fromkeys(entry.statistic, reason), told.num_cells)
    values = np.log2([estimates[run.cell].value for run in told.runs])
    weights = cell_weights(told, entry)
    by_elr, by_lr = (weighted_explained(weights, values, groups) for groups in (told.log2_elr, told.log2_lr))
    elr, lr = explained(values, told.log2_elr), explained(values, told.log2_lr)
    found = tests_and_shares(told, values, GUESSED_NOISE, entry)
    return Measured(
        statistics={
            "explained_elr": interval(elr, by_elr, entry.level),
            "explained_gap": interval(elr - lr, by_elr - by_lr, entry.level),
            "reliability": Estimate(_reliability(told, window)),
            "p_wd": p_estimate(found.p_wd),
        },
        num_cells=told.num_cells,
        shown={
            "explained by LR": lr,
            "cells left out, not told from 0": late.num_cells - told.num_cells,
            "angle in degrees": found.angle.degrees,
        },
        notes=found.warnings,
        would_decide="seeds of the cells of small_late",
    )


@judges("C10")
def c10(rows: Rows, entry: Entry) -> Measured:
    """The stable gradient noise is a power law of ELR."""
    late, window = rows["small_late"], rows.window("late")
    log_noise = np.log(window_means(late, "scaled_noise", window))
    exponent, r_squared = _power_law(log_noise, late, entry)
    free = np.log([free_noise(run.trajectory, window) for run in late.runs])
    raw = np.log([noise_over(run.trajectory, "scaled_noise", window, corrected=False).value for run in late.runs])
    per_elr = (late.log2_elr[:, None] == np.unique(late.log2_elr)).astype(float)
    of_lr = np.column_stack([late.log2_lr * math.log(2), per_elr])
    return Measured(
        statistics={"exponent": exponent, "r_squared": Estimate(r_squared)},
        num_cells=late.num_cells,
        shown={
            "exponent of LR at fixed ELR": slope_estimate(of_lr, log_noise, late, entry),
            "coefficient": float(np.exp(np.mean(log_noise - exponent.value * late.log2_elr * math.log(2)))),
            "exponent of the free estimator": _power_law(free, late, entry)[0],
            "exponent of the uncorrected noise": _power_law(raw, late, entry)[0],
        },
        would_decide="cells with ELR 2^-6 and 2^-5 (WD 2 and more), which lengthen the range of ELR, and seeds",
    )


def free_noise(trajectory: Trajectory, window: Window) -> float:
    """The free estimator, LR * mean(root_moment_sum) / mean(clip_factor): noise and signal together."""
    moments, rate, _, _ = noise_readings(trajectory, "root_moment_sum", window)
    tokens, clip = trajectory.measured("clip_factor")
    inside = (window[0] < tokens) & (tokens <= window[1])
    return float(rate.mean() * moments.mean() / clip[inside].mean())


def free_curve(trajectory: Trajectory, window: Window) -> list[float]:
    """The free estimator in eight equal parts of the window."""
    edges = np.linspace(*window, 9)
    return [free_noise(trajectory, (start, end)) for start, end in itertools.pairwise(edges.tolist())]


def _uncorrected(late: RowSet, window: Window) -> np.ndarray:
    edges = np.linspace(*window, 9)
    bins = list(itertools.pairwise(edges.tolist()))
    return np.array(
        [
            [noise_over(run.trajectory, "scaled_noise", each, corrected=False).value for each in bins]
            for run in late.runs
        ]
    )


def _crossing_lead(rows: Rows, entry: Entry) -> tuple[Estimate, dict[str, Any]]:
    """log2 of when the noise's angle passes the boundary over when the loss's does, cells drawn for both together."""
    grid, octaves = rows["small_common"], rows.windows_between("octaves")
    middles = [math.sqrt(start * end) for start, end in octaves]
    boundary = entry["salient_boundary_degrees"]
    times, drawn_times, shown = [], [], {}
    for column in ("scaled_noise", "val_loss"):
        of_windows = [window_means(grid, column, window) for window in octaves]
        found = [angle(grid, np.log2(v) if column == "scaled_noise" else v, entry) for v in of_windows]
        degrees = [each for each, _ in found]
        times.append(passing_point(middles, degrees, boundary))
        drawn = np.column_stack([draws for _, draws in found])
        drawn_times.append(np.array([passing_point(middles, each, boundary) for each in drawn]))
        shown[f"angle of {column} by octave window"] = degrees
    shown["tokens at which noise and loss pass the boundary"] = times
    if any(math.isnan(time) for time in times):
        which = ["noise", "loss"][[math.isnan(time) for time in times].index(True)]
        return Estimate(math.nan, reason=f"the angle of the {which} never passes {boundary:g} degrees"), shown
    with np.errstate(invalid="ignore"):
        drawn_lead = np.log2(drawn_times[0] / drawn_times[1])
    return interval(math.log2(times[0] / times[1]), drawn_lead, entry.level), shown


def _reliability(told: RowSet, window: Window) -> float:
    """The correlation over cells of log2 scaled_gradient from odd and from even readings."""
    halves = []
    for run in told.runs:
        gradient, rate, _, clip = noise_readings(run.trajectory, "precond_gradient_sq_norm", window)
        halves.append(
            [windows.scaled_gradient(gradient[k::2], rate[k::2], clip[k::2]).value for k in (0, 1)],
        )
    values = np.array(halves)
    positive = (values > 0).all(axis=1)
    if positive.sum() < 3:
        return math.nan
    return float(np.corrcoef(np.log2(values[positive]).T)[0, 1])


def _power_law(log_noise: np.ndarray, late: RowSet, entry: Entry) -> tuple[Estimate, float]:
    """The exponent of ELR with its interval, and R^2 of the line."""
    design = np.column_stack([late.log2_elr * math.log(2), np.ones(len(log_noise))])
    if np.linalg.matrix_rank(design) < 2:
        return Estimate(math.nan, reason="all cells have one ELR"), math.nan
    exponent = slope_estimate(design, log_noise, late, entry)
    rest = log_noise - log_noise.mean() - exponent.value * (design[:, 0] - design[:, 0].mean())
    return exponent, 1 - float(rest @ rest) / float(((log_noise - log_noise.mean()) ** 2).sum())
