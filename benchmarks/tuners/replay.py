"""A replay: a tuner asks, a table answers, a ledger counts the tokens that training would have taken.

Prices count missing tokens. A trunk is trained on from where it stands, and its states are kept at the table's branch
points, so that a decay costs the tokens that the trunk lacks up to the branch and the decay's own; this holds for
every tuner that can pause. One that cannot trains each run from its beginning. What was trained is never paid
again: asking twice is free, and so is reading the curve of a trunk as far as it was trained.

Between two evaluations a trunk's loss is read on a line: a trainer would evaluate where it pauses.

A run that diverges costs its tokens up to there and answers NaN. A price does not tell that it will.

Replay seed 0 is the table's seed 0. Every other one is the smooth truth with seeds' noise drawn anew
(analyze/seed_noise.py); the curve is shifted by what that adds to the decays, on lines in log tokens. Real losses of
other seeds are not mixed in: a seed has a level of its own, and few cells have them.

A question may name a repeat: the same settings with another training seed, at the full price of a run of its own. Its
noise is drawn anew, and so is its level, which a first seed has no need of.

A landscape may have several seeds in each cell of its grid. Who knows of seeds (`by_seed`) then asks for one run at a
time; to everybody else a cell is all of its seeds: their mean loss, for the price of all their runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from landscape import Landscape

from isotune.errors import InputError
from isotune.runs import Trajectory


@dataclass(frozen=True)
class Question:
    """What becomes of a cell: the loss of its trunk at a position, or after a decay that ends there."""

    cell: int
    tokens: int
    decayed: bool = True
    repeat: int = 0  # the same settings with another training seed


@dataclass(frozen=True)
class Charge:
    """A stretch that was trained: of a cell's trunk, or of the decay that ends at a budget."""

    cell: int
    start: int
    end: int
    decay_to: int | None = None
    repeat: int = 0
    num_seeds: int = 1  # that were trained over this stretch

    @property
    def tokens(self) -> int:
        return self.num_seeds * (self.end - self.start)


@dataclass(frozen=True)
class Spent:
    """A point of a tuner's path: what it has spent, what it would recommend (None: nothing yet), whether it is done."""

    tokens: int
    cell: int | None
    is_done: bool = False


class Replay:
    """One landscape, one target budget, one seed; `spent` grows with the answers."""

    def __init__(
        self, landscape: Landscape, budget: int, seed: int = 0, *, can_pause: bool = True, by_seed: bool = False
    ):
        if budget not in landscape.budgets:
            known = ", ".join(str(known) for known in landscape.budgets)
            raise InputError(f"budget={budget} is none of this table's: take one of {known}")
        self.budget = budget
        self.seed = seed
        self.can_pause = can_pause
        self.by_seed = by_seed
        self.num_seeds = landscape.num_seeds
        self.budgets = tuple(known for known in landscape.budgets if known <= budget)
        self.log2_lr, self.log2_wd = landscape.log2_lr, landscape.log2_wd
        self.tokens_per_step, self.warmup_tokens = landscape.tokens_per_step, landscape.warmup_tokens
        self.charges: list[Charge] = []
        self._landscape = landscape
        self._losses: dict[int, np.ndarray] = {}  # by repeat
        self._trained: dict[tuple[int, int], int] = {}  # of each trunk: cell, repeat
        self._answers: dict[Question, float] = {}  # of decays

    @property
    def num_cells(self) -> int:
        return len(self.log2_lr)

    @property
    def grid_price(self) -> int:
        return self._landscape.grid_price(self.budget)

    @property
    def spent(self) -> int:
        return sum(charge.tokens for charge in self.charges)

    @property
    def is_exhausted(self) -> bool:
        """Whether as much was spent as the full grid costs, or every cell is known at the target budget."""
        if self.spent >= self.grid_price:
            return True
        repeats = range(self.num_seeds if self.by_seed else 1)
        return all(
            self.price(Question(cell, self.budget, repeat=repeat)) == 0
            for cell in range(self.num_cells)
            for repeat in repeats
        )

    def true_regrets(self) -> np.ndarray:
        """What no tuner may look at."""
        return self._landscape.regrets(self.budget)

    def branch(self, budget: int) -> int:
        """Where the decay that ends at this budget leaves the trunk."""
        if budget not in self.budgets:
            raise InputError(f"no decay ends at {budget} tokens: take one of {', '.join(map(str, self.budgets))}")
        return self._landscape.branches[self._landscape.budgets.index(budget)]

    def nearest(self, log2_lr: float, log2_wd: float) -> int:
        """The cell nearest to a point in (log2 LR, log2 WD)."""
        return int(np.argmin((self.log2_lr - log2_lr) ** 2 + (self.log2_wd - log2_wd) ** 2))

    def trained(self, cell: int, repeat: int = 0) -> int:
        """How far the cell's trunk was trained."""
        return self._trained.get((cell, repeat), 0)

    def is_known_to_diverge(self, cell: int, repeat: int = 0) -> bool:
        """Whether the trunk was trained to where it diverges."""
        limit = self._landscape.trunk_ends[cell]
        return bool(self._landscape.has_diverged[cell] and self.trained(cell, repeat) >= limit)

    def price(self, question: Question) -> int:
        """The missing tokens of an answer, if nothing diverges."""
        return self._seeds_each * self._price_of_one(question)

    def answer(self, question: Question) -> float:
        """The loss, NaN if the run diverged; the missing tokens are charged."""
        if not question.decayed:
            self._train(question.cell, question.repeat, question.tokens)
            return self._trunk_loss(question.cell, question.repeat, question.tokens)
        self.branch(question.tokens)  # refuses budgets that are not there
        if question not in self._answers:
            self._answers[question] = self._train_decay(question.cell, question.repeat, question.tokens)
        return self._answers[question]

    def curve(self, cell: int, repeat: int = 0) -> Trajectory:
        """What was measured along the cell's trunk as far as it was trained: losses, noise, norms."""
        whole, trained = self._landscape.curves[cell], self.trained(cell, repeat)
        kept = whole.tokens <= trained if trained else np.zeros(len(whole.tokens), dtype=bool)
        columns = {name: values[kept] for name, values in whole.columns.items()}
        columns["val_loss"] = columns["val_loss"] + self._shift(cell, repeat, columns["tokens"])
        return Trajectory(columns, whole.info)

    def decayed_losses(self) -> dict[Question, float]:
        """All that was answered about decays."""
        return dict(self._answers)

    @property
    def _seeds_each(self) -> int:
        """That are trained to answer a question."""
        return 1 if self.by_seed else self.num_seeds

    def _price_of_one(self, question: Question) -> int:
        trunk = (question.cell, question.repeat)
        if not question.decayed:
            return self._missing(*trunk, question.tokens)
        branch = self.branch(question.tokens)
        if question in self._answers or self._is_known_to_end_before(*trunk, branch):
            return 0
        if self.can_pause:
            return self._missing(*trunk, branch) + question.tokens - branch
        return question.tokens

    def _charge(self, cell: int, start: int, end: int, repeat: int, decay_to: int | None = None) -> None:
        self.charges.append(Charge(cell, start, end, decay_to, repeat, self._seeds_each))

    def _is_known_to_end_before(self, cell: int, repeat: int, tokens: int) -> bool:
        return self.is_known_to_diverge(cell, repeat) and bool(self._landscape.trunk_ends[cell] <= tokens)

    def _missing(self, cell: int, repeat: int, tokens: int) -> int:
        trained = self.trained(cell, repeat)
        if trained >= tokens or self.is_known_to_diverge(cell, repeat):
            return 0
        return tokens - trained if self.can_pause else tokens

    def _train(self, cell: int, repeat: int, tokens: int, *, anew: bool = False) -> None:
        """Trains the trunk to a position, or to where it diverges."""
        limit = int(self._landscape.trunk_ends[cell])
        if tokens > limit and not self._landscape.has_diverged[cell]:
            raise InputError(f"this trunk has {limit} tokens in the table: ask for no more than that, not {tokens}")
        end, trained = min(tokens, limit), self.trained(cell, repeat)
        if anew or (trained < end and not self.can_pause):
            self._charge(cell, 0, end, repeat)
        elif trained < end:
            self._charge(cell, trained, end, repeat)
        self._trained[cell, repeat] = max(trained, end)

    def _train_decay(self, cell: int, repeat: int, budget: int) -> float:
        column, branch = self._landscape.budgets.index(budget), self.branch(budget)
        if not self._is_known_to_end_before(cell, repeat, branch):
            self._train(cell, repeat, branch, anew=not self.can_pause)
        if self._is_known_to_end_before(cell, repeat, branch):
            return float("nan")
        end = int(self._landscape.decay_ends[cell, column])
        self._charge(cell, branch, end, repeat, decay_to=budget)
        return float(self._losses_of(repeat)[cell, column])

    def _trunk_loss(self, cell: int, repeat: int, tokens: int) -> float:
        if self._is_known_to_end_before(cell, repeat, tokens):
            return float("nan")
        at, losses = self._landscape.curves[cell].measured("val_loss")
        if not len(at) or tokens < at[0]:
            return float("nan")
        return float(np.interp(tokens, at, losses) + self._shift(cell, repeat, np.array([tokens]))[0])

    def _shift(self, cell: int, repeat: int, tokens: np.ndarray) -> np.ndarray:
        shifts = np.nan_to_num(self._losses_of(repeat)[cell] - self._landscape.losses[cell])
        return np.interp(np.log(np.maximum(tokens, 1)), np.log(self._landscape.budgets), shifts)

    def _losses_of(self, repeat: int) -> np.ndarray:
        if repeat not in self._losses:
            of_all = self._seeds_each > 1
            landscape = self._landscape
            self._losses[repeat] = (
                landscape.mean_losses_of(self.seed) if of_all else landscape.losses_of(self.seed, repeat)
            )
        return self._losses[repeat]


def best_of(losses: dict[int, float]) -> int | None:
    """The cell with the lowest loss; None if all diverged or there is none."""
    finite = {cell: loss for cell, loss in losses.items() if np.isfinite(loss)}
    return min(finite, key=lambda cell: finite[cell], default=None)
