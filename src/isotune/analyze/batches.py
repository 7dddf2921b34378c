"""What to do about the batch: when to raise it, and what becomes of LR if it changes.

batch_schedule      measured noise scale -> a batch that grows and stays below it
square_root_rule    LR ~ sqrt(batch), and whether two measured optima support it
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from isotune.analyze.forecast import Convention
from isotune.analyze.regime import NoiseWindow, Regime
from isotune.errors import InputError
from isotune.recipe.quantities import (
    format_tokens,
    parse_tokens,
    require_choice,
    require_not_negative,
    require_positive,
    require_positive_int,
    show,
)

SAFETY = 2.0  # how far below the noise scale's lower end a scheduled batch stays


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
                f"({earlier.where}) to {later.noise_scale.value:.3g} ({later.where}): "
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
        f"{window.noise_scale.low:.3g} ({window.where}), and later {safety:g} times the batch stay below it"
    )


def _schedule_warnings(found: Sequence[NoiseWindow], first: int, budget: int, learning_rate: str) -> tuple[str, ...]:
    warnings = ["the noise scale was measured without the switches: measure it again in the scheduled run"]
    end = found[-1].end_tokens
    if budget > end:
        warnings.append(f"noise was measured up to {format_tokens(end)} tokens: the batch is held from there on")
    if found[0].noise_scale.low < first:
        warnings.append(f"the first batch, {first}, is not shown to be below the noise scale ({found[0].where})")
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
