"""Options of the commands that train: how to execute, what to measure, when to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from isotune.cli.options import Command
from isotune.errors import InputError
from isotune.recipe import parse_tokens

if TYPE_CHECKING:
    from isotune.train import Execution

_OPTIONS = [
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda where there is one]"),
    click.option("--compile/--no-compile", "compiled", default=False, help="Compile the model (needs g++ on a CPU)."),
    click.option("--threads", default=1, show_default=True, help="CPU threads of each process."),
    click.option("--micro-batch-size", type=int, help="Sequences at once [default: the whole batch]."),
    click.option("--eval-every", help="Tokens between evaluations, 0 for none [default: at most 5 % of the time]."),
    click.option("--eval-windows", type=int, help="Held-out windows of an evaluation [default: 512]."),
    click.option("--final-windows", type=int, help="Held-out windows at the end of a decay [default: 4096]."),
    click.option("--noise-every", help="Tokens between measurements of noise, 0 for none [default: 1 % of the time]."),
    click.option("--noise-sequences", type=int, help="Sequences of a noise probe [default: 8]."),
    click.option("--save-seconds", default=60.0, show_default=True, help="Seconds between states to continue from."),
    click.option("--allow-mixed-numerics", is_flag=True, help="Continue a study that other numerics began."),
]


# Their names as arguments.
OF_EXECUTION = (
    "device",
    "compiled",
    "threads",
    "micro_batch_size",
    "eval_every",
    "eval_windows",
    "final_windows",
    "noise_every",
    "noise_sequences",
    "save_seconds",
    "allow_mixed_numerics",
)


def with_execution(command: Command) -> Command:
    """Gives a command the options that `make_execution` and `evaluation_of` read."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def make_execution(arguments: dict[str, Any]) -> Execution:
    """What the options say of device, compiling, threads and microbatches; imports torch."""
    with importing_torch(arguments["threads"]):
        import torch

        from isotune.train import Execution
    return Execution(
        device=arguments["device"] or ("cuda" if torch.cuda.is_available() else "cpu"),
        compiled=arguments["compiled"],
        threads=arguments["threads"],
        micro_batch_size=arguments["micro_batch_size"],
    )


def evaluation_of(arguments: dict[str, Any]) -> dict[str, int]:
    """What was asked for of the evaluation; the rest is the study's or the default."""
    asked = {
        "every_tokens": _tokens("--eval-every", arguments["eval_every"]),
        "windows": arguments["eval_windows"],
        "final_windows": arguments["final_windows"],
        "noise_every_tokens": _tokens("--noise-every", arguments["noise_every"]),
        "noise_sequences": arguments["noise_sequences"],
    }
    return {name: value for name, value in asked.items() if value is not None}


@contextlib.contextmanager
def importing_torch(threads: int) -> Any:
    """Imports of torch, after telling OpenMP how many threads it may start."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"training needs {error.name}: pip install 'isotune[train]'") from None


def stop_on_signals() -> list[int]:
    """A list that Ctrl-C or a scheduler's SIGTERM fills; training looks at it between steps."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:  # asked twice: at once
            sys.exit(128 + number)
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return received


def _tokens(option: str, value: str | None) -> int | None:
    return None if value is None else parse_tokens(option, value)
