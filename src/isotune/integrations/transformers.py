"""Gradient noise in Hugging Face's `Trainer`.

    trainer = Trainer(..., args=TrainingArguments(max_grad_norm=0, gradient_accumulation_steps=2, ...),
                      callbacks=[NoiseCallback(every_steps=10, clip_norm=1.0)])

`Trainer` clips before its callbacks see the gradient, and noise must be measured before. So the callback clips, after
measuring, and `max_grad_norm` is 0. Readings go into the trainer's logs, under our names, and stay in
`callback.readings`.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from isotune.errors import InputError
from isotune.measure import NoiseMeter, NoiseReading


class NoiseCallback(TrainerCallback):
    """Measures every n-th optimizer step; one sequence is one row of the trainer's batches."""

    def __init__(self, every_steps: int = 10, clip_norm: float = 1.0):
        self.every_steps, self.clip_norm = every_steps, clip_norm
        self.readings: list[tuple[int, NoiseReading, float]] = []  # (global step, reading, clip factor)
        self._meter: NoiseMeter | None = None
        self._unlogged: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if args.max_grad_norm:
            raise InputError(
                f"max_grad_norm={args.max_grad_norm}: the trainer would clip before the noise is measured: set it to 0 "
                f"and use NoiseCallback(clip_norm={args.max_grad_norm}), which clips after measuring"
            )
        self._meter = NoiseMeter(
            parts["model"],
            _innermost(parts["optimizer"]),
            micro_batch_size=args.per_device_train_batch_size,
            every_steps=self.every_steps,
        )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        assert self._meter is not None
        reading = self._meter.measure()
        norm = float(nn.utils.clip_grad_norm_(self._meter.parameters, self.clip_norm or math.inf))
        if reading is not None:
            factor = min(1.0, self.clip_norm / (norm + 1e-6)) if self.clip_norm else 1.0
            self.readings.append((state.global_step, reading, factor))
            self._unlogged = reading.columns | {"clip_factor": factor}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        if logs is not None:
            logs.update(self._unlogged)
            self._unlogged = {}

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if self._meter is not None:
            self._meter.close()


def _innermost(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's wrapper."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
