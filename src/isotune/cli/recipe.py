"""`isotune recipe show`: what a recipe means."""

from __future__ import annotations

import json
from typing import Any

import click

from isotune.cli.options import load_recipe, recipe_overrides, with_recipe
from isotune.cli.terminal import format_seconds, make_table, print_table
from isotune.errors import InputError
from isotune.recipe import Ramp, Recipe, format_number


@click.group()
def recipe() -> None:
    """Look at recipes."""


@recipe.command()
@with_recipe
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-timing", is_flag=True, help="Do not measure this machine's speed (it takes a few seconds).")
def show(recipe_name: str, as_json: bool, no_timing: bool, **arguments: Any) -> None:
    """Show RECIPE: its phases in tokens and steps, its size, n, FLOPs and the time it would take here."""
    loaded = load_recipe(recipe_name, recipe_overrides(arguments))
    facts = describe(loaded)
    seconds, remark = (None, "not measured") if no_timing else _seconds_here(loaded)
    facts["estimated_seconds"] = seconds
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        _print(facts, remark)


def describe(recipe: Recipe) -> dict[str, Any]:
    """Everything that follows from a recipe, as plain data."""
    model = recipe.setup.model
    phases, position = [], 0
    for phase in recipe.phases:
        position += phase.tokens
        lr = phase.learning_rate
        phases.append(
            {
                "tokens": phase.tokens,
                "requested_tokens": phase.requested_tokens,
                "end_tokens": position,
                "steps": phase.tokens // (phase.batch_size * recipe.setup.sequence_length),
                "learning_rate": lr
                if not isinstance(lr, Ramp)
                else {"start": lr.start, "end": lr.end, "shape": lr.shape},
                "weight_decay": phase.weight_decay,
                "batch_size": phase.batch_size,
                "memory_times": recipe.memory_times_at(position) if phase.is_constant else None,
            }
        )
    return {
        "phases": phases,
        "tokens": recipe.tokens,
        "steps": recipe.num_steps,
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "effective_learning_rate": recipe.effective_learning_rate,
        "batch_size": recipe.batch_size,
        "memory_times": recipe.memory_times,
        "flow_time": recipe.flow_time_at(recipe.tokens),
        "parameters": model.num_parameters,
        "tokens_per_parameter": recipe.tokens_per_parameter,
        "flops": recipe.flops,
        "corpus": recipe.setup.corpus,
        "sequence_length": recipe.setup.sequence_length,
        "seed": recipe.setup.seed,
        "precision": recipe.setup.precision,
    }


def _seconds_here(recipe: Recipe) -> tuple[float | None, str]:
    try:
        from isotune.train.speed import seconds_per_token
    except ModuleNotFoundError as error:
        return None, f"unknown without {error.name}: pip install 'isotune[train]'"
    try:
        return recipe.tokens * seconds_per_token(recipe), "measured here, one CPU thread, not compiled"
    except InputError as error:
        return None, f"unknown: {error}"


def _print(facts: dict[str, Any], remark: str) -> None:
    table = make_table("phase", "tokens", "until", "steps", "LR", "WD", "batch", "n")
    rounded = False
    for number, phase in enumerate(facts["phases"], start=1):
        is_rounded = phase["requested_tokens"] not in (None, phase["tokens"])
        rounded |= is_rounded
        lr = phase["learning_rate"]
        table.add_row(
            str(number),
            f"{phase['tokens']:,}" + (f" (asked {phase['requested_tokens']:,})" if is_rounded else ""),
            f"{phase['end_tokens']:,}",
            f"{phase['steps']:,}",
            _ramp(lr) if isinstance(lr, dict) else format_number(lr),
            format_number(phase["weight_decay"]),
            str(phase["batch_size"]),
            "" if phase["memory_times"] is None else f"{phase['memory_times']:.3g}",
        )
    print_table(table)
    if rounded:
        click.echo("Lengths are rounded to whole steps of the largest batch.")
    seconds = facts["estimated_seconds"]
    time = remark if seconds is None else f"about {format_seconds(seconds)} ({remark})"
    click.echo(
        f"tokens                 {facts['tokens']:,} in {facts['steps']:,} steps, "
        f"sequences of {facts['sequence_length']}\n"
        f"parameters             {facts['parameters']:,} ({facts['tokens_per_parameter']:.3g} tokens per parameter)\n"
        f"LR x WD = ELR          {format_number(facts['learning_rate'])} x {format_number(facts['weight_decay'])} = "
        f"{facts['effective_learning_rate']:.4g}\n"
        f"n (memory times)       {facts['memory_times']:.3g}\n"
        f"compute                {facts['flops']:.3g} FLOPs in {facts['precision']}\n"
        f"corpus                 {facts['corpus']}, seed {facts['seed']}\n"
        f"time                   {time}"
    )


def _ramp(ramp: dict[str, Any]) -> str:
    shape = "" if ramp["shape"] == "linear" else f" {ramp['shape']}"
    return f"{format_number(ramp['start'])} -> {format_number(ramp['end'])}{shape}"
