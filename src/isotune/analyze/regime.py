"""Regime and batch: is the batch small or large, which direction will matter, what to do about the batch.

A batch is small where it lies below the noise scale mean(T) / mean(g2) (docs/gradient-noise.md), large above it. The
noise scale moves during a run, so it is estimated per window of tokens: octaves after the warm-up, cut where the batch
switches.

Before anything is trained, n = ELR * steps forecasts the direction in (log2 LR, log2 WD) along which the loss changes:

    forgotten  r = 1 - 2^(-n / n*)        what AdamW has forgotten of its start; half of it at the shift n*
    angle        = atan(r)                0 degrees: LR alone matters;  45 degrees: ELR

At the shift two runs differ as much at equal LR as at equal ELR: |dL/dlog WD| = |dL/dlog LR - dL/dlog WD|, so the ratio
of the slopes, tan(angle), is 1/2 there. The exponential between is our model, not the paper's.
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
from isotune.recipe.quantities import (
    format_tokens,
    parse_tokens,
    require_choice,
    require_not_negative,
    require_positive,
    require_positive_int,
    show,
)
from isotune.runs.trajectory import Trajectory

RegimeVerdict = Literal["small", "large", "mixed", "undecided"]
WindowVerdict = Literal["small", "large", "undecided"]
Direction = Literal["LR", "ELR", "mixed"]
Convention = Literal["coupled", "independent"]

MIN_WINDOW_VALUES = 20  # below, heavy tails cost the interval its coverage
DECIDED_SHARE = 0.5  # of the tokens: a verdict on less is no verdict on the run
NOISE_COLUMNS = {
    0.0: ("noise_trace", "gradient_sq_norm"),
    0.5: ("precond_noise_trace", "precond_gradient_sq_norm"),
    1.0: ("precond_noise_trace_p1", "precond_gradient_sq_norm_p1"),
}
FAR_BELOW = 4.0  # times below the shift: 16 % forgotten, LR alone
FAR_ABOVE = 2.0  # times above it: 75 % forgotten, ELR
# Root mean square of forecast minus measured angle over the seven angles that PROTOTYPE_SHIFT's sweeps gave.
ANGLE_ERROR = 10.0
SAFETY = 2.0  # how far below the noise scale's lower end a scheduled batch stays


@dataclass(frozen=True)
class NoiseWindow:
    """The noise scale in sequences between two positions of a run, beside the batch used there."""

    start_tokens: float
    end_tokens: float
    batch_size: float  # NaN where it is unknown
    noise_scale: windows.Estimate
    verdict: WindowVerdict


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


@dataclass(frozen=True)
class ShiftPoint:
    """The n at which the invariance shifts from LR to ELR, with its interval."""

    memory_times: float
    low: float
    high: float
    source: str


# The interval is the quartiles over neighbouring runs. The exponents of the shift's time were -0.94 (LR), -1.01 (WD).
PROTOTYPE_SHIFT = ShiftPoint(1.3, 1.1, 1.8, "measured on byte-level models of 42K and 133K parameters")


@dataclass(frozen=True)
class DirectionForecast:
    """Which direction will matter at the end of a run: LR (0 degrees), ELR (45 degrees), or something in between."""

    direction: Direction
    memory_times: float
    steps: float
    degrees: float
    degrees_low: float
    degrees_high: float
    shift: ShiftPoint
    reason: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptimalRate:
    """The best learning rate that a sweep found, with its interval (infinite where nothing bounds it)."""

    learning_rate: float
    low: float
    high: float


@dataclass(frozen=True)
class SquareRootRule:
    """What LR ~ sqrt(batch) would have done, and whether two measured optima support it."""

    learning_rate: float  # that the rule gives at the new batch
    memory_times: float  # at the old batch; NaN without WD, tokens and sequence length
    new_memory_times: float  # at the new one, if the rule is followed and WD stays
    kept_memory_times: float  # at the new one, if LR and WD stay
    rule_octaves: float  # 0.5 * log2(new batch / batch)
    verdict: Literal["supported", "contradicted", "undecided"]
    octaves: float  # log2(new optimum / optimum)
    octaves_low: float
    octaves_high: float
    reason: str


@dataclass(frozen=True)
class BatchStage:
    """A batch size from a position on, and what LR is multiplied with there."""

    from_tokens: int
    batch_size: int
    learning_rate_factor: float = 1.0


@dataclass(frozen=True)
class BatchSchedule:
    """When to raise the batch; refused (one stage, nothing saved) where the noise gives no ground for it."""

    stages: tuple[BatchStage, ...]
    steps: float
    constant_steps: float  # of the first batch throughout
    refused: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def saved_steps(self) -> float:
        return self.constant_steps - self.steps

    @property
    def text(self) -> str:
        """The schedule as Megatron and our recipes read it, such as "0:512 30B:8192"."""
        return " ".join(f"{_exact_tokens(stage.from_tokens)}:{stage.batch_size}" for stage in self.stages)


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


def forecast_direction(
    learning_rate: float,
    weight_decay: float,
    batch_size: int,
    sequence_length: int,
    tokens: float | str,
    *,
    convention: Convention = "coupled",
    warmup_tokens: float | str = 0,
    shift: ShiftPoint = PROTOTYPE_SHIFT,
    regime: Regime | None = None,
) -> DirectionForecast:
    """Whether LR or ELR will matter after this many tokens, from n = ELR * steps alone; nothing is trained.

    Where weight decay is independent of LR (w *= 1 - WD), ELR is WD. n counts from the end of the warm-up. The band of
    the angle holds the shift's interval and the model's own error.

    >>> forecast_direction(2**-10, 0.1, 8192, 1024, "100B").direction  # the paper's large batch: 11,921 steps
    'mixed'
    >>> forecast_direction(2**-10, 0.1, 512, 1024, "100B").direction
    'ELR'
    """
    rate = require_positive("learning_rate", learning_rate)
    decay = require_not_negative("weight_decay", weight_decay)
    require_choice("convention", convention, ("coupled", "independent"))
    per_step = require_positive_int("batch_size", batch_size) * require_positive_int("sequence_length", sequence_length)
    _check_shift(shift)
    trained = parse_tokens("tokens", tokens) - parse_tokens("warmup_tokens", warmup_tokens)
    if trained <= 0:
        raise InputError(
            f"warmup_tokens={show(warmup_tokens)} leaves nothing of tokens={show(tokens)}: n counts from the warm-up's "
            "end, give more tokens"
        )
    steps = trained / per_step
    n = (rate * decay if convention == "coupled" else decay) * steps
    low, high = (_angle(n, shift.high) - ANGLE_ERROR, _angle(n, shift.low) + ANGLE_ERROR)
    direction, reason = _direction(n, shift)
    return DirectionForecast(
        direction=direction,
        memory_times=n,
        steps=steps,
        degrees=_angle(n, shift.memory_times),
        degrees_low=max(low, 0.0),
        degrees_high=min(high, 45.0),
        shift=shift,
        reason=reason,
        warnings=_forecast_warnings(direction, n, regime),
    )


def square_root_rule(
    learning_rate: float,
    batch_size: int,
    new_batch_size: int,
    *,
    weight_decay: float | None = None,
    sequence_length: int | None = None,
    tokens: float | str | None = None,
    convention: Convention = "coupled",
    optimum: OptimalRate | None = None,
    new_optimum: OptimalRate | None = None,
) -> SquareRootRule:
    """The LR that LR ~ sqrt(batch) gives at another batch, the n that results, and what two measured optima say of it.

        supported      the optima's ratio agrees with the rule, and not with an LR that stays
        contradicted   it does not agree with the rule
        undecided      it agrees with both, or there are no two optima

    The paper finds the rule to fail: its optimal LR is lower at the large batch.

    >>> rule = square_root_rule(2**-10, 4, 64)
    >>> rule.learning_rate == 2**-8, rule.rule_octaves
    (True, 2.0)
    """
    rate = require_positive("learning_rate", learning_rate)
    ratio = require_positive_int("new_batch_size", new_batch_size) / require_positive_int("batch_size", batch_size)
    require_choice("convention", convention, ("coupled", "independent"))
    n = math.nan
    if weight_decay is not None and sequence_length is not None and tokens is not None:
        steps = parse_tokens("tokens", tokens) / (batch_size * require_positive_int("sequence_length", sequence_length))
        decay = require_not_negative("weight_decay", weight_decay)
        n = (rate * decay if convention == "coupled" else decay) * steps
    scaled = math.sqrt(ratio) if convention == "coupled" else 1.0
    rule_octaves = 0.5 * math.log2(ratio)
    verdict, octaves, low, high, reason = _judge_rule(rule_octaves, optimum, new_optimum)
    return SquareRootRule(
        learning_rate=rate * math.sqrt(ratio),
        memory_times=n,
        new_memory_times=n * scaled / ratio,
        kept_memory_times=n / ratio,
        rule_octaves=rule_octaves,
        verdict=verdict,
        octaves=octaves,
        octaves_low=low,
        octaves_high=high,
        reason=reason,
    )


def batch_schedule(
    noise: Regime | Sequence[NoiseWindow],
    *,
    tokens: float | str,
    sequence_length: int,
    batch_size: int | None = None,
    safety: float = SAFETY,
    max_batch_size: int | None = None,
    max_switches: int = 4,
    learning_rate: Literal["keep", "square root"] = "keep",
) -> BatchSchedule:
    """When to switch the batch up, so that it stays at or below the measured noise scale.

    A batch, a power of two times the first one, is allowed from the end of a window on if the lower end of the noise
    scale, divided by `safety`, reaches it there and in every later window. Positions are rounded up to whole steps of
    the largest batch. LR and WD stay at a switch (Type 2 of the paper); "square root" scales LR with the batch.

    tokens          the budget of the run to plan; beyond the last window the batch is held
    batch_size      the first batch; left out, that of the measured run

    Refused where noise was not measured, where it falls (a later window's interval lies below an earlier one's), and
    where the first batch is above the noise scale already.
    """
    found = noise.windows if isinstance(noise, Regime) else tuple(noise)
    budget = parse_tokens("tokens", tokens)
    require_positive_int("sequence_length", sequence_length)
    require_positive_int("max_switches", max_switches)
    require_choice("learning_rate", learning_rate, ("keep", "square root"))
    if not require_positive("safety", safety) >= 1:
        raise InputError(f"safety={show(safety)} must be at least 1: the batch stays that far below the noise scale")
    first = _first_batch(found, batch_size)
    if max_batch_size is not None and require_positive_int("max_batch_size", max_batch_size) < first:
        raise InputError(f"max_batch_size={show(max_batch_size)} is below the first batch {first}: give a larger one")
    if not budget >= first * sequence_length:
        raise InputError(f"tokens={show(tokens)} is less than one step of {first} sequences: give more tokens")
    refusal = _why_no_schedule(noise, found, first)
    if refusal:
        return _scheduled([BatchStage(0, first)], budget, sequence_length, True, (refusal,), ())
    allowed = _allowed_batches(found, first, safety, max_batch_size)
    stages = _stages(found, allowed, first, budget, sequence_length, max_switches)
    if learning_rate == "square root":
        stages = [
            BatchStage(stage.from_tokens, stage.batch_size, math.sqrt(stage.batch_size / first)) for stage in stages
        ]
    reasons = tuple(_why_stage(stage, found, safety) for stage in stages[1:]) or (
        f"the noise scale never allows {2 * first} sequences: its lower end over {safety:g} stays below",
    )
    warnings = _schedule_warnings(found, first, budget, learning_rate)
    return _scheduled(stages, budget, sequence_length, False, reasons, warnings)


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
    return f"{_where(window)}: noise scale {interval}, batch {batch}: {window.verdict}"


def _window_warnings(found: Sequence[NoiseWindow]) -> list[str]:
    return [f"{_where(window)}: {warning}" for window in found for warning in window.noise_scale.warnings]


def _contradictions(found: Sequence[NoiseWindow], beside: Sequence[NoiseWindow], p: float, other: float) -> list[str]:
    """A sentence for each window that the two powers call by opposite names."""
    return [
        f"{_where(one)}: p = {p:g} says {one.verdict}, p = {other:g} says {two.verdict}"
        for one, two in zip(found, beside, strict=False)
        if {one.verdict, two.verdict} == {"small", "large"}
    ]


# The direction


def _angle(n: float, shift: float) -> float:
    """atan(1 - 2^(-n/n*)) in degrees."""
    return math.degrees(math.atan(-math.expm1(-n / shift * math.log(2))))


def _direction(n: float, shift: ShiftPoint) -> tuple[Direction, str]:
    where = f"the shift at n = {shift.memory_times:g} ({shift.low:g} to {shift.high:g}, {shift.source})"
    if n < shift.low / FAR_BELOW:
        return "LR", f"n = {n:.3g} is far below {where}: runs of equal LR agree, whatever their WD"
    if n > shift.high * FAR_ABOVE:
        return "ELR", f"n = {n:.3g} is well above {where}: runs of equal LR * WD agree"
    return "mixed", f"n = {n:.3g} is near {where}: both LR and WD matter"


def _check_shift(shift: ShiftPoint) -> None:
    if not 0 < shift.low <= shift.memory_times <= shift.high < math.inf:
        raise InputError(
            f"shift={show((shift.low, shift.memory_times, shift.high))} must be a low end, a value and a high end "
            "above 0 that go up: where a fit does not bound it, use the prototype's"
        )


def _forecast_warnings(direction: Direction, n: float, regime: Regime | None) -> tuple[str, ...]:
    if n == 0:
        return ("without weight decay nothing is ever forgotten: LR alone matters, however long the run",)
    if direction == "ELR" and regime is not None and regime.verdict == "large":
        return (
            "the batch is large: there n does not decide (the paper's Fig. 4a; in tables/nano batch 64 is not "
            "ELR-invariant at n > 3 either): check with a run",
        )
    return ()


# The square-root rule


def _judge_rule(
    rule: float, optimum: OptimalRate | None, new_optimum: OptimalRate | None
) -> tuple[Literal["supported", "contradicted", "undecided"], float, float, float, str]:
    if optimum is None or new_optimum is None:
        return "undecided", math.nan, -math.inf, math.inf, "there are no optima at both batch sizes: sweep LR at both"
    one, two = _log2_rate("optimum", optimum), _log2_rate("new_optimum", new_optimum)
    octaves = two[1] - one[1]
    low = octaves - math.hypot(two[1] - two[0], one[2] - one[1])  # independent errors
    high = octaves + math.hypot(two[2] - two[1], one[1] - one[0])
    found = f"the optimal LR moves by {octaves:+.2g} octaves ({low:+.2g} to {high:+.2g}), the rule says {rule:+.2g}"
    if not low <= rule <= high:
        falls = rule > 0 > high or rule < 0 < low
        more = ": it moves the other way, as the paper finds" if falls else ""
        return "contradicted", octaves, low, high, found + more
    if low <= 0 <= high:
        return "undecided", octaves, low, high, f"{found}: no move at all agrees with it too"
    return "supported", octaves, low, high, found


def _log2_rate(name: str, rate: OptimalRate) -> tuple[float, float, float]:
    if not (0 <= rate.low <= rate.learning_rate <= rate.high and 0 < rate.learning_rate < math.inf):
        raise InputError(
            f"{name}={show((rate.low, rate.learning_rate, rate.high))} must be a low end, a learning rate and a high "
            "end that go up: 0 and inf where nothing bounds it"
        )
    return -math.inf if rate.low == 0 else math.log2(rate.low), math.log2(rate.learning_rate), math.log2(rate.high)


# The batch schedule


def _first_batch(found: Sequence[NoiseWindow], batch_size: int | None) -> int:
    if batch_size is not None:
        return require_positive_int("batch_size", batch_size)
    if not found or math.isnan(found[0].batch_size):
        raise InputError("the first batch is unknown: give batch_size, in sequences")
    return round(found[0].batch_size)


def _why_no_schedule(noise: Regime | Sequence[NoiseWindow], found: Sequence[NoiseWindow], first: int) -> str | None:
    if not found:
        why = noise.reasons[0] if isinstance(noise, Regime) and noise.reasons else "noise was not measured"
        return f"no switch is planned: {why}"
    for earlier, later in itertools.combinations(found, 2):
        if later.noise_scale.high < earlier.noise_scale.low:
            return (
                f"no switch is planned: the noise scale falls, from {earlier.noise_scale.value:.3g} sequences "
                f"({_where(earlier)}) to {later.noise_scale.value:.3g} ({_where(later)}): "
                "a batch that fits early would be too large later"
            )
    if not any(window.noise_scale.low > 0 for window in found):
        return "no switch is planned: no window bounds the noise scale from below, measure noise more often"
    if found[0].noise_scale.high < first:
        return (
            f"no switch is planned: {first} sequences are above the noise scale from the start "
            f"({found[0].noise_scale.low:.3g} to {found[0].noise_scale.high:.3g}), begin with fewer"
        )
    return None


def _where(window: NoiseWindow) -> str:
    return f"{format_tokens(window.start_tokens)} to {format_tokens(window.end_tokens)} tokens"


def _allowed_batches(found: Sequence[NoiseWindow], first: int, safety: float, largest: int | None) -> list[int]:
    """The largest first * 2^k that each window and all later ones allow; the first batch where none does."""
    limits = np.array([window.noise_scale.low / safety for window in found])
    limits = np.minimum.accumulate(limits[::-1])[::-1]
    cap = math.inf if largest is None else largest
    return [_doubled(first, min(float(limit), cap)) for limit in limits]


def _doubled(first: int, limit: float) -> int:
    batch = first
    while 2 * batch <= limit:
        batch *= 2
    return batch


def _stages(
    found: Sequence[NoiseWindow], allowed: list[int], first: int, budget: int, sequence_length: int, max_switches: int
) -> list[BatchStage]:
    """Each stage begins where its window ends; of too many switches those that save least are left out."""
    wanted = [(window.end_tokens, batch) for window, batch in zip(found, allowed, strict=True)]
    largest_step = max((batch for end, batch in wanted if end < budget), default=first) * sequence_length
    stages = [BatchStage(0, first)]
    for end, batch in wanted:
        at = math.ceil(end / largest_step) * largest_step
        if batch > stages[-1].batch_size and at < budget:
            if at == stages[-1].from_tokens:
                stages.pop()
            stages.append(BatchStage(at, batch))
    while len(stages) - 1 > max_switches:
        del stages[_cheapest_switch(stages, budget)]
    return stages


def _cheapest_switch(stages: list[BatchStage], budget: int) -> int:
    """The switch whose removal (the batch before it is held longer) costs the fewest steps."""
    ends = [stage.from_tokens for stage in stages[1:]] + [budget]

    def cost(index: int) -> float:
        stage, before = stages[index], stages[index - 1]
        return (ends[index] - stage.from_tokens) * (1 / before.batch_size - 1 / stage.batch_size)

    return min(range(1, len(stages) - 1), key=cost, default=1)


def _why_stage(stage: BatchStage, found: Sequence[NoiseWindow], safety: float) -> str:
    window = max((one for one in found if one.end_tokens <= stage.from_tokens), key=lambda one: one.end_tokens)
    return (
        f"{stage.batch_size} sequences from {format_tokens(stage.from_tokens)} tokens on: the noise scale is at least "
        f"{window.noise_scale.low:.3g} ({_where(window)}), and later {safety:g} times the batch stay below it"
    )


def _schedule_warnings(found: Sequence[NoiseWindow], first: int, budget: int, learning_rate: str) -> tuple[str, ...]:
    warnings = ["the noise scale was measured without the switches: measure it again in the scheduled run"]
    end = found[-1].end_tokens
    if budget > end:
        warnings.append(f"noise was measured up to {format_tokens(end)} tokens: the batch is held from there on")
    if found[0].noise_scale.low < first:
        warnings.append(f"the first batch, {first}, is not shown to be below the noise scale ({_where(found[0])})")
    if learning_rate == "square root":
        warnings.append("LR is scaled with the batch; the paper finds a higher loss than with LR kept")
    return tuple(warnings)


def _scheduled(
    stages: list[BatchStage],
    budget: int,
    sequence_length: int,
    refused: bool,
    reasons: tuple[str, ...],
    warnings: tuple[str, ...],
) -> BatchSchedule:
    ends = [stage.from_tokens for stage in stages[1:]] + [budget]
    steps = sum(
        (end - stage.from_tokens) / (stage.batch_size * sequence_length)
        for stage, end in zip(stages, ends, strict=True)
    )
    constant = budget / (stages[0].batch_size * sequence_length)
    return BatchSchedule(tuple(stages), steps, constant, refused, reasons, warnings)


def _exact_tokens(tokens: int) -> str:
    """The count with a suffix where that loses nothing: 30B, 61440."""
    for suffix, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if tokens and tokens % size == 0:
            return f"{tokens // size}{suffix}"
    return str(tokens)
