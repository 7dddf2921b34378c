"""The usual recipes as functions. Each only writes a list of phases; nothing else knows their names.

All token counts are rounded here, once, to a multiple of the recipe's largest step (or of `quantum_tokens`,
where a sweep wants one for all its recipes).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple, get_args

from isotune.errors import InputError
from isotune.recipe.phases import Phase, Ramp, RampShape, Recipe
from isotune.recipe.quantities import (
    Number,
    TokenCount,
    parse_batch_schedule,
    parse_batch_size,
    parse_number,
    parse_tokens,
    require_choice,
    require_positive_int,
    show,
)
from isotune.recipe.setup import Setup


def constant(
    setup: Setup,
    *,
    tokens: TokenCount,
    learning_rate: Number,
    weight_decay: Number,
    batch_size: int | str,
    warmup_tokens: TokenCount = 0,
    quantum_tokens: int | None = None,
) -> Recipe:
    """Warm-up from zero, then a constant learning rate."""
    return wsd(
        setup,
        tokens=tokens,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        batch_size=batch_size,
        warmup_tokens=warmup_tokens,
        decay_tokens=0,
        quantum_tokens=quantum_tokens,
    )


def wsd(
    setup: Setup,
    *,
    tokens: TokenCount,
    learning_rate: Number,
    weight_decay: Number,
    batch_size: int | str,
    decay_tokens: TokenCount,
    warmup_tokens: TokenCount = 0,
    decay_shape: RampShape = "linear",
    quantum_tokens: int | None = None,
) -> Recipe:
    """Warm-up, stable, decay to zero. `batch_size` may be a schedule such as "0:512 30B:8192"."""
    lr, wd = parse_number("learning_rate", learning_rate), parse_number("weight_decay", weight_decay)
    require_choice("decay_shape", decay_shape, get_args(RampShape))
    batches = parse_batch_schedule(batch_size)
    rounding = Rounding(setup, [size for _, size in batches], quantum_tokens)
    total, warmup = rounding.budget("tokens", tokens), rounding("warmup_tokens", warmup_tokens)
    decay = rounding("decay_tokens", decay_tokens)
    stable = _rest(total, warmup, decay)
    if stable.tokens < 0:
        raise InputError(
            f"warmup_tokens={warmup.tokens} and decay_tokens={decay.tokens} do not fit into tokens={total.tokens}: "
            f"raise tokens or shorten them"
        )
    stretches: list[Stretch] = [(Ramp(0.0, lr, warmup.tokens), warmup)] if warmup.tokens else []
    stretches += [(lr, stable)] if stable.tokens else []
    stretches += [(Ramp(lr, 0.0, decay.tokens, decay_shape), decay)] if decay.tokens else []
    return Recipe(setup, _with_batches(stretches, wd, batches, rounding))


def cosine(
    setup: Setup,
    *,
    tokens: TokenCount,
    learning_rate: Number,
    weight_decay: Number,
    batch_size: int | str,
    warmup_tokens: TokenCount = 0,
    final_learning_rate: Number = 0.0,
    quantum_tokens: int | None = None,
) -> Recipe:
    """Warm-up, then half a cosine down to `final_learning_rate`."""
    lr, wd = parse_number("learning_rate", learning_rate), parse_number("weight_decay", weight_decay)
    final = parse_number("final_learning_rate", final_learning_rate)
    if final > lr:
        raise InputError(f"final_learning_rate={final} is above learning_rate={lr}: lower it")
    batches = parse_batch_schedule(batch_size)
    rounding = Rounding(setup, [size for _, size in batches], quantum_tokens)
    total, warmup = rounding.budget("tokens", tokens), rounding("warmup_tokens", warmup_tokens)
    falling = _rest(total, warmup)
    if falling.tokens <= 0:
        raise InputError(f"warmup_tokens={warmup.tokens} leaves nothing of tokens={total.tokens}: shorten the warm-up")
    stretches: list[Stretch] = [(Ramp(0.0, lr, warmup.tokens), warmup)] if warmup.tokens else []
    stretches += [(Ramp(lr, final, falling.tokens, "cosine"), falling)]
    return Recipe(setup, _with_batches(stretches, wd, batches, rounding))


def new_settings(
    source: Recipe,
    *,
    switch_tokens: TokenCount,
    tokens: TokenCount,
    learning_rate: Number | None = None,
    weight_decay: Number | None = None,
    batch_size: int | str | None = None,
    decay_tokens: TokenCount = 0,
    decay_shape: RampShape = "linear",
    quantum_tokens: int | None = None,
) -> Recipe:
    """The source recipe up to `switch_tokens`, then these settings (Type 1 of the paper); what is left out stays.

    `tokens` counts from the very beginning, like every budget. What the source would do after the switch does not
    matter. Inside a ramp no learning rate can stay, so there a new one must be given.
    """
    require_choice("decay_shape", decay_shape, get_args(RampShape))
    rounding, switch = _switch(source, switch_tokens, batch_size, quantum_tokens)
    total, decay = rounding.budget("tokens", tokens), rounding("decay_tokens", decay_tokens)
    stable = _rest(total, switch, decay)
    if stable.tokens < 0 or total.tokens == switch.tokens:
        raise InputError(
            f"switch_tokens={switch.tokens} and decay_tokens={decay.tokens} leave nothing of tokens={total.tokens} "
            f"for the new settings: raise tokens or lower one of them"
        )
    before = source.phase_at(switch.tokens)
    batch = before.batch_size if batch_size is None else parse_batch_size(batch_size)
    wd = before.weight_decay if weight_decay is None else parse_number("weight_decay", weight_decay)
    lr = _constant_rate_at(source, switch) if learning_rate is None else parse_number("learning_rate", learning_rate)
    phases = list(source.prefix(switch.tokens))
    if stable.tokens:
        phases.append(_phase(stable, lr, wd, batch))
    if decay.tokens:
        phases.append(_phase(decay, Ramp(lr, 0.0, decay.tokens, decay_shape), wd, batch))
    return Recipe(source.setup, tuple(phases))


def batch_switch(
    source: Recipe,
    *,
    switch_tokens: TokenCount,
    tokens: TokenCount,
    batch_size: int | str,
    decay_tokens: TokenCount = 0,
    decay_shape: RampShape = "linear",
    quantum_tokens: int | None = None,
) -> Recipe:
    """The source recipe up to `switch_tokens`, then another batch size; LR and WD stay (Type 2 of the paper)."""
    return new_settings(
        source,
        switch_tokens=switch_tokens,
        tokens=tokens,
        batch_size=batch_size,
        decay_tokens=decay_tokens,
        decay_shape=decay_shape,
        quantum_tokens=quantum_tokens,
    )


def square_root_rule(
    source: Recipe,
    *,
    switch_tokens: TokenCount,
    tokens: TokenCount,
    batch_size: int | str,
    decay_tokens: TokenCount = 0,
    decay_shape: RampShape = "linear",
    quantum_tokens: int | None = None,
) -> Recipe:
    """A batch switch after which the learning rate is multiplied by the square root of the batch sizes' ratio."""
    _, switch = _switch(source, switch_tokens, batch_size, quantum_tokens)
    ratio = parse_batch_size(batch_size) / source.phase_at(switch.tokens).batch_size
    return new_settings(
        source,
        switch_tokens=switch_tokens,
        tokens=tokens,
        learning_rate=_constant_rate_at(source, switch) * math.sqrt(ratio),
        batch_size=batch_size,
        decay_tokens=decay_tokens,
        decay_shape=decay_shape,
        quantum_tokens=quantum_tokens,
    )


class Length(NamedTuple):
    """A length in tokens, rounded to whole steps, and what was asked for."""

    tokens: int
    requested: int


Stretch = tuple[float | Ramp, Length]


class Rounding:
    """Rounds token counts to whole steps of the largest batch."""

    def __init__(self, setup: Setup, batch_sizes: list[int], quantum_tokens: int | None = None):
        if quantum_tokens is not None:
            self.quantum = require_positive_int("quantum_tokens", quantum_tokens)
            remedy = f"choose a multiple of {math.lcm(*batch_sizes) * setup.sequence_length}"
        else:
            self.quantum = max(batch_sizes) * setup.sequence_length
            remedy = "choose batch sizes that divide the largest one"
        for size in batch_sizes:
            if self.quantum % (size * setup.sequence_length):
                raise InputError(
                    f"steps of batch_size {size} ({size * setup.sequence_length} tokens) do not divide the "
                    f"{self.quantum} tokens to which lengths are rounded: {remedy}"
                )

    def __call__(self, name: str, value: TokenCount) -> Length:
        asked = parse_tokens(name, value)
        rounded = (2 * asked + self.quantum) // (2 * self.quantum) * self.quantum
        if asked and not rounded:
            raise InputError(
                f"{name}={show(value)} is less than half of one step of {self.quantum} tokens: "
                f"use 0 or at least {self.quantum}"
            )
        return Length(rounded, asked)

    def budget(self, name: str, value: TokenCount) -> Length:
        length = self(name, value)
        if not length.tokens:
            raise InputError(f"{name}={show(value)} trains nothing: use at least one step of {self.quantum} tokens")
        return length


def _rest(total: Length, *parts: Length) -> Length:
    """What the parts leave of the total; rounding can take more than was asked for, but nobody asks for less than 0."""
    return Length(
        total.tokens - sum(part.tokens for part in parts),
        max(0, total.requested - sum(part.requested for part in parts)),
    )


def _phase(length: Length, learning_rate: float | Ramp, weight_decay: float, batch_size: int) -> Phase:
    return Phase(
        tokens=length.tokens,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        batch_size=batch_size,
        requested_tokens=length.requested,
    )


def _switch(
    source: Recipe, switch_tokens: TokenCount, batch_size: int | str | None, quantum_tokens: int | None
) -> tuple[Rounding, Length]:
    """Where the source is left, and the rounding of everything that follows."""
    asked = parse_tokens("switch_tokens", switch_tokens)
    starts = itertools.accumulate((phase.tokens for phase in source.phases), initial=0)
    batches = [phase.batch_size for phase, start in zip(source.phases, starts, strict=False) if start <= asked]
    if batch_size is not None:
        batches.append(parse_batch_size(batch_size))
    rounding = Rounding(source.setup, batches, quantum_tokens)
    switch = rounding("switch_tokens", switch_tokens)
    if switch.tokens > source.tokens:
        raise InputError(
            f"switch_tokens={switch.tokens} lies beyond the source recipe of {source.tokens} tokens: "
            f"lengthen the source or switch earlier"
        )
    return rounding, switch


def _constant_rate_at(source: Recipe, switch: Length) -> float:
    """The learning rate that stays when the source is left here."""
    prefix = source.prefix(switch.tokens)
    lr = prefix[-1].learning_rate if prefix else source.phases[0].learning_rate
    if not isinstance(lr, Ramp):
        return lr
    if prefix and prefix[-1].tokens == lr.tokens_left and lr.end > 0:
        return lr.end
    raise InputError(
        f"switch_tokens={switch.tokens} lies on a ramp of the learning rate ({lr.start} to {lr.end}), where none can "
        f"stay: switch before or after it, or set learning_rate with new_settings"
    )


def _with_batches(
    stretches: list[Stretch],
    weight_decay: float,
    batches: list[tuple[int, int]],
    rounding: Rounding,
) -> tuple[Phase, ...]:
    """Phases of these learning rates and lengths, cut where the batch size switches."""
    switches = [(rounding("position of a batch switch", at).tokens, size) for at, size in batches]
    total = sum(length.tokens for _, length in stretches)
    ends = [at for at, _ in switches[1:]] + [total]
    for (at, size), end in zip(switches, ends, strict=True):
        if at >= end:
            raise InputError(
                f"batch_size {size} from {at} tokens on has no step before {end} tokens (lengths are rounded to "
                f"{rounding.quantum} tokens): lengthen the recipe or move the switches apart"
            )
    result, position = [], 0
    for lr, length in stretches:
        phase = _phase(length, lr, weight_decay, batches[0][1])
        for (at, size), end in zip(switches, ends, strict=True):
            first, last = max(at - position, 0), min(end - position, phase.tokens)
            if first < last:
                part = phase if last - first == phase.tokens else phase.part(first, last)
                result.append(dataclasses.replace(part, batch_size=size))
        position += phase.tokens
    return tuple(result)
