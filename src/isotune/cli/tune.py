"""`isotune tune`: the best LR and WD for a budget, for a fraction of a grid's tokens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isotune.cli.execution import evaluation_of, importing_torch, make_execution, stop_on_signals, with_execution
from isotune.cli.options import load_recipe
from isotune.cli.terminal import StatusLine, format_seconds
from isotune.errors import InputError
from isotune.recipe import format_number, format_tokens, parse_number, parse_tokens

if TYPE_CHECKING:
    from isotune.sweep.driver import Progress
    from isotune.tune import Goal, Objective, Round, Space, Tuned

DEFAULT_LEARNING_RATES, DEFAULT_WEIGHT_DECAYS = "2^-13..2^-6", "2^-8..1"
DEFAULT_RUNS = 10  # the price limit, in runs of the full budget


@click.command()
@click.argument("recipe_name", metavar="[RECIPE]", required=False)
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
@click.option("--workers", type=int, help="Runs at once [default: one per core or per GPU; with --command 1].")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Print nothing but the result.")
@click.option("--command", help="Tune this command instead of a recipe: see below.")
@click.option("--metrics", help='Where the command writes its metrics, such as "{out}/metrics.jsonl".')
@click.option(
    "--wd-convention",
    type=click.Choice(["coupled", "independent"]),
    help="What WD means to the command. coupled: w *= 1 - LR*WD (PyTorch's AdamW); independent: w *= 1 - WD.",
)
@click.option(
    "--tokens-per-step", type=int, help="Batch size x sequence length of the command; without it n is unknown."
)
@click.option("--loss", default="val_loss", show_default=True, help="The command's loss, by its name in the metrics.")
@click.option("--timeout-hours", type=float, help="Kill a run of the command after so long.")
@with_execution
def tune(recipe_name: str | None, study: Path | None, as_json: bool, quiet: bool, **arguments: Any) -> None:
    """Find the LR and WD of RECIPE that give the lowest loss after its decay.

    Everything that is trained lies in the study: repeat the command after a kill, or with a smaller --tolerance, and
    only what is missing is trained.

    Any other trainer: --command "python train.py --lr {learning_rate} --wd {weight_decay} --max-tokens {tokens} --out
    {out}" --metrics "{out}/metrics.jsonl" --wd-convention coupled --tokens 10B. Its metrics are JSON lines with
    `tokens` and `val_loss`; {seed}, and {resume} (the {out} of a shorter run with the same settings), are optional.
    """
    from isotune.tune import Limits, Space
    from isotune.tune import tune as run_tuning

    space = Space(
        learning_rate=_range("--lr", arguments["learning_rates"]),
        weight_decay=_range("--wd", arguments["weight_decays"]),
        octaves=arguments["octaves"],
    )
    stop = stop_on_signals()
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(StatusLine(quiet=quiet))
        make = _of_recipe if arguments["command"] is None else _of_command
        tuning = make(recipe_name, study, space, stop, line, arguments)
        stack.enter_context(contextlib.closing(tuning))
        limits = Limits(
            max_tokens=_max_tokens(arguments["max_tokens"], tuning.goal.tokens), max_hours=arguments["max_hours"]
        )
        if not quiet:
            click.echo(_price(tuning.goal, limits.max_tokens, tuning.folder), err=True)
        tuned = run_tuning(
            tuning.objective,
            tuning.goal,
            limits=limits,
            on_round=(lambda round: None) if quiet else _show_round(),
            should_stop=lambda: bool(stop),
        )
    click.echo(json.dumps(_facts(tuned, tuning.goal), indent=1) if as_json else _result(tuned, tuning))


@dataclass(frozen=True)
class _Tuning:
    """What is tuned, for what, and what to do with the result."""

    objective: Objective
    goal: Goal
    folder: Path
    next_step: str  # with {lr} and {wd}
    close: Callable[[], None] = lambda: None


def _of_recipe(
    name: str | None, study: Path | None, space: Space, stop: list[int], line: StatusLine, arguments: dict[str, Any]
) -> _Tuning:
    if name is None:
        raise InputError("nothing to tune: give a recipe, such as nano-wsd, or --command")
    for option in ("metrics", "wd_convention", "timeout_hours", "tokens_per_step"):
        if arguments[option] is not None:
            raise InputError(f"--{option.replace('_', '-')} belongs to --command: a recipe knows it")
    recipe = load_recipe(name, {"tokens": arguments["tokens"]} if arguments["tokens"] else {})
    execution = make_execution(arguments)
    with importing_torch(arguments["threads"]):
        from isotune.objectives.trainer import TrainerObjective
        from isotune.sweep.run import num_cores
    folder = study or Path("studies") / f"tune-{Path(name).stem}"
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
    step = f"isotune train {name} --lr {{lr}} --wd {{wd}}, or isotune diagnose {folder}"
    return _Tuning(objective, goal, folder, step, objective.close)


def _of_command(
    name: str | None, study: Path | None, space: Space, stop: list[int], line: StatusLine, arguments: dict[str, Any]
) -> _Tuning:
    from isotune.objectives.command import CommandObjective
    from isotune.tune import Goal

    if name is not None:
        raise InputError(f"both the recipe {name} and --command: give one of them")
    for option in ("metrics", "wd_convention", "tokens"):
        if arguments[option] is None:
            raise InputError(f"--command needs --{option.replace('_', '-')}: see `isotune tune --help`")
    folder = study or Path("studies") / "tune-command"
    objective = CommandObjective(
        arguments["command"],
        folder,
        metrics=arguments["metrics"],
        weight_decay_convention=arguments["wd_convention"],
        num_parallel=arguments["workers"] or 1,
        timeout_hours=arguments["timeout_hours"],
        loss=arguments["loss"],
        should_stop=lambda: bool(stop),
    )
    goal = Goal(
        tokens=parse_tokens("--tokens", arguments["tokens"]),
        space=space,
        tokens_per_step=arguments["tokens_per_step"],
        tolerance=arguments["tolerance"] / 100,
    )
    return _Tuning(objective, goal, folder, f"train with LR {{lr}} and coupled WD {{wd}}; all runs lie in {folder}")


def _range(option: str, text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    if not dots:
        raise InputError(f"{option} {text!r} is no range: write 2^-12..2^-7")
    return parse_number(option, low), parse_number(option, high)


def _max_tokens(text: str | None, budget: int) -> int:
    return DEFAULT_RUNS * budget if text is None else parse_tokens("--max-tokens", text)


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


def _show_round() -> Callable[[Round], None]:
    def show(round: Round) -> None:
        best = round.suggestion.recommendation
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


def _result(tuned: Tuned, tuning: _Tuning) -> str:
    best, goal = tuned.recommendation, tuning.goal
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
        lines.append(f"{len(tuned.unanswered)} questions had no answer: see {tuning.folder}")
    lines.append(f"next: {tuning.next_step.format(lr=lr, wd=wd)}")
    return "\n".join(lines)


def _facts(tuned: Tuned, goal: Goal) -> Any:
    from isotune.analyze.plain import plain

    return plain({"tokens": goal.tokens, "settings": len(goal.space.cells), "result": tuned})
