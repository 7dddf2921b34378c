"""Recipes and a study -> what is missing, in the order of need, and its price."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

from isotune.recipe import Recipe
from isotune.runs import Segment, Study
from isotune.sweep.tree import Node, prefix_tree

TaskStatus = Literal["there", "missing", "diverged", "damaged"]


@dataclass(eq=False)
class Task:
    """A node of the tree as the study has it: what must be trained for it, if anything."""

    node: Node
    status: TaskStatus
    segment: Segment | None = None  # to train, if it is missing
    parent: Task | None = None  # its missing predecessor, without which it cannot begin
    is_repeated: bool = False  # its rows are published, but a state that is needed is gone
    reason: str = ""  # what is wrong, if it is damaged

    @property
    def tokens(self) -> int:
        return self.segment.tokens if self.segment else 0


@dataclass(frozen=True)
class Price:
    """What a sweep costs, in tokens."""

    separately: int  # if every recipe were trained alone
    shared: int  # with every prefix trained once
    there: int  # of the shared ones, in the study or in tables already
    to_train: int  # what is missing, and what must be repeated because its state is gone

    @property
    def share(self) -> float:
        """Of the tokens of separate runs, the part that sharing leaves."""
        return self.shared / self.separately


@dataclass(frozen=True)
class Plan:
    """The tasks of a sweep, each after those that it waits for, trunk by trunk."""

    recipes: tuple[Recipe, ...]
    tasks: tuple[Task, ...]
    price: Price
    in_tables: tuple[Recipe, ...] = field(default=())

    @property
    def missing(self) -> list[Task]:
        return [task for task in self.tasks if task.status == "missing"]


def make_plan(
    recipes: Sequence[Recipe], study: Study | None = None, is_in_table: Callable[[Recipe], bool] = lambda recipe: False
) -> Plan:
    """What of these recipes the study lacks; everything without a study. Recipes that a table has count as done."""
    with study.at_one_moment() if study else nullcontext():
        return _make_plan(tuple(dict.fromkeys(recipes)), study, is_in_table)


def _make_plan(recipes: tuple[Recipe, ...], study: Study | None, is_in_table: Callable[[Recipe], bool]) -> Plan:
    in_tables = tuple(recipe for recipe in recipes if is_in_table(recipe))
    roots = prefix_tree(recipes)
    wanted = _wanted(roots, set(in_tables))
    view = _View(study)
    tasks = {id(node): _first_look(node, view) for root in roots for node in root.walk()}
    for root in roots:
        nodes = list(root.walk())
        for node in reversed(nodes):
            _decide(node, tasks, id(node) in wanted, view)
        for node in nodes:
            _inherit(node, tasks)
    ordered = tuple(tasks.values())
    shared = sum(task.node.tokens for task in ordered)
    to_train = sum(task.tokens for task in ordered)
    lacking = sum(max(0, task.node.end_tokens - view.reached(task.node)) for task in ordered if task.segment)
    lacking += sum(task.node.tokens for task in ordered if task.status == "damaged")
    price = Price(sum(recipe.tokens for recipe in recipes), shared, shared - lacking, to_train)
    return Plan(recipes, ordered, price, in_tables)


def _wanted(roots: Sequence[Node], in_tables: set[Recipe]) -> set[int]:
    """The nodes that lead to a recipe which no table has."""
    wanted: set[int] = set()
    for root in roots:
        for node in reversed(list(root.walk())):
            is_wanted_end = node.is_end and node.recipe not in in_tables
            if is_wanted_end or any(id(child) in wanted for child in node.children):
                wanted.add(id(node))
    return wanted


def _first_look(node: Node, view: _View) -> Task:
    if view.is_diverged(node):
        return Task(node, "diverged")
    complete = view.reached(node) >= node.end_tokens
    return Task(node, "there" if complete else "missing")


def _decide(node: Node, tasks: dict[int, Task], is_wanted: bool, view: _View) -> None:
    """Settles what must be trained for a node, once its children are settled."""
    task = tasks[id(node)]
    if task.status == "diverged":
        return
    children = [tasks[id(child)] for child in node.children]
    state_is_needed = any(child.segment and child.segment.start_tokens == node.end_tokens for child in children)
    lacks_state = state_is_needed and not view.rests(node.recipe, node.end_tokens)
    if not lacks_state and (task.status == "there" or not is_wanted):
        task.status = "there"
        return
    task.is_repeated = task.status == "there"
    task.status = "missing"
    task.segment = view.segment(node, view.best_start(node))
    task.reason = view.damage(task.segment)
    if task.reason:
        task.status, task.segment = "damaged", None


def _inherit(node: Node, tasks: dict[int, Task]) -> None:
    """Gives a node what follows from its parent, which is settled: divergence, damage, something to wait for."""
    task = tasks[id(node)]
    parent = tasks[id(node.parent)] if node.parent else None
    if parent is None or task.segment is None:
        return
    if parent.status == "diverged":
        task.status, task.segment = "diverged", None
    elif parent.status == "damaged" and task.segment.start_tokens == node.start_tokens:
        task.status, task.segment, task.reason = "damaged", None, parent.reason
    elif parent.status == "missing" and task.segment.start_tokens == node.start_tokens:
        task.parent = parent


class _View:
    """What a study has of a node; nothing at all without one."""

    def __init__(self, study: Study | None):
        self.study = study
        self.fingerprint = study.corpus_fingerprint if study else ""
        self._states = _state_ids(study) if study else set()
        self._damaged = study.damaged() if study else {}
        self._reached: dict[int, tuple[int, bool]] = {}

    def reached(self, node: Node) -> int:
        """How far rows of the node's recipe lie in the study; at least its start."""
        return self._coverage(node)[0]

    def is_diverged(self, node: Node) -> bool:
        return self._coverage(node)[1]

    def rests(self, recipe: Recipe, tokens: int) -> bool:
        """Whether the state at this position is kept."""
        return tokens == 0 or (bool(self._states) and recipe.state_id(self.fingerprint, tokens) in self._states)

    def best_start(self, node: Node) -> int:
        """The last kept state inside the node from which what is missing can be trained; else its beginning."""
        if self.study is None or not self._states:
            return node.start_tokens
        last = min(self.reached(node), node.end_tokens - 1)
        inside = [p for p in self.study.positions(node.recipe) if node.start_tokens < p <= last]
        return max((p for p in inside if self.rests(node.recipe, p)), default=node.start_tokens)

    def segment(self, node: Node, start_tokens: int) -> Segment:
        return Segment(node.recipe, start_tokens, self.fingerprint)

    def damage(self, segment: Segment) -> str:
        """What is wrong with this segment as it lies on disk; empty if nothing is."""
        return str(self._damaged[segment.id]) if self._damaged and segment.id in self._damaged else ""

    def _coverage(self, node: Node) -> tuple[int, bool]:
        if id(node) not in self._reached:
            found = self.study.reached(node.recipe) if self.study else (0, False)
            self._reached[id(node)] = (max(found[0], node.start_tokens), found[1])
        return self._reached[id(node)]


def _state_ids(study: Study) -> set[str]:
    folder = study.folder / "states"
    names = os.listdir(folder) if folder.is_dir() else []
    return {name.removesuffix(".safetensors") for name in names if name.endswith(".safetensors")}
