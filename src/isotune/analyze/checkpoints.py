"""Runs that leave one checkpoint: the batch is switched, and each of them goes on with an LR and a WD of its own.

A history says what changes at the switch, so that runs of one rule (all is kept, LR follows the square root of the
batch) have it in common whatever they come from. Cells of a grid behind one checkpoint then read differently where
they happen to keep its LR or its WD: these get the history that names the whole checkpoint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotune.recipe.quantities import format_number
from isotune.runs.trajectory import RunInfo, Trajectory

SAME_SETTING = 1e-3  # relative
_UNTIL = re.compile(r"until ([^,]+)")

_Place = tuple[object, object, object, str]  # setup, sequence length, batch size, history


def compared_histories(runs: Sequence[Trajectory]) -> list[tuple[str, ...]]:
    """Of each run the histories under which it is compared.

    It is its own one, or that of its checkpoint if some run leaves this with an LR or a WD that no rule gives. A cell
    that a rule gives too is compared under both where the rule has runs from elsewhere.
    """
    origins = [_origin(run) for run in runs]
    grids = {origin.whole for origin in origins if not origin.by_rule}
    elsewhere = {origin.own for origin in origins if origin.whole not in grids}
    return [_compared(origin, grids, elsewhere) for origin in origins]


@dataclass(frozen=True)
class _Origin:
    """What a run comes from."""

    own: _Place
    whole: _Place  # with the history that names all of the checkpoint; the same as `own` without one
    by_rule: bool  # whether LR and WD follow from those of the checkpoint


def _compared(origin: _Origin, grids: set[_Place], elsewhere: set[_Place]) -> tuple[str, ...]:
    if origin.whole not in grids:
        return (origin.own[-1],)
    also_by_rule = origin.by_rule and origin.own != origin.whole and origin.own in elsewhere
    return (origin.whole[-1], origin.own[-1]) if also_by_rule else (origin.whole[-1],)


def _origin(run: Trajectory) -> _Origin:
    info = run.info
    own = (info.setup, info.sequence_length, info.batch_size, info.history)
    checkpoint = _checkpoint(run)
    if checkpoint is None:
        return _Origin(own, own, True)
    whole = f"{checkpoint.words} until {_UNTIL.findall(info.history)[0]}"
    return _Origin(own, (*own[:-1], whole), _follows_a_rule(info, checkpoint))


@dataclass(frozen=True)
class _Checkpoint:
    learning_rate: float
    weight_decay: float
    batch_size: float

    @property
    def words(self) -> str:
        lr, wd = format_number(self.learning_rate), format_number(self.weight_decay)
        return f"LR {lr} and WD {wd} and batch {self.batch_size:g}"


def _checkpoint(run: Trajectory) -> _Checkpoint | None:
    """The settings before the one switch of a run; None if the batch is not what is switched, or rows do not tell."""
    info, batches = run.info, run.columns.get("batch_size")
    if batches is None or isinstance(info.batch_size, str) or len(set(_UNTIL.findall(info.history))) != 1:
        return None
    after = np.flatnonzero(batches == info.batch_size)
    end = int(after[0]) if len(after) else len(batches)  # a run may have diverged before the switch
    before = [_last(run, name, end) for name in ("learning_rate", "weight_decay", "batch_size")]
    return None if any(math.isnan(value) for value in before) else _Checkpoint(*before)


def _last(run: Trajectory, name: str, end: int) -> float:
    """The column's last value before the row `end`, NaN if there is none."""
    values = run.columns.get(name, np.zeros(0))[:end]
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else math.nan


def _follows_a_rule(info: RunInfo, checkpoint: _Checkpoint) -> bool:
    """Whether WD is kept, and LR is kept or scaled with the square root of the batch."""
    assert not isinstance(info.learning_rate, str) and not isinstance(info.weight_decay, str)
    assert not isinstance(info.batch_size, str)
    scaled = checkpoint.learning_rate * math.sqrt(info.batch_size / checkpoint.batch_size)
    is_lr_by_rule = any(_is_same(info.learning_rate, rate) for rate in (checkpoint.learning_rate, scaled))
    return is_lr_by_rule and _is_same(info.weight_decay, checkpoint.weight_decay)


def _is_same(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=SAME_SETTING)
