"""Recipes as trunks and decays: which run is a continuation of which, and what a stored run says about a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from isotune.recipe import Ramp, Recipe, falling_tokens, shared_tokens


def trunk_of(recipe: Recipe) -> Recipe | None:
    """The recipe without its final decay; None if that leaves no constant phase (cosine)."""
    falling = falling_tokens(recipe)
    if not falling:
        return recipe
    phases = recipe.prefix(recipe.tokens - falling)
    return Recipe(recipe.setup, phases) if any(phase.is_constant for phase in phases) else None


def warmup_tokens(recipe: Recipe) -> int:
    """The length of the rising ramp that the recipe begins with."""
    tokens = 0
    for phase in recipe.phases:
        ramp = phase.learning_rate
        if not isinstance(ramp, Ramp) or ramp.end <= ramp.start:
            break
        tokens += phase.tokens
    return tokens


def settings(recipe: Recipe) -> tuple[float, float, int]:
    """What names a run beside its seed."""
    return recipe.learning_rate, recipe.weight_decay, recipe.batch_size


def continues(longer: Recipe, shorter: Recipe) -> bool:
    """Whether one trunk is the other, trained on with the same settings (or the same one)."""
    return (
        longer.setup.seed == shorter.setup.seed
        and settings(longer) == settings(shorter)
        and shared_tokens(longer, shorter) == shorter.tokens
    )


def family(recipe: Recipe) -> tuple[object, ...]:
    """What recipes of one root must have in common to share any token."""
    first = recipe.phases[0]
    return recipe.setup.seed, first.learning_rate, first.weight_decay, first.batch_size


def answers(stored: Recipe, diverged_at_tokens: int | None, recipe: Recipe) -> bool:
    """Whether a stored row tells how the recipe ends: it diverges on it, or passes through all of it.

    The end of a decay is evaluated there only, so it needs the row that ends with it.
    """
    shared = shared_tokens(stored, recipe)
    if diverged_at_tokens is not None and shared >= diverged_at_tokens:
        return True
    return shared == recipe.tokens and (stored.tokens == recipe.tokens or not recipe.phases[-1].ends_a_decay)


def own_tokens(trained: Iterable[tuple[Recipe, int]]) -> list[int]:
    """What each run, trained up to a position, adds to those before it: shared prefixes are counted once.

    All belong to one root; the sum is the size of the prefix tree.
    """
    seen: dict[tuple[object, ...], list[tuple[Recipe, int]]] = {}
    own = []
    for recipe, end in trained:
        relatives = seen.setdefault(family(recipe), [])
        known = max((min(shared_tokens(other, recipe), to) for other, to in relatives), default=0)
        own.append(max(0, end - known))
        relatives.append((recipe, end))
    return own


def plain(recipe: Recipe) -> Recipe:
    """The same recipe without the memory of what was asked for before rounding."""
    phases = tuple(dataclasses.replace(phase, requested_tokens=None) for phase in recipe.phases)
    return Recipe(recipe.setup, phases)
