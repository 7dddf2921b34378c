"""C25, C26 and C29: what a decay gains, and what the noise has to do with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isotune.analyze.curves import memory_times
from isotune.analyze.decay import compare_predictors
from isotune.analyze.distances import draw_cells
from isotune.claims.definitions import (
    UNKNOWN_NOISE,
    cell_weights,
    interval,
    mean_estimate,
    noise_over,
    p_estimate,
    partial_slopes,
    slope_across_elr,
    tests_and_shares,
    window_means,
)
from isotune.claims.gains import Gains, find_gains
from isotune.claims.judges.laws import fit_curves
from isotune.claims.judging import judges
from isotune.claims.rows import Rows, RowSet, RowsMissing
from isotune.claims.rules import Entry, Estimate, Measured
from isotune.errors import InputError

LARGE_N = 3  # [windows.late]
RISE_WINDOWS = 3  # the last octaves of tokens, over which C26 asks whether the noise still rises


@judges("C25")
def c25(rows: Rows, entry: Entry) -> Measured:
    """The decayed loss is the constant-LR loss minus a quarter of the scaled noise, with a small relative error."""
    found = rows["small_decays"]
    gains = find_gains(found, rows.budgets("budgets", found, entry["min_budget"]))
    drawn = drawn_indices(len(gains.gain), entry)
    errors = np.abs(gains.gain - entry["decay_coefficient"] * gains.noise) / gains.decayed_loss
    nothing = np.abs(gains.gain) / gains.decayed_loss
    error, error_drawn = float(np.median(errors)), medians(errors, drawn)
    ratio, ratio_drawn = error / float(np.median(nothing)), error_drawn / medians(nothing, drawn)
    return Measured(
        {
            "error": interval(error, error_drawn, entry.level),
            "error_ratio": interval(ratio, ratio_drawn, entry.level),
            "coefficient": _fitted(gains, slice(None), drawn, entry),
        },
        gains.rows.num_cells,
        _coefficients(gains, drawn, entry) | _calibrated(gains),
    )


@judges("C26")
def c26(rows: Rows, entry: Entry) -> Measured:
    """A larger ELR gains more from the decay, the gain grows with training, and the noise rises slowly."""
    found = rows["small_decays"]
    gains = find_gains(found, rows.budgets("budgets", found, entry["min_budget"]))
    last = gains.gain[:, -1]
    rises = _noise_rises(rows, gains.rows)
    budgets = np.log2(gains.budgets)
    growth = mean_estimate(slopes(budgets, gains.gain), gains.rows, entry)
    other = mean_estimate(slopes(budgets, gains.log_line_loss - gains.decayed_loss), gains.rows, entry)
    notes: tuple[str, ...] = ()
    if growth.high < 0 <= other.high:
        notes = (
            "the sign of the growth rests on how the trunk's loss is read: a straight line in tokens lies above a bent "
            "curve, most at the first budget; off a line in log tokens no fall is seen",
        )
    return Measured(
        {
            "gain_slope": slope_across_elr(gains.rows, last, entry),
            "p_wd": p_estimate(tests_and_shares(gains.rows, last, UNKNOWN_NOISE, entry).p_wd),
            "growth": growth,
            "rise": mean_estimate(rises, gains.rows, entry),
        },
        gains.rows.num_cells,
        {
            "mean gain by budget": dict(zip(map(str, gains.budgets), gains.gain.mean(axis=0).tolist(), strict=True)),
            "mean gain at the last budget by log2 ELR": _by_group(gains.log2_elr, last),
            "growth with the trunk's loss off a line in log tokens": other,
            "growth over the last three budgets": mean_estimate(
                slopes(budgets[-3:], gains.gain[:, -3:]), gains.rows, entry
            ),
            "growth over cells with n > 3 at the first of these budgets": _growth_at_large_n(gains, budgets, entry),
            "growth by log2 ELR": _by_group(gains.log2_elr, slopes(budgets, gains.gain)),
            "rise by log2 ELR": _by_group(gains.log2_elr, rises),
        },
        notes,
    )


@judges("C29")
def c29(rows: Rows, entry: Entry) -> Measured:
    """L0 minus a quarter of the stable noise does not depend on ELR."""
    late = rows["small_late"]
    fits = fit_curves(late, rows.window("whole"))
    noise = window_means(late, "scaled_noise", rows.window("late"))
    late_loss = window_means(late, "val_loss", rows.window("late"))
    weights = np.concatenate([np.ones((1, len(late.runs))), cell_weights(late, entry)])  # the first: as measured
    floors = fits.floors[:, fits.best(weights)].T

    def share(losses: np.ndarray, coefficient: float) -> Estimate:
        left, whole = (_slopes_on_elr(weights, late, each) for each in (losses - coefficient * noise, losses))
        found = np.abs(left / whole)
        return interval(float(found[0]), found[1:], entry.level)

    coefficient = entry["decay_coefficient"]
    alpha = int(fits.best(weights[:1])[0])
    shown = {
        "L0 by log2 ELR": _by_group(late.log2_elr, fits.floors[:, alpha]),
        "noise by log2 ELR": _by_group(late.log2_elr, noise),
        "L0 minus a quarter of it by log2 ELR": _by_group(late.log2_elr, fits.floors[:, alpha] - coefficient * noise),
        "share with the late mean val_loss in the place of L0": share(
            np.broadcast_to(late_loss, weights.shape), coefficient
        ),
    }
    decayed = _final_losses(rows, late)
    if decayed is not None:
        left = np.abs(_slopes_on_elr(weights, late, np.broadcast_to(decayed, weights.shape)))
        ratio = left / np.abs(_slopes_on_elr(weights, late, floors))
        shown["share that real decays leave (slope of final_val_loss over that of L0)"] = interval(
            float(ratio[0]), ratio[1:], entry.level
        )
    fitted = _fitted_coefficient(rows)
    if math.isfinite(fitted):
        shown[f"share with the coefficient fitted in C25, {fitted:.3f}"] = share(floors, fitted)
    return Measured({"remaining_share": share(floors, coefficient)}, late.num_cells, shown)


def drawn_indices(num_cells: int, entry: Entry) -> np.ndarray:
    """The cells of each draw of the cell bootstrap, [draws x cells]."""
    counts = draw_cells(num_cells, entry.draws, entry.random_seed).astype(int)
    return np.repeat(np.tile(np.arange(num_cells), len(counts)), counts.ravel()).reshape(counts.shape)


def medians(values: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The median over cells and budgets of values [cells x budgets] in each draw."""
    return np.median(values[drawn].reshape(len(drawn), -1), axis=1)


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least-squares slopes of y [runs x points] on x."""
    centred = x - x.mean()
    return (y - y.mean(axis=1, keepdims=True)) @ centred / float(centred @ centred)


def _fitted(gains: Gains, columns: slice, drawn: np.ndarray, entry: Entry) -> Estimate:
    """The coefficient that fits these budgets best."""
    product = (gains.gain * gains.noise)[:, columns].sum(axis=1)
    square = (gains.noise**2)[:, columns].sum(axis=1)
    values = product[drawn].sum(axis=1) / square[drawn].sum(axis=1)
    return interval(float(product.sum() / square.sum()), values, entry.level)


def _coefficients(gains: Gains, drawn: np.ndarray, entry: Entry) -> dict[str, Any]:
    """The coefficient and the error of each budget."""
    each = {
        f"coefficient at {budget:,}": _fitted(gains, slice(k, k + 1), drawn, entry)
        for k, budget in enumerate(gains.budgets)
    }
    errors = np.median(np.abs(gains.gain - entry["decay_coefficient"] * gains.noise) / gains.decayed_loss, axis=0)
    return each | {"error by budget": dict(zip(map(str, gains.budgets), errors.tolist(), strict=True))}


def _calibrated(gains: Gains) -> dict[str, Any]:
    """Median relative errors of all predictors, calibrated with whole groups left out."""
    shown: dict[str, Any] = {}
    for words, group in (("LR", gains.rows.log2_lr), ("ELR", gains.log2_elr)):
        try:
            scores = compare_predictors(gains.as_decays(np.round(group, 3)), draws=1).scores
        except InputError:
            continue
        errors = {str(kind): score.median_relative_error for kind, score in scores.items()}
        shown[f"median relative error, calibrated with {words} groups left out"] = errors
    return shown


def _growth_at_large_n(gains: Gains, budgets: np.ndarray, entry: Entry) -> Estimate:
    first = gains.budgets[0]
    late = {
        run.cell
        for run in gains.rows.runs
        if np.interp(first, run.trajectory.tokens, memory_times(run.trajectory)) > LARGE_N
    }
    if len(late) < 2:
        return Estimate(math.nan, reason=f"{len(late)} cells have n > {LARGE_N} there")
    kept = np.array([run.cell in late for run in gains.rows.runs])
    rows = gains.rows.where(lambda run: run.cell in late)
    return mean_estimate(slopes(budgets, gains.gain[kept]), rows, entry)


def _slopes_on_elr(weights: np.ndarray, rows: RowSet, values: np.ndarray) -> np.ndarray:
    return partial_slopes(weights, rows.log2_elr, np.ones((len(rows.runs), 1)), values)


def _final_losses(rows: Rows, late: RowSet) -> np.ndarray | None:
    """The losses after the longest decays; None where one is missing."""
    try:
        losses = late.final_val_losses(rows.budgets("last_budget", late)[-1])
    except (RowsMissing, IndexError):
        return None
    return losses if np.isfinite(losses).all() else None


def _fitted_coefficient(rows: Rows) -> float:
    """The decay coefficient that fits the last three budgets best; NaN where no decays are there."""
    try:
        found = rows["small_decays"]
        gains = find_gains(found, rows.budgets("budgets", found)[-3:])
    except RowsMissing:
        return math.nan
    return float((gains.gain * gains.noise).sum() / (gains.noise**2).sum())


def _noise_rises(rows: Rows, found: RowSet) -> np.ndarray:
    """Octaves of noise per octave of tokens of each run."""
    windows = rows.windows_between("octaves")[-RISE_WINDOWS:]
    noise = [[noise_over(run.trajectory, "scaled_noise", window).value for window in windows] for run in found.runs]
    return slopes(np.array([math.log2(start * end) / 2 for start, end in windows]), np.log2(noise))


def _by_group(labels: np.ndarray, values: np.ndarray) -> dict[str, float]:
    return {f"{label:g}": float(values[np.isclose(labels, label)].mean()) for label in np.unique(labels)}
