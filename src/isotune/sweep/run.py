"""A sweep from its recipes to its result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isotune.corpus import open_corpus
from isotune.errors import InputError
from isotune.recipe import Recipe
from isotune.runs import Evaluation, Study
from isotune.sweep.claims import STALE_SECONDS, Claims, require_stale_seconds
from isotune.sweep.driver import Driver, Limits, Progress, SweepResult
from isotune.sweep.executors import Executor, Idle
from isotune.sweep.local import LocalExecutor
from isotune.sweep.plan import Plan, make_plan
from isotune.sweep.plans import remember
from isotune.train import Execution, World
from isotune.train.hold import tidy
from isotune.train.loop import open_study, require_fit

MakeExecutor = Callable[[Study, Execution, str], Executor]


def run_sweep(
    recipes: Sequence[Recipe],
    study_folder: str | Path,
    *,
    execution: Execution | None = None,
    evaluation: Evaluation | Mapping[str, int] | None = None,
    make_executor: MakeExecutor | None = None,
    limits: Limits | None = None,
    stale_seconds: float = STALE_SECONDS,
    is_in_table: Callable[[Recipe], bool] = lambda recipe: False,
    allow_mixed_numerics: bool = False,
    on_plan: Callable[[Study, Plan], None] = lambda study, plan: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepResult:
    """Trains what the study lacks of these recipes, each shared prefix once.

    Repeating a call that was killed continues it; several at once, also on several machines, share the work.
    """
    require_stale_seconds(stale_seconds)  # before anything is written
    execution = execution or Execution()
    study = open_for_sweep(recipes, Path(study_folder), execution, evaluation, allow_mixed_numerics)
    plan = make_plan(recipes, study, is_in_table)
    remember(study, plan.recipes)
    on_plan(study, plan)
    with contextlib.ExitStack() as stack:
        claims = stack.enter_context(contextlib.closing(Claims(study.folder, stale_seconds=stale_seconds)))
        executor: Executor = Idle()
        if plan.missing:
            executor = (make_executor or local_workers())(study, execution, claims.driver)
            stack.callback(executor.close)
        result = Driver(study, plan, executor, claims, execution, limits or Limits()).run(should_stop, on_progress)
    tidy(study)  # what a worker of ours gave up, because another driver had taken it over
    return result


def local_workers(num_workers: int | None = None) -> MakeExecutor:
    """Workers on this machine: as many as asked for, else one per GPU or per core."""

    def make(study: Study, execution: Execution, driver: str) -> Executor:
        gpus = list(range(_num_gpus())) if execution.device == "cuda" else []
        count = num_workers or len(gpus) or max(1, num_cores() // execution.threads)
        return LocalExecutor(count, study.folder / "drivers", log_name=driver, threads=execution.threads, gpus=gpus)

    return make


def open_for_sweep(
    recipes: Sequence[Recipe],
    folder: Path,
    execution: Execution,
    evaluation: Evaluation | Mapping[str, int] | None,
    allow_mixed_numerics: bool = False,
) -> Study:
    """The study of a sweep, after everything that could only fail later was looked at."""
    if not recipes:
        raise InputError("a sweep needs at least one recipe: widen the grid")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("a sweep trains each segment in one process: start it without torchrun")
    world = World(execution.device)
    corpus = open_corpus(recipes[0].setup.corpus)
    for recipe in recipes:
        require_fit(recipe, corpus, execution, world)
    return open_study(folder, recipes[0].setup, corpus, evaluation, execution, world, allow_mixed_numerics)


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()
