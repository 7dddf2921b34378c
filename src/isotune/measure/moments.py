"""Adam's second moments, read off any optimizer that keeps them, and the free estimator that follows from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from isotune.errors import InputError


@dataclass(frozen=True)
class SecondMoment:
    """v of one parameter, with what turns it into sqrt(v_hat) + eps."""

    v: Tensor
    bias_correction: float  # 1 - beta2^t
    epsilon: float

    def root(self) -> Tensor:
        """sqrt(v_hat) + eps."""
        return (self.v / self.bias_correction).sqrt_().add_(self.epsilon)


def second_moments(
    optimizer: torch.optim.Optimizer, parameters: Collection[Tensor] | None = None
) -> dict[Tensor, SecondMoment]:
    """The moments of all parameters, or of these, that have taken a step; empty for optimizers without them."""
    ids = None if parameters is None else {id(parameter) for parameter in parameters}
    held = [
        (parameter, group, optimizer.state[parameter])
        for group in optimizer.param_groups
        for parameter in group["params"]
        if "betas" in group
        and (ids is None or id(parameter) in ids)
        and "exp_avg_sq" in optimizer.state.get(parameter, {})
    ]
    if not held:
        return {}
    steps = _numbers([state["step"] for _, _, state in held])
    return {
        parameter: SecondMoment(local(state["exp_avg_sq"]).float(), 1 - group["betas"][1] ** num_steps, group["eps"])
        for (parameter, group, state), num_steps in zip(held, steps, strict=True)
        if num_steps > 0
    }


@torch.no_grad()
def free_noise(optimizer: torch.optim.Optimizer, parameters: Collection[Tensor] | None = None) -> float:
    """sum sqrt(v_hat): noise and signal together, from the optimizer's state alone.

    Since v follows E[c^2 G^2] for clip factor c and batch gradient G,

        lr * free_noise / mean(c) = scaled_noise + scaled_gradient    (p = 1/2)

    without microbatches, hooks or extra passes, under any parallelism. `parameters` limits it to a scope.
    """
    moments = second_moments(optimizer, parameters)
    if not moments:
        raise InputError(
            "the optimizer holds no second moments of these parameters: use an Adam-like one and take a step first"
        )
    sums = torch.stack([root.sum() for root in torch._foreach_sqrt([moment.v for moment in moments.values()])])
    if dist.is_initialized() and any(isinstance(p, DTensor) for p in moments):
        dist.all_reduce(sums)
    values = zip(sums.tolist(), moments.values(), strict=True)
    return sum(value / math.sqrt(moment.bias_correction) for value, moment in values)


def _numbers(steps: Sequence[Any]) -> list[float]:
    """Counts of steps, which optimizers keep as numbers or as tensors; from a GPU in one transfer."""
    if any(isinstance(step, Tensor) and step.is_cuda for step in steps):
        return [float(step) for step in torch.stack([torch.as_tensor(step).float().cuda() for step in steps]).tolist()]
    return [float(step) for step in steps]


def local(tensor: Tensor) -> Tensor:
    """This process' part of a sharded tensor; a whole one as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
