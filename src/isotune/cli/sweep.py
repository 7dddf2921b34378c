"""`isotune sweep plan|run|status|clean`: many recipes at once, each shared prefix trained once."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isotune.cli.execution import evaluation_of, importing_torch, make_execution, stop_on_signals, with_execution
from isotune.cli.options import Command, find_recipe, study_option
from isotune.cli.report import NO_REPORT, report_sweep
from isotune.cli.terminal import StatusLine, format_bytes, format_seconds, make_table, print_table
from isotune.errors import InputError
from isotune.recipe import Recipe, format_tokens
from isotune.runs import Study, read_table
from isotune.sweep.claims import require_stale_seconds
from isotune.sweep.cleaning import removable, remove
from isotune.sweep.grids import Sweep, read_sweep
from isotune.sweep.plan import Plan, Task, make_plan
from isotune.sweep.status import SweepStatus, sweep_status

if TYPE_CHECKING:
    from isotune.sweep.driver import Progress, SweepResult
    from isotune.sweep.run import MakeExecutor

SOME_FAILED = 1  # exit code of a sweep that did all it could

# Option -> the grid's field that it sets; each takes an axis such as 2^-11..2^-7 or 4,64.
_AXES = {
    "lr": ("learning_rate", "Learning rates, such as 2^-11..2^-7."),
    "wd": ("weight_decay", "Weight decays (coupled: w *= 1 - lr*wd), such as 2^-6..2^0."),
    "elr": ("effective_learning_rate", "LR x WD instead of --wd: lines of constant ELR."),
    "batch-size": ("batch_size", "Batch sizes in sequences, such as 4,64."),
    "seed": ("seed", "Seeds, such as 0..4."),
    "budgets": ("budgets", "Total tokens of the runs, decays included, such as 640K,1.28M,2.56M."),
    "warmup-tokens": ("warmup_tokens", "Length of the warm-up."),
    "decay-tokens": ("decay_tokens", "Length of every decay."),
    "decay-fraction": ("decay_fraction", "Length of a decay as a fraction of its budget, instead of --decay-tokens."),
    "decay-shape": ("decay_shape", "linear, cosine or one_minus_sqrt."),
    "trunk-tokens": ("trunk_tokens", "Also a constant run of so many tokens in each cell."),
    "trunk-extra-tokens": ("trunk_extra_tokens", "Also a constant run to so many tokens past the last branch."),
    "switch": ("switch", "What happens at --switch-tokens: type1, type2 or square_root."),
    "switch-tokens": ("switch_tokens", "Where the batch size switches."),
    "switch-batch-size": ("switch_batch_size", "To which batch size."),
    "source-lr": ("source_learning_rate", "type1: learning rate before the switch."),
    "source-wd": ("source_weight_decay", "type1: weight decay before the switch."),
    "corpus": ("corpus", "A built-in corpus or a path."),
    "precision": ("precision", "float32 or bfloat16."),
}


def with_sweep(command: Command) -> Command:
    """Gives a command the argument SWEEP, the axes, the study and the tables."""
    command = click.option("--table", "tables", multiple=True, help="Runs of this table count as done.")(command)
    command = study_option("studies/<sweep's name>")(command)
    for option, (field, text) in reversed(_AXES.items()):
        command = click.option(f"--{option}", field, help=text)(command)
    return click.argument("sweep_name", metavar="SWEEP")(command)


WORKERS = click.option("--workers", type=int, help="Processes on this machine [default: one per core, or per GPU].")


@click.group()
def sweep() -> None:
    """Train many recipes, each shared prefix once."""


@sweep.command()
@with_sweep
@WORKERS
@click.option("--no-timing", is_flag=True, help="Do not measure this machine's speed (it takes a few seconds).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(sweep_name: str, study: Path | None, tables: tuple[str, ...], **arguments: Any) -> None:
    """Show the tree of SWEEP and its price, without training anything.

    SWEEP is a TOML file, or the name of a shipped recipe or sweep such as nano-wsd or nano-grid.
    """
    _require_workers(arguments["workers"])
    loaded = _load(sweep_name, arguments)
    folder = study or Path("studies") / loaded.name
    existing = Study.open(folder) if (folder / "study.json").exists() else None
    made = make_plan(loaded.recipes, existing, _in_tables(tables))
    seconds, remark = (None, "not measured") if arguments["no_timing"] else _estimate(made, arguments["workers"])
    if arguments["as_json"]:
        click.echo(json.dumps(_plan_facts(made) | {"estimated_seconds": seconds}, indent=1))
        return
    for line in _tree_lines(made):
        click.echo(line)
    click.echo()
    click.echo(_price_text(made))
    click.echo(f"time: {format_seconds(seconds)} ({remark})" if seconds is not None else f"time: {remark}")


@sweep.command()
@with_sweep
@with_execution
@WORKERS
@click.option("--on", "where", type=click.Choice(["local", "ray"]), default="local", show_default=True)
@click.option("--ray-address", help='Of a running Ray cluster, such as "auto" [default: a cluster of its own].')
@click.option("--gpus-per-segment", type=float, default=0.0, help="GPUs of a Ray task.")
@click.option("--retries", default=2, show_default=True, help="Of a segment whose process died.")
@click.option("--hang-seconds", default=600.0, show_default=True, help="Without a new row, until a segment is killed.")
@click.option("--stale-seconds", default=60.0, show_default=True, help="Until a silent driver's work is taken over.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@NO_REPORT
def run(sweep_name: str, study: Path | None, tables: tuple[str, ...], **arguments: Any) -> None:
    """Train what SWEEP lacks.

    Repeat the command to continue after a kill; start it several times, also on several machines that share the study's
    folder, to work together. Ctrl-C stops with all states saved.
    """
    _require_workers(arguments["workers"])
    require_stale_seconds(arguments["stale_seconds"])
    loaded = _load(sweep_name, arguments)
    folder = study or Path("studies") / loaded.name
    quiet = arguments["quiet"]
    execution = make_execution(arguments)
    with importing_torch(arguments["threads"]):
        from isotune.sweep.driver import Limits
        from isotune.sweep.run import run_sweep

    limits = Limits(
        retries=arguments["retries"], hang_seconds=arguments["hang_seconds"], save_seconds=arguments["save_seconds"]
    )
    stop = stop_on_signals()
    with StatusLine(quiet=quiet) as line:

        def on_plan(opened: Study, made: Plan) -> None:
            if not quiet:
                click.echo(f"{len(made.recipes)} runs into {opened.folder}\n{_price_text(made)}", err=True)

        result = run_sweep(
            loaded.recipes,
            folder,
            execution=execution,
            evaluation=evaluation_of(arguments),
            make_executor=_executor(arguments),
            limits=limits,
            stale_seconds=arguments["stale_seconds"],
            is_in_table=_in_tables(tables),
            allow_mixed_numerics=arguments["allow_mixed_numerics"],
            on_plan=on_plan,
            on_progress=lambda progress: line.show(_progress_text(progress)),
            should_stop=lambda: bool(stop),
        )
    for words, reason in result.problems:
        click.echo(f"isotune: {words}: {reason}", err=True)
    if not quiet:
        click.echo(_result_text(result))
    if not stop and not arguments["no_report"]:
        report_sweep(folder, quiet=quiet)
    if stop:
        click.echo("isotune: stopped, all states saved: repeat the same command to continue", err=True)
        sys.exit(128 + stop[0])
    if not result.is_complete:
        if result.stopped:
            click.echo(f"isotune: {result.stopped}", err=True)
        sys.exit(SOME_FAILED)


@sweep.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Show it again every two seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(study: Path, watch: bool, as_json: bool) -> None:
    """Show where the sweeps of STUDY stand, who works on them, and what lies on the disk."""
    while True:
        found = sweep_status(Study.open(study))
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(found), indent=1))
        else:
            if watch:
                click.clear()
            _print_status(study, found)
        if not watch:
            return
        time.sleep(2)


@sweep.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Delete; without it the command only says what it would delete.")
@click.option("--models", "with_models", is_flag=True, help="Delete the runs' final states too.")
@click.option("--keep", multiple=True, help="A state's or run's id, or its beginning, to be kept.")
def clean(study: Path, yes: bool, with_models: bool, keep: tuple[str, ...]) -> None:
    """Free disk space of STUDY: states that no planned run starts from, and what dead drivers left.

    Curves always stay, and so do the runs' final states unless --models is given. A state that goes can be trained
    again, with the same bytes.
    """
    items = removable(Study.open(study), keep=keep, with_models=with_models)
    reasons = dict.fromkeys(item.why for item in items)
    for why in reasons:
        chosen = [item for item in items if item.why == why]
        click.echo(f"{len(chosen):>6} files {format_bytes(sum(item.num_bytes for item in chosen)):>10}  {why}")
    if not items:
        click.echo("nothing to delete")
    elif yes:
        click.echo(f"deleted {format_bytes(remove(items))}")
    else:
        click.echo(f"{format_bytes(sum(item.num_bytes for item in items))} in all: delete them with --yes")


def _load(name: str, arguments: dict[str, Any]) -> Sweep:
    options = {field: arguments.pop(field) for field, _ in _AXES.values()}
    return read_sweep(find_recipe(name), {k: v for k, v in options.items() if v is not None}, find_recipe)


def _in_tables(folders: tuple[str, ...]) -> Callable[[Recipe], bool]:
    tables = [read_table(Path(folder)) for folder in folders]
    return lambda recipe: any(table.has(recipe) for table in tables)


def _require_workers(number: int | None) -> None:
    if number is not None and number < 1:
        raise InputError(f"--workers {number} trains nothing: use at least 1, or leave it out for one per core")


def _executor(arguments: dict[str, Any]) -> MakeExecutor:
    if arguments["where"] == "ray":
        from isotune.sweep.on_ray import ray_tasks

        return ray_tasks(
            arguments["ray_address"],
            cpus_per_segment=arguments["threads"],
            gpus_per_segment=arguments["gpus_per_segment"],
        )
    from isotune.sweep.run import local_workers

    return local_workers(arguments["workers"])


# A plan in words


def _plan_facts(plan: Plan) -> dict[str, Any]:
    return {
        "recipes": len(plan.recipes),
        "segments": len(plan.tasks),
        "missing_segments": len(plan.missing),
        "recipes_in_tables": len(plan.in_tables),
        "tokens": dataclasses.asdict(plan.price) | {"share": plan.price.share},
        "tree": [
            {
                "what": task.node.words(),
                "start_tokens": task.node.start_tokens,
                "end_tokens": task.node.end_tokens,
                "status": task.status,
                "missing_tokens": task.tokens,
            }
            for task in plan.tasks
        ],
    }


def _price_text(plan: Plan) -> str:
    price = plan.price
    share = f"{100 * price.share:.0f} %"
    lines = [
        f"separately {format_tokens(price.separately)} tokens, with shared prefixes {format_tokens(price.shared)} "
        f"({share}); there already {format_tokens(price.there)}, to train {format_tokens(price.to_train)} "
        f"in {len(plan.missing)} segments"
    ]
    repeated = price.to_train - (price.shared - price.there)
    if repeated > 0:
        lines.append(f"({format_tokens(repeated)} of them again, because states on the way were deleted)")
    return "\n".join(lines)


def _tree_lines(plan: Plan) -> Iterator[str]:
    """A line for each trunk: where it is cut, with the ends of the decays that branch off in brackets."""
    tasks = {id(task.node): task for task in plan.tasks}
    stack = [(task, 0) for task in reversed(plan.tasks) if task.node.parent is None]
    while stack:
        task, depth = stack.pop()
        line, branches = _trunk_line(task, tasks)
        yield "  " * depth + line
        stack.extend((branch, depth + 1) for branch in reversed(branches))


def _trunk_line(first: Task, tasks: dict[int, Task]) -> tuple[str, list[Task]]:
    """A trunk from this task on, and the branches that need lines of their own."""
    stops, branches, missing, task = [], [], 0, first
    diverged = False
    while True:
        children = [tasks[id(child)] for child in task.node.children]
        trunk, leaves = children[:1], [child for child in children[1:] if not child.node.children]
        branches += [child for child in children[1:] if child.node.children]
        missing += task.tokens + sum(leaf.tokens for leaf in leaves)
        diverged |= task.status == "diverged"
        ends = ", ".join(f"+{format_tokens(leaf.node.end_tokens)}" for leaf in leaves)
        stops.append(format_tokens(task.node.end_tokens) + (f" ({ends})" if ends else ""))
        if not trunk:
            break
        task = trunk[0]
    words = task.node.words().partition(",")[0]
    state = "diverged" if diverged else f"{format_tokens(missing)} missing" if missing else "there"
    return f"{words}: {format_tokens(first.node.start_tokens)} - {' - '.join(stops)}  [{state}]", branches


def _estimate(plan: Plan, num_workers: int | None) -> tuple[float | None, str]:
    """Seconds that the missing tokens take here, one process per core; at least the longest chain."""
    with importing_torch(1):
        from isotune.sweep.run import num_cores
        from isotune.train.speed import seconds_per_token
    workers = num_workers or num_cores()
    if not plan.missing:
        return 0.0, "nothing is missing"
    speeds: dict[int, float] = {}
    seconds: dict[int, float] = {}
    try:
        for task in plan.missing:
            size = task.node.recipe.phases[-1].batch_size
            if size not in speeds:
                speeds[size] = seconds_per_token(task.node.recipe)
            seconds[id(task)] = task.tokens * speeds[size]
    except InputError as error:
        return None, f"unknown: {error}"
    chains: dict[int, float] = {}
    for task in plan.missing:
        chains[id(task)] = seconds[id(task)] + (chains[id(task.parent)] if task.parent else 0.0)
    total = max(sum(seconds.values()) / workers, max(chains.values()))
    return total, f"measured here, {workers} single-threaded processes, not compiled"


# A sweep in words


def _progress_text(progress: Progress) -> str:
    states = progress.states
    names = ("done", "running", "elsewhere", "waiting", "diverged", "failed", "blocked")
    counts = ", ".join(f"{count} {name}" for name in names for state, count in states.items() if state == name)
    tokens = f"{format_tokens(progress.tokens_done)} of {format_tokens(progress.tokens_total)} tokens"
    text = f"segments: {counts} | {tokens}"
    if progress.tokens_per_second > 0:
        text += f" | {format_tokens(round(progress.tokens_per_second))} tokens/s"
        text += f" | {format_seconds(progress.seconds_left or 0)} left"
    return text


def _result_text(result: SweepResult) -> str:
    states = ", ".join(f"{count} {name}" for name, count in result.states.items())
    text = f"segments: {states}; trained {format_tokens(result.trained_tokens)} tokens"
    if result.repeated_tokens:
        text += f" ({format_tokens(result.repeated_tokens)} again after kills)"
    if result.wasted_tokens:
        text += f" ({format_tokens(result.wasted_tokens)} wasted: another driver was faster)"
    return f"{text} in {format_seconds(result.seconds)}"


def _print_status(folder: Path, status: SweepStatus) -> None:
    segments = ", ".join(f"{count} {name}" for name, count in status.segments.items() if count)
    price = status.price
    click.echo(f"{folder}: {status.num_recipes} runs; segments: {segments or 'none'}")
    click.echo(f"tokens: {format_tokens(price.there)} of {format_tokens(price.shared)} there")
    click.echo(
        f"trained again after kills: {format_tokens(status.repeated_tokens)}, "
        f"by two drivers: {format_tokens(status.wasted_tokens)}"
    )
    disk = ", ".join(f"{name} {format_bytes(size)}" for name, size in status.disk_bytes.items() if size)
    click.echo(f"disk: {disk or 'nothing'}")
    if status.running:
        table = make_table("running", "done", "driver")
        for segment in status.running:
            table.add_row(segment.words, f"{100 * segment.share:.0f} %", segment.driver)
        print_table(table)
    for words, reason in status.failures:
        click.echo(f"failed: {words}: {reason}")
