"""Regime: is the batch small or large?

A batch is small where it lies below the noise scale mean(T) / mean(g2) (docs/gradient-noise.md), large above it. The
noise scale moves during a run, so it is estimated per window of tokens: octaves after the warm-up, cut where the batch
switches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from isotune.analyze.curves import ADAM_BETA2, setting_at_rows, steps_at_rows, warmup_end
from isotune.errors import InputError
from isotune.measure import windows
from isotune.recipe.quantities import format_tokens, require_not_negative, require_positive_int, show
from isotune.runs.trajectory import Trajectory

RegimeVerdict = Literal["small", "large", "mixed", "undecided"]
WindowVerdict = Literal["small", "large", "undecided"]

MIN_WINDOW_VALUES = 20  # below, heavy tails cost the interval its coverage
DECIDED_SHARE = 0.5  # of the tokens: a verdict on less is no verdict on the run
NOISE_COLUMNS = {
    0.0: ("noise_trace", "gradient_sq_norm"),
    0.5: ("precond_noise_trace", "precond_gradient_sq_norm"),
    1.0: ("precond_noise_trace_p1", "precond_gradient_sq_norm_p1"),
}


@dataclass(frozen=True)
class NoiseWindow:
    """The noise scale in sequences between two positions of a run, beside the batch used there."""

    start_tokens: float
    end_tokens: float
    batch_size: float  # NaN where it is unknown
    noise_scale: windows.Estimate
    verdict: WindowVerdict

    @property
    def where(self) -> str:
        return f"{format_tokens(self.start_tokens)} to {format_tokens(self.end_tokens)} tokens"


@dataclass(frozen=True)
class Regime:
    """Whether the batch was small or large, by the preconditioner's power p and, beside it, by another power."""

    verdict: RegimeVerdict
    windows: tuple[NoiseWindow, ...]
    p: float
    level: float
    reasons: tuple[str, ...]
    beside_verdict: RegimeVerdict = "undecided"
    beside: tuple[NoiseWindow, ...] = ()  # the same windows with p = 1 (with 1/2, where p is 1 or 0)
    warnings: tuple[str, ...] = ()

    @property
    def agreed_verdict(self) -> RegimeVerdict:
        """The verdict that both powers give; undecided where they do not."""
        return self.verdict if self.verdict == self.beside_verdict else "undecided"


def batch_regime(
    trajectory: Trajectory,
    *,
    p: float = 0.5,
    level: float = 0.9,
    warmup_tokens: float | None = None,
    beta2: float = ADAM_BETA2,
    min_values: int = MIN_WINDOW_VALUES,
) -> Regime:
    """Small, large, mixed (small in a part of the run and large in another) or undecided, from the noise columns.

    p               power of the preconditioner: 0.5 (Adam's own), 1 (the paper's text) or 0 (raw gradients)
    warmup_tokens   where the warm-up ends, for runs without a learning_rate column
    min_values      measured rows of a window; octaves with fewer are joined with their neighbours

    Rows less than 3/(1 - beta2) steps after a batch switch are left out. Each window's verdict errs with probability
    (1 - level)/2; undecided windows may make up at most half of the tokens of a run that is called small or large.
    """
    if p not in NOISE_COLUMNS:
        raise InputError(f"p={show(p)} must be 0.5, 1 or 0: the power of the preconditioner in the noise columns")
    require_positive_int("min_values", min_values)
    begins = warmup_end(trajectory) if warmup_tokens is None else require_not_negative("warmup_tokens", warmup_tokens)
    warnings = []
    if math.isnan(begins):
        warnings.append("without a learning_rate column the warm-up may be included: give warmup_tokens")
        begins = 0.0
    rows = _NoiseRows.of(trajectory, p, begins, beta2)
    if not rows.num_measured:
        return Regime("undecided", (), p, level, (_why_no_noise(trajectory, p),), warnings=tuple(warnings))
    edges = _window_edges(rows, begins, min_values)
    found = _noise_windows(rows, edges, level)
    verdict, reasons = _run_verdict(found)
    other = 1.0 if p == 0.5 else 0.5
    beside_rows = _NoiseRows.of(trajectory, other, begins, beta2)
    beside = _noise_windows(beside_rows, edges, level) if beside_rows.num_measured else ()
    beside_verdict = _run_verdict(beside)[0] if beside else "undecided"
    warnings += [*rows.warnings, *_window_warnings(found), *_contradictions(found, beside, p, other)]
    return Regime(verdict, found, p, level, reasons, beside_verdict, beside, tuple(warnings))


# Windows of a run


@dataclass(frozen=True)
class _NoiseRows:
    """The rows after the warm-up, NaN where noise was not measured or Adam's v had not settled."""

    tokens: np.ndarray
    batch_size: np.ndarray
    noise_trace: np.ndarray
    gradient_sq_norm: np.ndarray
    warnings: tuple[str, ...] = ()

    @staticmethod
    def of(trajectory: Trajectory, p: float, begins: float, beta2: float) -> _NoiseRows:
        tokens = trajectory.tokens.astype(float)
        missing = np.full(len(tokens), np.nan)
        trace, signal = (trajectory.columns.get(name, missing).astype(float) for name in NOISE_COLUMNS[p])
        batch = setting_at_rows(trajectory, "batch_size", trajectory.info.batch_size)
        known = batch[~np.isnan(batch)]
        if len(np.unique(known)) > 1:
            trace = np.where(windows.after_switch_mask(_known_steps(trajectory), batch, beta2), np.nan, trace)
        warnings: tuple[str, ...] = ()
        bad = np.isinf(trace) | np.isinf(signal)
        if bad.any():
            first = int(np.argmax(bad))
            trace, signal = trace.copy(), signal.copy()
            trace[first:], signal[first:] = np.nan, np.nan
            warnings = (
                f"infinite noise at {format_tokens(tokens[first])} tokens: the rows from there on are left out",
            )
        after = tokens > begins
        return _NoiseRows(tokens[after], batch[after], trace[after], signal[after], warnings)

    @property
    def measured(self) -> np.ndarray:
        return ~(np.isnan(self.noise_trace) | np.isnan(self.gradient_sq_norm))

    @property
    def num_measured(self) -> int:
        return int(self.measured.sum())

    def between(self, start: float, end: float) -> _NoiseRows:
        inside = (start < self.tokens) & (self.tokens <= end)
        return _NoiseRows(
            self.tokens[inside], self.batch_size[inside], self.noise_trace[inside], self.gradient_sq_norm[inside]
        )


def _known_steps(trajectory: Trajectory) -> np.ndarray:
    steps = steps_at_rows(trajectory)
    if np.isnan(steps).any():
        raise InputError(
            "the batch switches, and neither steps nor the sequence length are known: add a step column, so that the "
            "rows right after the switch can be left out"
        )
    return steps


def _why_no_noise(trajectory: Trajectory, p: float) -> str:
    names = " and ".join(NOISE_COLUMNS[p])
    there = [name for name in NOISE_COLUMNS[p] if len(trajectory.measured(name)[0])]
    what = f"the run has no {names}"
    if len(there) == 2:
        what = f"{names} have no values where the warm-up is over and the optimizer has settled"
    return f"{what}: measure gradient noise with the meter (docs/gradient-noise.md)"


def _window_edges(rows: _NoiseRows, begins: float, min_values: int) -> tuple[tuple[float, float], ...]:
    """(start, end) of the windows: octaves of tokens inside each stretch of one batch size, joined where sparse."""
    pairs: list[tuple[float, float]] = []
    positions = rows.tokens[rows.measured]
    batch = np.where(np.isnan(rows.batch_size), -1.0, rows.batch_size)
    last_rows = np.flatnonzero(np.append(batch[1:] != batch[:-1], True))
    start = begins
    for last in last_rows:
        end = float(rows.tokens[last])
        inside = positions[(start < positions) & (positions <= end)]
        if len(inside):
            pairs += itertools.pairwise(_joined(_octaves(start, end), inside, min_values))
        start = end
    return tuple(pairs)


def _octaves(start: float, end: float) -> list[float]:
    """start, ..., end/4, end/2, end."""
    halvings = [end / 2**power for power in range(1, 40)]
    return [start, *sorted(edge for edge in halvings if edge > start), end]


def _joined(edges: list[float], positions: np.ndarray, min_values: int) -> list[float]:
    """The edges without those that leave a window fewer values; what remains at the end joins the window before."""
    kept = [edges[0]]
    for edge in edges[1:]:
        if ((kept[-1] < positions) & (positions <= edge)).sum() >= min_values:
            kept.append(edge)
    return [*kept[:-1], edges[-1]] if len(kept) > 1 else [edges[0], edges[-1]]


def _noise_windows(rows: _NoiseRows, edges: tuple[tuple[float, float], ...], level: float) -> tuple[NoiseWindow, ...]:
    found = []
    for start, end in edges:
        inside = rows.between(start, end)
        estimate = windows.noise_scale(inside.noise_trace, inside.gradient_sq_norm, level=level)
        verdict: WindowVerdict = "undecided"
        batch = float(inside.batch_size[-1])
        if not math.isnan(batch):
            verdict = windows.batch_verdict(inside.noise_trace, inside.gradient_sq_norm, batch, level=level).verdict
        found.append(NoiseWindow(start, end, batch, estimate, verdict))
    return tuple(found)


# Verdicts


def _run_verdict(found: Sequence[NoiseWindow]) -> tuple[RegimeVerdict, tuple[str, ...]]:
    if any(math.isnan(window.batch_size) for window in found):
        return "undecided", ("the batch size is unknown: say what it was, in sequences",)
    kinds: tuple[Literal["small", "large"], ...] = ("small", "large")
    seen = [kind for kind in kinds if any(window.verdict == kind for window in found)]
    if len(seen) == 2:
        return "mixed", tuple(_describe(window) for window in found if window.verdict != "undecided")
    length = sum(window.end_tokens - window.start_tokens for window in found)
    decided = sum(window.end_tokens - window.start_tokens for window in found if window.verdict != "undecided")
    open_windows = tuple(_describe(window) for window in found if window.verdict == "undecided")
    if not seen:
        return "undecided", open_windows
    if decided < DECIDED_SHARE * length:
        share = f"{decided / length:.0%} of the tokens say {seen[0]}, the rest is undecided: measure noise more often"
        return "undecided", (share, *open_windows)
    return seen[0], tuple(_describe(window) for window in found)


def _describe(window: NoiseWindow) -> str:
    scale = window.noise_scale
    batch = "unknown" if math.isnan(window.batch_size) else f"{window.batch_size:g}"
    interval = f"{scale.value:.3g} ({scale.low:.3g} to {scale.high:.3g}) sequences"
    return f"{window.where}: noise scale {interval}, batch {batch}: {window.verdict}"


def _window_warnings(found: Sequence[NoiseWindow]) -> list[str]:
    return [f"{window.where}: {warning}" for window in found for warning in window.noise_scale.warnings]


def _contradictions(found: Sequence[NoiseWindow], beside: Sequence[NoiseWindow], p: float, other: float) -> list[str]:
    """A sentence for each window that the two powers call by opposite names."""
    return [
        f"{one.where}: p = {p:g} says {one.verdict}, p = {other:g} says {two.verdict}"
        for one, two in zip(found, beside, strict=False)
        if {one.verdict, two.verdict} == {"small", "large"}
    ]
