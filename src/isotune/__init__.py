"""isotune: which learning rate, weight decay and batch size?

    >>> import isotune
    >>> recipe = isotune.wsd(
    ...     isotune.Setup(model=isotune.PRESETS["nano"]), tokens="2.56M", learning_rate="2^-10", weight_decay=0.125,
    ...     batch_size=4, warmup_tokens="25.6K", decay_tokens="128K",
    ... )
    >>> recipe.num_steps
    10000

`isotune.train_recipe(recipe, "studies/first")` trains it (with `pip install 'isotune[train]'`) and returns its
`Trajectory`; `isotune.Study.open("studies/first")` reads what is there, without torch.
`isotune.run_sweep(recipes, "studies/grid")` trains many, each shared prefix once.
"""

from typing import TYPE_CHECKING, Any

from isotune.errors import InputError
from isotune.recipe import (
    PRESETS,
    AdamW,
    Init,
    ModelShape,
    Phase,
    Ramp,
    Recipe,
    Setup,
    batch_switch,
    constant,
    cosine,
    new_settings,
    read_recipe,
    square_root_rule,
    wsd,
)
from isotune.runs import Evaluation, RunInfo, Study, Trajectory, read_table

if TYPE_CHECKING:
    from isotune.corpus import open_corpus, prepare
    from isotune.sweep import read_sweep, run_sweep
    from isotune.train import Execution
    from isotune.train import train as train_recipe

__all__ = [
    "PRESETS",
    "AdamW",
    "Evaluation",
    "Execution",
    "Init",
    "InputError",
    "ModelShape",
    "Phase",
    "Ramp",
    "Recipe",
    "RunInfo",
    "Setup",
    "Study",
    "Trajectory",
    "batch_switch",
    "constant",
    "cosine",
    "new_settings",
    "open_corpus",
    "prepare",
    "read_recipe",
    "read_sweep",
    "read_table",
    "run_sweep",
    "square_root_rule",
    "train_recipe",
    "wsd",
]

# Rooms that need more than the core, opened when first asked for: the name here, the room, the name there. A name must
# not be that of a room, which Python puts in its place as soon as anything imports the room.
_LAZY = {
    "Execution": ("isotune.train", "Execution"),
    "open_corpus": ("isotune.corpus", "open_corpus"),
    "prepare": ("isotune.corpus", "prepare"),
    "read_sweep": ("isotune.sweep", "read_sweep"),
    "run_sweep": ("isotune.sweep", "run_sweep"),
    "train_recipe": ("isotune.train", "train"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'isotune' has no attribute {name!r}")
    import importlib

    room, there = _LAZY[name]
    return getattr(importlib.import_module(room), there)
