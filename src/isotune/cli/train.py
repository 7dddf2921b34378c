"""`isotune train`: a recipe's trajectory, trained or continued."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import click

from isotune.cli.execution import evaluation_of, make_execution, stop_on_signals, with_execution
from isotune.cli.options import load_recipe, recipe_overrides, study_option, with_recipe
from isotune.cli.terminal import ProgressLine, draw_curve
from isotune.integrations import LOGGERS, open_logger
from isotune.recipe import Recipe, format_number, format_tokens
from isotune.runs import Segment, Study, Trajectory


@click.command()
@with_recipe
@study_option("studies/<recipe's name>")
@with_execution
@click.option("--log", "loggers", multiple=True, type=click.Choice(sorted(LOGGERS)), help="Also log live to this tool.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def train(recipe_name: str, study: Path | None, quiet: bool, loggers: tuple[str, ...], **arguments: Any) -> None:
    """Train RECIPE, a TOML file or a shipped recipe such as nano-wsd.

    Repeat the command to continue after a kill; what another run of the study has trained already is not trained again.
    """
    recipe = load_recipe(recipe_name, recipe_overrides(arguments))
    folder = study or Path("studies") / Path(recipe_name).stem
    execution = make_execution(arguments)
    from isotune.train import Stopped, World
    from isotune.train import train as run

    world = World(execution.device)
    quiet = quiet or not world.is_first
    stop = stop_on_signals()
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
                evaluation=evaluation_of(arguments),
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
