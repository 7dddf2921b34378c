"""What a sweep is made of: from a few words, in a TOML file or on the command line, to a list of recipes.

    >>> from isotune.recipe import PRESETS, Setup, wsd
    >>> recipe = wsd(Setup(model=PRESETS["nano"]), tokens="2.56M", learning_rate="2^-10", weight_decay=0.125,
    ...              batch_size=4, warmup_tokens="25.6K", decay_tokens="128K")
    >>> sweep = sweep_from_options(recipe, {"learning_rate": "2^-11..2^-8", "budgets": "640K,2.56M", "seed": "0..2"})
    >>> len(sweep.recipes)
    24

All lengths of a sweep are rounded to whole steps of its largest batch, so that the budgets of a cell share their trunk
exactly.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from isotune.errors import InputError
from isotune.recipe import (
    Phase,
    Ramp,
    RampShape,
    Recipe,
    Setup,
    batch_switch,
    constant,
    new_settings,
    parse_number,
    parse_tokens,
    read_recipe,
    recipe_from_table,
    square_root_rule,
    wsd,
)
from isotune.recipe.quantities import require_choice, settle, show
from isotune.recipe.schedules import Rounding
from isotune.recipe.toml import NO_OVERRIDES, Table, complaining, read_toml, require_keys, require_table
from isotune.sweep.axes import parse_axis, read_batch_size

Switch = Literal["type1", "type2", "square_root"]

# More is a slip of the pen, not a sweep.
MAX_RECIPES = 100_000


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Cells of (LR, WD), and the runs that each of them gets.

    Every value may be given as in a TOML file ("2^-11..2^-7", "2.56M"); it is kept as numbers.
    Of `weight_decay` and `effective_learning_rate` (WD = ELR / LR), of `decay_tokens` (one length at every budget) and
    `decay_fraction` (a part of each), of `trunk_tokens` and `trunk_extra_tokens` (past the last branch), at most one.
    """

    learning_rate: tuple[float, ...]
    weight_decay: tuple[float, ...] | None = None
    effective_learning_rate: tuple[float, ...] | None = None
    batch_size: tuple[int, ...]
    seed: tuple[int, ...] = (0,)
    budgets: tuple[int, ...]
    warmup_tokens: int = 0
    decay_tokens: int | None = None
    decay_fraction: float | None = None
    decay_shape: RampShape = "linear"
    trunk_tokens: int | None = None
    trunk_extra_tokens: int | None = None
    switch: Switch | None = None
    switch_tokens: int | None = None
    switch_batch_size: int | None = None
    source_learning_rate: float | None = None
    source_weight_decay: float | None = None

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value is not None or f.default is not None:
                settle(self, f.name, _READERS.get(f.name, parse_axis)(f.name, value))
        for first, second in _RIVALS:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise InputError(f"it has both {first} and {second}: keep one of them")
        if self.weight_decay is None and self.effective_learning_rate is None:
            raise InputError("it has neither weight_decay nor effective_learning_rate: give one of them")
        if 0 in self.learning_rate:
            raise InputError("learning_rate=0 trains nothing: give positive learning rates")
        if self.decay_fraction is not None and not 0 < self.decay_fraction <= 1:
            raise InputError(
                f"decay_fraction={self.decay_fraction} must be above 0 and at most 1: write 0.05, "
                f"or decay_tokens = 0 for no decay"
            )
        self._require_a_whole_switch()

    @property
    def cells(self) -> tuple[tuple[float, float], ...]:
        """(LR, WD) of every cell; after a switch of Type 1 they hold from the switch on."""
        if self.weight_decay is not None:
            return tuple(itertools.product(self.learning_rate, self.weight_decay))
        return tuple((lr, elr / lr) for lr in self.learning_rate for elr in self.effective_learning_rate or ())

    @property
    def batch_sizes(self) -> list[int]:
        """Every batch size that one of its runs has at some time."""
        return [*self.batch_size, *([self.switch_batch_size] if self.switch_batch_size else [])]

    @property
    def decays(self) -> bool:
        return bool(self.decay_tokens or self.decay_fraction)

    def decay_tokens_of(self, budget: int) -> int:
        """The length of the decay that ends at this budget, before rounding."""
        return round(self.decay_fraction * budget) if self.decay_fraction else self.decay_tokens or 0

    def _require_a_whole_switch(self) -> None:
        lengths, source = ("switch_tokens", "switch_batch_size"), ("source_learning_rate", "source_weight_decay")
        needed = {None: (), "type1": lengths + source}.get(self.switch, lengths)
        kind = f"switch = {self.switch!r}" if self.switch else "a grid without a switch"
        for name in lengths + source:
            value = getattr(self, name)
            if value is None and name in needed:
                raise InputError(f"{kind} lacks {name}: add it")
            if value is not None and name not in needed:
                remedy = f"switch = {'type1' if name in source else 'type2'!r}"
                raise InputError(f"{name}={show(value)} means nothing to {kind}: remove it, or write {remedy}")
        if self.switch in ("type2", "square_root") and self.switch_batch_size in self.batch_size:
            raise InputError(
                f"switch_batch_size={self.switch_batch_size} is the batch size before the switch, "
                f"so that nothing switches: choose another one"
            )


@dataclass(frozen=True)
class Sweep:
    """A setup, grids, and the recipes that they make; the setup's seed gives way to the grids' own."""

    name: str
    setup: Setup
    grids: tuple[Grid, ...]
    recipes: tuple[Recipe, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self, "recipes", tuple(recipes_of(self.setup, *self.grids)))


def recipes_of(setup: Setup, *grids: Grid) -> list[Recipe]:
    """The recipes of these grids, each once: cell by cell, in a cell by batch size and seed, then the budgets as given.

    A budget is a WSD run. A cell's trunk (constant to the end) comes last, and only where it was asked for or nothing
    decays. All lengths are rounded to steps of the largest batch of all grids.
    """
    if not grids:
        raise InputError("a sweep without a grid trains nothing: give it one")
    rounding = Rounding(setup, [size for grid in grids for size in grid.batch_sizes])
    recipes: dict[Recipe, None] = {}
    for number, grid in enumerate(grids, start=1):
        with complaining(f"grid {number}") if len(grids) > 1 else nullcontext():
            recipes.update(dict.fromkeys(_grid_recipes(setup, grid, rounding)))
    return list(recipes)


def read_sweep(path: str | Path, overrides: Table = NO_OVERRIDES, find: Callable[[str], Path] | None = None) -> Sweep:
    """The sweep in a TOML file; a recipe's file is a sweep of one grid.

    `overrides` replace entries of all its grids, `corpus` and `precision` those of its setup (`None` replaces nothing);
    `find` finds the file of a recipe that is called by its name alone.
    """
    path = Path(path)
    table = read_toml(path)
    with complaining(str(path)):
        grids = table.pop("grid", [{}])
        if not isinstance(grids, list) or not grids:
            raise InputError(f"grid={show(grids)} must be a list of tables: write each under [[grid]]")
        recipe = _sweeps_recipe(table, path, find)
        return _sweep(path.stem, recipe, [(f"grid {n}", grid) for n, grid in enumerate(grids, start=1)], overrides)


def sweep_from_options(recipe: Recipe, options: Table, name: str = "sweep") -> Sweep:
    """The sweep of one grid that these options describe; what is None or left out is as in the recipe.

    Options are the fields of `Grid`, in words or numbers, and `corpus` and `precision`.
    """
    return _sweep(name, recipe, [("", {})], options)


# From grids to recipes


class _Run(NamedTuple):
    """The lengths of one run of a cell; both count in tokens."""

    tokens: int
    decay_tokens: int


def _grid_recipes(setup: Setup, grid: Grid, rounding: Rounding) -> Iterator[Recipe]:
    runs = _runs(grid, rounding)
    num_recipes = len(grid.cells) * len(grid.batch_size) * len(grid.seed) * len(runs)
    if num_recipes > MAX_RECIPES:
        raise InputError(f"it makes {num_recipes} recipes, more than {MAX_RECIPES}: take fewer values")
    setups = [dataclasses.replace(setup, seed=seed) for seed in grid.seed]
    for (lr, wd), batch_size, seeded in itertools.product(grid.cells, grid.batch_size, setups):
        yield from _cell_recipes(seeded, grid, lr, wd, batch_size, runs, rounding.quantum)


def _cell_recipes(
    setup: Setup, grid: Grid, lr: float, wd: float, batch_size: int, runs: Sequence[_Run], quantum_tokens: int
) -> Iterator[Recipe]:
    """One recipe for each run of a cell."""
    start = {"batch_size": batch_size, "warmup_tokens": grid.warmup_tokens, "quantum_tokens": quantum_tokens}
    if grid.switch is None:
        for run in runs:
            yield wsd(setup, learning_rate=lr, weight_decay=wd, decay_shape=grid.decay_shape, **run._asdict(), **start)
        return
    assert grid.switch_tokens is not None and grid.switch_batch_size is not None
    source_lr = lr if grid.source_learning_rate is None else grid.source_learning_rate
    source_wd = wd if grid.source_weight_decay is None else grid.source_weight_decay
    source = constant(setup, tokens=grid.switch_tokens, learning_rate=source_lr, weight_decay=source_wd, **start)
    new: dict[str, Any] = {"learning_rate": lr, "weight_decay": wd} if grid.switch == "type1" else {}
    continued: Callable[..., Recipe] = _SWITCHES[grid.switch]
    for run in runs:
        yield continued(
            source,
            switch_tokens=grid.switch_tokens,
            batch_size=grid.switch_batch_size,
            decay_shape=grid.decay_shape,
            quantum_tokens=quantum_tokens,
            **run._asdict(),
            **new,
        )


def _runs(grid: Grid, rounding: Rounding) -> list[_Run]:
    """The runs of every cell, once it is clear that they fit after rounding."""
    asked = [_Run(budget, grid.decay_tokens_of(budget)) for budget in grid.budgets]
    rounded = [
        _Run(rounding.budget("budgets", run.tokens).tokens, rounding("decay_tokens", run.decay_tokens).tokens)
        for run in asked
    ]
    seen: dict[int, int] = {}
    for (before, _), (after, _) in zip(asked, rounded, strict=True):
        if seen.setdefault(after, before) != before:
            raise InputError(
                f"budgets {seen[after]} and {before} are the same after rounding to steps of {rounding.quantum} "
                f"tokens: remove one of them"
            )
    _require_fit(grid, rounded, rounding)
    trunk = _trunk(grid, max(run.tokens - run.decay_tokens for run in rounded), rounding)
    return (asked if grid.decays else []) + ([_Run(trunk, 0)] if trunk else [])


def _require_fit(grid: Grid, runs: Sequence[_Run], rounding: Rounding) -> None:
    warmup = rounding("warmup_tokens", grid.warmup_tokens).tokens
    switch = rounding("switch_tokens", grid.switch_tokens or 0).tokens
    if grid.switch and switch < warmup:
        raise InputError(f"switch_tokens={switch} lies inside warmup_tokens={warmup}: switch later")
    for tokens, decay in runs:
        if tokens - decay < warmup:
            raise InputError(
                f"a budget of {tokens} tokens does not hold warmup_tokens={warmup} and decay_tokens={decay}: "
                f"raise it or shorten them"
            )
        if grid.switch and (tokens - decay < switch or tokens == switch):
            raise InputError(
                f"a budget of {tokens} tokens leaves nothing between switch_tokens={switch} and its end with "
                f"decay_tokens={decay}: raise it, switch earlier or shorten the decay"
            )


def _trunk(grid: Grid, last_branch: int, rounding: Rounding) -> int:
    """How far the constant runs go; 0 where there are none."""
    if grid.trunk_extra_tokens is not None:
        return last_branch + rounding("trunk_extra_tokens", grid.trunk_extra_tokens).tokens
    if grid.trunk_tokens is None:
        return 0 if grid.decays else last_branch  # shorter budgets lie on the longest
    trunk = rounding("trunk_tokens", grid.trunk_tokens).tokens
    if trunk < last_branch:
        end = "the last decay branches off" if grid.decays else "the largest budget ends"
        raise InputError(
            f"trunk_tokens={trunk} ends before {end} at {last_branch} tokens, and that far is trained anyway: "
            f"raise it or leave it out"
        )
    return trunk


_SWITCHES: Mapping[str, Callable[..., Recipe]] = {
    "type1": new_settings,
    "type2": batch_switch,
    "square_root": square_root_rule,
}


# From tables to grids

_FIELDS = {f.name for f in dataclasses.fields(Grid)}
_SETUP_OPTIONS = {"corpus", "precision"}
_SETUP_FIELDS = {f.name for f in dataclasses.fields(Setup)} - {"seed"}

# Two ways to say one thing: saying one of them replaces what the recipe or the file says with the other.
_RIVALS = (
    ("weight_decay", "effective_learning_rate"),
    ("decay_tokens", "decay_fraction"),
    ("trunk_tokens", "trunk_extra_tokens"),
)


def _sweep(name: str, recipe: Recipe, tables: list[tuple[str, object]], overrides: Table) -> Sweep:
    """The sweep of these tables, each with what to call it in complaints."""
    changes = {key: value for key, value in overrides.items() if value is not None}
    setup = dataclasses.replace(recipe.setup, **{key: changes.pop(key) for key in _SETUP_OPTIONS & set(changes)})
    _require_grid_keys(changes)
    defaults = _entries_of(recipe)
    grids = []
    for place, table in tables:
        with complaining(place) if place else nullcontext():
            entries = require_table("grid", table)
            _require_grid_keys(entries)
            grids.append(Grid(**_replaced(_replaced(defaults, entries), changes)))
    return Sweep(name, setup, tuple(grids))


def _require_grid_keys(table: Table) -> None:
    for key in sorted(_SETUP_FIELDS & set(table)):
        raise InputError(
            f"{key}={show(table[key])} cannot vary inside a sweep, whose runs share one setup, seeds apart: "
            f"set it in the recipe, or write another sweep for another study"
        )
    require_keys(table, _FIELDS, set(), "a grid")


def _replaced(entries: Table, changes: Table) -> dict[str, Any]:
    """The entries with these changes, less those that a change says in its other way."""
    said_otherwise = {b for pair in _RIVALS for a, b in (pair, pair[::-1]) if a in changes}
    return {key: value for key, value in entries.items() if key not in said_otherwise} | dict(changes)


def _entries_of(recipe: Recipe) -> dict[str, Any]:
    """What a grid takes from a recipe of warm-up, constant and decay where it says nothing itself.

    Lengths are those that were asked for: the sweep may round them to another batch.
    """
    lr = recipe.learning_rate
    index = recipe.phases.index(recipe.main_phase)
    warmup, decay = recipe.phases[:index], recipe.phases[index + 1 :]
    plain = [
        *(Ramp(0.0, lr, phase.tokens) for phase in warmup[:1]),
        lr,
        *(Ramp(lr, 0.0, phase.tokens, _shape(phase)) for phase in decay[:1]),
    ]
    num_settings = len({(phase.weight_decay, phase.batch_size) for phase in recipe.phases})
    if [phase.learning_rate for phase in recipe.phases] != plain or num_settings > 1:
        raise InputError(
            "its recipe is not just a warm-up, one constant phase and a decay to zero: start from a schedule of kind "
            "constant or wsd, and say what switches in the grid (switch, switch_tokens, switch_batch_size)"
        )
    return {
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "batch_size": recipe.batch_size,
        "seed": recipe.setup.seed,
        "budgets": _asked(recipe.phases),
        "warmup_tokens": _asked(warmup),
        "decay_tokens": _asked(decay),
        "decay_shape": _shape(decay[0]) if decay else "linear",
    }


def _shape(phase: Phase) -> RampShape:
    return phase.learning_rate.shape if isinstance(phase.learning_rate, Ramp) else "linear"


def _asked(phases: Sequence[Phase]) -> int:
    return sum(phase.tokens if phase.requested_tokens is None else phase.requested_tokens for phase in phases)


def _sweeps_recipe(table: dict[str, Any], path: Path, find: Callable[[str], Path] | None) -> Recipe:
    """The recipe that a sweep's file names or holds."""
    if "recipe" not in table:
        return recipe_from_table(table, "its recipe")
    require_keys(table, {"recipe"}, set(), "a sweep that names its recipe")
    name = table["recipe"]
    if not isinstance(name, str) or not name:
        raise InputError(f'recipe={show(name)} must be a name or a path: write recipe = "nano-wsd"')
    beside = path.parent / name
    if beside.is_file() or "/" in name or name.endswith(".toml"):
        return read_recipe(beside)
    if find is None:
        raise InputError(f"recipe={show(name)} is no file beside it: give the path of a TOML file")
    return read_recipe(find(name))


# Single values in words


def _read_switch(name: str, value: Any) -> Any:
    require_choice(name, value, get_args(Switch))
    return value


def _read_shape(name: str, value: Any) -> Any:
    require_choice(name, value, get_args(RampShape))
    return value


# Fields that are no axis.
_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "warmup_tokens": parse_tokens,
    "decay_tokens": parse_tokens,
    "decay_fraction": parse_number,
    "decay_shape": _read_shape,
    "trunk_tokens": parse_tokens,
    "trunk_extra_tokens": parse_tokens,
    "switch": _read_switch,
    "switch_tokens": parse_tokens,
    "switch_batch_size": read_batch_size,
    "source_learning_rate": parse_number,
    "source_weight_decay": parse_number,
}
