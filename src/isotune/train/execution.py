"""How a run is executed: device, compilation, threads, microbatches, processes. None of it is part of a recipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from isotune.errors import InputError
from isotune.runs import Numerics


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The choices that change speed and rounding, nothing else."""

    device: str = "cpu"
    compiled: bool = False
    threads: int = 1
    micro_batch_size: int | None = None  # sequences at once on each process; None: its whole share of the batch

    def __post_init__(self) -> None:
        for name in ("threads", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}={value} must be at least 1")
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"device={self.device!r} must be cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device='cuda', but torch sees no GPU here: use cpu, or install a CUDA build of torch")
        if self.compiled and self.device == "cpu" and not _has_cpp_compiler():
            raise InputError(
                "compiled=True needs a C++ compiler for a CPU, and g++ is not here: install it or leave out --compile"
            )

    def numerics(self, world: World) -> Numerics:
        """What a study pins: equal numerics, equal bytes."""
        capability = torch.backends.cpu.get_cpu_capability()
        device = torch.cuda.get_device_name() if self.device == "cuda" else f"cpu {capability}"
        return Numerics(
            torch=torch.__version__,
            device=device,
            compiled=self.compiled,
            threads=self.threads,
            micro_batch_size=self.micro_batch_size,
            world_size=world.size,
        )

    def micro_batches(self, batch_size: int, world: World) -> int:
        """Into how many microbatches each process cuts its share of a batch."""
        if batch_size % world.size:
            options = _neighbours(batch_size, world.size)
            raise InputError(f"batch_size={batch_size} is not a multiple of the {world.size} processes: try {options}")
        share = batch_size // world.size
        size = share if self.micro_batch_size is None else min(share, self.micro_batch_size)
        if share % size:
            options = _neighbours(batch_size, size * world.size)
            raise InputError(f"batch_size={batch_size} is not a multiple of micro_batch_size={size}: try {options}")
        return share // size


class World:
    """The processes of one run: one, or those that `torchrun` started."""

    def __init__(self, device: str = "cpu"):
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0")) if self.size > 1 else 0
        if self.size > 1 and not dist.is_initialized():
            if device == "cuda":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl" if device == "cuda" else "gloo")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process' part of `count` things; the last parts may be shorter."""
        each = -(-count // self.size)
        return slice(min(count, self.rank * each), min(count, (self.rank + 1) * each))

    def agreed(self, value: Any) -> Any:
        """What the first process says, on all of them."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        if self.size > 1:
            dist.all_reduce(values)
            values /= self.size
        return values

    @torch.no_grad()
    def average_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Gives all processes the mean of their gradients.

        In one piece, always laid out alike: DistributedDataParallel lays out its buckets anew after its first step, so
        that the order of its sums, and with it the last bits, would depend on where a run was continued.
        """
        if self.size > 1:
            gradients = [p.grad for p in parameters if p.grad is not None]
            flat = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """The parts of all processes, in order of rank."""
        if self.size == 1:
            return part
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, part.cpu())
        return torch.cat(parts)

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def _has_cpp_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _neighbours(value: int, unit: int) -> str:
    lower = value // unit * unit
    return " or ".join(str(n) for n in (lower, lower + unit) if n)
