"""Beyond the paper: scaled inits (B_a), the free estimator (B_b), one curve in n (B_c), a ramp (B_d), beta2 (B_e)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from isotune.analyze.distances import relative_distances
from isotune.claims.definitions import curves, interval, twin_floor, twin_pairs, window_means
from isotune.claims.gains import Gains, find_gains
from isotune.claims.judges.decays import drawn_indices
from isotune.claims.judges.surfaces import mean_interval
from isotune.claims.judging import judges
from isotune.claims.rows import INIT_CENTRE, USUAL_BETA2, Rows, RowsMissing, Run
from isotune.claims.rules import Entry, Estimate, Measured
from isotune.claims.sensitivity import Sensitivities, find_sensitivities, prediction_errors

POWERS = np.linspace(-2.0, 3.0, 201)  # q of the rival a * ELR^q
BETA2_TABLES = {0.9: "nano-beta2-0.9", 0.99: "nano-beta2-0.99"}
DIAGONALS = {"beta2": -11.0, "beta2_second": -9.0}  # log2 ELR
SHIFT_GRID = np.linspace(-14.0, -4.0, 1001)  # log2 ELR


@judges("B_a")
def b_a(rows: Rows, entry: Entry) -> Measured:
    """Scaling the init by s along an ELR diagonal makes curves overlap from the first step on."""
    assert rows.part is not None
    found, window = rows[rows.part], rows.window("early")
    usual = [*rows["small_diagonal_seeds"].runs] if rows.part == "init" else [*found.runs]
    by_cell = {run.cell: run for run in usual if run.seed == 0 and run.record.init_scale == 1}
    scaled = [run for run in found.runs if run.record.init_scale != 1 and run.cell in by_cell]
    if not scaled or INIT_CENTRE not in by_cell:
        raise RowsMissing(found.missing or f"{found.name} (no run with a scaled init has its counterparts)")
    base = by_cell[INIT_CENTRE]
    distances = {run.record.init_scale: _distance(run, base, window) for run in scaled}
    plain = {run.record.init_scale: _distance(by_cell[run.cell], base, window) for run in scaled}
    logs = np.log([distances[s] / plain[s] for s in distances])
    mean = mean_interval(logs, entry)
    return Measured(
        {
            "distance_ratio": Estimate(math.exp(mean.value), math.exp(mean.low), math.exp(mean.high)),
            "overlap_share": _overlap(rows, np.array(list(distances.values())), window, entry),
        },
        len(scaled),
        {f"distance with init times {s:g}, with the usual init": [distances[s], plain[s]] for s in sorted(distances)},
    )


@judges("B_b")
def b_b(rows: Rows, entry: Entry) -> Measured:
    """The free estimator predicts decayed losses as well as the metered noise does."""
    found = rows["small_decays"]
    gains = find_gains(found, rows.budgets("budgets", found, entry["min_budget"]))
    drawn = drawn_indices(len(gains.gain), entry)
    everything = np.concatenate([np.arange(len(gains.gain))[None], drawn])
    by_lr, by_elr = (left_out_errors(gains, groups, everything) for groups in (gains.rows.log2_lr, gains.log2_elr))
    free_ratio = by_lr["free"] / by_lr["noise"]
    rival_ratio = by_lr["free"] / np.min([by_lr[name] for name in ("nothing", "constant", "power")], axis=0)
    return Measured(
        {
            "free_ratio": interval(float(free_ratio[0]), free_ratio[1:], entry.level),
            "rival_ratio": interval(float(rival_ratio[0]), rival_ratio[1:], entry.level),
        },
        gains.rows.num_cells,
        {
            "median relative errors, LR groups left out": {name: float(each[0]) for name, each in by_lr.items()},
            "median relative errors, ELR groups left out": {name: float(each[0]) for name, each in by_elr.items()},
        },
    )


@judges("B_c")
def b_c(rows: Rows, entry: Entry) -> Measured:
    """The ratio of the sensitivities to WD and to LR is one curve in n across batch sizes and widths."""
    names = [name for name in ("small_all", "large_decays", "small32_all", "small32_large") if rows.has(name)]
    octaves = rows.tables.rules.windows["octaves"]
    found: dict[str, Sensitivities] = {}
    for stream, name in enumerate(names):
        edges = octaves["small32_edges" if name.startswith("small32") else "edges"]
        found[name] = find_sensitivities(rows[name], [float(edge) for edge in edges], entry, stream)
    if len(found) < 2:
        raise RowsMissing("; ".join(rows.missing(["small_all", "large_decays", "small32_all", "small32_large"])))
    halves = np.array([each.in_n.fit()[0] for each in found.values()])
    spread = np.ptp(halves, axis=0)
    ours = prediction_errors([each.in_n for each in found.values()])
    rivals = {
        "steps": prediction_errors([each.in_steps for each in found.values()]),
        "tokens": prediction_errors([each.in_tokens for each in found.values()]),
    }
    lead = np.min(list(rivals.values()), axis=0) - ours
    shown: dict[str, Any] = {
        f"n at 22.5 degrees, {name}": interval(float(2.0 ** half[0]), 2.0 ** half[1:], entry.level)
        for name, half in zip(found, halves, strict=True)
    }
    for name, each in found.items():
        shown[f"angle by n, {name}"] = each.in_n.shown()
    shown |= {f"prediction error in {name}": float(each[0]) for name, each in rivals.items()}
    return Measured(
        {
            "midpoint_spread": interval(float(spread[0]), spread[1:], entry.level),
            "prediction_error": interval(float(ours[0]), ours[1:], entry.level),
            "rival_lead": interval(float(lead[0]), lead[1:], entry.level),
        },
        min(rows[name].num_cells for name in names),
        shown,
    )


@judges("B_d")
def b_d(rows: Rows, entry: Entry) -> Measured:
    """A batch ramp driven by the noise scale: no rows are planned, so nothing measures it yet."""
    raise RowsMissing(rows.find("ramp").missing)


@judges("B_e")
def b_e(rows: Rows, entry: Entry) -> Measured:
    """The late loss depends on LR * WD * (1 - beta2)^c with one c."""
    window = rows.window("late")
    usual = rows["small_late"]
    rng = np.random.default_rng(entry.random_seed)
    elr, groups = np.unique(np.round(usual.log2_elr, 3)), []
    losses = window_means(usual, "val_loss", window)
    for each in elr:
        groups.append(_drawn_means(losses[np.isclose(usual.log2_elr, each, atol=1e-3)], entry.draws, rng))
    curve = _curve(elr, np.array(groups))
    shifts: dict[float, list[np.ndarray]] = {}
    num_cells = usual.num_cells
    for beta2, table in BETA2_TABLES.items():
        shifts[beta2] = []
        for name, diagonal in DIAGONALS.items():
            found = rows.tables.rows(name, table)
            if not found.runs:
                raise RowsMissing(found.missing)
            means = _drawn_means(window_means(found, "val_loss", window), entry.draws, rng)
            shifts[beta2].append(_shift(curve, means) - diagonal)
            num_cells += found.num_cells
    mismatch = np.max([np.abs(first - second) for first, second in shifts.values()], axis=0)
    exponents = [
        (first + second) / 2 / math.log2((1 - beta2) / (1 - USUAL_BETA2)) for beta2, (first, second) in shifts.items()
    ]
    apart = np.abs(exponents[0] - exponents[1])
    return Measured(
        {
            "shift_mismatch": interval(float(mismatch[0]), mismatch[1:], entry.level),
            "exponent_mismatch": interval(float(apart[0]), apart[1:], entry.level),
        },
        num_cells,
        {
            f"c at beta2 {beta2:g}": interval(float(c[0]), c[1:], entry.level)
            for beta2, c in zip(shifts, exponents, strict=True)
        }
        | {f"shifts at beta2 {beta2:g}": [float(each[0]) for each in found] for beta2, found in shifts.items()},
    )


def left_out_errors(gains: Gains, groups: np.ndarray, drawn: np.ndarray) -> dict[str, np.ndarray]:
    """Median relative errors of each predictor in each draw [draws x cells], calibrated on the other groups.

    One coefficient over all budgets; gain = k * noise, k * free, k, or k * ELR^q.
    """
    counts = np.stack([np.bincount(row, minlength=len(gains.gain)) for row in drawn]).astype(float)
    gain, truth = gains.gain, gains.decayed_loss
    shape = gain.shape
    elr = np.exp(math.log(2) * (gains.log2_elr - gains.log2_elr.mean()))
    features = {"noise": gains.noise, "free": gains.free, "constant": np.ones(shape)}
    predicted = {name: np.zeros((len(drawn), *shape)) for name in (*features, "power", "nothing")}
    for group in np.unique(np.round(groups, 3)):
        inside = np.isclose(groups, group, atol=1e-3)
        weights = np.where(inside, 0.0, counts)
        for name, x in features.items():
            k = weights @ (x * gain).sum(axis=1) / (weights @ (x**2).sum(axis=1))
            predicted[name][:, inside] = k[:, None, None] * x[inside]
        predicted["power"][:, inside] = _power_gains(weights, elr, gain)[:, inside, None]
    errors = {name: np.abs(gain - each) / truth for name, each in predicted.items()}
    rows = np.arange(len(drawn))[:, None]
    return {name: np.median(each[rows, drawn].reshape(len(drawn), -1), axis=1) for name, each in errors.items()}


def _power_gains(weights: np.ndarray, elr: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """a * ELR^q of each cell, by least squares of the gains with these weights [draws x cells]."""
    powers = elr[:, None] ** POWERS
    num_budgets = gain.shape[1]
    products = weights @ (powers * gain.sum(axis=1)[:, None])
    squares = weights @ (num_budgets * powers**2)
    best = np.argmax(products**2 / squares, axis=1)  # what a fit explains
    rows = np.arange(len(weights))
    scale = products[rows, best] / squares[rows, best]
    return scale[:, None] * powers[:, best].T


def _distance(run: Run, other: Run, window: tuple[float, float]) -> float:
    return float(relative_distances(curves([run, other], "val_loss", window))[0, 1])


def _overlap(rows: Rows, distances: np.ndarray, window: tuple[float, float], entry: Entry) -> Estimate:
    if not rows.has("perturbed_early"):
        return Estimate(math.nan, reason="no twins, so no floor")
    floor = twin_floor(twin_pairs(rows["small_all"], rows["perturbed_early"]), "val_loss", window)
    if len(floor.distances) < entry["min_floor_pairs"]:
        return Estimate(math.nan, reason=f"the floor has {len(floor.distances)} pairs")
    return Estimate(float(np.mean(distances <= floor.percentile_95)))


def _drawn_means(values: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """The mean, then the means of draws with replacement."""
    chosen = rng.integers(len(values), size=(draws, len(values)))
    return np.concatenate([[values.mean()], values[chosen].mean(axis=1)])


def _curve(elr: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The loss at SHIFT_GRID by a monotone cubic through group means, [grid x draws]; straight beyond its ends."""
    cubic = PchipInterpolator(elr, groups, axis=0)
    inside = cubic(np.clip(SHIFT_GRID, elr[0], elr[-1]))
    slope = cubic.derivative()
    below, above = np.minimum(SHIFT_GRID - elr[0], 0)[:, None], np.maximum(SHIFT_GRID - elr[-1], 0)[:, None]
    curve = inside + below * slope(elr[0]) + above * slope(elr[-1])
    return np.where(np.diff(groups, axis=0).min(axis=0) > 0, curve, np.nan)


def _shift(curve: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """log2 ELR at which each curve has this loss; NaN where it has not, or does not rise."""
    found = np.full(len(losses), np.nan)
    for draw in np.flatnonzero(np.isfinite(curve[0])):
        found[draw] = np.interp(losses[draw], curve[:, draw], SHIFT_GRID, left=np.nan, right=np.nan)
    return found
