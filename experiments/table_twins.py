"""Runs of tables that differ by chance alone: a run and its perturbed twin, or two seeds of one setting."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from isotune.recipe import Recipe
from isotune.runs import Table
from isotune.runs.words import describe_history

Named = tuple[Table, str]  # a table and the id of a run in it


def twin_pairs(table: Table, beside: Sequence[Table] = ()) -> list[tuple[Named, Named]]:
    """Runs of the table with those, in any of the tables, that differ from them by a perturbed init alone."""
    exact = {_key(table.recipe(run.run)): run.run for run in table.runs() if not run.init_perturbation}
    pairs = []
    for other in (table, *beside):
        for run in other.runs():
            if run.init_perturbation and _key(other.recipe(run.run)) in exact:
                pairs.append(((table, exact[_key(other.recipe(run.run))]), (other, run.run)))
    return pairs


def seed_pairs(table: Table) -> list[tuple[Named, Named]]:
    """Runs of the table that differ by their seed alone."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for run in table.runs():
        if run.init_perturbation:
            continue
        setup, *settings = _key(table.recipe(run.run))
        groups.setdefault((dataclasses.replace(setup, seed=0), *settings), []).append(run.run)
    return [
        ((table, one), (table, other)) for runs in groups.values() for one, other in itertools.combinations(runs, 2)
    ]


def _key(recipe: Recipe):
    init = dataclasses.replace(recipe.setup.init, perturbation=0.0)
    setup = dataclasses.replace(recipe.setup, init=init)
    return setup, recipe.learning_rate, recipe.weight_decay, recipe.batch_size, describe_history(recipe)
