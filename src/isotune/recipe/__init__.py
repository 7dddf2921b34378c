"""What to train: a `Setup` (model, corpus, seed ...) and a list of `Phase`s whose clock is tokens.

    >>> from isotune.recipe import PRESETS, Setup, wsd
    >>> recipe = wsd(Setup(model=PRESETS["nano"]), tokens="2.56M", learning_rate="2^-10",
    ...              weight_decay=0.125, batch_size=4, warmup_tokens="25.6K", decay_tokens="128K")
    >>> recipe.tokens, recipe.num_steps, recipe.effective_learning_rate
    (2560000, 10000, 0.0001220703125)

Everything here is frozen data; steps, ELR, tokens per parameter and memory times are derived, never stored.
"""

from isotune.recipe.phases import Phase, Ramp, RampShape, Recipe, Step, canonical, digest, falling_tokens, shared_tokens
from isotune.recipe.quantities import format_number, format_tokens, parse_batch_schedule, parse_number, parse_tokens
from isotune.recipe.schedules import batch_switch, constant, cosine, new_settings, square_root_rule, wsd
from isotune.recipe.setup import NUMERICS_VERSION, PRESETS, AdamW, Init, ModelShape, Precision, Setup
from isotune.recipe.toml import read_recipe, recipe_from_table, recipe_to_table

__all__ = [
    "NUMERICS_VERSION",
    "PRESETS",
    "AdamW",
    "Init",
    "ModelShape",
    "Phase",
    "Precision",
    "Ramp",
    "RampShape",
    "Recipe",
    "Setup",
    "Step",
    "batch_switch",
    "canonical",
    "constant",
    "cosine",
    "digest",
    "falling_tokens",
    "format_number",
    "format_tokens",
    "new_settings",
    "parse_batch_schedule",
    "parse_number",
    "parse_tokens",
    "read_recipe",
    "recipe_from_table",
    "recipe_to_table",
    "shared_tokens",
    "square_root_rule",
    "wsd",
]
