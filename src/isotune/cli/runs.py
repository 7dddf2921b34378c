"""`isotune runs`: what a study holds."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np

from isotune.cli.terminal import make_table, print_table
from isotune.cli.train import summary
from isotune.errors import InputError
from isotune.recipe import Recipe, format_number, format_tokens, recipe_to_table
from isotune.runs import Study, Trajectory
from isotune.runs.files import LOCK, is_locked
from isotune.sweep.status import living_claims

STUDY = click.argument("study_folder", metavar="STUDY", type=click.Path(path_type=Path))
RUN = click.argument("run_id", metavar="RUN")
STOPPED = "stopped"  # a run that has not ended, and that nobody trains


@click.group()
def runs() -> None:
    """Look at the runs of a study."""


@runs.command("list")
@STUDY
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_runs(study_folder: Path, as_json: bool) -> None:
    """List the runs of STUDY, the longest of each branch."""
    study = Study.open(study_folder)
    alive = _in_training(study)
    rows = [_row(study, recipe, study.trajectory(recipe), alive) for recipe in study.recipes()]
    rows.sort(
        key=lambda row: (row["learning_rate"], row["weight_decay"], row["batch_size"], row["tokens"], row["seed"])
    )
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    table = make_table("run", "LR", "WD", "batch", "tokens", "seed", "status", "val loss", "after decay")
    for row in rows:
        table.add_row(
            row["run"],
            format_number(row["learning_rate"]),
            format_number(row["weight_decay"]),
            str(row["batch_size"]),
            _tokens(row),
            str(row["seed"]),
            row["status"],
            *("" if row[name] is None else f"{row[name]:.4f}" for name in ("val_loss", "final_val_loss")),
        )
    print_table(table)


@runs.command()
@STUDY
@RUN
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, all columns included.")
def show(study_folder: Path, run_id: str, as_json: bool) -> None:
    """Show the run of STUDY whose name begins with RUN."""
    study = Study.open(study_folder)
    recipe = _find(study, run_id)
    trajectory = study.trajectory(recipe)
    row = _row(study, recipe, trajectory, _in_training(study))
    if as_json:
        everything = row | {
            "schedule": trajectory.info.schedule,
            "recipe": recipe_to_table(recipe),
            "columns": {name: _plain(values) for name, values in trajectory.columns.items()},
        }
        click.echo(json.dumps(everything))
    else:
        click.echo(summary(recipe, trajectory, study))
        click.echo(f"phases: LR {trajectory.info.schedule}")
        if row["status"] == STOPPED:
            click.echo(f"stopped at {_tokens(row)} tokens: repeat the command that trained it to go on")


@runs.command()
@STUDY
@RUN
@click.option("--to", "folder", required=True, type=click.Path(path_type=Path), help="Folder to write.")
def export(study_folder: Path, run_id: str, folder: Path) -> None:
    """Write the final weights of a run in Hugging Face's Llama format."""
    study = Study.open(study_folder)
    recipe = _find(study, run_id)
    state = study.state_path(recipe.state_id(study.corpus_fingerprint, recipe.tokens))
    if not state.exists():
        raise InputError(f"run {run_id} has no final state in {study_folder}: train it to its end first")
    try:
        from isotune.model import export_llama, from_state
    except ModuleNotFoundError as error:
        raise InputError(f"exporting needs {error.name}: pip install 'isotune[train]'") from None
    export_llama(from_state(state, recipe.setup.model, recipe.setup.sequence_length), folder)
    click.echo(f"{folder}: {format_tokens(recipe.setup.model.num_parameters)} parameters as LlamaForCausalLM")


def _find(study: Study, run_id: str) -> Recipe:
    found = [recipe for recipe in study.recipes() if study.run_id(recipe).startswith(run_id)]
    if len(found) != 1:
        problem = "no run" if not found else f"{len(found)} runs"
        listing = f"isotune runs list {shlex.quote(str(study.folder))}"
        raise InputError(f"{problem} of {study.folder} begin with {run_id!r}: see `{listing}`")
    return found[0]


def _in_training(study: Study) -> set[Recipe]:
    """What somebody trains now: the folder is locked, or claimed by a driver that is not known to be dead."""
    claimed = living_claims(study)
    return {
        record.segment.recipe
        for record in study.attempts()
        if record.segment.id in claimed or is_locked(record.folder / LOCK)
    }


def _row(study: Study, recipe: Recipe, trajectory: Trajectory, in_training: set[Recipe]) -> dict[str, Any]:
    info = trajectory.info
    is_stopped = info.status == "running" and recipe not in in_training
    return {
        "run": study.run_id(recipe),
        "learning_rate": info.learning_rate,
        "weight_decay": info.weight_decay,
        "batch_size": info.batch_size,
        "tokens": recipe.tokens,
        "seed": info.seed,
        "status": STOPPED if is_stopped else info.status,
        "tokens_trained": int(trajectory.tokens[-1]) if len(trajectory.tokens) else 0,
        "val_loss": _trained_loss(trajectory),
        "final_val_loss": _number(trajectory.last("final_val_loss")),
    }


def _tokens(row: dict[str, Any]) -> str:
    """The run's length; of one that has not ended, how far it has come."""
    whole = format_tokens(row["tokens"])
    return f"{format_tokens(row['tokens_trained'])} of {whole}" if row["status"] in ("running", STOPPED) else whole


def _trained_loss(trajectory: Trajectory) -> float | None:
    """The last one; none where only the model before its first step was evaluated."""
    tokens, values = trajectory.measured("val_loss")
    return float(values[-1]) if len(values) and tokens[-1] > 0 else None


def _plain(values: np.ndarray) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if np.isnan(value) else value
