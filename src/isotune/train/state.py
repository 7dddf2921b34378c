"""States: parameters and moments in safetensors files, in a fixed order, with nothing else that could vary."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from isotune.errors import InputError
from isotune.runs.files import FORMAT, write_whole

MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, tokens: int, num_steps: int) -> None:
    """Writes the state whole or not at all."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"parameter.{name}"] = parameter.detach()
        for moment in MOMENTS:
            tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    tensors = {name: tensor.to("cpu").contiguous() for name, tensor in tensors.items()}
    # One metadata entry: with several, safetensors does not fix their order, and equal states would differ in bytes.
    metadata = {"isotune": json.dumps({"format": FORMAT, "tokens": tokens, "num_steps": num_steps})}
    try:
        write_whole(path, lambda temporary: save_file(tensors, temporary, metadata=metadata))
    except SafetensorError as error:
        raise _as_os_error(error, path) from None


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Puts the state into a model and its optimizer, whose moments must exist already."""
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            num_steps = json.loads(file.metadata()["isotune"])["num_steps"]
            for name, parameter in model.named_parameters():
                _copy(file.get_tensor(f"parameter.{name}"), parameter)
                for moment in MOMENTS:
                    _copy(file.get_tensor(f"{moment}.{name}"), optimizer.state[parameter][moment])
                optimizer.state[parameter]["step"].fill_(num_steps)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"the state {path} cannot be read ({_first_line(error)}): delete that file and repeat the command, "
            f"which trains again from the state before it"
        ) from None


def state_tokens(path: Path) -> int:
    """At which position the state was taken; -1 if there is no readable state."""
    try:
        with safe_open(path, framework="pt") as file:
            return int(json.loads(file.metadata()["isotune"])["tokens"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return -1


def _as_os_error(error: SafetensorError, path: Path) -> Exception:
    """What the disk said: safetensors wraps it in an error of its own, such as "... (os error 28)"."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error


def _copy(source: Tensor, target: Tensor) -> None:
    if source.shape != target.shape:
        raise ValueError(f"a tensor has shape {tuple(source.shape)} where {tuple(target.shape)} belongs")
    target.copy_(source)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
