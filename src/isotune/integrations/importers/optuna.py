"""Optuna: a study in a storage (sqlite:///optuna.db, a journal file), or a `Study` object.

Intermediate values are the curve, on the axis `step` of `trial.report(value, step)`; the final value is
`final_val_loss`. Parameters and user attributes are settings: `mapping={"learning_rate": "lr"}`. Trials that reported
nothing are single points, whose length is the setting `tokens`. A final value of infinity is a divergence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun, flatten, need, reason_of, shorten, written
from isotune.integrations.importers.databases import copied, is_database_of, is_journal, require_database
from isotune.integrations.importers.options import Options, read_setting
from isotune.runs.trajectory import Status

NAME = "optuna"
NAMES: Mapping[str, str] = {"val_loss": "value", "final_val_loss": "final_value"}

STATES: dict[str, Status] = {"COMPLETE": "finished", "PRUNED": "running", "FAIL": "failed", "RUNNING": "running"}


def recognizes(source: Any) -> bool:
    if not isinstance(source, str):
        return hasattr(source, "get_trials")
    return is_database_of(NAME, source)


def read(source: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    """A run per trial that has begun."""
    if not isinstance(source, str):
        yield from _runs(source, options, notes)
        return
    require_database(source, NAME)
    with copied(source) as address:
        yield from _runs(_load(address, source, options), options, notes)


def _runs(study: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    directions = [direction.name for direction in study.directions]
    if directions != ["MINIMIZE"]:
        raise InputError(
            f"the Optuna study {study.study_name!r} wants to {' and '.join(directions).lower()}: a loss is minimized, "
            f"so give a study with one value that is"
        )
    for trial in study.get_trials(deepcopy=False):
        name = f"trial {trial.number}"
        if trial.state.name == "WAITING":
            notes.count("trials that have not begun, left out", 1, name)
            continue
        if trial.state.name == "PRUNED":
            notes.count("pruned trials, incomplete and so with status running", 1, name)
        if trial.state.name == "FAIL" and not trial.intermediate_values:
            # Optuna keeps neither the NaN that a trial returned nor the error that it raised.
            notes.count("failed trials without any value, which diverged or broke off, left out", 1, name)
            continue
        has_diverged = trial.state.name == "COMPLETE" and not math.isfinite(trial.value)
        notes.count("trials whose final value is infinite, taken as diverged", int(has_diverged), name)
        settings = dict(flatten(trial.user_attrs)) | trial.params
        yield RawRun(
            name=name,
            source=f"optuna:{study.study_name}:{trial.number}",
            columns=_curve(trial, settings, options, notes, name),
            settings=settings,
            status="diverged" if has_diverged else STATES.get(trial.state.name, "running"),
        )


def _curve(
    trial: Any, settings: Mapping[str, object], options: Options, notes: Notes, name: str
) -> dict[str, np.ndarray]:
    steps = sorted(trial.intermediate_values)
    values = [trial.intermediate_values[step] for step in steps]
    final = trial.values[0] if trial.values else None
    if trial.state.name == "PRUNED":  # its value is the last intermediate one
        final = None
    if steps:
        finals = np.full(len(steps), np.nan)
        finals[-1] = np.nan if final is None else _finite(final)
        return {"step": np.array(steps, dtype=float), "value": written(np.array(values)), "final_value": finals}
    if final is None:
        return {}
    tokens = options.settings.get("tokens", settings.get(options.mapping.get("tokens", "tokens")))
    if tokens is None:
        raise InputError(
            f"{name} of the Optuna study reported no intermediate values, so nothing says where its final value lies: "
            f"give its length, settings={{'tokens': ...}}, or map a parameter or user attribute to tokens"
        )
    at = np.array([float(read_setting("tokens", tokens))])
    notes.count("trials without intermediate values, read as single points", 1, name)
    return {"tokens": at, "value": np.array([_finite(final)]), "final_value": np.array([_finite(final)])}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _load(address: str, source: str, options: Options) -> Any:
    optuna = need("optuna", "Optuna studies", "optuna")
    try:
        storage = _storage(optuna, address)
        names = [summary.study_name for summary in optuna.get_all_study_summaries(storage, include_best_trial=False)]
    except ImportError as error:
        raise InputError(f"reading {source} needs {error.name}: pip install {error.name}") from None
    except Exception as error:  # SQLAlchemy's, the journal's: they share no base
        raise InputError(f"Optuna cannot read {source} ({reason_of(error)}): check the address") from None
    wanted = options.experiment if options.experiment is not None else names[0] if len(names) == 1 else None
    if wanted not in names:
        raise InputError(f"{source} has the studies {shorten(names) or '(none)'}: give one of them as experiment=")
    return optuna.load_study(study_name=wanted, storage=storage)


def _storage(optuna: Any, address: str) -> Any:
    if is_journal(address):
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(address))
    return address
