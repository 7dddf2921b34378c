"""A recipe as analyses know it: its settings, and in words all that sets it apart from others."""

from __future__ import annotations

import dataclasses
import math

from isotune.recipe import (
    PRESETS,
    AdamW,
    Init,
    Phase,
    Ramp,
    Recipe,
    Setup,
    canonical,
    falling_tokens,
    format_number,
    format_tokens,
)
from isotune.runs.trajectory import RunInfo, Status


def run_info(recipe: Recipe, status: Status, source: str) -> RunInfo:
    """What is known about a run of this recipe."""
    return RunInfo(
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        batch_size=recipe.batch_size,
        sequence_length=recipe.setup.sequence_length,
        weight_decay_convention="coupled",
        schedule=describe_phases(recipe.phases),
        seed=recipe.setup.seed,
        status=status,
        source=source,
        setup=describe_setup(recipe.setup),
        history=describe_history(recipe),
        decay_tokens=falling_tokens(recipe),
        has_plateau=any(phase.is_constant for phase in recipe.phases),
        num_parameters=recipe.setup.model.num_parameters,
        perturbation=recipe.setup.init.perturbation,
    )


def describe_phases(phases: tuple[Phase, ...]) -> str:
    """The phases in a few words: "0 -> 0.001 over 25.6K, 0.001 for 2.41M, 0.001 -> 0 over 128K"."""
    words = []
    for phase in canonical(phases):
        lr = phase.learning_rate
        if isinstance(lr, Ramp):
            shape = "" if lr.shape == "linear" else f" ({lr.shape})"
            words.append(f"{lr.start:.4g} -> {lr.end:.4g} over {format_tokens(phase.tokens)}{shape}")
        else:
            words.append(f"{lr:.4g} for {format_tokens(phase.tokens)}")
    return ", ".join(words)


def describe_setup(setup: Setup) -> str:
    """Model and corpus, and whatever is not as usual; seed and perturbation are left out: "nano on python-sources"."""
    names = [name for name, shape in PRESETS.items() if shape == setup.model]
    model = names[0] if names else f"{format_tokens(setup.model.num_parameters)} parameters"
    unusual = [f"precision {setup.precision}"] if setup.precision != "float32" else []
    unusual += _unlike(setup.optimizer, AdamW()) + [
        f"init {words}" for words in _unlike(setup.init, Init(perturbation=setup.init.perturbation))
    ]
    if not names:
        usual = {"vocabulary_size": 0, "norm_epsilon": 1e-5, "rope_base": 10_000.0}
        shape = dataclasses.asdict(setup.model)
        unusual = [f"{name} {value:g}" for name, value in shape.items() if usual.get(name) != value] + unusual
    return ", ".join([f"{model} on {setup.corpus}", *unusual])


def _unlike(value: AdamW | Init, usual: AdamW | Init) -> list[str]:
    given, expected = dataclasses.asdict(value), dataclasses.asdict(usual)
    return [f"{name} {number:g}" for name, number in given.items() if number != expected[name]]


def describe_history(recipe: Recipe) -> str:
    """What a run does before its main phase, warm-up aside: "batch 4 until 1.28M"."""
    switches, position = [], 0
    for phase in recipe.phases:
        position += phase.tokens
        if phase.is_constant and phase is not recipe.main_phase:
            switches.append(f"{_differences(phase, recipe)} until {format_tokens(position)}")
    return ", ".join(switches)


def _differences(phase: Phase, recipe: Recipe) -> str:
    """How an earlier phase differs from the main one, in words that runs of one rule have in common."""
    learning_rate, weight_decay, batch_size = phase.peak_learning_rate, phase.weight_decay, phase.batch_size
    ratio = math.sqrt(batch_size / recipe.batch_size)
    words = []
    if weight_decay == recipe.weight_decay and math.isclose(learning_rate, recipe.learning_rate * ratio):
        words.append("LR by the square-root rule")
    elif learning_rate != recipe.learning_rate:
        words.append(f"LR {format_number(learning_rate)}")
    if weight_decay != recipe.weight_decay:
        words.append(f"WD {format_number(weight_decay)}")
    if batch_size != recipe.batch_size:
        words.append(f"batch {batch_size}")
    return " and ".join(words)
