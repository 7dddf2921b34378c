"""Segment -> trajectory: the training loop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from isotune.corpus import Corpus, open_corpus
from isotune.errors import InputError
from isotune.recipe import Recipe, Setup
from isotune.runs import Evaluation, Segment, Study, Trajectory, octaves
from isotune.train.attempt import AlreadyPublished, Attempt, Observer
from isotune.train.execution import Execution, World
from isotune.train.hold import tidy
from isotune.train.measurements import Measurements, make_plan
from isotune.train.trainer import Trainer


class Stopped(Exception):
    """Training was asked to stop, saved its state, and can be continued."""


def train(
    recipe: Recipe,
    study_folder: str | Path,
    *,
    execution: Execution | None = None,
    evaluation: Evaluation | Mapping[str, int] | None = None,
    observers: Sequence[Observer] = (),
    on_plan: Callable[[Study, list[Segment]], None] = lambda study, segments: None,
    save_seconds: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
    should_stop: Callable[[], bool] = lambda: False,
    allow_mixed_numerics: bool = False,
) -> Trajectory:
    """The recipe's trajectory; trains what the study lacks of it.

    Repeating a call that was killed continues it; a recipe that shares a prefix with another trains only the rest.
    `evaluation` is a whole plan, or some of its fields, the others as in the study or by default.
    """
    execution = execution or Execution()
    world = World(execution.device)
    corpus = open_corpus(recipe.setup.corpus)
    require_fit(recipe, corpus, execution, world)
    study = world.agreed(
        open_study(Path(study_folder), recipe.setup, corpus, evaluation, execution, world, allow_mixed_numerics)
        if world.is_first
        else None
    )
    segments = world.agreed(study.missing(recipe) if world.is_first else None)
    on_plan(study, segments)
    if segments:
        trainer = Trainer(recipe.setup, execution, world)
        measurements = Measurements(trainer, corpus, study.evaluation)
    while segments:
        with suppress(AlreadyPublished):
            attempt = Attempt(study, segments[0], trainer, execution.numerics(world), observers, save_seconds, clock)
            try:
                train_segment(attempt, measurements, corpus, should_stop)
            finally:
                attempt.close()
        # Asked again after each one: another process may have trained the next, and after a divergence none is left.
        segments = world.agreed(study.missing(recipe) if world.is_first else None)
    return study.trajectory(recipe)


def train_segment(
    attempt: Attempt, measurements: Measurements, corpus: Corpus, should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Trains one segment from where its attempt stands, and publishes it."""
    trainer, segment, setup = attempt.trainer, attempt.segment, attempt.segment.recipe.setup
    length, seed = setup.sequence_length, setup.seed
    kept = {tokens for tokens in octaves(segment.recipe) if tokens < segment.end_tokens}
    if attempt.start_tokens == 0:
        attempt.write_start(measurements.at_start())
    for step in segment.recipe.steps(attempt.start_tokens, segment.end_tokens):
        windows = corpus.sequences(step.tokens_before // length, step.batch_size, sequence_length=length, seed=seed)
        measurements.before(step)
        attempt.add(step, trainer.step(windows, step))
        is_end = step.tokens == segment.end_tokens
        is_due = measurements.are_due(step, segment) or step.tokens in kept
        if not (attempt.wants_rows or is_due or is_end):
            continue
        attempt.collect()
        if not attempt.has_diverged:
            attempt.write(measurements.after(step, segment))
        if attempt.has_diverged or is_end:
            break
        if step.tokens in kept:
            attempt.keep_state(step.tokens)
        attempt.save_if_due(step.tokens)
        if trainer.world.agreed(should_stop()):
            attempt.save(step.tokens)
            raise Stopped(f"stopped at {step.tokens} of {segment.end_tokens} tokens")
    attempt.finish()


def open_study(
    folder: Path,
    setup: Setup,
    corpus: Corpus,
    evaluation: Evaluation | Mapping[str, int] | None,
    execution: Execution,
    world: World,
    allow_mixed_numerics: bool,
) -> Study:
    """The study in this folder, made if there is none; refused if its runs and this one do not belong together."""
    numerics = execution.numerics(world)
    asked = dataclasses.asdict(evaluation) if isinstance(evaluation, Evaluation) else dict(evaluation or {})
    if (folder / "study.json").exists():
        study = Study.open(folder)
    elif Study.may_begin_in(folder):
        plan = make_plan(asked, corpus, setup.sequence_length)
        study = Study.create(folder, setup, corpus.name, corpus.fingerprint, plan, numerics)
    else:
        raise InputError(f"{folder} exists and is not a study: give an empty or new folder with --study")
    study.require_root(setup, corpus.fingerprint)
    for name, value in asked.items():
        if value != getattr(study.evaluation, name):
            raise InputError(
                f"the study {folder} measures with {name}={getattr(study.evaluation, name)}, not {value}: leave out "
                f"the --eval and --noise options, or use another --study"
            )
    if numerics != study.numerics and not allow_mixed_numerics:
        names = [name for name in vars(numerics) if getattr(numerics, name) != getattr(study.numerics, name)]
        there = ", ".join(f"{name}={getattr(study.numerics, name)}" for name in names)
        here = ", ".join(f"{name}={getattr(numerics, name)}" for name in names)
        raise InputError(
            f"the study {folder} was trained with {there}, this run has {here}, and their bytes may differ: use "
            f"the same, another --study, or --allow-mixed-numerics"
        )
    tidy(study)
    return study


def require_fit(recipe: Recipe, corpus: Corpus, execution: Execution, world: World) -> None:
    """Refuses, before anything is trained, what could only fail later."""
    setup = recipe.setup
    if corpus.vocabulary_size > setup.model.vocabulary_size:
        raise InputError(
            f"corpus {corpus.name} has {corpus.vocabulary_size} kinds of tokens, the model knows "
            f"{setup.model.vocabulary_size}: set model.vocabulary_size to at least {corpus.vocabulary_size}"
        )
    corpus.require(recipe.tokens, sequence_length=setup.sequence_length, max_epochs=setup.max_epochs)
    for phase in recipe.phases:
        execution.micro_batches(phase.batch_size, world)
