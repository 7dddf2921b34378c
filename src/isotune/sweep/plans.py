"""The recipes that a study was asked for, kept in it: its status and its cleaning know what is still to come."""

from __future__ import annotations

from collections.abc import Sequence

from isotune.recipe import Recipe, digest, recipe_from_table, recipe_to_table
from isotune.runs import Study
from isotune.runs.files import read_json, write_json


def remember(study: Study, recipes: Sequence[Recipe]) -> None:
    """Keeps these recipes as planned; repeating a sweep changes nothing."""
    tables = [recipe_to_table(recipe) for recipe in recipes]
    folder = study.folder / "plans"
    path = folder / f"{digest(tables)}.json"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        write_json(path, {"recipes": tables})


def planned_recipes(study: Study) -> list[Recipe]:
    """All recipes that sweeps of this study asked for."""
    recipes = []
    for path in sorted((study.folder / "plans").glob("*.json")):
        tables = read_json(path, "delete it and repeat the sweep, which writes it again")["recipes"]
        recipes += [recipe_from_table(table, str(path)) for table in tables]
    return list(dict.fromkeys(recipes))
