"""Which recipes a table answers for."""

from __future__ import annotations

from dataclasses import dataclass

from isotune.recipe import Recipe
from isotune.runs.tables.contents import Contents, read_recipe_text
from isotune.runs.tables.prefixes import answers, family

_Rows = list[tuple[Recipe, int | None]]  # recipes, and where they diverged


@dataclass(frozen=True)
class Coverage:
    """The rows of a table, by root and by what recipes must have in common to share anything."""

    rows: dict[tuple[object, ...], _Rows]

    @classmethod
    def of(cls, contents: Contents) -> Coverage:
        rows: dict[tuple[object, ...], _Rows] = {}
        for record in contents.records():
            recipe = read_recipe_text(record)
            rows.setdefault((record.root, family(recipe)), []).append((recipe, record.diverged_at_tokens))
        return cls(rows)

    def has(self, root: str, recipe: Recipe) -> bool:
        """Whether a row tells how the recipe ends; a decay needs a row of its own."""
        relatives = self.rows.get((root, family(recipe)), [])
        return any(answers(stored, diverged_at, recipe) for stored, diverged_at in relatives)
