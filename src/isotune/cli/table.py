"""`isotune table`: sweeps as replay tables."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from isotune.cli.terminal import make_table, print_table
from isotune.recipe import format_number, format_tokens, parse_tokens
from isotune.runs import Grid, Study, Table, check_table, export_table, make_grids, merge_tables, read_table

TABLE = click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
PROBLEMS_FOUND = 2  # exit code of `check`, as of every mistake

# Losses this much above the best one, relative to it, get the last colour: beyond it nobody compares.
COLOUR_SPAN = 0.1


@click.group()
def table() -> None:
    """Make, merge, check and look at replay tables."""


@table.command()
@click.argument("studies", metavar="STUDY...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "folder", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--name", help="Name of the table [default: the folder's].")
@click.option("--description", default="", help="What it is, in a sentence or two.")
@click.option("--replace", is_flag=True, help="Replace a table that is there.")
def export(studies: tuple[Path, ...], folder: Path, name: str | None, description: str, replace: bool) -> None:
    """Write everything that the STUDIES have published as one table."""
    opened = [Study.open(path) for path in studies]
    written = export_table(opened, folder, name=name or folder.name, description=description, replace=replace)
    click.echo(f"{folder}: {_counts(written)}")


@table.command()
@TABLE
@click.argument("others", metavar="OTHER...", nargs=-1, required=True, type=click.Path(path_type=Path))
def merge(folder: Path, others: tuple[Path, ...]) -> None:
    """Add the rows of OTHER tables to the table in FOLDER."""
    merged = merge_tables(folder, others)
    click.echo(
        f"{folder}: {merged.runs_added} runs added, {merged.runs_lengthened} lengthened, {merged.runs_kept} kept as "
        f"they were; {merged.decays_added} decays added, {merged.decays_kept} kept\n"
        f"{folder}: {_counts(read_table(folder))}"
    )


@table.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(folders: tuple[Path, ...]) -> None:
    """Check that tables are what they say; exit code 2 if one is not."""
    found = False
    for folder in folders:
        if folder.is_file():  # `tables/*` finds a README too
            click.echo(f"{folder}: a file, no table")
            continue
        problems = check_table(folder)
        found |= bool(problems)
        for problem in problems:
            place = "" if str(folder) in problem else f"{folder}: "
            click.echo(f"isotune: {place}{problem}", err=True)
        if not problems:
            click.echo(f"{folder}: sound, {_counts(read_table(folder))}")
    if found:
        sys.exit(PROBLEMS_FOUND)


@table.command()
@TABLE
@click.option("--column", help="What to show [default: final_val_loss where there are decays, else val_loss].")
@click.option("--tokens", multiple=True, help="A budget, such as 2.56M [default: the largest]; may be repeated.")
@click.option("--seed", type=int, help="This seed alone [default: the mean over those that all cells have].")
@click.option("--batch-size", "batch_sizes", multiple=True, type=int, help="This batch size [default: all].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(
    folder: Path,
    column: str | None,
    tokens: tuple[str, ...],
    seed: int | None,
    batch_sizes: tuple[int, ...],
    as_json: bool,
) -> None:
    """Show the table in FOLDER: what it holds, what it cost, and losses over learning rate and weight decay."""
    opened = read_table(folder)
    budgets = [_nearest_budget(opened, parse_tokens("--tokens", value)) for value in tokens]
    grids = make_grids(opened, column, tokens=budgets, seed=seed, batch_sizes=batch_sizes)
    if as_json:
        click.echo(json.dumps(_facts(opened) | {"grids": [_plain(grid) for grid in grids]}, indent=1))
        return
    click.echo(_summary(opened))
    for grid in grids:
        click.echo(f"\n{_title(grid, opened)}")
        _draw(grid)


# Words


def _counts(opened: Table) -> str:
    totals = opened.manifest["totals"]
    cost = "unknown time"
    if totals["trunk_core_hours"] is not None and totals["decay_core_hours"] is not None:
        cost = f"{totals['trunk_core_hours'] + totals['decay_core_hours']:.3g} core-hours"
    return (
        f"{totals['runs']} runs ({format_tokens(totals['trunk_tokens'])} tokens) and {totals['decays']} decays "
        f"({format_tokens(totals['decay_tokens'])} tokens), {cost}{_completeness(opened)}"
    )


def _completeness(opened: Table) -> str:
    if opened.is_complete is None:
        return ""
    num_planned, num_missing = len(opened.planned()), len(opened.manifest["missing"])
    return ", complete" if opened.is_complete else f", {num_missing} of {num_planned} planned runs missing"


def _nearest_budget(opened: Table, tokens: int) -> int:
    """A budget as it was shown, "2.75M", stands for the one that it was rounded from."""
    known = {row.tokens for run in opened.runs() for row in opened.decays(run.run)}
    alike = [budget for budget in known if format_tokens(budget) == format_tokens(tokens)]
    return alike[0] if len(alike) == 1 else tokens


def _summary(opened: Table) -> str:
    roots = opened.contents.roots.values()
    corpora = ", ".join(sorted({entry["corpus"] for entry in roots}))
    sizes = ", ".join(format_tokens(size) for size in sorted({run.num_parameters for run in opened.runs()}))
    commits = ", ".join(
        entry["commit"][:12] + (" (with changes)" if entry["is_dirty"] else "") for entry in opened.manifest["commits"]
    )
    num_diverged = sum(run.status == "diverged" for run in opened.runs())
    lines = [
        f"{opened.name}: {_counts(opened)}",
        opened.contents.description,
        f"{sizes} parameters on {corpora}, commit {commits}",
        f"{num_diverged} runs diverged" if num_diverged else "",
    ]
    return "\n".join(line for line in lines if line)


def _title(grid: Grid, opened: Table) -> str:
    words = [
        f"{grid.column} at {format_tokens(grid.tokens)} tokens, batch size {grid.batch_size}",
        grid.path,
        _seed_words(grid),
        _root_words(grid.root, opened),
    ]
    return ", ".join(word for word in words if word)


def _seed_words(grid: Grid) -> str:
    seeds, others = (", ".join(map(str, names)) for names in (grid.seeds, grid.other_seeds))
    words = f"seed {seeds}" if len(grid.seeds) == 1 else f"mean over seeds {seeds}"
    return f"{words} (only some cells have {others}: --seed shows them)" if others else words


def _root_words(root: str, opened: Table) -> str:
    """What sets this root apart from the table's others."""
    setups = {name: _flat(entry["setup"]) for name, entry in opened.contents.roots.items()}
    different = {key for setup in setups.values() for key, value in setup.items() if value != setups[root].get(key)}
    return ", ".join(f"{key} {setups[root][key]}" for key in sorted(different) if key in setups[root])


def _flat(setup: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in setup.items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


# Grids


def _draw(grid: Grid) -> None:
    """Weight decay downwards, learning rate to the right; the best cell has a star."""
    drawn = make_table("WD \\ LR", *(format_number(lr) for lr in grid.learning_rates))
    for wd in reversed(grid.weight_decays):
        drawn.add_row(format_number(wd), *(_cell(grid, lr, wd) for lr in grid.learning_rates))
    print_table(drawn)


def _cell(grid: Grid, learning_rate: float, weight_decay: float) -> Text:
    means, best = grid.means, grid.best
    mean = means.get((learning_rate, weight_decay))
    if mean is None:  # "-": runs of other seeds only
        return Text("-" if (learning_rate, weight_decay) in grid.cells else "")
    if math.isnan(mean) or best is None:
        return Text("div", style="white on grey30")
    lowest = means[best]
    highest = max(mean for mean in means.values() if not math.isnan(mean))
    span = min(highest - lowest, COLOUR_SPAN * abs(lowest)) if grid.column.endswith("loss") else highest - lowest
    height = min(1.0, (mean - lowest) / span) if span > 0 else 0.0
    star = "*" if (learning_rate, weight_decay) == best and grid.column.endswith("loss") else " "
    number = f"{mean:.4f}" if 1e-3 <= abs(mean) < 1e4 else f"{mean:.3g}"
    return Text(f"{number}{star}", style=_colour(height))


def _colour(height: float) -> str:
    """Green for the lowest values, over yellow to red."""
    red, green = round(110 + 120 * min(1.0, 2 * height)), round(210 - 130 * max(0.0, 2 * height - 1))
    return f"black on rgb({red},{green},110)"


def _facts(opened: Table) -> dict[str, Any]:
    names = ("name", "description", "complete", "missing", "totals", "commits")
    return {name: opened.manifest[name] for name in names}


def _plain(grid: Grid) -> dict[str, Any]:
    means = grid.means
    return {
        "column": grid.column,
        "tokens": grid.tokens,
        "batch_size": grid.batch_size,
        "root": grid.root,
        "path": grid.path,
        "seeds": grid.seeds,  # that `mean` and `best` are over
        "best": grid.best and {"learning_rate": grid.best[0], "weight_decay": grid.best[1]},
        "cells": [
            {
                "learning_rate": lr,
                "weight_decay": wd,
                "mean": _number(means.get((lr, wd), math.nan)),
                "values": {str(seed): _number(value) for seed, value in cell.values.items()},
            }
            for (lr, wd), cell in grid.cells.items()
        ],
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
