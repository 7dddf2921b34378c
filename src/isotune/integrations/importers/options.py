"""What a user says about a source: names, settings, the loss."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from isotune.errors import InputError
from isotune.recipe import parse_number, parse_tokens
from isotune.recipe.quantities import MAX_WHOLE_NUMBER, show
from isotune.runs.trajectory import Status, WeightDecayConvention

# Columns that isotune has a name for, those of one matrix ("parameter_norm.head") and variants included.
COLUMNS = (
    "step",
    "tokens",
    "val_loss",
    "final_val_loss",
    "train_loss",
    "learning_rate",
    "weight_decay",
    "batch_size",
    "gradient_norm",
    "clip_factor",
    "clip_factor_sq",
    "parameter_norm",
    "update_rms",
    "noise_trace",
    "gradient_sq_norm",
    "noise_clip_factor",
    "precond_noise_trace",
    "precond_gradient_sq_norm",
    "noise_scale",
    "precond_noise_scale",
    "scaled_noise",
    "scaled_gradient",
    "free_noise",
    "root_moment_sum",
    "core_seconds",
)
VARIANTS = ("_all", "_p1")

# What a run may be said to have; `tokens` is the length of a run of which only the final loss is known.
SETTINGS = (
    "learning_rate",
    "weight_decay",
    "batch_size",
    "sequence_length",
    "tokens_per_step",
    "tokens",
    "schedule",
    "seed",
    "status",
    "weight_decay_convention",
    "setup",
    "decay_tokens",
    "num_parameters",
)

TOKEN_COUNTS = ("tokens", "decay_tokens", "num_parameters")  # may be written 1M or 2.5B


@dataclass(frozen=True, kw_only=True)
class Options:
    """The user's words, checked; `make_options` makes one."""

    mapping: Mapping[str, str]
    loss: str
    run_column: str | None
    settings: Mapping[str, Any]
    settings_file: Path | None
    experiment: str | None
    _theirs: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_theirs", frozenset(self.mapping.values()))

    def wants(self, name: str) -> bool:
        """Whether a column of the source may be of use."""
        return name in self._theirs or name in SETTINGS or name == self.loss or has_our_name(name)


def make_options(
    mapping: Mapping[str, str] | None,
    loss: str,
    run_column: str | None,
    settings: Mapping[str, object] | None,
    settings_file: str | Path | None,
    weight_decay_convention: WeightDecayConvention | None,
    experiment: str | None,
) -> Options:
    """The options, or a refusal of what none of the importers could use."""
    for ours, theirs in (mapping or {}).items():
        if not isinstance(ours, str) or not isinstance(theirs, str) or not ours or not theirs:
            raise InputError(f"mapping {show(ours)}={show(theirs)} needs two names: write val_loss=eval/loss")
        if ours != loss and not _is_ours(ours) and _is_ours(theirs):
            raise InputError(
                f"mapping {show(ours)}={show(theirs)} is the wrong way round, {theirs} being isotune's name: write "
                f"OURS=THEIRS, {theirs}={ours}"
            )
    if not isinstance(loss, str) or not loss:
        raise InputError(f"loss={show(loss)} is no name of a column: give val_loss or train_loss")
    given = dict(settings or {})
    if weight_decay_convention is not None:
        given["weight_decay_convention"] = weight_decay_convention
    checked = {}
    for name, value in given.items():
        if name not in SETTINGS:
            close = difflib.get_close_matches(str(name), SETTINGS, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"give one of {', '.join(SETTINGS)}"
            raise InputError(f"settings has {show(name)}, which is none: {remedy}")
        checked[name] = read_setting(name, value)
    return Options(
        mapping=dict(mapping or {}),
        loss=loss,
        run_column=run_column,
        settings=checked,
        settings_file=None if settings_file is None else Path(settings_file),
        experiment=experiment,
    )


def parse_mapping(words: Iterable[str]) -> dict[str, str]:
    """Their names for ours, from the command line.

    >>> parse_mapping(["val_loss=eval/loss", "tokens=num_tokens"])
    {'val_loss': 'eval/loss', 'tokens': 'num_tokens'}
    """
    return _pairs(words, "--map", "OURS=THEIRS, such as val_loss=eval/loss")


def parse_settings(words: Iterable[str]) -> dict[str, object]:
    """Settings of all runs, from the command line.

    >>> parse_settings(["batch_size=64", "learning_rate=2^-10"])
    {'batch_size': 64, 'learning_rate': 0.0009765625}
    """
    pairs = _pairs(words, "--set", "NAME=VALUE, such as batch_size=64")
    return dict(make_options(None, "val_loss", None, pairs, None, None, None).settings)


def read_setting(name: str, value: object) -> Any:
    """A setting's value in our type, from numbers or from text; InputError if it cannot be one."""
    if name in ("learning_rate", "weight_decay"):
        return parse_number(name, value)  # type: ignore[arg-type]
    if name in TOKEN_COUNTS:
        return parse_tokens(name, value)  # type: ignore[arg-type]
    if name in ("batch_size", "sequence_length", "tokens_per_step"):
        return _whole(name, value, 1)
    if name == "seed":
        return _whole(name, value, -MAX_WHOLE_NUMBER)
    choices = {"status": get_args(Status), "weight_decay_convention": get_args(WeightDecayConvention)}.get(name)
    if not isinstance(value, str) or not value or (choices and value not in choices):
        allowed = f"one of {', '.join(choices)}" if choices else "a few words"
        raise InputError(f"{name}={show(value)} must be {allowed}")
    return value


def _is_ours(name: str) -> bool:
    return name in SETTINGS or name == "run" or has_our_name(name)


def has_our_name(name: str) -> bool:
    base = name.partition(".")[0]
    for variant in VARIANTS:
        base = base.removesuffix(variant)
    return base in COLUMNS


def _whole(name: str, value: object, lowest: int) -> int:
    """A whole number, also from 64.0 and "64": tables make floats of integers."""
    try:
        number = float(value)  # type: ignore[arg-type]
        whole = value if isinstance(value, int) else int(number)
    except (TypeError, ValueError, OverflowError):
        number, whole = 0.5, 0
    if isinstance(value, bool) or number != whole or not lowest <= whole <= MAX_WHOLE_NUMBER:
        raise InputError(f"{name}={show(value)} must be a whole number of at least {lowest} (and at most 2^53)")
    return whole


def _pairs(words: Iterable[str], option: str, form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        ours, equals, theirs = word.partition("=")
        ours, theirs = ours.strip(), theirs.strip()
        if not equals or not ours or not theirs:
            raise InputError(f"{option} {show(word)} is not understood: write {form}")
        if pairs.get(ours, theirs) != theirs:
            raise InputError(f"{option} gives {ours} twice, as {pairs[ours]} and as {theirs}: give it once")
        pairs[ours] = theirs
    return pairs
