"""Questions answered by training: every question is a WSD recipe of one study, so that trunks are shared.

The study is the memory: answers are read from it, and a question costs what it lacks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from isotune.errors import InputError
from isotune.objectives.trunks import until
from isotune.recipe import Recipe, falling_tokens, wsd
from isotune.runs import Evaluation, Study
from isotune.runs.study import SegmentRecord
from isotune.runs.tables.prefixes import warmup_tokens
from isotune.sweep.driver import Limits, Progress
from isotune.sweep.executors import Executor
from isotune.sweep.outcomes import Outcome
from isotune.sweep.plan import make_plan
from isotune.sweep.plans import planned_recipes
from isotune.sweep.run import MakeExecutor, local_workers, run_sweep
from isotune.sweep.training import Job
from isotune.train import Execution
from isotune.tune.questions import MAX_SEEDS, Answer, Goal, Question, Space, make_rungs
from isotune.tune.readings import Trunk


class TrainerObjective:
    """Trains what a tuner asks for; use it in a `with` statement, which keeps its workers from round to round."""

    def __init__(
        self,
        recipe: Recipe,
        study_folder: str | Path,
        *,
        num_parallel: int,
        execution: Execution | None = None,
        evaluation: Evaluation | Mapping[str, int] | None = None,
        make_executor: MakeExecutor | None = None,
        limits: Limits | None = None,
        allow_mixed_numerics: bool = False,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self.recipe, self.folder, self.num_parallel = recipe, Path(study_folder), num_parallel
        self.execution, self.evaluation = execution or Execution(), evaluation
        self.decay_tokens, self.warmup_tokens = falling_tokens(recipe), warmup_tokens(recipe)
        if not self.decay_tokens or self._asked_by(recipe) is None:
            raise InputError(
                "tuning trains WSD recipes (warm-up, constant LR, decay to zero): give one, such as nano-wsd"
            )
        self._limits, self._allow_mixed_numerics = limits, allow_mixed_numerics
        self._on_progress, self._should_stop = on_progress, should_stop
        self._make_executor = make_executor or local_workers(num_parallel)
        self._executor: _Kept | None = None
        self._stack = contextlib.ExitStack()
        self._opened: Study | None = None
        self._known: dict[Recipe, Answer] = {}
        self._read_trunks: dict[Question, Trunk] = {}
        self.failures: list[str] = []  # what went wrong, in words

    def __enter__(self) -> TrainerObjective:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends its workers."""
        self._stack.close()

    def goal(self, space: Space, *, tolerance: float, num_seeds: int = MAX_SEEDS) -> Goal:
        """The recipe's own budget, tuned over this space; seeds count from the recipe's."""
        first = self.recipe.setup.seed
        step = self.recipe.batch_size * self.recipe.setup.sequence_length
        rungs = make_rungs(self.recipe.tokens, self.decay_tokens + self.warmup_tokens)
        return Goal(
            tokens=self.recipe.tokens,
            space=space,
            rungs=tuple(rung // step * step for rung in rungs),
            decay_tokens=self.decay_tokens,
            tokens_per_step=step,
            seeds=tuple(range(first, first + num_seeds)),
            tolerance=tolerance,
        )

    def recipe_of(self, question: Question) -> Recipe:
        """The run that answers a question."""
        return wsd(
            replace(self.recipe.setup, seed=question.seed),
            tokens=question.tokens,
            learning_rate=question.learning_rate,
            weight_decay=question.weight_decay,
            batch_size=self.recipe.batch_size,
            warmup_tokens=self.warmup_tokens,
            decay_tokens=self.decay_tokens,
        )

    def answers(self) -> list[Answer]:
        study = self._study()
        if study is None:
            return []
        # A trunk that diverged is no recipe of a question: that one was asked is known from the plans.
        for recipe in dict.fromkeys((*planned_recipes(study), *study.recipes())):
            question = None if recipe in self._known else self._asked_by(recipe)
            answer = None if question is None else _read(study, recipe, question)
            if answer is not None:
                self._known[recipe] = answer
        return list(self._known.values())

    def prices(self, questions: Sequence[Question]) -> list[int]:
        study = self._study()
        recipes = study.recipes() if study else ()
        begun = {(recipe.learning_rate, recipe.weight_decay, recipe.setup.seed) for recipe in recipes}
        return [
            make_plan([self.recipe_of(question)], study).price.to_train
            if (question.learning_rate, question.weight_decay, question.seed) in begun
            else question.tokens
            for question in questions
        ]

    def spent_tokens(self) -> int:
        study = self._study()
        return sum(_length(record) for record in study.records()) if study else 0

    def trunks(self) -> list[Trunk]:
        # Only as far as answers need them: a kill may leave a trunk whose decay is still to come, and what is asked
        # next must not depend on that.
        longest: dict[tuple[float, float, int], Question] = {}
        for question in (answer.question for answer in self.answers() if not answer.has_diverged):
            cell = (question.learning_rate, question.weight_decay, question.seed)
            if cell not in longest or longest[cell].tokens < question.tokens:
                longest[cell] = question
        return [self._trunk(question) for question in longest.values()]

    def last_failure(self) -> str:
        """Why the last run that failed did; nothing if none did."""
        return self.failures[-1] if self.failures else ""

    def ask(self, questions: Sequence[Question]) -> None:
        result = run_sweep(
            [self.recipe_of(question) for question in questions],
            self.folder,
            execution=self.execution,
            evaluation=self.evaluation,
            make_executor=self._kept_executor,
            limits=self._limits,
            allow_mixed_numerics=self._allow_mixed_numerics,
            on_progress=self._on_progress,
            should_stop=self._should_stop,
        )
        self.failures += [f"{words}: {reason}" for words, reason in result.problems]
        if result.stopped and not self._should_stop():
            self.failures.append(result.stopped)

    def _trunk(self, question: Question) -> Trunk:
        if question not in self._read_trunks:
            assert self._opened is not None
            curve = until(self._opened.trajectory(self.recipe_of(question)), question.tokens - self.decay_tokens)
            self._read_trunks[question] = Trunk(question.learning_rate, question.weight_decay, curve, question.seed)
        return self._read_trunks[question]

    def _asked_by(self, recipe: Recipe) -> Question | None:
        """The question that this run answers, if it does: a study also holds trunks, and what a kill has left."""
        if recipe.tokens < self.warmup_tokens + self.decay_tokens:
            return None
        question = Question(recipe.learning_rate, recipe.weight_decay, recipe.tokens, recipe.setup.seed)
        return question if self.recipe_of(question) == recipe else None

    def _study(self) -> Study | None:
        if self._opened is None and (self.folder / "study.json").exists():
            self._opened = Study.open(self.folder)
        return self._opened

    def _kept_executor(self, study: Study, execution: Execution, driver: str) -> Executor:
        if self._executor is None:
            self._executor = _Kept(self._make_executor(study, execution, driver))
            self._stack.callback(self._executor.executor.close)
        return self._executor


class _Kept:
    """An executor that outlives the sweeps which use it: its processes have imported and compiled already."""

    def __init__(self, executor: Executor):
        self.executor = executor

    def num_free(self) -> int:
        return self.executor.num_free()

    def submit(self, key: str, job: Job) -> None:
        self.executor.submit(key, job)

    def poll(self, seconds: float) -> list[tuple[str, Outcome]]:
        return self.executor.poll(seconds)

    def kill(self, key: str) -> None:
        self.executor.kill(key)

    def problem(self) -> str:
        return self.executor.problem()

    def close(self) -> None:
        """Nothing: the objective closes it."""


def _length(record: SegmentRecord) -> int:
    end = record.segment.end_tokens if record.diverged_at_tokens is None else record.diverged_at_tokens
    return end - record.segment.start_tokens


def _read(study: Study, recipe: Recipe, question: Question) -> Answer | None:
    trajectory = study.trajectory(recipe)
    if trajectory.info.status == "diverged":
        return Answer(question, math.nan, "diverged")
    if trajectory.info.status != "finished":
        return None
    losses = [trajectory.last(name) for name in ("final_val_loss", "val_loss")]
    measured = [loss for loss in losses if math.isfinite(loss)]
    if not measured:
        raise InputError(
            f"the runs in {study.folder} were not evaluated, so that nothing tells which is best: use another --study "
            "folder and leave --eval-every out"
        )
    return Answer(question, measured[0])
