"""One segment, trained in this process: what a local worker and a Ray task both do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotune.corpus import Corpus, open_corpus
from isotune.errors import InputError
from isotune.recipe import Setup, recipe_from_table, recipe_to_table
from isotune.runs import Segment, Study
from isotune.sweep.outcomes import Outcome, from_error
from isotune.train import Execution, Stopped, Trainer, World
from isotune.train.attempt import AlreadyPublished, Attempt
from isotune.train.loop import train_segment
from isotune.train.measurements import Measurements

SECONDS_BETWEEN_LOOKS = 1.0  # at the stop file


@dataclass(frozen=True)
class Job:
    """What a worker needs to know to train a segment."""

    study_folder: str
    segment: Segment
    execution: Execution
    stop_file: str
    is_repeated: bool = False  # published before; only its final state is wanted
    save_seconds: float = 60.0
    patience_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        segment = {
            "recipe": recipe_to_table(self.segment.recipe),
            "start_tokens": self.segment.start_tokens,
            "corpus_fingerprint": self.segment.corpus_fingerprint,
        }
        return {**vars(self), "segment": segment, "execution": dataclasses.asdict(self.execution)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Job:
        segment = value["segment"]
        recipe = recipe_from_table(segment["recipe"], "the job")
        rebuilt = Segment(recipe, segment["start_tokens"], segment["corpus_fingerprint"])
        return cls(**{**value, "segment": rebuilt, "execution": Execution(**value["execution"])})


class Workbench:
    """What is paid for once in a process and used for many segments: the corpus, the model, its compiled graphs."""

    def __init__(self) -> None:
        self._study: Study | None = None
        self._corpus: Corpus | None = None
        self._key: object = None
        self._trainer: Trainer | None = None
        self._measurements: Measurements | None = None

    def train(self, job: Job, should_stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Trains a segment and publishes it; whatever goes wrong is an outcome."""
        began = time.monotonic()
        try:
            outcome = self._train(job, _Stop(job.stop_file, should_stop), began)
        except Exception as error:
            outcome = from_error(error)
        return dataclasses.replace(outcome, seconds=round(time.monotonic() - began, 3))

    def _train(self, job: Job, should_stop: Callable[[], bool], began: float) -> Outcome:
        study, segment = self._open(job), job.segment
        if is_there(study, segment, job.is_repeated):
            return Outcome("lost", "another driver was faster")
        trainer, measurements, corpus = self._trainer_for(job, study)
        numerics = job.execution.numerics(trainer.world)
        try:
            attempt = Attempt(
                study, segment, trainer, numerics, (), job.save_seconds, patience_seconds=job.patience_seconds
            )
        except AlreadyPublished:
            return Outcome("lost", "it was published meanwhile")
        ready = round(time.monotonic() - began, 3)
        outcome = Outcome("stopped", "as asked")
        try:
            train_segment(attempt, measurements, corpus, should_stop)
            outcome = Outcome("diverged" if attempt.has_diverged else "finished")
            if not attempt.is_published and not job.is_repeated:
                outcome = Outcome("lost", "another driver was faster")
        except Stopped:
            pass
        except Exception as error:
            outcome = from_error(error)
        finally:
            attempt.close()
        return dataclasses.replace(
            outcome,
            trained_tokens=max(0, attempt.reached_tokens - attempt.start_tokens),
            repeated_tokens=attempt.repeated_tokens,
            ready_seconds=ready,
        )

    def _open(self, job: Job) -> Study:
        folder = Path(job.study_folder)
        if self._study is None or self._study.folder != folder:
            self._study = Study.open(folder)
        return self._study

    def _trainer_for(self, job: Job, study: Study) -> tuple[Trainer, Measurements, Corpus]:
        setup = job.segment.recipe.setup
        # Seeds share a trainer, since a state says everything else.
        key = (study.folder, dataclasses.replace(setup, seed=0), job.execution)
        if key != self._key or self._trainer is None or self._measurements is None or self._corpus is None:
            self._corpus = _open_same_corpus(setup, study)
            self._trainer = Trainer(setup, job.execution, World(job.execution.device))
            self._measurements = Measurements(self._trainer, self._corpus, study.evaluation)
            self._key = key
        return self._trainer, self._measurements, self._corpus


def is_there(study: Study, segment: Segment, is_repeated: bool) -> bool:
    """Whether somebody has trained what is wanted of this segment: its rows, or its state again."""
    if is_repeated:
        return study.state_path(segment.end_state).exists()
    return study.has(segment.id)


def _open_same_corpus(setup: Setup, study: Study) -> Corpus:
    corpus = open_corpus(setup.corpus)
    if corpus.fingerprint != study.corpus_fingerprint:
        raise InputError(
            f"the corpus {setup.corpus} of this process is not that of the study {study.folder}: give all machines "
            f"the same files and versions"
        )
    return corpus


class _Stop:
    """Asks the caller at every look, the disk at most once a second."""

    def __init__(self, stop_file: str, should_stop: Callable[[], bool]):
        self._stop_file, self._should_stop = Path(stop_file), should_stop
        self._looked_at = -float("inf")

    def __call__(self) -> bool:
        if self._should_stop():
            return True
        if time.monotonic() - self._looked_at < SECONDS_BETWEEN_LOOKS:
            return False
        self._looked_at = time.monotonic()
        return self._stop_file.exists()
