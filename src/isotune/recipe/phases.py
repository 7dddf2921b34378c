"""Phases on a token clock, the recipe they make, and the identity of every state along it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from isotune.errors import InputError
from isotune.recipe.quantities import (
    require_choice,
    require_not_negative,
    require_positive_int,
    settle,
    show,
    whole_number,
)
from isotune.recipe.setup import Setup, exact

RampShape = Literal["linear", "cosine", "one_minus_sqrt"]


@dataclass(frozen=True)
class Ramp:
    """A learning rate that goes from `start` to `end` over `tokens`.

    A phase may play only a part of it, from `offset` on: so a ramp can be cut, or its batch size switched, midway.
    """

    start: float
    end: float
    tokens: int
    shape: RampShape = "linear"
    offset: int = 0

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            settle(self, name, require_not_negative(f"learning rate at the {name} of a ramp", getattr(self, name)))
        settle(self, "tokens", require_positive_int("length of a ramp in tokens", self.tokens))
        offset = whole_number(self.offset)
        if offset is None or not 0 <= offset < self.tokens:
            raise InputError(
                f"offset={show(self.offset)} lies outside the ramp of {self.tokens} tokens: "
                f"choose a whole number from 0 to {self.tokens - 1}"
            )
        settle(self, "offset", offset)
        require_choice("shape", self.shape, get_args(RampShape))

    @property
    def tokens_left(self) -> int:
        """How much of the ramp lies behind `offset`."""
        return self.tokens - self.offset

    def at(self, tokens: np.ndarray) -> np.ndarray:
        """The learning rate at these token positions, counted from where the phase enters the ramp."""
        x = (tokens + self.offset) / self.tokens
        if self.shape == "linear":
            progress = x
        elif self.shape == "cosine":
            progress = (1 - np.cos(np.pi * x)) / 2
        else:
            progress = np.sqrt(x)
        return self.start + (self.end - self.start) * progress


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training: its length in tokens, learning rate (a constant or a ramp), weight decay, batch size.

    `requested_tokens` remembers the length that was asked for before rounding; it is shown and means nothing else.
    """

    tokens: int
    learning_rate: float | Ramp
    weight_decay: float
    batch_size: int
    requested_tokens: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        settle(self, "tokens", require_positive_int("tokens of a phase", self.tokens))
        settle(self, "weight_decay", require_not_negative("weight_decay", self.weight_decay))
        settle(self, "batch_size", require_positive_int("batch_size", self.batch_size))
        lr = self.learning_rate
        if not isinstance(lr, Ramp):
            settle(self, "learning_rate", require_not_negative("learning_rate", lr))
        elif self.tokens > lr.tokens_left:
            raise InputError(
                f"a phase of {self.tokens} tokens plays more than what is left of its ramp ({lr.tokens_left} of "
                f"{lr.tokens} tokens): lengthen the ramp or shorten the phase"
            )

    @property
    def is_constant(self) -> bool:
        return not isinstance(self.learning_rate, Ramp)

    @property
    def peak_learning_rate(self) -> float:
        """The highest learning rate of the phase's ramp, even of the part that it does not play: it names the run."""
        lr = self.learning_rate
        return max(lr.start, lr.end) if isinstance(lr, Ramp) else lr

    @property
    def ends_a_decay(self) -> bool:
        """Whether this phase plays a falling ramp to its end."""
        lr = self.learning_rate
        return isinstance(lr, Ramp) and lr.end < lr.start and self.tokens == lr.tokens_left

    def part(self, start: int, end: int) -> Phase:
        """The phase between two token positions inside it."""
        lr = self.learning_rate
        if isinstance(lr, Ramp):
            lr = dataclasses.replace(lr, offset=lr.offset + start)
        return dataclasses.replace(self, tokens=end - start, learning_rate=lr, requested_tokens=None)


class Step(NamedTuple):  # a tuple: long runs make hundreds of thousands
    """One optimizer step: the tokens seen before and after it, and its settings."""

    tokens_before: int
    tokens: int
    learning_rate: float
    weight_decay: float
    batch_size: int


@dataclass(frozen=True)
class Recipe:
    """A setup and its phases, which are kept in canonical form: two recipes are equal if they train the same thing."""

    setup: Setup
    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not self.phases:
            raise InputError("a recipe needs at least one phase: give it one")
        for index, phase in enumerate(self.phases, start=1):
            step_tokens = self._step_tokens(phase)
            if phase.tokens % step_tokens:
                lower = phase.tokens // step_tokens * step_tokens
                options = " or ".join(str(n) for n in (lower, lower + step_tokens) if n)
                raise InputError(
                    f"phase {index}: {phase.tokens} tokens is not a multiple of its step of {step_tokens} tokens "
                    f"(batch_size {phase.batch_size} x sequence_length {self.setup.sequence_length}): try {options}"
                )
        settle(self, "phases", canonical(tuple(self.phases)))

    # Derived values

    @cached_property
    def tokens(self) -> int:
        """The budget D: all tokens, warm-up and decay included."""
        return sum(phase.tokens for phase in self.phases)

    @property
    def num_steps(self) -> int:
        return self.steps_at(self.tokens)

    @property
    def main_phase(self) -> Phase:
        """The phase whose settings name the run: the last constant one.

        Without any (cosine): the one with the highest learning rate, the longest of those.
        """
        constant = [phase for phase in self.phases if phase.is_constant]
        if constant:
            return constant[-1]
        return max(self.phases, key=lambda phase: (phase.peak_learning_rate, phase.tokens))

    @property
    def learning_rate(self) -> float:
        return self.main_phase.peak_learning_rate

    @property
    def weight_decay(self) -> float:
        return self.main_phase.weight_decay

    @property
    def batch_size(self) -> int:
        return self.main_phase.batch_size

    @property
    def effective_learning_rate(self) -> float:
        return self.learning_rate * self.weight_decay

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.setup.model.num_parameters

    @property
    def flops(self) -> float:
        return float(self.tokens) * self.setup.model.flops_per_token(self.setup.sequence_length)

    @property
    def memory_times(self) -> float:
        """n at the end of the last constant phase: how often AdamW has forgotten what was before it."""
        ends = [end for phase, end in self._ends() if phase.is_constant]
        return self.memory_times_at(ends[-1]) if ends else 0.0

    def memory_times_at(self, tokens: int) -> float:
        """n: the sum of LR * WD over the steps that end by `tokens`, since the last change of LR or WD.

        A ramp changes the learning rate at every step, so n is 0 on it; a batch switch alone resets nothing.
        """
        n = 0.0
        settings: tuple[float, float] | None = None
        for span in self._spans(0, self._inside(tokens)):
            lr, wd = span.phase.learning_rate, span.phase.weight_decay
            if isinstance(lr, Ramp):
                n, settings = 0.0, None
                continue
            if (lr, wd) != settings:
                n, settings = 0.0, (lr, wd)
            n += lr * wd * span.num_steps
        return n

    def flow_time_at(self, tokens: int) -> float:
        """The sum of LR over the steps that end by `tokens`."""
        return math.fsum(
            float(span.learning_rates().sum())
            if isinstance(span.phase.learning_rate, Ramp)
            else span.phase.learning_rate * span.num_steps
            for span in self._spans(0, self._inside(tokens))
        )

    def steps_at(self, tokens: int) -> int:
        """How many steps end by `tokens`."""
        return sum(span.num_steps for span in self._spans(0, self._inside(tokens)))

    def phase_at(self, tokens: int) -> Phase:
        """The phase that the step ending at this position belongs to (the first one for 0)."""
        tokens = self._inside(tokens)
        return next(phase for phase, end in self._ends() if tokens <= end)

    def end_of_step(self, tokens: int) -> int:
        """Where the step that reaches this position ends."""
        phase, end = next((phase, end) for phase, end in self._ends() if self._inside(tokens) <= end)
        step_tokens = self._step_tokens(phase)
        return end - (end - tokens) // step_tokens * step_tokens

    # Walking

    def steps(self, start_tokens: int = 0, end_tokens: int | None = None) -> Iterator[Step]:
        """The steps that end after `start_tokens` and by `end_tokens`.

        So a walk to any position and one from there on make the whole. The learning rate is taken at each step's
        midpoint in tokens.
        """
        for span in self._spans(start_tokens, self.tokens if end_tokens is None else end_tokens):
            phase, tokens = span.phase, span.start
            for learning_rate in span.learning_rates().tolist():
                before, tokens = tokens, tokens + span.step_tokens
                yield Step(before, tokens, learning_rate, phase.weight_decay, phase.batch_size)

    def settings_at(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(number, learning rate, weight decay, batch size) of the step that reaches each position; number 0 at 0.

        What `steps` would say, without walking all of them.
        """
        tokens = np.asarray(tokens)
        phases, ends = zip(*self._ends(), strict=True)
        index = np.searchsorted(ends, tokens)
        number, rate, decay = np.zeros(len(tokens), dtype=np.int64), np.zeros(len(tokens)), np.zeros(len(tokens))
        batch = np.zeros(len(tokens), dtype=np.int64)
        steps_before = 0
        for here, (phase, end) in enumerate(zip(phases, ends, strict=True)):
            rows, step_tokens = index == here, self._step_tokens(phase)
            ordinal = np.maximum(1, -((end - phase.tokens - tokens[rows]) // step_tokens))
            lr = phase.learning_rate
            rate[rows] = lr.at((ordinal - 0.5) * step_tokens) if isinstance(lr, Ramp) else lr
            number[rows], decay[rows], batch[rows] = steps_before + ordinal, phase.weight_decay, phase.batch_size
            steps_before += phase.tokens // step_tokens
        return np.where(tokens > 0, number, 0), rate, decay, batch

    def prefix(self, tokens: int) -> tuple[Phase, ...]:
        """The canonical phases up to a position, which must be the end of a step; a cut ramp keeps its full length."""
        parts, left = [], self._inside(tokens)
        for phase in self.phases:
            if not left:
                break
            length = min(left, phase.tokens)
            extra = length % self._step_tokens(phase)
            if extra:
                lower = tokens - extra
                raise InputError(
                    f"position {tokens} is not the end of a step: steps there have {self._step_tokens(phase)} tokens, "
                    f"try {lower} or {lower + self._step_tokens(phase)}"
                )
            parts.append(phase if length == phase.tokens else phase.part(0, length))
            left -= length
        return tuple(parts)

    def state_id(self, corpus_fingerprint: str, tokens: int) -> str:
        """The address of the state after `tokens`: H(root, canonical prefix, tokens)."""
        identity = {
            "root": self.setup.root(corpus_fingerprint),
            "prefix": [exact(phase) for phase in self.prefix(tokens)],
            "tokens": self._inside(tokens),
        }
        return digest(identity)

    def _inside(self, tokens: int) -> int:
        if not 0 <= tokens <= self.tokens:
            raise InputError(f"position {tokens} lies outside the recipe: choose one from 0 to {self.tokens} tokens")
        return int(tokens)

    def _step_tokens(self, phase: Phase) -> int:
        return phase.batch_size * self.setup.sequence_length

    def _ends(self) -> Iterator[tuple[Phase, int]]:
        position = 0
        for phase in self.phases:
            position += phase.tokens
            yield phase, position

    def _spans(self, start_tokens: int, end_tokens: int) -> Iterator[_Span]:
        """The steps that end after `start_tokens` and by `end_tokens`, by phase."""
        for phase, end in self._ends():
            position, step_tokens = end - phase.tokens, self._step_tokens(phase)
            first = max(0, start_tokens - position) // step_tokens
            stop = min(phase.tokens, end_tokens - position) // step_tokens
            if first < stop:
                yield _Span(phase, position + first * step_tokens, step_tokens, first, stop - first)


class _Span(NamedTuple):
    """Consecutive steps of one phase."""

    phase: Phase
    start: int
    step_tokens: int
    first_step: int
    num_steps: int

    def learning_rates(self) -> np.ndarray:
        lr = self.phase.learning_rate
        if not isinstance(lr, Ramp):
            return np.full(self.num_steps, lr)
        midpoints = (np.arange(self.first_step, self.first_step + self.num_steps) + 0.5) * self.step_tokens
        return lr.at(midpoints)


def canonical(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """The same training with flat ramps as constants, and neighbours merged where one continues the other."""
    merged: list[Phase] = []
    for phase in phases:
        lr = phase.learning_rate
        if isinstance(lr, Ramp) and lr.start == lr.end:
            phase = dataclasses.replace(phase, learning_rate=lr.start)
        if merged and _continues(merged[-1], phase):
            merged[-1] = _merge(merged[-1], phase)
        else:
            merged.append(phase)
    return tuple(merged)


def falling_tokens(recipe: Recipe) -> int:
    """The length of the falling ramp that the recipe ends with, batch switches on it included; 0 if there is none."""
    tokens = 0
    after: Ramp | None = None
    for phase in reversed(recipe.phases):
        ramp = phase.learning_rate
        if not isinstance(ramp, Ramp) or ramp.end >= ramp.start:
            break
        if after is not None and not _plays_on(ramp, phase.tokens, after):
            break
        tokens, after = tokens + phase.tokens, ramp
    return tokens


def shared_tokens(first: Recipe, second: Recipe) -> int:
    """How far two recipes train the same thing: the length of their longest common prefix."""
    shared = 0
    for a, b in zip(first.phases, second.phases, strict=False):
        if (a.learning_rate, a.weight_decay, a.batch_size) != (b.learning_rate, b.weight_decay, b.batch_size):
            break
        shared += min(a.tokens, b.tokens)
        if a.tokens != b.tokens:
            break
    return shared


def digest(value: object) -> str:
    """A short address of plain data: equal values, equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _continues(before: Phase, after: Phase) -> bool:
    if (before.weight_decay, before.batch_size) != (after.weight_decay, after.batch_size):
        return False
    lr, next_lr = before.learning_rate, after.learning_rate
    if isinstance(lr, Ramp) and isinstance(next_lr, Ramp):
        return _plays_on(lr, before.tokens, next_lr)
    return lr == next_lr


def _plays_on(ramp: Ramp, tokens: int, after: Ramp) -> bool:
    """Whether a ramp goes on where the other is left after so many tokens."""
    same = dataclasses.replace(ramp, offset=0) == dataclasses.replace(after, offset=0)
    return same and ramp.offset + tokens == after.offset


def _merge(before: Phase, after: Phase) -> Phase:
    requested = None
    if before.requested_tokens is not None and after.requested_tokens is not None:
        requested = before.requested_tokens + after.requested_tokens
    return dataclasses.replace(before, tokens=before.tokens + after.tokens, requested_tokens=requested)
