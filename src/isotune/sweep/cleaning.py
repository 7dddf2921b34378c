"""What of a study can go: nothing but what training would make again, byte for byte."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from isotune.errors import InputError
from isotune.recipe import Recipe
from isotune.runs import Study
from isotune.runs.files import PARTS
from isotune.sweep.claims import is_dead_here, read_driver
from isotune.sweep.plan import make_plan
from isotune.sweep.plans import planned_recipes
from isotune.sweep.tree import Node, prefix_tree


@dataclass(frozen=True)
class Removable:
    path: Path
    num_bytes: int
    why: str


def removable(study: Study, *, keep: Collection[str] = (), with_models: bool = False) -> list[Removable]:
    """Files that can be deleted without losing a row of a curve or anything that training would not make again.

    States stay while a planned recipe starts from them, and the last one of each trunk stays, to lengthen it. The
    final states of runs, which are the models, stay unless `with_models`; so does what `keep` names, by a state's or
    run's id or its beginning. What goes is what lies between: states on the grid and at branch points that nobody waits
    for. A run that later branches off there trains again from the last state before it.
    """
    recipes = list(dict.fromkeys([*planned_recipes(study), *study.recipes()]))
    kept = _needed_states(study, recipes) | _trunk_ends(study, recipes)
    if not with_models:
        kept |= {recipe.state_id(study.corpus_fingerprint, recipe.tokens) for recipe in recipes}
    states = sorted((study.folder / "states").glob("*.safetensors"))
    for name in keep:
        if not any(path.name.startswith(name) for path in states):
            raise InputError(f"--keep {name}: no state begins like that: `isotune runs list` shows the runs' ids")
    result = [
        _of(path, "a state that no planned run starts from")
        for path in states
        if path.stem not in kept and not any(path.name.startswith(name) for name in keep)
    ]
    parts = (path for pattern in PARTS for path in study.folder.rglob(pattern))
    result += [_of(path, "what a kill left of an unfinished file") for path in parts]
    result += [_of(path, "a claim or a log of a driver that is gone") for path in _left_by_dead_drivers(study)]
    return result


def remove(items: Sequence[Removable]) -> int:
    """Deletes them; the bytes that were freed."""
    freed = 0
    for item in items:
        if item.path.exists():
            item.path.unlink()
            freed += item.num_bytes
    return freed


def _needed_states(study: Study, recipes: Sequence[Recipe]) -> set[str]:
    if not recipes:
        return set()
    missing = make_plan(recipes, study).missing
    return {task.segment.start_state for task in missing if task.segment is not None}


def _trunk_ends(study: Study, recipes: Sequence[Recipe]) -> set[str]:
    """The last state of each trunk: where nothing but decays follows."""
    nodes = [node for root in prefix_tree(recipes) for node in root.walk()] if recipes else []
    ends = [
        node.recipe
        for node in nodes
        if not _is_decay(node) and all(_is_decay(child) and not child.children for child in node.children)
    ]
    return {recipe.state_id(study.corpus_fingerprint, recipe.tokens) for recipe in ends}


def _is_decay(node: Node) -> bool:
    return node.recipe.phases[-1].ends_a_decay


def _left_by_dead_drivers(study: Study) -> list[Path]:
    """Their heartbeats, empty logs and claims; journals stay, since they are counted."""
    dead = {
        path.stem
        for path in (study.folder / "drivers").glob("*.json")
        if is_dead_here(read_driver(path)) or not read_driver(path)
    }
    alive = {path.stem for path in (study.folder / "drivers").glob("*.json")} - dead
    files = [study.folder / "drivers" / f"{driver}.json" for driver in dead]
    logs = (study.folder / "drivers").glob("*.log")
    files += [path for path in logs if path.name.partition(".worker-")[0] not in alive]
    files += [path for path in (study.folder / "claims").glob("*.*") if _owner(path) in dead]
    return sorted(files)


def _owner(claim: Path) -> str:
    try:
        return claim.read_text()
    except OSError:
        return ""


def _of(path: Path, why: str) -> Removable:
    return Removable(path, path.stat().st_size, why)
