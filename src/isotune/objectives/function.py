"""Questions answered by a Python function: `train(learning_rate, weight_decay, tokens, seed) -> loss`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isotune.objectives.journal import NOT_POSITIVE, Entry, Journal
from isotune.tune.questions import Answer, Question
from isotune.tune.readings import Trunk

Train = Callable[..., float]


class FunctionObjective:
    """Calls a function for every question; NaN or infinity is a run that diverged, an exception one that failed.

    With a journal (a file) a tuning goes on where it was. WD is coupled (w *= 1 - LR * WD); a function whose optimizer
    decays by WD alone multiplies it with LR itself.
    """

    num_parallel = 1

    def __init__(self, train: Train, journal: str | Path | None = None):
        self._train = train
        self._journal = Journal(None if journal is None else Path(journal))

    @property
    def entries(self) -> list[Entry]:
        """Everything that was tried, failures too."""
        return list(self._journal.entries)

    def answers(self) -> list[Answer]:
        return self._journal.answers()

    def failed(self) -> list[Question]:
        """What was asked in vain, by earlier calls too."""
        return self._journal.failed()

    def last_failure(self) -> str:
        """Why the last of these failed."""
        return self._journal.last_failure()

    def prices(self, questions: Sequence[Question]) -> list[int]:
        return [question.tokens for question in questions]

    def spent_tokens(self) -> int:
        return self._journal.spent_tokens()

    def trunks(self) -> list[Trunk]:
        return []

    def ask(self, questions: Sequence[Question]) -> None:
        for question in questions:
            self._journal.add(self._entry(question))

    def _entry(self, question: Question) -> Entry:
        began = time.monotonic()
        try:
            loss = float(
                self._train(
                    learning_rate=question.learning_rate,
                    weight_decay=question.weight_decay,
                    tokens=question.tokens,
                    seed=question.seed,
                )
            )
        except Exception as error:  # whatever a user's code raises is its answer
            return Entry(
                question, "failed", seconds=time.monotonic() - began, reason=f"{type(error).__name__}: {error}"
            )
        seconds = time.monotonic() - began
        if not math.isfinite(loss):
            return Entry(question, "diverged", loss, seconds)
        if loss <= 0:
            return Entry(question, "failed", seconds=seconds, reason=f"a loss of {loss:g}: {NOT_POSITIVE}")
        return Entry(question, "finished", loss, seconds)
