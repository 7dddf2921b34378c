"""How fast this machine trains a model: measured on a few steps, for estimates."""

from __future__ import annotations

import time

import numpy as np

from isotune.errors import InputError
from isotune.recipe import Recipe, Step
from isotune.train.execution import Execution, World
from isotune.train.trainer import Trainer

SECONDS = 2.0
LARGEST_STEP_FLOPS = 2e11  # a few seconds on one core


def seconds_per_token(recipe: Recipe, execution: Execution | None = None) -> float:
    """Seconds of training per token of this recipe's main phase; a large batch is measured by a part of it."""
    setup = recipe.setup
    flops = setup.model.flops_per_token(setup.sequence_length) * setup.sequence_length
    if flops > LARGEST_STEP_FLOPS:
        raise InputError(
            f"one sequence takes {flops:.2g} FLOPs, too many to try here: time a step where you will train"
        )
    batch_size = max(1, min(recipe.batch_size, int(LARGEST_STEP_FLOPS / flops)))
    trainer = Trainer(setup, execution or Execution(), World())
    trainer.start(setup.seed)
    windows = np.zeros((batch_size, setup.sequence_length + 1), dtype=np.int64)
    step = Step(0, batch_size * setup.sequence_length, 0.0, 0.0, batch_size)
    trainer.step(windows, step)  # the first one allocates
    num_steps, began = 0, time.perf_counter()
    while num_steps < 3 or time.perf_counter() - began < SECONDS:
        float(trainer.step(windows, step)[0])
        num_steps += 1
    return (time.perf_counter() - began) / (num_steps * step.tokens)
