"""Recipes as text: the TOML files that people write, and plain tables that read back as the same recipe.

    >>> table = {
    ...     "model": "nano",
    ...     "schedule": {"kind": "constant", "tokens": "2.56M", "learning_rate": "2^-10", "weight_decay": 0.125,
    ...                  "batch_size": 4, "warmup_tokens": "25.6K"},
    ... }
    >>> recipe = recipe_from_table(table, "example", overrides={"learning_rate": "2^-9"})
    >>> recipe.learning_rate, recipe.num_steps
    (0.001953125, 10000)
    >>> recipe_from_table(recipe_to_table(recipe), "copy") == recipe
    True

Instead of a schedule a file may list its phases. Their lengths are rounded to whole steps of the largest batch,
unless `requested_tokens` says that this was done before.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from isotune.errors import InputError
from isotune.recipe.phases import Phase, Ramp, Recipe
from isotune.recipe.quantities import parse_batch_size, parse_number, parse_tokens, show
from isotune.recipe.schedules import (
    Length,
    Rounding,
    batch_switch,
    constant,
    cosine,
    new_settings,
    square_root_rule,
    wsd,
)
from isotune.recipe.setup import PRESETS, AdamW, Init, ModelShape, Setup

Table = Mapping[str, Any]

NO_OVERRIDES: Table = MappingProxyType({})

# The kinds of schedule: those that start a recipe, and those that continue the one in [schedule.source].
_FROM_SETUP: Mapping[str, Callable[..., Recipe]] = {"constant": constant, "wsd": wsd, "cosine": cosine}
_FROM_SOURCE: Mapping[str, Callable[..., Recipe]] = {
    "new_settings": new_settings,
    "batch_switch": batch_switch,
    "square_root_rule": square_root_rule,
}
_KINDS = {**_FROM_SETUP, **_FROM_SOURCE}

_SETUP_OVERRIDES = ("seed", "corpus", "precision")
_SCHEDULE_OVERRIDES = ("learning_rate", "weight_decay", "tokens", "batch_size", "warmup_tokens", "decay_tokens")


def read_recipe(path: str | Path, overrides: Table = NO_OVERRIDES) -> Recipe:
    """The recipe in a TOML file, with some entries replaced (`None` replaces nothing)."""
    return recipe_from_table(read_toml(Path(path)), str(path), overrides)


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file{_similar_file(path)}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): give the path of a TOML file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8 text: give the path of a TOML file") from None
    except (ValueError, RecursionError) as error:  # tomllib lets more than its own error through
        raise InputError(f"{path}: this is not TOML: {error}: correct it there") from None


def recipe_from_table(table: Table, where: str, overrides: Table = NO_OVERRIDES) -> Recipe:
    """The recipe that a table describes; `where` names the table in complaints."""
    with complaining(where):
        table = dict(require_table("a recipe", table))
        require_keys(table, {f.name for f in dataclasses.fields(Setup)} | {"schedule", "phases"}, {"model"}, "")
        if ("schedule" in table) == ("phases" in table):
            found = "both" if "schedule" in table else "neither"
            raise InputError(f"it has {found} of [schedule] and [[phases]]: keep exactly one of them")
        table = _override(table, overrides)
        setup = _read_setup({key: value for key, value in table.items() if key not in ("schedule", "phases")})
        if "schedule" in table:
            return _read_schedule(setup, table["schedule"], "schedule")
        return _read_phases(setup, table["phases"])


def recipe_to_table(recipe: Recipe) -> dict[str, Any]:
    """Plain data, fit for JSON, that reads back as an equal recipe."""
    table = dataclasses.asdict(recipe.setup)
    if recipe.setup.optimizer.clip_norm == math.inf:
        table["optimizer"]["clip_norm"] = "inf"  # JSON has no infinity
    table["phases"] = []
    for phase in recipe.phases:
        entry = dataclasses.asdict(phase)
        # Says that the length is rounded already, so that reading does not do it again.
        entry["requested_tokens"] = phase.tokens if phase.requested_tokens is None else phase.requested_tokens
        table["phases"].append(entry)
    return table


# The parts of a table


def _override(table: dict[str, Any], overrides: Table) -> dict[str, Any]:
    changes = {key: value for key, value in overrides.items() if value is not None}
    for key in changes:
        if key not in (*_SETUP_OVERRIDES, *_SCHEDULE_OVERRIDES):
            options = _listed([*_SETUP_OVERRIDES, *_SCHEDULE_OVERRIDES])
            raise InputError(f"{show(key)} cannot be overridden: edit it in the file, or override one of {options}")
    table |= {key: value for key, value in changes.items() if key in _SETUP_OVERRIDES}
    changes = {key: value for key, value in changes.items() if key in _SCHEDULE_OVERRIDES}
    if not changes:
        return table
    if "phases" in table:
        raise InputError(
            f"{_listed(changes)} cannot be overridden, since the file lists its [[phases]]: "
            f"edit them there, or describe the recipe with a [schedule]"
        )
    schedule = require_table("schedule", table["schedule"])
    kind = _read_kind(schedule, "schedule")
    for key in changes:
        if key not in _parameters(kind):
            place = "set it in [schedule.source]" if kind in _FROM_SOURCE else "choose another kind"
            raise InputError(f"{key} cannot be overridden, since a schedule of kind {kind!r} has none: {place}")
    return table | {"schedule": {**schedule, **changes}}


def _read_setup(table: Table) -> Setup:
    entries = dict(table)
    entries["model"] = _read_model(table["model"])
    for key, part in {"init": Init, "optimizer": AdamW}.items():
        if key in table:
            values = dict(require_table(key, table[key]))
            require_keys(values, {f.name for f in dataclasses.fields(part)}, set(), key)
            if values.get("clip_norm") == "inf":
                values["clip_norm"] = math.inf
            entries[key] = part(**values)
    return Setup(**entries)


def _read_model(value: object) -> ModelShape:
    if isinstance(value, str):
        if value not in PRESETS:
            raise InputError(f"model={show(value)} is no preset: {_instead(value, PRESETS)}, or write a [model] table")
        return PRESETS[value]
    if not isinstance(value, Mapping):
        raise InputError(f"model={show(value)} must be one of the presets {_listed(PRESETS)}, or a [model] table")
    fields = dataclasses.fields(ModelShape)
    required = {f.name for f in fields if f.default is dataclasses.MISSING}
    require_keys(value, {f.name for f in fields}, required, "model")
    return ModelShape(**value)


def _read_schedule(setup: Setup, value: object, name: str) -> Recipe:
    schedule = require_table(name, value)
    kind = _read_kind(schedule, name)
    parameters = _parameters(kind)
    required = {key for key, parameter in parameters.items() if parameter.default is parameter.empty}
    structure = {"kind", "source"} if kind in _FROM_SOURCE else {"kind"}
    require_keys(schedule, set(parameters) | structure, required | structure, name)
    start = _read_schedule(setup, schedule["source"], f"{name}.source") if kind in _FROM_SOURCE else setup
    with complaining(f"[{name}]"):
        return _KINDS[kind](start, **{key: entry for key, entry in schedule.items() if key not in structure})


def _read_kind(schedule: Table, name: str) -> str:
    if "kind" not in schedule:
        raise InputError(f"[{name}] lacks the key 'kind': add one of {_listed(_KINDS)}")
    kind = schedule["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"[{name}] kind={show(kind)} is unknown: {_instead(kind, _KINDS)}")
    return kind


def _parameters(kind: str) -> dict[str, inspect.Parameter]:
    """What a schedule of this kind takes, read off its function: so the two cannot disagree."""
    parameters = inspect.signature(_KINDS[kind]).parameters.items()
    return {key: parameter for key, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _read_phases(setup: Setup, value: object) -> Recipe:
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"phases={show(value)} must be a list of tables: write each under [[phases]]")
    phases = [require_table(f"phase {number}", phase) for number, phase in enumerate(value, start=1)]
    required = {"tokens", "learning_rate", "weight_decay", "batch_size"}
    for number, phase in enumerate(phases, start=1):
        require_keys(phase, required | {"requested_tokens"}, required, f"phase {number}")
    batches = []
    for number, phase in enumerate(phases, start=1):
        with complaining(f"phase {number}"):
            batches.append(parse_batch_size(phase["batch_size"]))
    result = []
    for number, (phase, batch) in enumerate(zip(phases, batches, strict=True), start=1):
        with complaining(f"phase {number}"):
            if "requested_tokens" in phase:
                requested = parse_tokens("requested_tokens", phase["requested_tokens"])
                length = Length(parse_tokens("tokens", phase["tokens"]), requested)
            else:
                length = Rounding(setup, batches).budget("tokens", phase["tokens"])
            result.append(
                Phase(
                    tokens=length.tokens,
                    learning_rate=_read_learning_rate(phase["learning_rate"], length),
                    weight_decay=parse_number("weight_decay", phase["weight_decay"]),
                    batch_size=batch,
                    requested_tokens=length.requested,
                )
            )
    return Recipe(setup, tuple(result))


def _read_learning_rate(value: object, length: Length) -> float | Ramp:
    if not isinstance(value, Mapping):
        return parse_number("learning_rate", value)  # type: ignore[arg-type]  # it says so itself
    require_keys(value, {f.name for f in dataclasses.fields(Ramp)}, {"start", "end"}, "learning_rate")
    offset = parse_tokens("learning_rate.offset", value.get("offset", 0))
    return Ramp(
        start=parse_number("learning_rate.start", value["start"]),
        end=parse_number("learning_rate.end", value["end"]),
        tokens=parse_tokens("learning_rate.tokens", value["tokens"]) if "tokens" in value else offset + length.tokens,
        shape=value.get("shape", "linear"),
        offset=offset,
    )


# Complaints


@contextmanager
def complaining(place: str) -> Iterator[None]:
    """Puts the place in front of every complaint about what it holds."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def require_table(name: str, value: object) -> Table:
    if not isinstance(value, Mapping):
        raise InputError(f"{name}={show(value)} must be a table: write its entries as key = value")
    return value


def require_keys(table: Table, allowed: set[str], required: set[str], name: str) -> None:
    place = f" of {name}" if name else ""
    for key in table:
        if key not in allowed:
            raise InputError(f"unknown key {show(key)}{place} (value {show(table[key])}): {_instead(key, allowed)}")
    missing = sorted(required - set(table))
    if missing:
        raise InputError(f"missing {'key' if len(missing) == 1 else 'keys'} {_listed(missing)}{place}: add it there")


def _instead(wrong: object, options: Collection[str]) -> str:
    close = difflib.get_close_matches(str(wrong)[:100].lower(), options, n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {_listed(options)}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _similar_file(path: Path) -> str:
    names = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f": did you mean {path.parent / close[0]}?" if close else ": give the path of a recipe, a TOML file"
