"""Tables whose truth is known: the cells of the real sweeps (experiments/tables) with curves from a formula.

A planted table answers what `isotune.runs.Table` answers, so that rows are selected as in real ones.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from isotune.claims import Tables, read_rules
from isotune.recipe import falling_tokens
from isotune.runs import Trajectory
from isotune.runs.study import settings_columns
from isotune.runs.words import run_info
from isotune.sweep import read_sweep

ROOT = Path(__file__).parents[2]
RULES = read_rules(ROOT / "experiments" / "claims.toml")
NANO_SWEEPS = {
    "nano": (
        *("nano-small", "nano-low", "nano-large", "nano-large-low"),
        *("nano-switch", "nano-seeds", "nano-large-seeds", "nano-diagonal-seeds", "nano-batch-256"),
    ),
    "nano-variants": (
        "nano-perturbed",
        "nano-late",
        "nano-beta2-0.9",
        "nano-beta2-0.99",
        *(f"nano-init-{scale}" for scale in ("0.25", "0.5", "2", "4")),
    ),
    "small32": ("small32-small", "small32-low", "small32-seeds", "small32-decay-seeds", "small32-large"),
    "small32-variants": ("small32-perturbed",),
}


class PlantedTable:
    """The runs of some sweeps; `columns(recipe, tokens)` gives what was measured at these tokens."""

    def __init__(self, sweeps, columns, final_loss=None, leave_out=lambda recipe: False):
        self._columns, self._final_loss = columns, final_loss
        self._recipes, self._decays, self._made = {}, [], {}
        recipes = [recipe for sweep in sweeps for recipe in recipes_of(sweep) if not leave_out(recipe)]
        trunks = {}
        for recipe in recipes:
            if not falling_tokens(recipe):
                name = f"run {len(self._recipes)}"
                self._recipes[name] = recipe
                trunks[_place(recipe)] = name
        for recipe in recipes:
            if falling_tokens(recipe) and final_loss is not None:
                self._decays.append(self._decay(recipe, trunks[_place(recipe)]))

    is_complete = True

    def runs(self):
        return [_record(name, recipe) for name, recipe in self._recipes.items()]

    def decays(self):
        return self._decays

    def recipe(self, name):
        return self._recipes[name]

    def trajectory(self, name):
        if name not in self._made:
            recipe = self._recipes[name]
            small32 = recipe.tokens > 5_000_000
            tokens = np.arange(0, recipe.tokens + 1, 49_152 if small32 else 12_288)
            tokens = np.union1d(tokens, np.arange(0, recipe.tokens + 1, 122_880 if small32 else 61_440))
            step = recipe.batch_size * recipe.setup.sequence_length
            tokens = np.unique(-(-tokens // step) * step)  # rows are ends of steps
            columns = self._columns(recipe, tokens) | {"tokens": tokens}
            columns |= settings_columns(recipe, tokens)
            self._made[name] = Trajectory(columns, run_info(recipe, "finished", "planted"))
        return self._made[name]

    def _decay(self, recipe, trunk):
        loss = float(self._final_loss(recipe))
        windows = np.full(64, loss) + np.sin(np.arange(64))
        return SimpleNamespace(
            run=trunk,
            tokens=recipe.tokens,
            status="finished",
            final_val_loss=loss,
            val_loss=loss,
            window_losses=windows,
            decay_tokens=falling_tokens(recipe),
            branch_tokens=recipe.tokens - falling_tokens(recipe),
        )


class PlantedTables(Tables):
    """`tables` maps a folder's name to its table; others are not there."""

    def __init__(self, tables, rules=RULES):
        super().__init__(ROOT, rules)
        self._read = dict(tables)

    def _open(self, name):
        return self._read.get(name)


@cache
def recipes_of(sweep):
    return tuple(read_sweep(ROOT / "experiments" / "tables" / f"{sweep}.toml").recipes)


def steps_since_warmup(recipe, tokens):
    """Steps at the recipe's last batch size, from the first token on; at least one."""
    return np.maximum(tokens / (recipe.batch_size * recipe.setup.sequence_length), 1.0)


def chance(recipe, size, salt=0):
    """Normal numbers that differ from run to run, from twin to twin and from seed to seed, and are always the same."""
    setup = recipe.setup
    key = (recipe.learning_rate, recipe.weight_decay, recipe.batch_size, setup.seed, setup.init.perturbation, salt)
    words = [abs(hash(round(math.log2(value + 1e-12) * 1000))) for value in map(float, key)]
    return np.random.default_rng(words).standard_normal(size)


def _place(recipe):
    setup = recipe.setup
    constant = [phase for phase in recipe.phases if phase.is_constant]
    before = tuple((phase.peak_learning_rate, phase.batch_size, phase.tokens) for phase in constant[:-1])
    return recipe.learning_rate, recipe.weight_decay, recipe.batch_size, setup.seed, setup.init, setup.optimizer, before


def _record(name, recipe):
    setup = recipe.setup
    return SimpleNamespace(
        run=name,
        kind="trunk",
        seed=setup.seed,
        status="finished",
        tokens=recipe.tokens,
        warmup_tokens=recipe.phases[0].tokens,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        beta2=setup.optimizer.beta2,
        init_scale=setup.init.scale,
        init_perturbation=setup.init.perturbation,
    )
