"""Recipes -> the tree of their common prefixes, cut where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from isotune.errors import InputError
from isotune.recipe import Phase, Recipe, format_number, format_tokens


@dataclass(eq=False)
class Node:
    """A stretch of training that all recipes through it share; its recipe ends where the stretch does."""

    recipe: Recipe
    start_tokens: int
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    is_end: bool = False  # of a recipe of the sweep

    @property
    def end_tokens(self) -> int:
        return self.recipe.tokens

    @property
    def tokens(self) -> int:
        return self.end_tokens - self.start_tokens

    def walk(self) -> Iterator[Node]:
        """This node and all below it, each before its children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def words(self) -> str:
        """The stretch in a few words: "LR 0.001 WD 0.125 batch 4 seed 0, 256K to 512K"."""
        recipe, phase = self.recipe, self.recipe.phases[-1]
        decay = " (decay)" if phase.ends_a_decay else ""
        return (
            f"LR {format_number(recipe.learning_rate)} WD {format_number(recipe.weight_decay)} "
            f"batch {phase.batch_size} "
            f"seed {recipe.setup.seed}, {format_tokens(self.start_tokens)} to {format_tokens(self.end_tokens)}{decay}"
        )


def prefix_tree(recipes: Sequence[Recipe]) -> list[Node]:
    """The roots of the tree: one for each kind of beginning, in the order of the recipes.

    A stretch ends where a recipe ends, where a phase ends, and where recipes part. Of a node's children the one with
    the most training below it comes first: it is what the others of its trunk wait for.
    """
    _require_one_root(recipes)
    roots: list[Node] = []
    open_ends: list[tuple[Node | None, list[_Position]]] = [
        (None, [_Position(recipe, 0, 0) for recipe in dict.fromkeys(recipes)])
    ]
    while open_ends:
        parent, positions = open_ends.pop()
        for group in _by_next_step(positions):
            node, rest = _grow(parent, group)
            (roots if parent is None else parent.children).append(node)
            if rest:
                open_ends.append((node, rest))
    _largest_first(roots)
    return roots


class _Position(NamedTuple):
    """How far a recipe has been walked: to this phase, and so many tokens into it."""

    recipe: Recipe
    phase_index: int
    used_tokens: int

    @property
    def phase(self) -> Phase:
        return self.recipe.phases[self.phase_index]

    def advanced(self, tokens: int) -> _Position | None:
        """The position after so many tokens, at most a phase; None at the recipe's end."""
        if self.used_tokens + tokens < self.phase.tokens:
            return self._replace(used_tokens=self.used_tokens + tokens)
        if self.phase_index + 1 < len(self.recipe.phases):
            return _Position(self.recipe, self.phase_index + 1, 0)
        return None


def _by_next_step(positions: list[_Position]) -> list[list[_Position]]:
    """Positions with one history, by what they do next."""
    groups: dict[object, list[_Position]] = {}
    for position in positions:
        phase = position.phase
        key = (position.recipe.setup.seed, phase.learning_rate, phase.weight_decay, phase.batch_size)
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _grow(parent: Node | None, group: list[_Position]) -> tuple[Node, list[_Position]]:
    """The stretch up to where the first of the group leaves its phase, and where the group stands then."""
    length = min(position.phase.tokens - position.used_tokens for position in group)
    start = parent.end_tokens if parent else 0
    recipe = group[0].recipe
    node = Node(Recipe(recipe.setup, recipe.prefix(start + length)), start, parent)
    after = [position.advanced(length) for position in group]
    node.is_end = None in after
    return node, [position for position in after if position is not None]


def _largest_first(roots: list[Node]) -> None:
    """Sorts children, not roots: the order of the recipes decides which trunk comes first."""
    below: dict[int, int] = {}
    nodes = [node for root in roots for node in root.walk()]
    for node in reversed(nodes):
        below[id(node)] = node.tokens + sum(below[id(child)] for child in node.children)
    for node in nodes:
        node.children.sort(key=lambda child: -below[id(child)])


def _require_one_root(recipes: Sequence[Recipe]) -> None:
    if not recipes:
        raise InputError("a sweep needs at least one recipe: widen the grid")
    first = recipes[0].setup.root("")
    for recipe in recipes[1:]:
        if recipe.setup is recipes[0].setup:
            continue
        other = recipe.setup.root("")
        differing = [name for name in first if name != "seed" and first[name] != other[name]]
        if recipe.setup.corpus != recipes[0].setup.corpus:
            differing.append("corpus")
        if differing:
            raise InputError(
                f"the recipes of a sweep differ in {' and '.join(differing)}: a study holds one setup, seeds apart, "
                f"so make it a sweep of its own with another --study"
            )
