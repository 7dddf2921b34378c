"""A model and its optimizer on a device: built and compiled once, then moved from state to state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from isotune.errors import InputError
from isotune.measure import NoiseMeter, NoiseReading
from isotune.model import Transformer
from isotune.recipe import Setup, Step
from isotune.train.execution import Execution, World
from isotune.train.state import load_state, save_state

# What torch adds to the norm when it clips (torch.nn.utils.clip_grad_norm_), so that 0 does not divide.
CLIP_EPSILON = 1e-6
EVALUATION_BATCH = 16  # windows at once; the fastest of 4, 16 and 64 on a CPU core


class Trainer:
    """Takes optimizer steps and evaluates; knows nothing of studies, schedules or files' places."""

    def __init__(self, setup: Setup, execution: Execution, world: World):
        torch.set_num_threads(execution.threads)
        if execution.device == "cuda":
            torch.use_deterministic_algorithms(True, warn_only=True)
        self.setup, self.execution, self.world = setup, execution, world
        self.device = torch.device(execution.device)
        self.model = Transformer(setup.model, setup.sequence_length).to(self.device)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, setup)
        self.meter: NoiseMeter | None = None  # watches the microbatches of the next step
        self.reading: NoiseReading | None = None  # what it saw at the last one
        self.gradient_norm = torch.zeros(())  # of the last step, before clipping
        self._loss = self._compiled(_TrainingLoss(self.model, setup.precision))
        self._evaluate = self._compiled(_SequenceLosses(self.model, setup.precision))

    def start(self, seed: int) -> None:
        """Goes to the beginning: fresh weights, empty moments."""
        self.model.initialize(self.setup.init, seed)
        for state in self.optimizer.state.values():
            for tensor in state.values():
                tensor.zero_()

    def load(self, path: Path) -> None:
        load_state(path, self.model, self.optimizer)

    def save(self, path: Path, tokens: int, num_steps: int) -> None:
        save_state(path, self.model, self.optimizer, tokens, num_steps)

    def step(self, windows: np.ndarray, step: Step) -> Tensor:
        """One step of AdamW on these sequences: [loss, gradient norm before clipping, clip factor], on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = step.learning_rate
            group["weight_decay"] = step.weight_decay if group["decays"] else 0.0
        micro_batches = self._to_device(windows[self.world.share(len(windows))]).chunk(
            self.execution.micro_batches(len(windows), self.world)
        )
        loss = torch.zeros((), device=self.device)
        for micro_batch in micro_batches:
            if self.meter is not None:
                self.meter.microbatch(len(micro_batch))
            part = self._loss(micro_batch) / len(micro_batches)
            part.backward()
            loss += part.detach()
        self.world.average_gradients(self.parameters)
        self.reading = None if self.meter is None else self.meter.measure()
        norm = self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters, self.setup.optimizer.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack((loss, norm, self._clip_factors(norm)))

    def clip_factor(self, gradient_norm: float | Tensor) -> float:
        """What a gradient of this norm is multiplied with."""
        return float(self._clip_factors(torch.as_tensor(gradient_norm)))

    def probe(self, meter: NoiseMeter, windows: np.ndarray, micro_batch_size: int) -> NoiseReading:
        """The noise of these sequences' gradients; the state stays as it is."""
        part = self._to_device(windows[self.world.share(len(windows))])
        return meter.probe(self._loss, part.split(micro_batch_size), average=self.world.average_gradients)

    def evaluate(self, windows: np.ndarray) -> np.ndarray:
        """The loss of each window, shared among the processes."""
        part = self._to_device(windows[self.world.share(len(windows))])
        with torch.no_grad():
            losses = [self._evaluate(batch) for batch in part.split(EVALUATION_BATCH) if len(batch)]
        own = torch.cat(losses) if losses else torch.zeros(0)
        return self.world.gathered(own).cpu().numpy()

    def _clip_factors(self, norm: Tensor) -> Tensor:
        return (self.setup.optimizer.clip_norm / (norm + CLIP_EPSILON)).clamp(max=1.0)

    def _to_device(self, windows: np.ndarray) -> Tensor:
        largest, known = int(windows.max(initial=0)), self.setup.model.vocabulary_size
        if largest >= known:  # a device would only say that an index is out of range, if at all
            raise InputError(
                f"the corpus has token {largest}, but the model knows {known} kinds of tokens: "
                f"set model.vocabulary_size to at least {largest + 1}"
            )
        return torch.from_numpy(windows).to(self.device, non_blocking=True)

    def _compiled(self, module: nn.Module) -> Callable[..., Tensor]:
        if not self.execution.compiled:
            return module
        torch._dynamo.config.cache_size_limit = 64  # a graph for each batch size of a sweep
        return torch.compile(module, dynamic=False)


def make_optimizer(model: nn.Module, setup: Setup) -> torch.optim.AdamW:
    """AdamW that decays matrices only, with empty moments already in place."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    settings = setup.optimizer
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "decays": True}, {"params": vectors, "decays": False}],
        lr=0.0,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


class _SequenceLosses(nn.Module):
    """The model's losses under the recipe's precision; parameters stay in float32."""

    def __init__(self, model: Transformer, precision: str):
        super().__init__()
        self.model = model
        self.uses_bfloat16 = precision == "bfloat16"

    def forward(self, windows: Tensor) -> Tensor:
        with torch.autocast(windows.device.type, dtype=torch.bfloat16, enabled=self.uses_bfloat16):
            return self.model.sequence_losses(windows)


class _TrainingLoss(_SequenceLosses):
    def forward(self, windows: Tensor) -> Tensor:
        return super().forward(windows).mean()
