"""When the invariance of a sweep shifts from LR to ELR, and how that moment depends on LR and WD.

Three neighbouring runs, two of equal LR and two of equal ELR, say at each moment which of the two matters more:

    c = (A^2 - B^2) / (A^2 + B^2)      A: difference of the two of equal LR,  B: of the two of equal ELR

c passes 0 from below where the invariance shifts. All such triples are fitted together, within two octaves of n around
the shift: log2 t* = constant + a log2 LR + b log2 WD.

Neighbouring triples share runs, so the errors of c are not independent. Those of runs are: intervals come from drawing
every run anew around its smooth curve (run_noise.py), all triples of a draw together. Where the triples scatter more
than these draws do, runs differ by something that stays with them from beginning to end (or t* is no power law); then
as much of that is drawn as explains the scatter (shift_errors.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from isotune.analyze.angle import Angle, index_angle
from isotune.analyze.curves import Curves, common_curves, log2_settings
from isotune.analyze.distances import same_up_to
from isotune.analyze.families import seed_levels
from isotune.analyze.run_noise import RunNoise, run_noise
from isotune.analyze.shift_errors import Zero, ZeroErrors, contrasts, zero_errors
from isotune.runs.trajectory import Trajectory

MIN_SHIFT_TRIANGLES = 6
EXTREME_PART = 1 / 6  # of the points: where n is smallest and largest
SHIFT_REACH = 2.0  # octaves around the shift that are fitted
LARGE_OFFSETS = 1.0  # variance of what stays with a run over that of the noise along it: above, a warning


@dataclass(frozen=True)
class PowerShift:
    """An exponent of the time at which the invariance shifts, with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Crossing:
    """Where three neighbouring runs begin to differ more at equal LR than at equal ELR."""

    log2_lr: float
    log2_wd: float
    tokens: float
    memory_times: float
    censored: Literal["no", "before", "after"]  # before: already at the first point; after: not by the last


@dataclass(frozen=True)
class WindowAngle:
    """The index over a window of tokens."""

    start_tokens: float
    end_tokens: float
    median_memory_times: float
    angle: Angle


@dataclass(frozen=True)
class Shift:
    """When invariance moves from LR to ELR: at n = memory_times, after tokens ~ LR^learning_rate * WD^weight_decay."""

    verdict: Literal["shift", "undecided"]
    memory_times: PowerShift
    quartiles: tuple[float, float]  # of n over the crossings
    learning_rate: PowerShift
    weight_decay: PowerShift
    level: float
    crossings: tuple[Crossing, ...]
    angles: tuple[WindowAngle, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def find_shift(
    runs: Curves | Sequence[Trajectory],
    column: str = "val_loss",
    *,
    level: float = 0.9,
    num_windows: int = 5,
) -> Shift:
    """When the invariance shifts from LR to ELR: the n at which it does, and t* ~ LR^a WD^b, with intervals.

    Of three neighbouring runs two have equal ELR and two have equal LR:

        A = difference at equal LR,  B = difference at equal ELR,  c = (A^2 - B^2) / (A^2 + B^2):  -1 early, 1 late

    Chance moves c towards 0 but not its change of sign, since it adds as much to A^2 as to B^2. All triples together
    are fitted within two octaves of the change, LR, WD and n being those of the pair of equal LR:

        c = b0 + b1 log2 LR + b2 log2 WD + b3 log2 t + (b4 s^2 + b5 s^3),  s = log2 t / t*;   c = 0 at t = t*

    so t* ~ LR^(-b1/b3) WD^(-b2/b3), and likewise for n, with log2 n for all three. Standard errors are those of drawing
    the runs' errors anew. Undecided unless c is below 0 at small n and above 0 at large n.
    """
    curves = runs if isinstance(runs, Curves) else common_curves(runs, column)
    curves = curves.between(1, math.inf)  # time is logarithmic: the loss before the first token has no place
    x, y = log2_settings(curves.infos)
    x, y, curves = _one_seed(x, y, curves)
    angles = _window_angles(x, y, curves, num_windows, level)
    triangles = _triangles(x, y)
    if np.isnan(curves.memory_times).any():
        return _no_shift(level, angles, (), "n is unknown: steps, LR, WD or the weight decay convention are missing")
    if len(triangles) < MIN_SHIFT_TRIANGLES:
        why = f"{len(triangles)} triples of neighbouring runs (two of equal LR, two of equal ELR)"
        return _no_shift(level, angles, (), f"{why} are too few: it takes {MIN_SHIFT_TRIANGLES}, a grid of 3 x 3 has 8")
    if curves.values.shape[1] < 6:
        return _no_shift(level, angles, (), f"{curves.values.shape[1]} points are too few to see a shift: it takes 6")
    log_t = np.log2(curves.tokens)
    c = contrasts(curves.values, triangles)
    crossings = _crossings(x, y, curves, triangles, c, log_t)
    shared = _share_runs(triangles)
    log_n = np.log2(curves.memory_times)[triangles[:, 1:]].mean(axis=1)
    unseen = _shift_is_unseen(c, log_n, shared)
    if unseen:
        return _no_shift(level, angles, crossings, unseen)
    settings = np.array([[crossing.log2_lr, crossing.log2_wd] for crossing in crossings])
    noise = run_noise(curves.tokens, curves.values)
    return _fit_shift(c, log_t, log_n, settings, triangles, noise, crossings, level, angles)


def _one_seed(x: np.ndarray, y: np.ndarray, curves: Curves) -> tuple[np.ndarray, np.ndarray, Curves]:
    """The curves averaged over the seeds of each cell, at the level of the average seed.

    Neighbours that have different seeds would otherwise differ by these alone.
    """
    x, y = same_up_to(x), same_up_to(y)
    levels = seed_levels(curves.infos, curves.values.mean(axis=1))
    _, first, cell = np.unique(np.column_stack([x, y]), axis=0, return_index=True, return_inverse=True)
    member = np.eye(len(first))[cell.ravel()].T
    member /= member.sum(axis=1, keepdims=True)
    averaged = Curves(
        curves.tokens,
        member @ (curves.values - levels[:, None]),
        tuple(curves.infos[index] for index in first),
        curves.column,
        curves.memory_times[first],
        curves.dropped,
        curves.warnings,
    )
    return x[first], y[first], averaged


def _window_angles(
    x: np.ndarray, y: np.ndarray, curves: Curves, num_windows: int, level: float
) -> tuple[WindowAngle, ...]:
    """The index over windows of equal length in log tokens."""
    edges = np.geomspace(curves.tokens[0], curves.tokens[-1], num_windows + 1)
    edges[-1] = curves.tokens[-1]
    windows = []
    for start, end in itertools.pairwise(edges.tolist()):
        part = curves.between(start, end)
        if part.values.shape[1]:
            n = float(np.median(part.memory_times))
            windows.append(WindowAngle(start, end, n, index_angle(x, y, part.values, level=level)))
    return tuple(windows)


def _triangles(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rows (far, equal, third): `far` and `equal` have equal ELR, `equal` and `third` have equal LR.

    `third` has the WD of `far`: the corner between neighbours on a diagonal of the grid, on either side of it.
    """
    place = {(a, b): index for index, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True))}
    rows = []
    elr = same_up_to(x + y)
    for label in np.unique(elr):
        diagonal = np.flatnonzero(elr == label)
        diagonal = diagonal[np.argsort(x[diagonal])]
        for low, high in itertools.pairwise(diagonal.tolist()):
            for equal, far in ((low, high), (high, low)):
                third = place.get((float(x[equal]), float(y[far])))
                if third is not None:
                    rows.append((far, equal, third))
    return np.array(rows, dtype=int).reshape(-1, 3)


def _crossings(
    x: np.ndarray, y: np.ndarray, curves: Curves, triangles: np.ndarray, c: np.ndarray, log_t: np.ndarray
) -> tuple[Crossing, ...]:
    found = []
    log_n = np.log2(curves.memory_times)
    for triangle, one_c in zip(triangles, c, strict=True):
        at, censored = _crossing_time(one_c, log_t)
        n = float(np.interp(at, log_t, log_n[triangle[1:]].mean(axis=0)))
        found.append(Crossing(float(x[triangle[1]]), float(y[triangle[1:]].mean()), 2.0**at, 2.0**n, censored))
    return tuple(found)


def _crossing_time(c: np.ndarray, log_t: np.ndarray) -> tuple[float, Literal["no", "before", "after"]]:
    """log2 t where c changes from below 0 to above 0 for good: the lowest point of its integral over log t."""
    steps = np.diff(log_t)
    integral = np.concatenate([[0.0], np.cumsum((c[1:] + c[:-1]) / 2 * steps)])
    lowest, at, censored = 0.0, float(log_t[0]), "before"
    for left in np.flatnonzero((c[:-1] < 0) & (c[1:] >= 0)):
        part = c[left] / (c[left] - c[left + 1])
        depth = integral[left] + c[left] / 2 * part * steps[left]
        if depth < lowest:
            lowest, at, censored = depth, float(log_t[left] + part * steps[left]), "no"
    if integral[-1] < lowest:
        return float(log_t[-1]), "after"
    return at, "no" if censored == "no" else "before"


def _share_runs(triangles: np.ndarray) -> np.ndarray:
    """Which triangles have a run in common, [triangles x triangles] of 0 and 1."""
    member = np.zeros((len(triangles), int(triangles.max()) + 1))
    member[np.arange(len(triangles))[:, None], triangles] = 1.0
    return (member @ member.T > 0).astype(float)


def _shift_is_unseen(c: np.ndarray, log_n: np.ndarray, shared: np.ndarray) -> str:
    """Nothing if c is below 0 in the sixth of the points with the smallest n and above 0 in that with the largest."""
    low, high = np.quantile(log_n, [EXTREME_PART, 1 - EXTREME_PART])
    for inside, sign, words in (
        (log_n <= low, -1, f"at n below {2**low:.2g} runs of equal LR do not lie closer than runs of equal ELR"),
        (log_n >= high, 1, f"at n above {2**high:.2g} runs of equal ELR do not lie closer than runs of equal LR"),
    ):
        count = inside.sum(axis=1)
        mean = sign * float((c * inside).sum() / inside.sum())
        scatter = (sign * (c * inside).sum(axis=1) - mean * count) / inside.sum()
        scatter *= math.sqrt(len(c) / (len(c) - 1))
        error = math.sqrt(max(float(scatter @ shared @ scatter), float(scatter @ scatter)))
        if mean - 1.645 * error <= 0:
            return f"no shift is seen: {words}"
    return ""


def _no_shift(level: float, angles: tuple[WindowAngle, ...], crossings: tuple[Crossing, ...], reason: str) -> Shift:
    unknown = PowerShift(math.nan, math.nan, math.nan)
    nothing = (math.nan, math.nan)
    return Shift("undecided", unknown, nothing, unknown, unknown, level, crossings, angles, (reason,))


def _fit_shift(
    c: np.ndarray,
    log_t: np.ndarray,
    log_n: np.ndarray,
    settings: np.ndarray,
    triangles: np.ndarray,
    noise: RunNoise,
    crossings: tuple[Crossing, ...],
    level: float,
    angles: tuple[WindowAngle, ...],
) -> Shift:
    weights = np.gradient(log_t)
    centre = settings.mean(axis=0)
    first = np.array([_first_guess(c, log_n, weights)])
    by_memory = _zero_of_plane(c, log_n, np.zeros((len(c), 0)), weights, first)
    rows = np.column_stack([np.ones(len(c)), settings - centre])
    first = np.linalg.lstsq(rows, (log_t - log_n).mean(axis=1) + first[0], rcond=None)[0]
    clock = np.broadcast_to(log_t, c.shape)
    by_setting = _zero_of_plane(c, clock, settings - centre, weights, first)
    if by_setting is None or by_memory is None:
        return _no_shift(
            level, angles, crossings, "the change is not bracketed: c does not rise through 0 in the window"
        )
    of_memory, of_setting = zero_errors((by_memory, by_setting), c, triangles, noise)
    n = PowerShift(*(2.0**value for value in _around(by_memory, of_memory, 0, level)))
    lr, wd = (PowerShift(*_around(by_setting, of_setting, k, level)) for k in (1, 2))
    seen = np.array([crossing.memory_times for crossing in crossings if crossing.censored == "no"])
    quartiles = np.quantile(seen, [0.25, 0.75]) if len(seen) else (math.nan, math.nan)
    reasons = (
        f"runs of equal LR part and runs of equal ELR join at n = {n.value:.2g} ({n.low:.2g} to {n.high:.2g})",
        f"t* ~ LR^{lr.value:.2f} ({lr.low:.2f} to {lr.high:.2f}) WD^{wd.value:.2f} ({wd.low:.2f} to {wd.high:.2f})",
    )
    num_outside = len(crossings) - len(seen)
    warnings = []
    if of_setting.offsets > LARGE_OFFSETS:
        warnings.append(
            "triples scatter more than the noise along the runs explains: seeds differ, or t* is no power law"
        )
    if num_outside:
        warnings.append(f"{num_outside} of {len(crossings)} triples shift outside the window")
    low, high = float(quartiles[0]), float(quartiles[1])
    return Shift("shift", n, (low, high), lr, wd, level, crossings, angles, reasons, tuple(warnings))


def _around(found: Zero, errors: ZeroErrors, k: int, level: float) -> tuple[float, float, float]:
    """A coefficient and its interval."""
    value, reach = found.zero[k], special.stdtrit(errors.freedom[k], (1 + level) / 2) * errors.errors[k]
    return float(value), float(value - reach), float(value + reach)


def _first_guess(c: np.ndarray, log_n: np.ndarray, weights: np.ndarray) -> float:
    """log2 n below which c sums to least, all triangles together."""
    order = np.argsort(log_n, axis=None)
    sums = np.cumsum((c * weights).ravel()[order])
    return float(log_n.ravel()[order[int(np.argmin(sums))]])


def _zero_of_plane(
    c: np.ndarray, clock: np.ndarray, settings: np.ndarray, weights: np.ndarray, first: np.ndarray
) -> Zero | None:
    """The clock at which c passes 0: least squares near the zero, until it stays where it is; None if it gets lost."""
    rows = np.column_stack([np.ones(len(c)), settings])  # [triangles x k]
    num_rows = rows.shape[1]
    tiled = np.broadcast_to(rows[:, None, :], (*c.shape, num_rows))
    zero, moved = first, math.inf
    for _ in range(200):
        s = clock - (rows @ zero)[:, None]
        near = weights * np.maximum(0.0, 1 - np.abs(s) / SHIFT_REACH)
        if int((near.sum(axis=1) > 0).sum()) < MIN_SHIFT_TRIANGLES:
            return None
        design = np.concatenate([tiled, s[..., None], s[..., None] ** 2, s[..., None] ** 3], axis=2)
        weighted = design * near[..., None]
        matrix = np.einsum("ptk,ptl->kl", weighted, design)
        b = np.linalg.lstsq(matrix, np.einsum("ptk,pt->k", weighted, c), rcond=None)[0]
        if b[num_rows] <= 0:
            return None
        step = np.clip(-b[:num_rows] / b[num_rows], -1.0, 1.0)
        moved = float(np.abs(step).max())
        if moved < 1e-6:
            break
        zero = zero + step / 2  # half a step: points enter and leave as the zero moves
    if moved > 0.1:
        return None
    # c bends away from its slope at 0, so b says less of a zero that is off than slope * distance, and least so of
    # planes: what b would say of a plane that is off by 1 is the fit to row * dc/ds.
    inverse = np.linalg.pinv(matrix)
    slope = b[num_rows] + 2 * b[num_rows + 1] * s + 3 * b[num_rows + 2] * s**2
    seen = inverse[:num_rows] @ np.einsum("ptk,pt,ptj->kj", weighted, slope, tiled)
    spread = weighted.reshape(-1, len(b)).T  # [coefficients x triangles * points]
    influence = -np.linalg.solve(seen, inverse[:num_rows] @ spread)
    # Only scatter across the plane counts, so a triangle's mean is taken less the fit to all of them.
    sums = near.sum(axis=1)
    share = near / np.where(sums > 0, sums, 1.0)[:, None]
    means = np.einsum("pq,pt->pqt", np.eye(len(c)), share).reshape(len(c), -1)
    return Zero(zero, influence, means - np.einsum("pt,ptk->pk", share, design) @ inverse @ spread)
