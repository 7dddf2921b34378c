"""What a tuner asks and what it is told."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from isotune.errors import InputError
from isotune.recipe.quantities import require_positive, require_positive_int, settle, show

MAX_RUNGS = 5  # budgets D, D/2, D/4, D/8, D/16: what is shorter says little
MIN_DECAYS_PER_RUNG = 2.0  # a rung is at least this many decays long
MAX_CELLS = 20_000
NO_DECAY = 2.0**-40  # stands for a WD of 0 on a logarithmic axis: n is 0 to all digits
MAX_SEEDS = 16  # of a setting, where a recipe or a command can be asked for several


@dataclass(frozen=True)
class Question:
    """The loss of a run with these settings after so many tokens, its decay included; WD is coupled."""

    learning_rate: float
    weight_decay: float
    tokens: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.tokens >= 1:
            raise InputError(f"tokens={show(self.tokens)} must be at least 1: a run has at least one token")

    @property
    def packed(self) -> bytes:
        """LR, WD, tokens and seed as doubles, one after the other."""
        try:
            return struct.pack("4d", self.learning_rate, self.weight_decay, self.tokens, self.seed)
        except struct.error:
            raise InputError(f"{self} has something that is no number: leave that run out") from None


@dataclass(frozen=True)
class Answer:
    """What came of a question: a loss, or NaN for a run that diverged; "read" was not trained but read off a trunk."""

    question: Question
    loss: float
    status: Literal["finished", "diverged", "read"] = "finished"
    noise: float | None = None  # standard deviation of log loss, where it is known

    def __post_init__(self) -> None:
        try:
            math.isfinite(self.loss)
        except TypeError:
            raise InputError(f"loss={show(self.loss)} must be a number; NaN is a run that diverged") from None

    @cached_property
    def has_diverged(self) -> bool:
        return self.status == "diverged" or not math.isfinite(self.loss)

    @cached_property
    def packed(self) -> bytes:
        """What the question has, then loss (NaN: diverged), noise (0: unknown) and whether it was read off a trunk, as
        doubles. Kept, since a tuner takes all answers apart with every suggestion."""
        loss = math.nan if self.has_diverged else self.loss
        return self.question.packed + struct.pack("3d", loss, self.noise or 0.0, self.status == "read")


Prices = Callable[
    [Sequence[Question]], Sequence[int]
]  # missing tokens: what each answer would cost; asked for some at a time


@dataclass(frozen=True, kw_only=True)
class Space:
    """LR and WD between bounds, on a logarithmic lattice; or exactly the cells that are given."""

    learning_rate: tuple[float, float] = (2.0**-13, 2.0**-6)
    weight_decay: tuple[float, float] = (2.0**-8, 1.0)
    octaves: float = 0.5  # between neighbours
    only: tuple[tuple[float, float], ...] = field(default=(), repr=False)  # (LR, WD) pairs, where nothing else may be

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay"):
            low, high = (require_positive(name, value) for value in getattr(self, name))
            if not low <= high:
                raise InputError(f"{name}={show((low, high))} must be a low and a high end: write 2^-12..2^-7")
            settle(self, name, (low, high))
        settle(self, "octaves", require_positive("octaves", self.octaves))
        settle(self, "only", tuple((lr, wd) for lr, wd in self.only))
        if any(not (0 < lr < math.inf and 0 <= wd < math.inf) for lr, wd in self.only):
            raise InputError("a cell has an LR that is not above 0, or a WD below 0: leave it out")
        spans = [math.log2(high / low) / self.octaves + 1 for low, high in (self.learning_rate, self.weight_decay)]
        count = len(self.only) or spans[0] * spans[1]
        if count > MAX_CELLS:
            raise InputError(f"the space has {count:.0f} cells: narrow it, or take a larger step than {self.octaves}")

    @cached_property
    def cells(self) -> np.ndarray:
        """[cells x 2]: log2 LR, log2 WD."""
        if self.only:
            return log2_cells(self.only)
        bounds = (self.learning_rate, self.weight_decay)
        axes = [_lattice(math.log2(low), math.log2(high), self.octaves) for low, high in bounds]
        lr, wd = np.meshgrid(*axes, indexing="ij")
        return np.column_stack([lr.ravel(), wd.ravel()])

    @cached_property
    def middle(self) -> np.ndarray:
        """log2 LR and log2 WD half way between the lowest and the highest."""
        return np.asarray((self.cells.max(axis=0) + self.cells.min(axis=0)) / 2)

    @cached_property
    def settings(self) -> np.ndarray:
        """[cells x 2]: LR and WD of the cells, to the last digit as they were given."""
        return np.array(self.only, dtype=float) if self.only else np.asarray(2.0**self.cells)

    @cached_property
    def distinct(self) -> np.ndarray:
        """The cells, each place once: the first one where several are at one place."""
        return np.sort(self._sorted_places[1])

    @cached_property
    def is_distinct(self) -> np.ndarray:
        """Whether each cell is one of those."""
        is_distinct = np.zeros(len(self.cells), dtype=bool)
        is_distinct[self.distinct] = True
        return is_distinct

    def find(self, cells: np.ndarray) -> np.ndarray:
        """Which of the space's cells is at the place of each of these; -1: none."""
        places, index = self._sorted_places
        wanted = place_numbers(cells)
        at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
        return np.where(places[at] == wanted, index[at], -1)

    @cached_property
    def _sorted_places(self) -> tuple[np.ndarray, np.ndarray]:
        """(the place of each distinct cell, ascending; which cell it is)."""
        return np.unique(place_numbers(self.cells), return_index=True)


def log2_cells(settings: Sequence[tuple[float, float]] | np.ndarray) -> np.ndarray:
    """[settings x 2]: log2 LR, log2 WD, with something very small in the place of a WD of 0."""
    pairs = np.array(settings, dtype=float).reshape(-1, 2)
    lowest_lr, lowest_wd = pairs.min(axis=0, initial=math.inf)
    if not (lowest_lr > 0 and lowest_wd >= 0 and pairs.max(initial=0.0) < math.inf):
        raise InputError("LR must be above 0 and WD at least 0, both finite: leave out the runs for which it is not so")
    return np.asarray(np.log2(np.maximum(pairs, (0.0, NO_DECAY))))


def place_numbers(cells: np.ndarray) -> np.ndarray:
    """Of each cell, [cells x 2], a whole number, equal where settings differ in their last digits alone."""
    log2_lr, log2_wd = np.rint(cells * 1e6).astype(np.int64).T
    return np.asarray((log2_lr << 31) + log2_wd)  # a millionth of an octave is far more than those digits


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is tuned for: the loss after `tokens`, within `tolerance` of the best one in the space."""

    tokens: int
    space: Space = field(default_factory=Space)
    rungs: tuple[int, ...] = ()  # budgets that may be asked for, `tokens` the last; () makes octaves below it
    decay_tokens: int = 0
    tokens_per_step: int | None = None  # batch size x sequence length; None: n is unknown, and with it the invariance
    seeds: tuple[int, ...] = (0,)  # that may be asked for; every cell is asked with the first one first
    tolerance: float = 0.001  # expected relative regret that is good enough
    level: float = 0.9

    def __post_init__(self) -> None:
        settle(self, "tokens", require_positive_int("tokens", self.tokens))
        if self.tokens_per_step is not None:
            settle(self, "tokens_per_step", require_positive_int("tokens_per_step", self.tokens_per_step))
        rungs = self.rungs or make_rungs(self.tokens, self.decay_tokens, self.tokens_per_step or 1)
        settle(self, "rungs", tuple(sorted({int(rung) for rung in rungs if rung <= self.tokens} | {self.tokens})))
        settle(self, "seeds", tuple(self.seeds))
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds={show(self.seeds)} must be one or several different ones: take (0,)")
        settle(self, "tolerance", require_positive("tolerance", self.tolerance))
        if not 0 < self.level < 1:
            raise InputError(f"level={show(self.level)} must be between 0 and 1, such as 0.9")
        if self.rungs[0] < 1:
            raise InputError(f"rungs={show(self.rungs)} must all be above 0: a run has at least one token")

    def targets(self, cells: np.ndarray) -> np.ndarray:
        """The points of some of the space's cells at the budget that is tuned for."""
        return self.points(self.space.cells[cells], self.tokens)

    def points(self, cells: np.ndarray, tokens: np.ndarray | int, seeds: np.ndarray | float = math.nan) -> np.ndarray:
        """[cells x 5] as a belief wants them: log2 LR, log2 WD, log2 steps, log2 of the share of the budget, seed (NaN:
        what seeds scatter about)."""
        points = np.empty((len(cells), 5))
        points[:, :2] = cells
        points[:, 2] = math.nan if self.tokens_per_step is None else np.log2(tokens / self.tokens_per_step)
        points[:, 3] = np.log2(tokens / self.tokens)
        points[:, 4] = seeds
        return points


def make_rungs(tokens: int, decay_tokens: int, tokens_per_step: int = 1) -> tuple[int, ...]:
    """Budgets in octaves below the target, in whole steps, none shorter than two decays.

    >>> make_rungs(2_752_512, 131_072)
    (344064, 688128, 1376256, 2752512)
    >>> make_rungs(1_000_000, 0, 8192)
    (57344, 122880, 245760, 499712, 1000000)
    """
    shorter = [(tokens >> k) // tokens_per_step * tokens_per_step for k in reversed(range(1, MAX_RUNGS))]
    rungs = dict.fromkeys([*shorter, tokens])
    return tuple(rung for rung in rungs if rung and rung >= MIN_DECAYS_PER_RUNG * decay_tokens) or (tokens,)


def _lattice(low: float, high: float, step: float) -> np.ndarray:
    """From low to high in steps, both ends included."""
    inside = np.arange(low, high + 1e-9, step)
    return inside if high - inside[-1] < 1e-6 else np.append(inside, high)
