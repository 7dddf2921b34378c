"""Questions answered from a replay table: how a tuning would have gone, in seconds and without torch.

A family of a table is asked: the trunks of one setup and batch size, and their decays of one length. What was asked is
remembered in memory alone, so that every replay begins anew. A question costs the tokens that training would have
lacked: trunks are shared, and their states are kept where the table's decays leave them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from isotune.errors import InputError
from isotune.objectives.trunks import until
from isotune.recipe import format_number, format_tokens
from isotune.runs.tables.contents import DecayRecord, RunRecord
from isotune.runs.tables.reader import Table, read_table
from isotune.runs.words import describe_history
from isotune.tune.questions import MIN_DECAYS_PER_RUNG, Answer, Goal, Question, Space
from isotune.tune.readings import Trunk

Cell = tuple[float, float]  # LR, WD
NEAR_BEST = 0.05  # in log loss: far from the best runs scatter more, which says nothing about them


class TableObjective:
    """Answers as a table's runs ended; a question that the table does not have is refused."""

    def __init__(
        self,
        table: Table | str | Path,
        *,
        batch_size: int | None = None,
        root: str | None = None,
        seed: int = 0,
        num_parallel: int = 1,
    ):
        self.table = table if isinstance(table, Table) else read_table(table)
        self.num_parallel, self.seed = num_parallel, seed
        plain = _of_root(self.table, [run for run in self.table.runs() if _is_plain_trunk(run, self.table)], root)
        self.batch_size = _one_batch_size(self.table, plain, batch_size)
        trunks = [run for run in plain if run.batch_size == self.batch_size and run.seed == seed]
        if not trunks:
            raise InputError(f"{self.table.folder} has no trunks of seed {seed}: take seed 0")
        self.tokens_per_step = trunks[0].batch_size * trunks[0].sequence_length
        self.decay_tokens = _usual_length(self.table, trunks)
        self._trunks = {(run.learning_rate, run.weight_decay): run for run in trunks}
        self._decays = {cell: self._decays_of(run) for cell, run in self._trunks.items()}
        self._answers: dict[Question, Answer] = {}
        self._trained: dict[Cell, int] = {}  # how far each trunk was trained
        self._spent = 0

    @property
    def budgets(self) -> list[int]:
        """Where decays end."""
        return sorted({tokens for decays in self._decays.values() for tokens in decays})

    def cells(self, tokens: int) -> list[Cell]:
        """(LR, WD) of which the table tells how a run of so many tokens ends."""
        return sorted(cell for cell in self._trunks if self._has(cell, tokens))

    def goal(self, tokens: int, *, tolerance: float) -> Goal:
        """One of the table's budgets, tuned over the cells that it knows there and below."""
        if tokens not in self.budgets:
            known = ", ".join(f"{budget} ({format_tokens(budget)})" for budget in self.budgets)
            raise InputError(f"the table has no decays that end at {tokens} tokens: take --tokens {known}")
        shorter = [rung for rung in self.budgets if MIN_DECAYS_PER_RUNG * self.decay_tokens <= rung < tokens]
        rungs = [rung for rung in shorter if set(self.cells(tokens)) <= set(self.cells(rung))]
        return Goal(
            tokens=tokens,
            space=Space(only=tuple(self.cells(tokens))),
            rungs=(*rungs, tokens),
            decay_tokens=self.decay_tokens,
            tokens_per_step=self.tokens_per_step,
            seeds=(self.seed,),
            tolerance=tolerance,
        )

    def nearest(self, question: Question) -> Question:
        """The question of this table that is nearest in log LR, log WD and log tokens."""
        tokens = min(self.budgets, key=lambda budget: abs(math.log2(budget / question.tokens)))
        lr, wd = min(
            self.cells(tokens),
            key=lambda cell: math.hypot(
                math.log2(cell[0] / question.learning_rate), math.log2(cell[1] / question.weight_decay)
            ),
        )
        return Question(lr, wd, tokens, self.seed)

    def losses(self, tokens: int) -> dict[Cell, float]:
        """What the table says of every cell at a budget; NaN where it diverged."""
        return {cell: self._loss(cell, tokens) for cell in self.cells(tokens)}

    def seed_scatter(self, tokens: int) -> float | None:
        """Standard deviation of a good loss over seeds, relative, from cells with several; None where there are none.

        What a seed does to all cells alike is left out: it does not change which is best.
        """
        losses: dict[int, dict[Cell, float]] = {}
        for run in self._siblings():
            for decay in self.table.decays(run.run):
                if (decay.tokens, decay.decay_tokens) == (tokens, self.decay_tokens) and decay.final_val_loss:
                    cell = (run.learning_rate, run.weight_decay)
                    losses.setdefault(run.seed, {})[cell] = math.log(decay.final_val_loss)
        here = losses.pop(self.seed, {})
        lowest = min(here.values(), default=0.0)
        here = {cell: loss for cell, loss in here.items() if loss <= lowest + NEAR_BEST}
        square_sum, num_free = 0.0, 0
        for others in losses.values():
            differences = [loss - here[cell] for cell, loss in others.items() if cell in here]
            if len(differences) > 1:
                mean = sum(differences) / len(differences)
                square_sum += sum((difference - mean) ** 2 for difference in differences)
                num_free += len(differences) - 1
        return math.sqrt(square_sum / num_free / 2) if num_free else None  # of a difference: two runs scatter

    # What a tuner asks

    def answers(self) -> list[Answer]:
        return list(self._answers.values())

    def prices(self, questions: Sequence[Question]) -> list[int]:
        return [0 if question in self._answers else self._price(question) for question in questions]

    def spent_tokens(self) -> int:
        return self._spent

    def trunks(self) -> list[Trunk]:
        return [
            Trunk(*cell, until(self.table.trajectory(self._trunks[cell].run), tokens), self.seed)
            for cell, tokens in self._trained.items()
        ]

    def ask(self, questions: Sequence[Question]) -> None:
        for question in questions:
            if question not in self._answers:
                self._answers[question] = self._answer(question)

    def _answer(self, question: Question) -> Answer:
        cell = self._cell(question)
        end = self._diverges_at(cell)
        branch = question.tokens - self.decay_tokens
        trunk_end = branch if end is None else min(branch, end)
        self._spent += max(0, trunk_end - self._trained.get(cell, 0))
        self._trained[cell] = max(trunk_end, self._trained.get(cell, 0))
        loss = self._loss(cell, question.tokens)
        decay = self._decays[cell].get(question.tokens)
        if end is None or end > branch:
            self._spent += (question.tokens if decay is None else decay.end_tokens) - branch
        return Answer(question, loss, "finished" if math.isfinite(loss) else "diverged")

    def _price(self, question: Question) -> int:
        """If nothing diverges: nobody knows before it is tried, but then it costs nothing more."""
        cell = self._cell(question)
        end, trained = self._diverges_at(cell), self._trained.get(cell, 0)
        branch = question.tokens - self.decay_tokens
        if end is not None and end <= min(trained, branch):
            return 0
        return max(0, branch - trained) + self.decay_tokens

    # The table

    def _cell(self, question: Question) -> Cell:
        cell = (question.learning_rate, question.weight_decay)
        if question.seed != self.seed or not self._has(cell, question.tokens):
            lr, wd = map(format_number, cell)
            raise InputError(
                f"{self.table.folder} has no run with LR {lr}, WD {wd} and seed {question.seed} that ends at "
                f"{question.tokens} tokens: ask one of its cells, or the nearest()"
            )
        return cell

    def _has(self, cell: Cell, tokens: int) -> bool:
        if cell not in self._trunks:
            return False
        decay, end = self._decays[cell].get(tokens), self._diverges_at(cell)
        if decay is None:  # a trunk that diverged has no decays behind
            return end is not None and end <= tokens - self.decay_tokens
        return decay.status == "diverged" or decay.final_val_loss is not None

    def _loss(self, cell: Cell, tokens: int) -> float:
        decay = self._decays[cell].get(tokens)
        return math.nan if decay is None or decay.final_val_loss is None else decay.final_val_loss

    def _diverges_at(self, cell: Cell) -> int | None:
        return self._trunks[cell].diverged_at_tokens

    def _siblings(self) -> list[RunRecord]:
        """The family's trunks of all seeds."""
        root = next(iter(self._trunks.values())).root
        family = [run for run in self.table.runs() if (run.root, run.batch_size) == (root, self.batch_size)]
        return [run for run in family if _is_plain_trunk(run, self.table)]

    def _decays_of(self, run: RunRecord) -> dict[int, DecayRecord]:
        return {decay.tokens: decay for decay in self.table.decays(run.run) if decay.decay_tokens == self.decay_tokens}


def _is_plain_trunk(run: RunRecord, table: Table) -> bool:
    """Whether LR, WD and batch size are the same from the warm-up on, and the start is no perturbed twin."""
    return run.kind == "trunk" and not run.init_perturbation and not describe_history(table.recipe(run.run))


def _of_root(table: Table, runs: Sequence[RunRecord], root: str | None) -> list[RunRecord]:
    roots = sorted({run.root for run in runs})
    if not roots:
        raise InputError(f"{table.folder} has no trunks with decays: replay a table of WSD runs")
    if root is None and len(roots) > 1:
        raise InputError(f"{table.folder} holds {len(roots)} setups: say root=, one of {', '.join(roots)}")
    if root is not None and root not in roots:
        raise InputError(f"{table.folder} has no root {root!r}: take one of {', '.join(roots)}")
    return [run for run in runs if run.root == (root or roots[0])]


def _one_batch_size(table: Table, runs: Iterable[RunRecord], asked: int | None) -> int:
    known = sorted({run.batch_size for run in runs})
    listed = ", ".join(map(str, known))
    if asked is None and len(known) > 1:
        raise InputError(f"{table.folder} has several batch sizes: say --batch-size, one of {listed}")
    if asked is not None and asked not in known:
        raise InputError(f"{table.folder} has no batch size {asked}: take one of {listed}")
    return known[0] if asked is None else asked


def _usual_length(table: Table, trunks: Iterable[RunRecord]) -> int:
    lengths = Counter(decay.decay_tokens for run in trunks for decay in table.decays(run.run))
    if not lengths:
        raise InputError(f"{table.folder} has trunks without decays: replay a table of WSD runs")
    return lengths.most_common(1)[0][0]
