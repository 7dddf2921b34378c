"""Gradient noise in Lightning.

    trainer = Trainer(..., accumulate_grad_batches=2, gradient_clip_val=1.0, callbacks=[NoiseCallback(every_steps=10)])

Lightning runs this callback before it clips. Readings are logged under our names and stay in `callback.readings`.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from isotune.measure import NoiseMeter, NoiseReading


class NoiseCallback(Callback):
    """Measures every n-th optimizer step; one sequence is one row of a batch."""

    def __init__(self, every_steps: int = 10):
        self.every_steps = every_steps
        self.readings: list[tuple[int, NoiseReading]] = []  # (global step, reading)
        self._meter: NoiseMeter | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._meter = NoiseMeter(pl_module, trainer.optimizers[0], every_steps=self.every_steps)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        assert self._meter is not None
        self._meter.microbatch(_num_sequences(batch))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        assert self._meter is not None
        reading = self._meter.measure()
        if reading is not None:
            self.readings.append((trainer.global_step, reading))
            pl_module.log_dict(reading.columns)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._meter is not None:
            self._meter.close()


def _num_sequences(batch: Any) -> int:
    """The number of rows of a batch, whatever it is made of."""
    if isinstance(batch, torch.Tensor):
        return len(batch)
    parts = batch.values() if isinstance(batch, dict) else batch
    return next(_num_sequences(part) for part in parts)
