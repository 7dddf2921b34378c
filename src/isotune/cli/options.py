"""Options that several commands share, with one spelling each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import isotune
from isotune.errors import InputError
from isotune.recipe import Recipe, parse_batch_schedule, read_recipe

Command = TypeVar("Command", bound=Callable[..., Any])

# In a checkout the recipes lie beside the sources; in an installed package, inside it.
_SHIPPED = (Path(isotune.__file__).parent / "shipped_recipes", Path(isotune.__file__).parents[2] / "recipes")

# Option -> the recipe's entry that it replaces.
_OVERRIDES = {
    "lr": ("learning_rate", "Learning rate, such as 0.001 or 2^-10."),
    "wd": ("weight_decay", "Weight decay (coupled: w *= 1 - lr*wd)."),
    "tokens": ("tokens", "The whole budget, such as 2.56M."),
    "batch-size": ("batch_size", 'Sequences, or a schedule such as "0:4 1.28M:64".'),
    "warmup-tokens": ("warmup_tokens", "Length of the warm-up."),
    "decay-tokens": ("decay_tokens", "Length of the decay."),
    "corpus": ("corpus", "A built-in corpus or a path."),
    "precision": ("precision", "float32 or bfloat16."),
    "seed": ("seed", "Seed of the initial weights and of the order of the data."),
}


class _Folder(click.Path):
    """A folder's path; an empty one, such as that of a variable that is not set, is not the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("an empty name: name a folder, or leave the option out", param, ctx)
        return super().convert(value, param, ctx)


def study_option(default: str) -> Callable[[Command], Command]:
    """The option --study, whose default is told in words."""
    folder = _Folder(path_type=Path, file_okay=False)
    return click.option("--study", type=folder, help=f"Folder of the runs [default: {default}].")


def with_recipe(command: Command) -> Command:
    """Gives a command the argument RECIPE and the options that replace some of its entries."""
    for option, (entry, text) in reversed(_OVERRIDES.items()):
        kind = int if entry == "seed" else str
        command = click.option(f"--{option}", entry, type=kind, help=text)(command)
    return click.argument("recipe_name", metavar="RECIPE")(command)


def load_recipe(name: str, overrides: dict[str, Any]) -> Recipe:
    """The recipe in a file, or a shipped one by its name (`nano-wsd`), with some entries replaced."""
    if overrides.get("batch_size") is not None:
        schedule = parse_batch_schedule(overrides["batch_size"])
        overrides = overrides | {"batch_size": schedule[0][1] if len(schedule) == 1 else overrides["batch_size"]}
    path = find_recipe(name)
    try:
        return read_recipe(path, overrides)
    except InputError as error:
        given = [f"--{option}" for option, (entry, _) in _OVERRIDES.items() if overrides.get(entry) is not None]
        if not given or not _is_sound(path):
            raise
        reason = str(error).removeprefix(f"{path}: ").removeprefix("[schedule]: ")
        raise InputError(f"{name} with {', '.join(given)}: {reason}") from None


def _is_sound(path: Path) -> bool:
    """Whether a recipe can be read as it is, so that a mistake is in the options that change it."""
    try:
        read_recipe(path)
    except InputError:
        return False
    return True


def recipe_overrides(arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes the recipe's options out of a command's arguments."""
    return {entry: arguments.pop(entry) for entry, _ in _OVERRIDES.values()}


def find_recipe(name: str) -> Path:
    """The file of a recipe or sweep: a path, or the name of a shipped one."""
    if Path(name).is_file() or "/" in name or name.endswith(".toml"):
        return Path(name)
    shipped = {path.stem: path for folder in reversed(_SHIPPED) for path in folder.glob("**/*.toml")}
    if name in shipped:
        return shipped[name]
    raise InputError(f"there is no recipe {name!r}: give a TOML file or one of {', '.join(sorted(shipped))}")
