"""Runs in a file that has no column to name them: rows that lie at one position with different settings are several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from isotune.errors import InputError
from isotune.recipe import format_number

TELLING = (
    "learning_rate",
    "weight_decay",
    "batch_size",
    "seed",
    "sequence_length",
    "schedule",
    "setup",
    "decay_tokens",
    "num_parameters",
)
RESTARTED = 0.5  # of the positions: a run that was continued with another learning rate repeats fewer of them


@dataclass(frozen=True)
class Groups:
    """The run of each row, the runs' names, and the settings by which they differ."""

    codes: np.ndarray
    names: list[str]
    by: list[str]


def group_by_settings(at: np.ndarray, settings: Mapping[str, np.ndarray]) -> Groups | None:
    """The runs that a file's rows fall into; None if they may be one. `at` is their position, settings have our names.

    Runs with a learning rate that changes along them cannot be told apart, and are refused.
    """
    values = {name: settings[name] for name in TELLING if name in settings}
    there = {name: _is_there(column) & np.isfinite(at) for name, column in values.items()}
    codes = {name: np.unique(_comparable(column), return_inverse=True)[1] for name, column in values.items()}
    codes = {name: column for name, column in codes.items() if len(np.unique(column[there[name]])) > 1}
    conflicts = {name: _conflicts(at[there[name]], column[there[name]]) for name, column in codes.items()}
    several = [name for name in codes if conflicts[name] > 0 or name == "seed"]  # no run has two seeds
    if not several:
        return None
    if "learning_rate" in codes and _follows_a_schedule(at, codes, there["learning_rate"]):
        if several == ["learning_rate"] and conflicts["learning_rate"] <= RESTARTED:
            return None
        raise InputError(
            f"rows differ in {', '.join(several)} as those of several runs do, but the learning rate changes along the "
            "runs, so that it cannot tell them apart"
        )
    combinations, first, inverse = np.unique(
        np.column_stack(list(codes.values())), axis=0, return_index=True, return_inverse=True
    )
    order = np.argsort(first)  # runs in the order of the file
    names = [" ".join(f"{name}={_show(values[name][first[group]])}" for name in codes) for group in order]
    place = np.empty(len(combinations), dtype=np.int64)
    place[order] = np.arange(len(combinations))
    return Groups(place[inverse.ravel()], names, list(codes))


def _is_there(column: np.ndarray) -> np.ndarray:
    if column.dtype == object:
        return np.array([value not in (None, "") for value in column], dtype=bool)
    return np.isfinite(column)


def _comparable(column: np.ndarray) -> np.ndarray:
    """The column with everything that is missing alike."""
    there = _is_there(column)
    if column.dtype == object:
        return np.array([str(value) if is_there else "" for value, is_there in zip(column, there, strict=True)])
    return np.where(there, column, np.inf)


def _conflicts(at: np.ndarray, codes: np.ndarray) -> float:
    """The share of positions at which rows have different values."""
    order = np.lexsort((codes, at))
    at, codes = at[order], codes[order]
    again = at[1:] == at[:-1]
    differing = np.unique(at[1:][again & (codes[1:] != codes[:-1])])
    return len(differing) / (1 + int((~again).sum()))


def _follows_a_schedule(at: np.ndarray, codes: Mapping[str, np.ndarray], there: np.ndarray) -> bool:
    """Whether rows that are alike in all else have far more learning rates than any one position has."""
    rates, at = codes["learning_rate"][there], at[there]
    others = [column[there] for name, column in codes.items() if name != "learning_rate"]
    rest = np.unique(np.column_stack([np.zeros_like(rates), *others]), axis=0, return_inverse=True)[1].ravel()
    in_all = np.bincount(np.unique(np.column_stack([rest, rates]), axis=0)[:, 0])
    rows = np.unique(np.column_stack([rest, at, rates]), axis=0)
    places, counts = np.unique(rows[:, :2], axis=0, return_counts=True)
    at_once = np.zeros(len(in_all), dtype=np.int64)
    np.maximum.at(at_once, places[:, 0].astype(np.int64), counts)
    return bool((in_all > 2 * at_once).any())


def _show(value: object) -> str:
    if isinstance(value, float):
        return format_number(float(value)) if np.isfinite(value) else "unknown"
    return str(value) if value not in (None, "") else "unknown"
