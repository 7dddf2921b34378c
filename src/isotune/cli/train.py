"""`isotune train`: a recipe's trajectory, trained or continued."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from isotune.cli.options import load_recipe, recipe_overrides, with_recipe
from isotune.cli.terminal import ProgressLine, draw_curve
from isotune.errors import InputError
from isotune.integrations import LOGGERS, open_logger
from isotune.recipe import Recipe, format_number, format_tokens, parse_tokens
from isotune.runs import Segment, Study, Trajectory


@click.command()
@with_recipe
@click.option("--study", type=click.Path(path_type=Path), help="Folder of the runs [default: studies/<recipe's name>].")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda where there is one]")
@click.option("--compile/--no-compile", "compiled", default=False, help="Compile the model (needs g++ on a CPU).")
@click.option("--threads", default=1, show_default=True, help="CPU threads of this process.")
@click.option("--micro-batch-size", type=int, help="Sequences at once [default: the whole batch].")
@click.option("--eval-every", help="Tokens between evaluations, 0 for none [default: at most 5 % of the time].")
@click.option("--eval-windows", type=int, help="Held-out windows of an evaluation [default: 512].")
@click.option("--final-windows", type=int, help="Held-out windows at the end of a decay [default: 4096].")
@click.option("--noise-every", help="Tokens between measurements of noise, 0 for none [default: 1 % of the time].")
@click.option("--noise-sequences", type=int, help="Sequences of a noise probe [default: 8].")
@click.option("--save-seconds", default=60.0, show_default=True, help="Seconds between states to continue from.")
@click.option("--log", "loggers", multiple=True, type=click.Choice(sorted(LOGGERS)), help="Also log live to this tool.")
@click.option("--allow-mixed-numerics", is_flag=True, help="Continue a study that other numerics began.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def train(recipe_name: str, study: Path | None, quiet: bool, loggers: tuple[str, ...], **arguments: Any) -> None:
    """Train RECIPE, a TOML file or a shipped recipe such as nano-wsd.

    Repeat the command to continue after a kill; what another run of the study has trained already is not trained again.
    """
    recipe = load_recipe(recipe_name, recipe_overrides(arguments))
    folder = study or Path("studies") / Path(recipe_name).stem
    with _torch(arguments["threads"]):
        from isotune.train import Execution, Stopped, World
        from isotune.train import train as run
    execution = Execution(
        device=arguments["device"] or _default_device(),
        compiled=arguments["compiled"],
        threads=arguments["threads"],
        micro_batch_size=arguments["micro_batch_size"],
    )
    world = World(execution.device)
    quiet = quiet or not world.is_first
    stop = _stop_on_signals()
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(ProgressLine(unit="tokens", quiet=quiet))
        observers: list[Any] = [progress]

        def on_plan(opened: Study, segments: list[Segment]) -> None:
            progress.total = max(1, sum(segment.tokens for segment in segments))
            if world.is_first:
                observers.extend(stack.enter_context(open_logger(name, opened, recipe)) for name in loggers)
            if not quiet:
                click.echo(_plan(recipe, opened, segments), err=True)

        try:
            trajectory = run(
                recipe,
                folder,
                execution=execution,
                evaluation=_evaluation(arguments),
                observers=observers,
                on_plan=on_plan,
                save_seconds=arguments["save_seconds"],
                should_stop=lambda: bool(stop),
                allow_mixed_numerics=arguments["allow_mixed_numerics"],
            )
        except Stopped as stopped:
            stack.close()
            click.echo(f"isotune: {stopped}: repeat the same command to continue", err=True)
            sys.exit(128 + stop[0])
        finally:
            world.close()
    if not quiet:
        click.echo(summary(recipe, trajectory, Study.open(folder)))


def summary(recipe: Recipe, trajectory: Trajectory, study: Study) -> str:
    """A run in a curve and a few lines."""
    info = trajectory.info
    lines = [draw_curve(trajectory), f"run {study.run_id(recipe)} in {study.folder}: {info.status}"]
    lines.append(
        f"LR {format_number(recipe.learning_rate)}, WD {format_number(recipe.weight_decay)}, "
        f"ELR {recipe.effective_learning_rate:.3g}, "
        f"batch size {recipe.batch_size}, seed {recipe.setup.seed}, {format_tokens(recipe.tokens)} tokens, "
        f"n = {recipe.memory_times:.2f}"
    )
    if info.status == "diverged":
        lines.append("The loss or a gradient stopped being finite: lower the learning rate.")
    for name, text in (("val_loss", "validation loss"), ("final_val_loss", "validation loss after the decay")):
        tokens, values = trajectory.measured(name)
        if len(values):
            lines.append(f"{text} {values[-1]:.4f} at {format_tokens(tokens[-1])} tokens")
    return "\n".join(line for line in lines if line)


def _plan(recipe: Recipe, study: Study, segments: list[Segment]) -> str:
    missing = sum(segment.tokens for segment in segments)
    there = recipe.tokens - missing
    known = f" ({format_tokens(there)} of {format_tokens(recipe.tokens)} are there already)" if there else ""
    model = f"{format_tokens(recipe.setup.model.num_parameters)} parameters"
    return f"training {format_tokens(missing)} tokens{known}, {model}, corpus {study.corpus_name}, into {study.folder}"


def _evaluation(arguments: dict[str, Any]) -> dict[str, int]:
    """What was asked for of the evaluation; the rest is the study's or the default."""
    asked = {
        "every_tokens": _tokens("--eval-every", arguments["eval_every"]),
        "windows": arguments["eval_windows"],
        "final_windows": arguments["final_windows"],
        "noise_every_tokens": _tokens("--noise-every", arguments["noise_every"]),
        "noise_sequences": arguments["noise_sequences"],
    }
    return {name: value for name, value in asked.items() if value is not None}


def _tokens(option: str, value: str | None) -> int | None:
    return None if value is None else parse_tokens(option, value)


@contextlib.contextmanager
def _torch(threads: int) -> Any:
    """Imports of torch, after telling OpenMP how many threads it may start."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"training needs {error.name}: pip install 'isotune[train]'") from None


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _stop_on_signals() -> list[int]:
    """A list that Ctrl-C or a scheduler's SIGTERM fills; training looks at it between steps."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:  # asked twice: at once
            sys.exit(128 + number)
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return received
