"""Adam's second moments, read off any optimizer that keeps them, and the free estimator that follows from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

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


def second_moments(optimizer: torch.optim.Optimizer) -> dict[Tensor, SecondMoment]:
    """The moments of all parameters that have taken a step; empty for optimizers without `exp_avg_sq`."""
    held = [
        (parameter, group, optimizer.state[parameter])
        for group in optimizer.param_groups
        for parameter in group["params"]
        if "betas" in group and "exp_avg_sq" in optimizer.state.get(parameter, {})
    ]
    if not held:
        return {}
    steps = torch.stack([torch.as_tensor(state["step"], dtype=torch.float32) for _, _, state in held]).tolist()
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
    moments = second_moments(optimizer)
    ids = None if parameters is None else {id(parameter) for parameter in parameters}
    chosen = [moment for parameter, moment in moments.items() if ids is None or id(parameter) in ids]
    if not chosen:
        raise InputError(
            "the optimizer holds no second moments of these parameters: use an Adam-like one and take a step first"
        )
    roots = torch._foreach_sqrt([moment.v for moment in chosen])
    sums = [root.sum() / moment.bias_correction**0.5 for root, moment in zip(roots, chosen, strict=True)]
    total = torch.stack(sums).sum()
    if any(isinstance(p, DTensor) for p in moments) and dist.is_initialized():
        dist.all_reduce(total)
    return float(total)


def local(tensor: Tensor) -> Tensor:
    """This process' part of a sharded tensor; a whole one as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
