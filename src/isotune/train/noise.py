"""Gradient noise of our own runs: from the step's microbatches where it has two or more, else from a probe."""

from __future__ import annotations

import math

import numpy as np

from isotune.corpus import Corpus
from isotune.errors import InputError
from isotune.measure import NoiseMeter, NoiseReading, free_noise, hidden_matrices
from isotune.recipe import Step
from isotune.runs import Evaluation, Row
from isotune.train.trainer import Trainer

# Added to the seed: a probe reads the training text in an order of its own, so the run's own order stays untouched.
PROBE_STREAM = 2**32
LARGEST = float(np.finfo(np.float32).max)


class NoiseObserver:
    """Measures at the study's noise grid, before clipping, with the moments that the gradients have not entered."""

    def __init__(self, trainer: Trainer, corpus: Corpus, plan: Evaluation):
        self.trainer, self.corpus, self.plan = trainer, corpus, plan
        self._meter = NoiseMeter(trainer.model, trainer.optimizer, every_steps=None)
        hidden = hidden_matrices(trainer.model)
        self._hidden = [parameter for name, parameter in trainer.model.named_parameters() if name in hidden]
        if plan.noise_every_tokens and plan.noise_sequences % self._num_probes:
            raise InputError(
                f"noise_sequences={plan.noise_sequences} is not a multiple of {self._num_probes} (two, or the number "
                f"of processes): use {self._num_probes * math.ceil(plan.noise_sequences / self._num_probes)}"
            )

    def is_due(self, step: Step) -> bool:
        return self.plan.noise_is_due(step.tokens_before, step.tokens)

    def before(self, step: Step) -> None:
        """Has the trainer watch this step's microbatches, if it is to be measured and has enough of them."""
        self.trainer.meter = None
        if self.is_due(step) and self._has_microbatches(step):
            self.trainer.meter = self._meter
            self._meter.arm()

    def after(self, step: Step, seed: int) -> Row:
        """The noise columns of this step of a run with this seed; none if it is not due."""
        if not self.is_due(step):
            return {}
        trainer = self.trainer
        reading = trainer.reading if self._has_microbatches(step) else self._probe(step, seed)
        assert reading is not None
        is_of_batch = reading.batch_size == step.batch_size
        columns = reading.columns | {
            "noise_clip_factor": trainer.clip_factor(reading.gradient_norm if is_of_batch else trainer.gradient_norm),
            "root_moment_sum": free_noise(trainer.optimizer, self._hidden),
        }
        # Stored in single precision, where a sum over rows with tiny moments may have no place.
        return {name: np.float32(value) for name, value in columns.items() if abs(value) <= LARGEST}

    def _has_microbatches(self, step: Step) -> bool:
        world = self.trainer.world
        return self.trainer.execution.micro_batches(step.batch_size, world) * world.size >= 2

    def _probe(self, step: Step, seed: int) -> NoiseReading:
        """A reading on fresh sequences: the k-th point of the grid reads the k-th stretch of the probe's stream.

        A batch that is not too large is probed at its own size: a large gradient is the one that is clipped, so noise
        must meet the clip factor of its own batch.
        """
        trainer, size = self.trainer, step.batch_size
        fits = size <= self.plan.noise_sequences and size % self._num_probes == 0
        count = size if fits else self.plan.noise_sequences
        first = step.tokens // self.plan.noise_every_tokens * self.plan.noise_sequences
        length = trainer.setup.sequence_length
        windows = self.corpus.sequences(first, count, sequence_length=length, seed=seed + PROBE_STREAM)
        return trainer.probe(self._meter, windows, micro_batch_size=count // self._num_probes)

    @property
    def _num_probes(self) -> int:
        return max(2, self.trainer.world.size)
