"""Options with which every command that reads runs is told what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from isotune.integrations.importers import IMPORTERS, Imported, open_source, parse_mapping, parse_settings
from isotune.runs.trajectory import WeightDecayConvention

Command = TypeVar("Command", bound=Callable[..., Any])

_NAMES = ("kind", "mapping", "settings", "settings_file", "loss", "run_column", "convention", "experiment")


def with_source(command: Command) -> Command:
    """Gives a command the argument SOURCE and the options that say how to read it."""
    conventions = [name for name in get_args(WeightDecayConvention) if name != "unknown"]
    options = [
        click.argument("source", metavar="SOURCE"),
        click.option(
            "--kind",
            type=click.Choice([importer.NAME for importer in IMPORTERS]),
            help="What SOURCE is, where it does not show.",
        ),
        click.option(
            "--map", "mapping", multiple=True, metavar="OURS=THEIRS", help="A name of theirs: val_loss=eval/loss."
        ),
        click.option(
            "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of all runs: batch_size=64."
        ),
        click.option("--settings-file", type=click.Path(path_type=Path), help="A file with a row of settings per run."),
        click.option("--loss", default="val_loss", show_default=True, help="The loss to look at."),
        click.option("--run-column", help="The column that tells runs apart."),
        click.option(
            "--wd-convention",
            "convention",
            type=click.Choice(conventions),
            help="coupled: w *= 1 - LR*WD (PyTorch's AdamW); independent: w *= 1 - WD.",
        ),
        click.option("--experiment", help="One experiment (MLflow) or study (Optuna) of a store."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def take_source(arguments: dict[str, Any]) -> Imported:
    """Takes these options out of a command's arguments and opens the source."""
    given = {name: arguments.pop(name) for name in _NAMES}
    return open_source(
        arguments.pop("source"),
        kind=given["kind"],
        mapping=parse_mapping(given["mapping"]),
        loss=given["loss"],
        run_column=given["run_column"],
        settings=parse_settings(given["settings"]),
        settings_file=given["settings_file"],
        weight_decay_convention=given["convention"],
        experiment=given["experiment"],
    )
