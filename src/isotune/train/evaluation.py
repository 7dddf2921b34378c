"""What is measured beside the steps: losses on fixed held-out windows, norms, the size of Adam's updates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from isotune.corpus import Corpus
from isotune.recipe import Step
from isotune.runs import Evaluation, Row, Segment
from isotune.train.trainer import Trainer


@dataclass(frozen=True)
class Measured:
    """Columns for the row of one step, and each final window's loss where a decay ended."""

    columns: Row = field(default_factory=dict)
    window_losses: np.ndarray | None = None

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(value) for value in self.columns.values())


class Evaluator:
    """Evaluates a trainer's model without touching its state."""

    def __init__(self, trainer: Trainer, corpus: Corpus, plan: Evaluation):
        self.trainer, self.plan = trainer, plan
        self._final = self._windows = np.zeros((0, 0), dtype=np.int64)
        if plan.every_tokens:
            length = trainer.setup.sequence_length
            self._final = corpus.validation_windows(plan.final_windows, sequence_length=length)
            # Evenly spread over the final ones, so that both are spread over the same files.
            picked = (2 * np.arange(plan.windows) + 1) * plan.final_windows // (2 * plan.windows)
            self._windows = self._final[picked]

    def is_due(self, step: Step, segment: Segment) -> bool:
        return self.plan.is_due(step.tokens_before, step.tokens) or self._ends_decay(step, segment)

    def at_start(self) -> Measured:
        """What is measured before the first step."""
        return Measured(self._columns()) if self.plan.every_tokens else Measured()

    def after(self, step: Step, segment: Segment) -> Measured:
        """What is measured after this step: nothing, most of the time."""
        if not self.is_due(step, segment):
            return Measured()
        columns = self._columns()
        if not self._ends_decay(step, segment):
            return Measured(columns)
        losses = self.trainer.evaluate(self._final)
        return Measured(columns | {"final_val_loss": losses.mean(dtype=np.float64)}, losses)

    def _ends_decay(self, step: Step, segment: Segment) -> bool:
        at_end = step.tokens == segment.end_tokens
        return bool(self.plan.every_tokens) and at_end and segment.recipe.phases[-1].ends_a_decay

    def _columns(self) -> Row:
        columns = {"val_loss": self.trainer.evaluate(self._windows).mean(dtype=np.float64)}
        return columns | parameter_columns(self.trainer)


@torch.no_grad()
def parameter_columns(trainer: Trainer) -> Row:
    """The norm of all parameters and of each matrix, and the root mean square of Adam's update on hidden matrices."""
    named = list(trainer.model.named_parameters())
    norms = torch.stack(torch._foreach_norm([parameter for _, parameter in named]))
    hidden = [parameter for name, parameter in named if name.startswith("blocks.") and parameter.ndim >= 2]
    squares = torch.stack([_update_square_sum(trainer, parameter) for parameter in hidden]).sum()
    update_rms = (squares / sum(parameter.numel() for parameter in hidden)).sqrt()
    values = torch.cat((norms.square().sum().sqrt()[None], update_rms[None], norms)).cpu().numpy()
    columns = {"parameter_norm": values[0], "update_rms": values[1]}
    for (name, parameter), norm in zip(named, values[2:], strict=True):
        if parameter.ndim >= 2:
            columns[f"parameter_norm.{name.removesuffix('.weight')}"] = norm
    return columns


def _update_square_sum(trainer: Trainer, parameter: torch.Tensor) -> torch.Tensor:
    """The squared norm of m_hat / (sqrt(v_hat) + eps), Adam's update per unit of learning rate; 0 before any step."""
    settings, state = trainer.setup.optimizer, trainer.optimizer.state[parameter]
    num_steps = float(state["step"])
    if num_steps == 0:
        return torch.zeros((), device=parameter.device)
    m_hat = state["exp_avg"] / (1 - settings.beta1**num_steps)
    v_hat = state["exp_avg_sq"] / (1 - settings.beta2**num_steps)
    return (m_hat / (v_hat.sqrt() + settings.epsilon)).square().sum()
