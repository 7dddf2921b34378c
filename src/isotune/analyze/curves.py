"""Trajectories -> curves that can be compared: one column of every run on one grid of tokens, warm-up left out.

n = memory_times, AdamW's elapsed memory, is the sum over steps of LR * WD since the last change of LR or WD. Where
weight decay is independent of LR (w *= 1 - WD), a step forgets WD, so ELR is WD itself and n the sum of WD.

Values between two measured points are interpolated; a run is never continued beyond its last one. A run that cannot
be compared (it diverged, ends early, lacks the column) is dropped with a sentence that says why.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isotune.errors import InputError
from isotune.measure import windows
from isotune.recipe.quantities import format_number, format_tokens, show
from isotune.runs.trajectory import RunInfo, Trajectory

MIN_POINTS = 4  # values that a curve needs in its window
MAX_NAMED = 3  # runs that a refusal names
SAME_SETTING = 1e-6  # relative: logs keep LR and WD in float32 at times
ADAM_BETA2 = 0.95  # the paper's
# A stretch's estimate needs its own formula: LR * noise / batch, clip-corrected.
NOISE_SOURCES = {"scaled_noise": "precond_noise_trace", "scaled_gradient": "precond_gradient_sq_norm"}


@dataclass(frozen=True)
class Curves:
    """One column of several runs on one grid: values[run, point] at tokens[point]."""

    tokens: np.ndarray
    values: np.ndarray
    infos: tuple[RunInfo, ...]
    column: str
    memory_times: np.ndarray  # n of each run at each point; NaN where LR, WD or its convention is unknown
    dropped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def between(self, start_tokens: float, end_tokens: float) -> Curves:
        """The same curves on the points from start_tokens to end_tokens."""
        inside = (start_tokens <= self.tokens) & (self.tokens <= end_tokens)
        return Curves(
            self.tokens[inside],
            self.values[:, inside],
            self.infos,
            self.column,
            self.memory_times[:, inside],
            self.dropped,
            self.warnings,
        )


def common_curves(
    trajectories: Sequence[Trajectory],
    column: str = "val_loss",
    *,
    tokens: tuple[float, float] | None = None,
    memory_times: tuple[float, float] | None = None,
    num_points: int | None = None,
    bins: float | Sequence[float] | None = None,
    warmup_tokens: float | None = None,
    min_points: int = MIN_POINTS,
    beta2: float = ADAM_BETA2,
    through_ramps: bool = False,
) -> Curves:
    """The column of all runs on one grid of tokens.

    tokens          the window (start, end); left out, the longest one that all runs share
    memory_times    the window in n: with `tokens`, runs whose n leaves it somewhere in the window are dropped;
                    alone, it is the stretch of tokens in which every run's n lies inside
    num_points      evenly spaced points; left out, the points at which the most sparsely measured run was measured
    bins            means over stretches in place of points: their length in tokens, or their edges. The columns
                    "scaled_noise" and "scaled_gradient" need them; they are estimated in each stretch from
                    precond_noise_trace and precond_gradient_sq_norm, rows right after a batch switch left out
    warmup_tokens   where the warm-up ends, for runs without a learning_rate column
    through_ramps   n counts on while LR changes: for runs whose LR falls all the way
    """
    if not trajectories:
        raise InputError("there are no runs: give trajectories, such as those of a study")
    if bins is None and column in NOISE_SOURCES:
        raise InputError(
            f"column={show(column)} is estimated over stretches of a run: give bins, their length in tokens"
        )
    for name, window in (("tokens", tokens), ("memory_times", memory_times)):
        if window is not None and not window[0] < window[1]:
            raise InputError(f"{name}={show(window)} must be a start and a later end")
    warnings: list[str] = []
    dropped: list[str] = []
    runs = [_Run.of(trajectory, column, warmup_tokens, through_ramps, warnings) for trajectory in trajectories]
    runs = _drop(runs, dropped, lambda run: run.reason_to_drop(column))
    if tokens is not None:
        runs = _drop(runs, dropped, lambda run: run.reason_outside(tokens))
    if memory_times is not None:
        runs = _drop(runs, dropped, lambda run: run.reason_outside_memory(memory_times, tokens))
    start, end = tokens or _shared_window(runs, memory_times, dropped)
    runs = _drop(runs, dropped, lambda run: run.reason_sparse(start, end, min_points))
    if not runs:
        more = f"; and {len(dropped) - MAX_NAMED} more" if len(dropped) > MAX_NAMED else ""
        raise InputError("no run is left to compare: " + "; ".join(dropped[:MAX_NAMED]) + more)
    if bins is None:
        grid = _grid(runs, start, end, num_points)
        values = np.array([np.interp(grid, run.tokens, run.values) for run in runs])
    else:
        edges = _edges(bins, start, end)
        grid = (edges[:-1] + edges[1:]) / 2
        values = np.array([_bin_values(run.trajectory, column, edges, beta2) for run in runs])
        whole = ~np.isnan(values).any(axis=0)
        if not whole.any():
            raise InputError(f"no stretch of bins={show(bins)} holds values of all runs: take longer ones")
        if not whole.all():
            warnings.append(f"{(~whole).sum()} of {len(whole)} stretches are left out: a run has no values in them")
        grid, values = grid[whole], values[:, whole]
    infos = tuple(run.trajectory.info for run in runs)
    elapsed = np.array([np.interp(grid, run.trajectory.tokens, run.memory_times) for run in runs])
    return Curves(grid, values, infos, column, elapsed, tuple(dropped), tuple(dict.fromkeys(warnings)))


def memory_times(trajectory: Trajectory, *, through_ramps: bool = False) -> np.ndarray:
    """n at each row: the sum over steps of LR * WD since the last change of LR or WD (of WD, where it is independent).

    A change between sparse rows is dated to the middle between them. During a ramp every step is a change, so n is that
    of one step; with `through_ramps` (for LR that falls all the way) nothing but a change of WD resets it. NaN where
    LR, WD, steps or the convention are unknown.
    """
    info = trajectory.info
    decay = setting_at_rows(trajectory, "weight_decay", info.weight_decay)
    rate = setting_at_rows(trajectory, "learning_rate", info.learning_rate)
    step = steps_at_rows(trajectory)
    if info.weight_decay_convention == "unknown":
        return np.full(len(step), np.nan)
    per_step = decay if info.weight_decay_convention == "independent" else rate * decay
    since = np.diff(step, prepend=step[:1] - 1)
    changed = np.zeros(len(step), dtype=bool)
    changed[1:] = ~_equal(decay[1:], decay[:-1])
    if not through_ramps:
        changed[1:] |= ~_equal(rate[1:], rate[:-1])
    since[changed] = (since[changed] + 1) / 2
    since[:1] = step[:1]
    total = np.cumsum(per_step * since)
    before = np.where(changed, np.concatenate([[0.0], total[:-1]]), 0.0)
    return total - np.maximum.accumulate(before)


def warmup_end(trajectory: Trajectory) -> float:
    """The tokens of the first row at which LR has stopped rising; those of the first row without a warm-up.

    NaN without a learning_rate column: a constant that is known from elsewhere says nothing about its beginning.
    """
    rate = trajectory.columns.get("learning_rate")
    there = np.zeros(0, dtype=bool) if rate is None else ~np.isnan(rate)
    if rate is None or not there.any():
        return math.nan
    rows, rate = trajectory.tokens[there], rate[there]
    rises = (rate[1:] > rate[:-1]) & ~_equal(rate[1:], rate[:-1])
    if not rises[:2].any():  # the row before the first step repeats that step's LR
        return float(rows[0])
    first = int(np.argmax(rises))
    stops = np.flatnonzero(~rises[first:])
    last = first + (int(stops[0]) if len(stops) else len(rises) - first)
    return float(rows[last])


def effective_learning_rate(info: RunInfo) -> float:
    """ELR, what a step forgets: LR * WD where weight decay is coupled, WD where it is independent."""
    decay = _known("weight_decay", info.weight_decay, info)
    if info.weight_decay_convention == "unknown":
        raise InputError(
            f"the weight decay convention of {name_run(info)} is unknown, so its ELR is: "
            "say coupled (w *= 1 - LR*WD, as PyTorch does) or independent (w *= 1 - WD)"
        )
    coupled = info.weight_decay_convention == "coupled"
    return _known("learning_rate", info.learning_rate, info) * decay if coupled else decay


def log2_settings(infos: Sequence[RunInfo]) -> tuple[np.ndarray, np.ndarray]:
    """(log2 LR, log2 WD) of the runs, with WD as a coupled run would write it, ELR / LR: both add up to log2 ELR."""
    rate = np.array([_known("learning_rate", info.learning_rate, info) for info in infos])
    elr = np.array([effective_learning_rate(info) for info in infos])
    for info, one_rate, one_elr in zip(infos, rate, elr, strict=True):
        if not (one_rate > 0 and one_elr > 0):
            raise InputError(f"{name_run(info)} has no place on a logarithmic axis: leave runs with a 0 out")
    return np.log2(rate), np.log2(elr) - np.log2(rate)


def name_run(info: RunInfo) -> str:
    """The run in a few words, as a sentence about it can begin."""

    def word(value: float | str) -> str:
        return value if isinstance(value, str) else format_number(value)

    return f"the run with LR {word(info.learning_rate)}, WD {word(info.weight_decay)}, seed {info.seed}"


@dataclass(frozen=True)
class _Run:
    """A trajectory, its column where it was measured after the warm-up, and n at all of its rows."""

    trajectory: Trajectory
    tokens: np.ndarray
    values: np.ndarray
    memory_times: np.ndarray
    begins: float  # where the warm-up ends

    @staticmethod
    def of(
        trajectory: Trajectory, column: str, warmup_tokens: float | None, through_ramps: bool, warnings: list[str]
    ) -> _Run:
        begins = warmup_end(trajectory) if warmup_tokens is None else warmup_tokens
        if math.isnan(begins):
            warnings.append("runs without a learning_rate column may include their warm-up: give warmup_tokens")
            begins = 0.0
        tokens, values = trajectory.measured(NOISE_SOURCES.get(column, column))
        after = tokens >= begins
        n = memory_times(trajectory, through_ramps=through_ramps)
        return _Run(trajectory, tokens[after].astype(float), values[after], n, begins)

    def reason_to_drop(self, column: str) -> str | None:
        info = self.trajectory.info
        if info.status == "diverged":
            return "diverged"
        if not len(self.tokens):
            return f"has no {NOISE_SOURCES.get(column, column)} after its warm-up"
        if not np.isfinite(self.values).all():
            return f"has an infinite {column}"
        return None

    def reason_outside(self, window: tuple[float, float]) -> str | None:
        start, end = window
        if self.tokens[-1] < end:
            return f"ends at {format_tokens(self.tokens[-1])} tokens, before the window's end {format_tokens(end)}"
        if self.tokens[0] > start:
            return f"begins at {format_tokens(self.tokens[0])} tokens, after the window's start {format_tokens(start)}"
        return None

    def reason_outside_memory(self, window: tuple[float, float], tokens: tuple[float, float] | None) -> str | None:
        low, high = window
        if np.isnan(self.memory_times).any():
            return "has an unknown n: LR, WD, steps or the weight decay convention are not known"
        start, end = tokens or (self.tokens[0], self.tokens[-1])
        n = np.interp([start, end], self.trajectory.tokens, self.memory_times)
        rows = (start <= self.trajectory.tokens) & (self.trajectory.tokens <= end)
        n = np.concatenate([n, self.memory_times[rows]])
        seen = f"n from {n.min():.3g} to {n.max():.3g}"
        if tokens is None:
            return None if n.max() > low and n.min() < high else f"has {seen}, never inside {low:g} to {high:g}"
        return (
            None if n.min() >= low and n.max() <= high else f"has {seen} in the window, not inside {low:g} to {high:g}"
        )

    def reason_sparse(self, start: float, end: float, min_points: int) -> str | None:
        num_values = int(((start <= self.tokens) & (self.tokens <= end)).sum())
        return None if num_values >= min_points else f"has {num_values} values in the window, {min_points} are needed"

    def memory_window(self, window: tuple[float, float]) -> tuple[float, float]:
        """The tokens of the last stretch in which n lies inside the window."""
        rows = self.trajectory.tokens >= self.tokens[0]
        tokens, n = self.trajectory.tokens[rows], self.memory_times[rows]
        inside = (window[0] <= n) & (n <= window[1])
        if not inside.any():
            return math.inf, -math.inf
        last = len(inside) - 1 - int(np.argmax(inside[::-1]))
        outside = np.flatnonzero(~inside[:last])
        return float(tokens[outside[-1] + 1 if len(outside) else 0]), float(tokens[last])


def _drop(runs: list[_Run], dropped: list[str], reason: Callable[[_Run], str | None]) -> list[_Run]:
    """The runs for which there is no reason to be dropped; the others' reasons are noted."""
    kept = []
    for run in runs:
        why = reason(run)
        if why is None:
            kept.append(run)
        else:
            dropped.append(f"{name_run(run.trajectory.info)} {why}")
    return kept


def _shared_window(
    runs: list[_Run], memory_window: tuple[float, float] | None, dropped: list[str]
) -> tuple[float, float]:
    """The longest stretch of tokens that all runs were measured in, with n inside its window."""
    if not runs:
        more = f"; and {len(dropped) - MAX_NAMED} more" if len(dropped) > MAX_NAMED else ""
        raise InputError("no run is left to compare: " + "; ".join(dropped[:MAX_NAMED]) + more)
    spans = np.array([[run.tokens[0], run.tokens[-1]] for run in runs])
    if (spans[:, 0] == spans[:, 1]).all():
        raise InputError(
            "these runs have one measured loss each: how they got there cannot be compared; give their curves"
        )
    if memory_window is not None:
        inside = np.array([run.memory_window(memory_window) for run in runs])
        spans = np.column_stack([np.maximum(spans[:, 0], inside[:, 0]), np.minimum(spans[:, 1], inside[:, 1])])
    last, first = int(np.argmax(spans[:, 0])), int(np.argmin(spans[:, 1]))
    start, end = spans[last, 0], spans[first, 1]
    if not start < end:
        raise InputError(
            f"no stretch of tokens is shared: {name_run(runs[last].trajectory.info)} begins at {format_tokens(start)} "
            f"tokens and {name_run(runs[first].trajectory.info)} ends at {format_tokens(max(end, 0))}: "
            "compare fewer runs, or give tokens"
        )
    return float(start), float(end)


def _grid(runs: list[_Run], start: float, end: float, num_points: int | None) -> np.ndarray:
    if num_points is not None:
        if num_points < 2:
            raise InputError(f"num_points={show(num_points)} must be at least 2")
        return np.linspace(start, end, num_points)
    points = [run.tokens[(start <= run.tokens) & (run.tokens <= end)] for run in runs]
    return min(points, key=len)


def _edges(bins: float | Sequence[float], start: float, end: float) -> np.ndarray:
    """The edges of stretches inside the window; a length gives multiples of it."""
    if isinstance(bins, int | float):
        if not bins > 0:
            raise InputError(f"bins={show(bins)} must be a positive number of tokens, or edges that go up")
        edges = bins * np.arange(math.ceil(start / bins), math.floor(end / bins) + 1)
    else:
        edges = np.asarray(bins, dtype=float)
    if len(edges) < 2 or np.any(np.diff(edges) <= 0):
        raise InputError(
            f"bins={show(bins)} gives no stretch between {format_tokens(start)} and {format_tokens(end)} tokens: "
            "give a shorter length, or edges that go up"
        )
    return edges


def _bin_values(trajectory: Trajectory, column: str, edges: np.ndarray, beta2: float) -> np.ndarray:
    """The column's estimate in each stretch, of the rows with start < tokens <= end; NaN where there are none."""
    tokens = trajectory.tokens.astype(float)
    if column not in NOISE_SOURCES:
        values = trajectory.columns[column]
        rows = [(start < tokens) & (tokens <= end) & ~np.isnan(values) for start, end in _pairs(edges)]
        return np.array([float(values[row].mean()) if row.any() else math.nan for row in rows])
    noise = trajectory.columns[NOISE_SOURCES[column]].copy()
    batch = setting_at_rows(trajectory, "batch_size", trajectory.info.batch_size)
    if not np.isnan(batch).all() and len(np.unique(batch[~np.isnan(batch)])) > 1:
        noise[windows.after_switch_mask(steps_at_rows(trajectory), batch, beta2)] = np.nan
    clip = trajectory.columns.get("noise_clip_factor", trajectory.columns.get("clip_factor"))
    rate = setting_at_rows(trajectory, "learning_rate", trajectory.info.learning_rate)
    estimates = []
    for start, end in _pairs(edges):
        rows = (start < tokens) & (tokens <= end) & ~np.isnan(noise)
        rows &= True if clip is None else ~np.isnan(clip)
        one_clip = None if clip is None else clip[rows]
        if not rows.any():
            estimates.append(math.nan)
        elif column == "scaled_noise":
            estimates.append(windows.scaled_noise(noise[rows], rate[rows], batch[rows], one_clip).value)
        else:
            estimates.append(windows.scaled_gradient(noise[rows], rate[rows], one_clip).value)
    return np.array(estimates)


def _pairs(edges: np.ndarray) -> list[tuple[float, float]]:
    return list(itertools.pairwise(edges.tolist()))


def setting_at_rows(trajectory: Trajectory, name: str, known: float | str) -> np.ndarray:
    """A setting at each row, where it is missing the last one before (or the first after); else the run's own."""
    values = trajectory.columns.get(name)
    number = math.nan if isinstance(known, str) else float(known)
    if values is None or np.isnan(values.astype(float)).all():
        return np.full(len(trajectory.tokens), number)
    values = values.astype(float)
    there = np.where(np.isnan(values), 0, np.arange(len(values)))
    there = np.maximum(np.maximum.accumulate(there), int(np.argmax(~np.isnan(values))))
    return values[there]


def steps_at_rows(trajectory: Trajectory) -> np.ndarray:
    """The step at each row; from tokens, batch size and sequence length where steps were not logged."""
    step = trajectory.columns.get("step")
    if step is not None and not np.isnan(step.astype(float)).any():
        return step.astype(float)
    batch = setting_at_rows(trajectory, "batch_size", trajectory.info.batch_size)
    length = trajectory.info.sequence_length
    tokens = trajectory.tokens.astype(float)
    per_step = batch * (math.nan if isinstance(length, str) else length)
    return np.cumsum(np.diff(tokens, prepend=0.0) / per_step)


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a - b) <= SAME_SETTING * np.maximum(np.abs(a), np.abs(b))


def _known(name: str, value: float | str, info: RunInfo) -> float:
    if isinstance(value, str):
        raise InputError(f"the {name} of {name_run(info)} is unknown: say what it was")
    return float(value)
