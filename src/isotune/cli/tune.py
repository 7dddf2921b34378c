"""`isotune tune`: the best LR and WD for a budget, for a fraction of a grid's tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isotune.cli.execution import evaluation_of, importing_torch, make_execution, stop_on_signals, with_execution
from isotune.cli.options import load_recipe
from isotune.cli.terminal import StatusLine, format_seconds
from isotune.errors import InputError
from isotune.recipe import Recipe, format_number, format_tokens, parse_number, parse_tokens

if TYPE_CHECKING:
    from isotune.sweep.driver import Progress
    from isotune.tune.loop import Round, Tuned
    from isotune.tune.questions import Goal

DEFAULT_LEARNING_RATES, DEFAULT_WEIGHT_DECAYS = "2^-13..2^-6", "2^-8..1"
DEFAULT_RUNS = 10  # the price limit, in runs of the full budget


@click.command()
@click.argument("recipe_name", metavar="RECIPE")
@click.option("--lr", "learning_rates", default=DEFAULT_LEARNING_RATES, show_default=True, help="Range of LR.")
@click.option("--wd", "weight_decays", default=DEFAULT_WEIGHT_DECAYS, show_default=True, help="Range of coupled WD.")
@click.option("--octaves", default=0.5, show_default=True, help="Between neighbouring settings.")
@click.option("--tokens", help="The budget to tune for [default: the recipe's].")
@click.option(
    "--tolerance", default=0.25, show_default=True, help="Regret that is good enough, in percent of the loss."
)
@click.option("--max-tokens", help=f"Train no more than this [default: {DEFAULT_RUNS} runs of the budget].")
@click.option("--max-hours", type=float, help="Begin no round after this many hours.")
@click.option("--study", type=click.Path(path_type=Path), help="Folder of the runs [default: studies/tune-<recipe>].")
@click.option("--workers", type=int, help="Processes on this machine [default: one per core, or per GPU].")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Print nothing but the result.")
@with_execution
def tune(recipe_name: str, study: Path | None, as_json: bool, quiet: bool, **arguments: Any) -> None:
    """Find the LR and WD of RECIPE that give the lowest loss after its decay.

    Everything that is trained lies in the study: repeat the command after a kill, or with a smaller --tolerance, and
    only what is missing is trained.
    """
    recipe = _recipe(recipe_name, arguments["tokens"])
    execution = make_execution(arguments)
    with importing_torch(arguments["threads"]):
        from isotune.objectives.trainer import TrainerObjective
        from isotune.sweep.run import num_cores
    from isotune.tune import loop
    from isotune.tune.questions import Space

    space = Space(
        learning_rate=_range("--lr", arguments["learning_rates"]),
        weight_decay=_range("--wd", arguments["weight_decays"]),
        octaves=arguments["octaves"],
    )
    limits = loop.Limits(max_tokens=_max_tokens(arguments["max_tokens"], recipe), max_hours=arguments["max_hours"])
    stop = stop_on_signals()
    folder = study or Path("studies") / f"tune-{Path(recipe_name).stem}"
    with StatusLine(quiet=quiet) as line:
        objective = TrainerObjective(
            recipe,
            folder,
            num_parallel=arguments["workers"] or max(1, num_cores() // execution.threads),
            execution=execution,
            evaluation=evaluation_of(arguments),
            on_progress=_shower(line),
            should_stop=lambda: bool(stop),
        )
        goal = objective.goal(space, tolerance=arguments["tolerance"] / 100)
        if not quiet:
            click.echo(_price(goal, limits.max_tokens, folder), err=True)
        with objective:
            tuned = loop.tune(
                objective,
                goal,
                limits=limits,
                on_round=(lambda round: None) if quiet else _show_round(goal),
                should_stop=lambda: bool(stop),
            )
    click.echo(json.dumps(_facts(tuned, goal), indent=1) if as_json else _result(tuned, goal, recipe_name, folder))


def _recipe(name: str, tokens: str | None) -> Recipe:
    return load_recipe(name, {"tokens": tokens} if tokens else {})


def _range(option: str, text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    if not dots:
        raise InputError(f"{option} {text!r} is no range: write 2^-12..2^-7")
    return parse_number(option, low), parse_number(option, high)


def _max_tokens(text: str | None, recipe: Recipe) -> int:
    return DEFAULT_RUNS * recipe.tokens if text is None else parse_tokens("--max-tokens", text)


# What a person sees


def _price(goal: Goal, max_tokens: int | None, folder: Path) -> str:
    cells = len(goal.space.cells)
    grid = cells * goal.tokens
    most = f"at most {format_tokens(max_tokens)}" if max_tokens else "as many as it takes"
    share = f" ({100 * max_tokens / grid:.2g} %)" if max_tokens else ""
    return (
        f"Tuning LR and WD for {format_tokens(goal.tokens)} tokens, {cells} settings: a grid of them would train "
        f"{format_tokens(grid)}, this trains {most}{share} and ends when the expected regret is below "
        f"{100 * goal.tolerance:.2g} %.\nRuns go to {folder}; repeat the command to go on after a kill."
    )


def _show_round(goal: Goal) -> Callable[[Round], None]:
    def show(round: Round) -> None:
        best = round.suggestion.recommendation
        if round.number > 1 or round.suggestion.recommendation.loss_interval[0] > 0:
            known = f"best guess LR {format_number(best.learning_rate)}, WD {format_number(best.weight_decay)}"
            click.echo(f"round {round.number}: {known}, expected regret {100 * best.regret:.2g} %", err=True)
        for question, reason, price in zip(
            round.suggestion.questions, round.suggestion.reasons, round.prices, strict=True
        ):
            settings = f"LR {format_number(question.learning_rate)}, WD {format_number(question.weight_decay)}"
            click.echo(
                f"  {settings}, {format_tokens(question.tokens)} tokens ({format_tokens(price)} to train): {reason}",
                err=True,
            )

    return show


def _shower(line: StatusLine) -> Callable[[Progress], None]:
    def show(progress: Progress) -> None:
        done, total = format_tokens(progress.tokens_done), format_tokens(progress.tokens_total)
        left = "" if progress.seconds_left is None else f", {format_seconds(progress.seconds_left)} left"
        line.show(f"  {done} of {total} tokens, {format_tokens(progress.tokens_per_second)} a second{left}")

    return show


def _result(tuned: Tuned, goal: Goal, recipe: str, folder: Path) -> str:
    best = tuned.recommendation
    lr, wd = format_number(best.learning_rate), format_number(best.weight_decay)
    low, high = best.loss_interval
    lines = [
        click.style(f"LR {lr}, WD {wd}", bold=True)
        + f" for {format_tokens(goal.tokens)} tokens: loss {best.loss:.4f} ({low:.4f} to {high:.4f})",
        f"expected regret {100 * best.regret:.2g} %, below {100 * best.regret_bound:.2g} % with probability "
        f"{best.level:.0%}; ended because: {tuned.stopped}",
        f"trained {format_tokens(tuned.spent_tokens)} tokens in {format_seconds(tuned.seconds)}, "
        f"{100 * tuned.spent_tokens / tuned.grid_tokens:.2g} % of a grid of {len(goal.space.cells)} settings",
    ]
    if best.as_good:
        others = "; ".join(f"LR {format_number(a)}, WD {format_number(b)}" for a, b in best.as_good[:4])
        more = f" and {len(best.as_good) - 4} more" if len(best.as_good) > 4 else ""
        lines.append(f"expected as good, within {100 * goal.tolerance:.2g} %: {others}{more}")
    if tuned.unanswered:
        lines.append(f"{len(tuned.unanswered)} questions had no answer: see {folder}")
    lines.append(f"next: isotune train {recipe} --lr {lr} --wd {wd}, or isotune diagnose {folder}")
    return "\n".join(lines)


def _facts(tuned: Tuned, goal: Goal) -> Any:
    from isotune.analyze.plain import plain

    return plain({"tokens": goal.tokens, "settings": len(goal.space.cells), "result": tuned})
