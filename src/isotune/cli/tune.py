"""`isotune tune`: the best LR and WD for a budget, for a fraction of a grid's tokens."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from isotune.cli.execution import (
    OF_EXECUTION,
    evaluation_of,
    importing_torch,
    make_execution,
    stop_on_signals,
    with_execution,
)
from isotune.cli.options import load_recipe, study_option
from isotune.cli.report import NO_REPORT, report_tuning
from isotune.cli.terminal import StatusLine
from isotune.cli.tuning_words import (
    DEFAULT_RUNS,
    all_diverged_words,
    price_words,
    progress_words,
    result_facts,
    result_words,
    round_words,
    table_facts,
    table_words,
)
from isotune.errors import InputError
from isotune.recipe import format_tokens, parse_number, parse_tokens
from isotune.recipe.quantities import require_positive

if TYPE_CHECKING:
    from isotune.objectives.table import TableObjective
    from isotune.recipe import Recipe
    from isotune.tune import Answer, Goal, Objective, Question, Round, Space, Tuned

DEFAULT_RECIPE = "nano-tune"
DEFAULT_LEARNING_RATES, DEFAULT_WEIGHT_DECAYS, DEFAULT_OCTAVES = "2^-13..2^-6", "2^-8..1", 0.5

# Options that belong to one way of answering, with the word for it.
_OF_COMMANDS = ("metrics", "wd_convention", "timeout_hours", "tokens_per_step", "retry_failed", "loss")
_OF_SPACES = ("lr", "wd", "octaves", "seeds")

# Options with which a tuning goes on as it began, besides --tolerance and --max-tokens.
_KEPT = ("tokens", *_OF_SPACES, "max_hours", "study", "workers", *OF_EXECUTION)


@click.command()
@click.argument("recipe_name", metavar="[RECIPE]", required=False)
@click.option("--lr", help=f"Range of LR [default: {DEFAULT_LEARNING_RATES}].")
@click.option("--wd", help=f"Range of coupled WD [default: {DEFAULT_WEIGHT_DECAYS}].")
@click.option("--octaves", type=float, help=f"Between neighbouring settings [default: {DEFAULT_OCTAVES}].")
@click.option(
    "--seeds", type=click.IntRange(min=1), help="Most seeds of a setting [default: 16; 1 for a command without {seed}]."
)
@click.option("--tokens", help="The budget to tune for [default: the recipe's, or the table's largest].")
@click.option(
    "--tolerance", default=0.1, show_default=True, help="Expected regret that is good enough, in percent of the loss."
)
@click.option(
    "--max-tokens",
    help=f"Train no more than this, earlier calls on this study included [default: {DEFAULT_RUNS} runs of the budget].",
)
@click.option("--max-hours", type=float, help="Begin no round that would end later than this.")
@study_option("studies/tune-<name>")
@click.option("--workers", type=click.IntRange(min=1), help="Runs at once [default: one per core or per GPU; else 1].")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--quiet", is_flag=True, help="Print nothing but the result.")
@NO_REPORT
@click.option(
    "--table", type=click.Path(path_type=Path), help="Replay: the runs of this table answer, nothing is trained."
)
@click.option("--batch-size", type=int, help="Which runs of the table, if it has several batch sizes.")
@click.option("--command", help="Tune this command instead of a recipe: see above.")
@click.option("--metrics", help='Where the command writes its metrics, such as "{out}/metrics.jsonl".')
@click.option(
    "--wd-convention",
    type=click.Choice(["coupled", "independent"]),
    help="What WD means to the command. coupled: w *= 1 - LR*WD (PyTorch's AdamW); independent: w *= 1 - WD.",
)
@click.option(
    "--tokens-per-step",
    type=click.IntRange(min=1),
    help="Batch size x sequence length of the command; without it n is unknown.",
)
@click.option("--loss", default="val_loss", show_default=True, help="The command's loss, by its name in the metrics.")
@click.option("--timeout-hours", type=float, help="Kill a run of the command after so long.")
@click.option(
    "--retry-failed",
    is_flag=True,
    default=None,
    help="Ask again what failed in earlier calls: the command was mended.",
)
@with_execution
def tune(recipe_name: str | None, as_json: bool, quiet: bool, no_report: bool, **arguments: Any) -> None:
    """Find the LR and WD of RECIPE that give the lowest loss after its decay.

    Without RECIPE it tunes nano-tune, a language model of 133K parameters: some minutes on two cores.

    Everything that is trained lies in the study: repeat the command after a kill, or with a smaller --tolerance, and
    only what is missing is trained.

    A replay shows in seconds how a tuning would have gone: --table tables/nano --batch-size 4.

    Any other trainer: --command "python train.py --lr {learning_rate} --wd {weight_decay} --max-tokens {tokens} --out
    {out}" --metrics "{out}/metrics.jsonl" --wd-convention coupled --tokens 10B. Its metrics are JSON lines with
    `tokens` and `val_loss`; {seed}, and {resume} (the {out} of a shorter run with the same settings), are optional.
    """
    from isotune.tune import Limits, mark_exploded
    from isotune.tune import tune as run_tuning

    stop = stop_on_signals() if arguments["table"] is None else []  # a replay has nothing to save
    rounds = list["Round"]()
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(StatusLine(quiet=quiet))
        tuning = _tuning(recipe_name, stop, line, arguments)
        stack.enter_context(contextlib.closing(tuning))
        goal = tuning.goal
        limits = Limits(
            max_tokens=_max_tokens(arguments["max_tokens"], goal.tokens), max_hours=_max_hours(arguments["max_hours"])
        )
        if not quiet:
            seconds = tuning.seconds_per_token()
            click.echo(price_words(tuning.name, goal, limits, seconds, tuning.objective.spent_tokens()), err=True)
            click.echo(tuning.where, err=True)

        def on_round(asked: Round) -> None:
            rounds.append(asked)
            if not quiet:
                click.echo(round_words(asked, goal, limits), err=True)

        tuned = run_tuning(
            tuning.objective,
            goal,
            limits=limits,
            leave_out=tuning.leave_out,
            on_round=on_round,
            should_stop=lambda: bool(stop),
        )
    if tuned.stopped == "no answers":
        raise InputError(f"none of {len(tuned.unanswered)} runs gave a loss ({_last_failure(tuned)}): mend that first")
    answers = mark_exploded(tuning.objective.answers())
    if not answers and not stop:
        price = format_tokens(min(tuned.more.prices))
        raise InputError(f"the limits do not pay for a first run of {price} tokens: raise --max-tokens or --max-hours")
    has_finished = not all(answer.has_diverged for answer in answers)
    if not has_finished and stop:
        click.echo("isotune: stopped before a run had finished: repeat the same command to continue", err=True)
        sys.exit(128 + stop[0])
    if not has_finished:
        raise InputError(all_diverged_words(tuned, answers))
    words = result_words(tuned, goal, limits, answers, tuning.again, tuning.next_steps)
    if tuning.table is not None:
        words += "\n" + table_words(tuning.table, tuned, goal)
    click.echo(json.dumps(_facts(tuned, tuning, answers), indent=1) if as_json else words)
    if tuned.unanswered and not quiet and not stop:
        click.echo(
            f"isotune: {len(tuned.unanswered)} runs gave no loss, the last: {_last_failure(tuned)}{tuning.retry}",
            err=True,
        )
    if tuning.folder is not None and not no_report and not stop:
        report_tuning(tuning.folder, tuned, goal, result=words, rounds=rounds, quiet=quiet)
    if stop:
        sys.exit(128 + stop[0])


@dataclass(frozen=True)
class _Tuning:
    """What is tuned, for what, and what to say of it."""

    name: str
    objective: Objective
    goal: Goal
    folder: Path | None  # None: nothing is trained
    again: str  # the command that goes on, without --tolerance and --max-tokens
    next_steps: tuple[str, ...]  # with {lr} and {wd}
    where: str
    seconds_per_token: Callable[[], float | None] = lambda: None
    close: Callable[[], None] = lambda: None
    table: TableObjective | None = None
    leave_out: Sequence[Question] = ()  # what earlier calls asked in vain
    retry: str = ""  # how to ask that again


def _tuning(recipe_name: str | None, stop: list[int], line: StatusLine, arguments: dict[str, Any]) -> _Tuning:
    ways = {"RECIPE": recipe_name, "--command": arguments["command"], "--table": arguments["table"]}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"both {' and '.join(given)}: give one of them")
    if given == ["--command"]:
        _refuse(("batch_size",), "--table")
        _refuse(OF_EXECUTION, "recipes; the command trains as its own words say")
        return _of_command(stop, arguments)
    _refuse(_OF_COMMANDS, "--command")
    if given == ["--table"]:
        return _of_table(arguments)
    _refuse(("batch_size",), "--table")
    return _of_recipe(recipe_name or DEFAULT_RECIPE, stop, line, arguments)


def _of_recipe(name: str, stop: list[int], line: StatusLine, arguments: dict[str, Any]) -> _Tuning:
    recipe = load_recipe(name, {"tokens": arguments["tokens"]} if arguments["tokens"] else {})
    execution = make_execution(arguments)
    with importing_torch(arguments["threads"]):
        from isotune.objectives.trainer import TrainerObjective
        from isotune.sweep.driver import Limits
        from isotune.sweep.run import num_cores
        from isotune.tune.questions import MAX_SEEDS
    folder = arguments["study"] or Path("studies") / f"tune-{Path(name).stem}"
    num_workers = arguments["workers"] or max(1, num_cores() // execution.threads)
    objective = TrainerObjective(
        recipe,
        folder,
        num_parallel=num_workers,
        execution=execution,
        evaluation=evaluation_of(arguments),
        limits=Limits(save_seconds=arguments["save_seconds"]),
        allow_mixed_numerics=arguments["allow_mixed_numerics"],
        on_progress=lambda progress: line.show(progress_words(progress)),
        should_stop=lambda: bool(stop),
    )
    quoted = shlex.quote(name)
    return _Tuning(
        f"{name} (batch size {recipe.batch_size})",
        objective,
        objective.goal(
            _space(arguments), tolerance=_tolerance(arguments["tolerance"]), num_seeds=arguments["seeds"] or MAX_SEEDS
        ),
        folder,
        f"isotune tune {quoted}{_given(_KEPT)}",
        (
            f"isotune train {quoted}{_given(('tokens',))} --lr {{lr}} --wd {{wd}} --study {shlex.quote(str(folder))}",
            f"isotune diagnose {shlex.quote(str(folder))}",
        ),
        f"Runs go to {folder}, {num_workers} at once. After a kill, repeat the command: nothing is trained twice.",
        lambda: None if execution.compiled or execution.device != "cpu" else _seconds_per_token(recipe, num_workers),
        objective.close,
    )


def _of_command(stop: list[int], arguments: dict[str, Any]) -> _Tuning:
    from isotune.objectives.command import CommandObjective
    from isotune.objectives.placeholders import name_of
    from isotune.tune import Goal

    for option in ("metrics", "wd_convention", "tokens"):
        if arguments[option] is None:
            raise InputError(f"--command needs --{option.replace('_', '-')}: see `isotune tune --help`")
    folder = arguments["study"] or Path("studies") / f"tune-{name_of(arguments['command'])}"
    objective = CommandObjective(
        arguments["command"],
        folder,
        metrics=arguments["metrics"],
        weight_decay_convention=arguments["wd_convention"],
        tokens_per_step=arguments["tokens_per_step"],
        num_parallel=arguments["workers"] or 1,
        timeout_hours=arguments["timeout_hours"],
        loss=arguments["loss"],
        should_stop=lambda: bool(stop),
    )
    goal = Goal(
        tokens=parse_tokens("--tokens", arguments["tokens"]),
        space=_space(arguments),
        tokens_per_step=objective.tokens_per_step,
        seeds=tuple(range(_num_seeds(arguments))),
        tolerance=_tolerance(arguments["tolerance"]),
    )
    objective.require_exact(map(tuple, goal.space.settings.tolist()))
    where = (
        f"Runs go to {folder}, {objective.num_parallel} at once. After a kill, repeat the command: nothing that was "
        "answered is asked again."
    )
    if arguments["wd_convention"] == "independent":
        where += "\nHere WD is coupled, in --wd too: the command gets LR x WD as its {weight_decay}."
    # Where nothing was ever answered, the command was broken: it is taken to be mended.
    is_mended = arguments["retry_failed"] or not objective.answers()
    return _Tuning(
        "the command",
        objective,
        goal,
        folder,
        "the same command",
        (),
        where,
        leave_out=() if is_mended else objective.failed(),
        retry="; they are asked again with --retry-failed",
    )


def _of_table(arguments: dict[str, Any]) -> _Tuning:
    from isotune.objectives.table import TableObjective

    _refuse(_OF_SPACES, "recipes and commands; the cells of a table are as they are")
    _refuse(("study",), "recipes and commands; a replay keeps nothing")
    _refuse(OF_EXECUTION, "recipes; a replay trains nothing")
    folder = arguments["table"]
    quoted = shlex.quote(str(folder))
    objective = TableObjective(folder, batch_size=arguments["batch_size"], num_parallel=arguments["workers"] or 1)
    tokens = parse_tokens("--tokens", arguments["tokens"]) if arguments["tokens"] else objective.budgets[-1]
    return _Tuning(
        f"{objective.table.name} (batch size {objective.batch_size})",
        objective,
        objective.goal(tokens, tolerance=_tolerance(arguments["tolerance"])),
        None,
        f"isotune tune --table {quoted} --batch-size {objective.batch_size} --tokens {tokens}"
        + _given(("max_hours", "workers")),
        (f"isotune table show {quoted} --batch-size {objective.batch_size} --tokens {tokens} --seed {objective.seed}",),
        f"A replay: the runs of {folder} answer, nothing is trained.",
        table=objective,
    )


def _space(arguments: dict[str, Any]) -> Space:
    from isotune.tune import Space

    return Space(
        learning_rate=_range("--lr", arguments["lr"] or DEFAULT_LEARNING_RATES),
        weight_decay=_range("--wd", arguments["wd"] or DEFAULT_WEIGHT_DECAYS),
        octaves=DEFAULT_OCTAVES
        if arguments["octaves"] is None
        else require_positive("--octaves", arguments["octaves"]),
    )


def _num_seeds(arguments: dict[str, Any]) -> int:
    from isotune.objectives.placeholders import placeholders_in, split_command
    from isotune.tune.questions import MAX_SEEDS

    has_seed = "seed" in placeholders_in("--command", split_command(arguments["command"]))
    if not has_seed and (arguments["seeds"] or 1) > 1:
        raise InputError("--seeds needs a command that can be told the seed: put {seed} where it belongs")
    return arguments["seeds"] or (MAX_SEEDS if has_seed else 1)


def _range(option: str, text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    if not dots:
        raise InputError(f"{option} {text!r} is no range: write 2^-12..2^-7")
    ends = parse_number(option, low), parse_number(option, high)
    if not 0 < ends[0] <= ends[1]:
        remedy = f"{high.strip()}..{low.strip()}" if min(ends) > 0 else "2^-8..0.1"
        raise InputError(f"{option} {text!r} must go from a number above 0 to one that is not lower: write {remedy}")
    return ends


def _refuse(names: tuple[str, ...], whose: str) -> None:
    """Refuses options that were given, be it with their defaults."""
    context = click.get_current_context()
    options = {option.name: option.opts[0] for option in context.command.params}
    for name in names:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError(f"{options[name]} belongs to {whose}: leave it out")


def _given(names: tuple[str, ...]) -> str:
    """Those of these options that were given, to be typed again."""
    context = click.get_current_context()
    words = []
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT:
            value = context.params[option.name]
            is_off = value is False  # of a flag, which has another name then
            words.append((option.secondary_opts if is_off else option.opts)[0])
            words += [] if isinstance(value, bool) else [str(value)]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _tolerance(percent: float) -> float:
    """As a share of the loss."""
    if not 0 < percent < math.inf:
        raise InputError(f"--tolerance {percent:g} must be above 0: write percent of the loss, such as 0.1")
    return percent / 100


def _max_hours(hours: float | None) -> float | None:
    return None if hours is None else require_positive("--max-hours", hours)


def _max_tokens(text: str | None, budget: int) -> int:
    return DEFAULT_RUNS * budget if text is None else parse_tokens("--max-tokens", text)


def _seconds_per_token(recipe: Recipe, num_workers: int) -> float | None:
    from isotune.train.speed import seconds_per_token

    try:
        return seconds_per_token(recipe) / num_workers
    except InputError:  # too large to try here
        return None


def _last_failure(tuned: Tuned) -> str:
    return tuned.last_failure or "it was interrupted"


def _facts(tuned: Tuned, tuning: _Tuning, answers: Sequence[Answer]) -> Any:
    from isotune.analyze.plain import plain

    facts = {"tokens": tuning.goal.tokens, "settings": len(tuning.goal.space.cells)}
    facts |= result_facts(tuned, tuning.goal, answers)
    return plain(facts if tuning.table is None else facts | {"table": table_facts(tuning.table, tuned, tuning.goal)})
