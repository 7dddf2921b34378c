"""Gradient noise in anybody's PyTorch loop.

    meter = NoiseMeter(model, optimizer, micro_batch_size=8, every_steps=10)
    ...
        loss.backward()                 # once for each microbatch, as ever
    reading = meter.measure()           # before clipping and optimizer.step(); None at steps that are not measured

The unit is the sequence. From the gradients G_k of K microbatches of b_k sequences, B = sum b_k, and with weights a_i,

    T  = (sum b_k |G_k|_a^2 - B |G|_a^2) / (K - 1)     the trace of the gradient's covariance over sequences
    g2 = |G|_a^2 - T / B                               the squared norm of the expected gradient

are unbiased, where G is the gradient of the whole batch. Three weights are measured in one pass:
a = (sqrt(v_hat) + eps)^(-2p) for p = 0 (raw), 1/2 (Adam's own metric, the default everywhere) and 1, with Adam's second
moment v as it was *before* the step: with v after the step a gradient would be weighted by a moment that it has entered
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from isotune.errors import InputError
from isotune.measure.moments import local, second_moments
from isotune.measure.scopes import Scope, hidden_matrices

# Column names for p = 0, 1/2 and 1.
NOISE_COLUMNS = ("noise_trace", "precond_noise_trace", "precond_noise_trace_p1")
GRADIENT_COLUMNS = ("gradient_sq_norm", "precond_gradient_sq_norm", "precond_gradient_sq_norm_p1")


@dataclass(frozen=True)
class NoiseReading:
    """Raw values of one step: unbiased and heavy-tailed, so average them over a window before any ratio."""

    columns: dict[str, float]  # of the scope `hidden` without a suffix, of others with `_<scope>`
    num_samples: int  # K: microbatches of all processes
    batch_size: int  # B: their sequences
    gradient_norm: float  # of the whole batch's gradient, over all parameters, before clipping


class NoiseMeter:
    """Watches gradients arrive, one microbatch after the other, without keeping a copy of any of them.

    `micro_batch_size` is the number of sequences of each `backward()` on this process; where it varies, announce each
    with `meter.microbatch(n)` before its backward. The gradient that the optimizer sees must be the mean over all
    sequences (losses of microbatches weighted by their share of the batch, as gradient accumulation does); if it is a
    multiple of that, `grad_scale` says which (an AMP loss scale, the number of microbatches ...), as a number or as a
    function that is called at each measurement.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        micro_batch_size: int | None = None,
        every_steps: int | None = 1,
        scopes: Mapping[str, Scope] | None = None,
        grad_scale: float | Callable[[], float] = 1.0,
    ):
        if every_steps is not None and every_steps < 1:
            raise InputError(f"every_steps={every_steps} must be at least 1, or None to call arm() yourself")
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise InputError("the model has no parameters that take gradients: there is nothing to measure")
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.optimizer, self.micro_batch_size, self.every_steps = optimizer, micro_batch_size, every_steps
        self.grad_scale = grad_scale
        self.scopes = {"hidden": hidden_matrices(model), "all": set(self.names), **_resolved(scopes, named)}
        self._is_sharded = _is_sharded(self.parameters)
        self._num_steps = 0
        self._next_size: int | None = None
        self._hooks: list[Any] = []
        self._reset()
        self._arm_if_due()

    # In the loop

    def microbatch(self, num_sequences: int) -> None:
        """Says how many sequences the next `backward()` is about."""
        self._next_size = num_sequences

    def measure(self) -> NoiseReading | None:
        """What this step's gradients say; call it after the last backward and before clipping. None if not due."""
        self._num_steps += 1
        reading = self._read() if self._hooks else None
        self._reset()
        self._arm_if_due()
        return reading

    def probe(
        self,
        loss: Callable[[Any], Tensor],
        micro_batches: Sequence[Any],
        sizes: Sequence[int] | None = None,
        average: Callable[[Sequence[nn.Parameter]], None] | None = None,
    ) -> NoiseReading:
        """Measures on batches of its own, where a step has a single microbatch; call it while no gradients are held.

        `loss(micro_batch)` is the mean loss of one microbatch; `sizes` are their numbers of sequences (`len` of each
        if left out). `average` averages gradients over processes, for loops that do so themselves instead of wrapping
        the model in DDP. Leaves gradients, random numbers and the optimizer as they were.
        """
        if any(parameter.grad is not None for parameter in self.parameters):
            raise InputError("a probe needs empty gradients: call it after optimizer.zero_grad(set_to_none=True)")
        sizes = [len(micro_batch) for micro_batch in micro_batches] if sizes is None else list(sizes)
        was_armed = bool(self._hooks)
        self.arm()
        scale = self._scale()
        devices = [self.parameters[0].device] if self.parameters[0].is_cuda else []
        with torch.random.fork_rng(devices=devices):
            for micro_batch, size in zip(micro_batches, sizes, strict=True):
                self.microbatch(size)
                (loss(micro_batch) * (scale * size / sum(sizes))).backward()
        if average is not None:
            average(self.parameters)
        reading = self._read()
        for parameter in self.parameters:
            parameter.grad = None
        self._reset()
        if was_armed:
            self.arm()
        return reading

    def close(self) -> None:
        """Takes all hooks off the model."""
        self._disarm()

    # Hooks

    def _arm_if_due(self) -> None:
        if self.every_steps is not None and self._num_steps % self.every_steps == 0:
            self.arm()

    def arm(self) -> None:
        """Has the step that begins now measured; needed only with every_steps=None.

        Hooks live on measured steps only: at other steps the loop runs as if there were no meter.
        """
        self._reset()
        for index, parameter in enumerate(self.parameters):
            if self._is_sharded:
                hook = parameter.register_post_accumulate_grad_hook(self._increment_hook(index))
            else:
                hook = parameter.register_hook(self._gradient_hook(index))
            self._hooks.append(hook)

    def _disarm(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _reset(self) -> None:
        self._disarm()
        self._next_size = None
        self._sizes: list[list[int]] = [[] for _ in self.parameters]  # of the samples that reached each parameter
        self._samples: list[Tensor | None] = [None] * len(self.parameters)  # sum of |H_k|^2 / b_k
        self._seen: list[Tensor | None] = [None] * len(self.parameters)  # accumulated gradient, sharded models only
        self._weights: Callable[[int], Tensor | None] = _weights(self.optimizer, self.parameters)

    def _gradient_hook(self, index: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            self._take(index, gradient)

        return hook

    def _increment_hook(self, index: int) -> Callable[[Tensor], None]:
        """Under FSDP2 tensor hooks never fire; after each accumulation we see the shard's sum so far."""

        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            total = local(parameter.grad)
            before = self._seen[index]
            self._take(index, total if before is None else total - before)
            self._seen[index] = total.clone()

        return hook

    @torch.no_grad()
    def _take(self, index: int, gradient: Tensor) -> None:
        size = self._next_size if self._next_size is not None else self.micro_batch_size
        if size is None:
            raise InputError(
                "how many sequences is a backward about? Give NoiseMeter micro_batch_size, or call meter.microbatch(n) "
                "before each backward"
            )
        sums = weighted_square_sums(gradient, self._weights(index)) / size
        kept = self._samples[index]
        self._samples[index] = sums if kept is None else kept + sums
        self._sizes[index].append(size)

    # Reading

    @torch.no_grad()
    def _read(self) -> NoiseReading:
        sizes = self._agreed_sizes()
        scale = self._scale()
        zeros = torch.zeros(3, device=self.parameters[0].device)
        samples = torch.stack([zeros if sums is None else sums for sums in self._samples])
        totals = torch.stack(
            [
                zeros if p.grad is None else weighted_square_sums(local(p.grad), self._weights(index))
                for index, p in enumerate(self.parameters)
            ]
        )
        world = dist.get_world_size() if _is_distributed() else 1
        local_size = sum(sizes)
        if self._is_sharded:
            # Samples are pooled over the ranks before we see them; each rank holds a piece of all sums.
            packed = _all_summed(torch.stack((samples, totals)))
            num_samples, batch_size, sample_factor = len(sizes), local_size * world, local_size**2 * world
        else:
            # H_k = (b_k / B_local) G_k, so sum b_k |G_k|^2 = B_local^2 sum |H_k|^2 / b_k, over all ranks' samples.
            packed = torch.stack((_all_summed(samples), totals))
            num_samples, batch_size, sample_factor = len(sizes) * world, local_size * world, local_size**2
        if num_samples < 2:
            raise InputError(
                "one microbatch on one process says nothing about noise: accumulate gradients over two or more, use "
                "several processes, or measure with meter.probe(...)"
            )
        values = packed.double().cpu().numpy() / scale**2  # the one transfer of the step
        with np.errstate(invalid="ignore"):  # rows whose v is 0 make sums infinite; such columns are left out
            noise = (sample_factor * values[0] - batch_size * values[1]) / (num_samples - 1)
            gradient = values[1] - noise / batch_size
        norm = float(np.sqrt(values[1, :, 0].sum()))
        return NoiseReading(self._columns(noise, gradient), num_samples, batch_size, norm)

    def _columns(self, noise: np.ndarray, gradient: np.ndarray) -> dict[str, float]:
        columns = {}
        for scope, names in self.scopes.items():
            inside = [index for index, name in enumerate(self.names) if name in names]
            suffix = "" if scope == "hidden" else f"_{scope}"
            if not inside:
                continue
            for column, value in zip(NOISE_COLUMNS, noise[inside].sum(axis=0), strict=True):
                columns[column + suffix] = float(value)
            for column, value in zip(GRADIENT_COLUMNS, gradient[inside].sum(axis=0), strict=True):
                columns[column + suffix] = float(value)
        return {name: value for name, value in columns.items() if np.isfinite(value)}

    def _agreed_sizes(self) -> list[int]:
        """The sizes of this step's microbatches; parameters that took no part (unused ones) have none."""
        reached = [sizes for sizes in self._sizes if sizes]
        if not reached:
            raise InputError(
                "no gradient has passed the meter since the last step: call measure() after backward() and before "
                "zero_grad(), and build the meter before the backward and around the module that is trained"
            )
        return max(reached, key=len)

    def _scale(self) -> float:
        return self.grad_scale() if callable(self.grad_scale) else self.grad_scale


def weighted_square_sums(gradient: Tensor, root_moment: Tensor | None) -> Tensor:
    """[sum g^2, sum g^2 / r, sum g^2 / r^2] with r = sqrt(v_hat) + eps; the last two are NaN without moments."""
    g = gradient.detach().flatten().float()
    raw = torch.dot(g, g)
    if root_moment is None:
        nan = torch.full_like(raw, torch.nan)
        return torch.stack((raw, nan, nan))
    q = g / root_moment.flatten()
    return torch.stack((raw, torch.dot(q, g), torch.dot(q, q)))


def _weights(optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor]) -> Callable[[int], Tensor | None]:
    """A function index -> sqrt(v_hat) + eps of that parameter, each worked out at most once."""
    known: dict[int, Tensor | None] = {}
    moments: dict[Tensor, Any] | None = None

    def of(index: int) -> Tensor | None:
        nonlocal moments
        if index not in known:
            if moments is None:
                moments = second_moments(optimizer) if optimizer is not None else {}
            moment = moments.get(parameters[index])
            known[index] = None if moment is None else moment.root()
        return known[index]

    return of


def _resolved(scopes: Mapping[str, Scope] | None, named: Iterable[tuple[str, Tensor]]) -> dict[str, set[str]]:
    return {scope: {name for name, p in named if belongs(name, p)} for scope, belongs in (scopes or {}).items()}


def _is_sharded(parameters: Sequence[Tensor]) -> bool:
    sharded = [isinstance(parameter, DTensor) for parameter in parameters]
    if not any(sharded):
        return False
    for parameter in parameters:
        if not isinstance(parameter, DTensor) or [type(p) for p in parameter.placements] != [Shard]:
            raise InputError(
                "the meter knows parameters that are whole (one process, DDP) or all sharded over one mesh dimension "
                "(FSDP2): use free_noise(optimizer) for other layouts"
            )
    return True


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _all_summed(values: Tensor) -> Tensor:
    if _is_distributed():
        dist.all_reduce(values)
    return values
