"""Runs that other tools wrote, as trajectories: "I already have runs. What do they tell me?"

    >>> imported = open_source("runs.csv", mapping={"val_loss": "eval/loss", "step": "iteration"},
    ...                        settings={"batch_size": 64, "sequence_length": 1024},
    ...                        weight_decay_convention="coupled")         # doctest: +SKIP
    >>> imported.trajectories[0].info.learning_rate, imported.notes        # doctest: +SKIP

An importer is one file with a name, a test whether a source is its own, and a reader (see `contract.Importer`). It says
what was written; `assembly` makes trajectories of it, by the same rules for all kinds. Libraries of other tools are
imported when a source needs them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from isotune.errors import InputError
from isotune.integrations.importers import (
    answers,
    files,
    mlflow,
    optuna,
    study_folder,
    table_folder,
    tensorboard,
    trainer_state,
    wandb,
)
from isotune.integrations.importers.assembly import Assembly
from isotune.integrations.importers.contract import Imported, Importer, Notes, RawRun, show_source
from isotune.integrations.importers.conventions import to_coupled, to_independent
from isotune.integrations.importers.databases import path_of_address
from isotune.integrations.importers.options import Options, make_options, parse_mapping, parse_settings
from isotune.integrations.importers.tables import ENDINGS
from isotune.recipe.quantities import show
from isotune.runs.trajectory import WeightDecayConvention

__all__ = [
    "IMPORTERS",
    "Imported",
    "Importer",
    "Notes",
    "Options",
    "RawRun",
    "open_source",
    "parse_mapping",
    "parse_settings",
    "to_coupled",
    "to_independent",
]

OURS: tuple[Importer, ...] = (study_folder, table_folder, answers)  # our own folders may hold other tools' logs
THEIRS: tuple[Importer, ...] = (files, tensorboard, wandb, mlflow, trainer_state, optuna)
IMPORTERS = OURS + THEIRS


def open_source(
    source: str | Path | Any,
    *,
    kind: str | None = None,
    mapping: Mapping[str, str] | None = None,
    loss: str = "val_loss",
    run_column: str | None = None,
    settings: Mapping[str, object] | None = None,
    settings_file: str | Path | None = None,
    weight_decay_convention: WeightDecayConvention | None = None,
    experiment: str | None = None,
) -> Imported:
    """The runs of a file, folder, tracking store or address, and notes of all that was not taken as it stood.

    `kind` is found out from the source where it can be; "optuna:sqlite:///trials.db" says it too. `mapping` gives their
    names for ours. `loss` is the column that must be there. `settings` hold for all runs, `settings_file` has a row per
    run. `experiment` picks one of a store's experiments (MLflow) or studies (Optuna).
    """
    options = make_options(mapping, loss, run_column, settings, settings_file, weight_decay_convention, experiment)
    importer, source = _choose(source, kind)
    if settings_file is not None and importer is not files:
        raise InputError(
            f"a settings file goes with CSV, Parquet and JSONL files, not with {importer.NAME}: leave settings_file= "
            "(--settings-file) out, or give settings of all runs with settings= (--set)"
        )
    if settings_file is not None:
        _require_name("settings_file", str(settings_file))
    notes = Notes()
    assembly = Assembly(options, importer.NAMES, notes)
    names = dict(importer.NAMES) | dict(options.mapping)
    for run in importer.read(source, replace(options, mapping=names), notes):
        assembly.add(run)
    return Imported(
        kind=importer.NAME,
        source=show_source(source),
        loss=loss,
        trajectories=assembly.finish(show_source(source)),
        notes=notes.sentences(),
    )


def _choose(source: Any, kind: str | None) -> tuple[Importer, Any]:
    by_name = {importer.NAME: importer for importer in IMPORTERS}
    if isinstance(source, Path):
        source = str(source)
    if isinstance(source, str) and kind is None and source.partition(":")[0] in by_name:
        kind, _, source = source.partition(":")
    if isinstance(source, str):
        _require_name("source", source)
    if kind is not None:
        if kind not in by_name:
            raise InputError(f"kind={kind!r} is not known: give one of {', '.join(by_name)}")
        return by_name[kind], source
    for importers in (OURS, THEIRS):
        found = [importer for importer in importers if importer.recognizes(source)]
        if len(found) > 1:
            names = " or ".join(importer.NAME for importer in found)
            raise InputError(f"{show_source(source)} has runs of several kinds: give kind={names} (--kind)")
        if found:
            return found[0], source
    raise _not_recognized(source)


def _require_name(what: str, name: str) -> None:
    """Refuses what the system cannot even look up: no name, one that is too long, one in a folder that is closed."""
    if not name or "\0" in name:
        raise InputError(f"{what}={show(name)} is no name: give a file, a folder or an address")
    try:
        os.stat(path_of_address(name) or name)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"{what}={show(name)} cannot be looked up ({reason}): check the name") from None


def _not_recognized(source: Any) -> InputError:
    if not isinstance(source, str):
        return InputError(f"{show_source(source)} is no source of runs: give a path, a W&B run or an Optuna study")
    if "://" not in source and not Path(source).exists():
        return InputError(f"{source} does not exist: give a file, a folder or an address such as sqlite:///runs.db")
    kinds = ", ".join(importer.NAME for importer in IMPORTERS)
    return InputError(
        f"{source} holds no runs that isotune recognizes: give files that end in {ENDINGS}, or say what it is with "
        f"kind= or --kind, one of {kinds}"
    )
