"""Nano runs with budgets of 1, 2 and 4 share their trunk: each trains only what is missing, and no byte differs."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import proof  # noqa: F401 (says how many threads torch may start)
from proof import Proof, write_recipe

from isotune.recipe import Recipe, read_recipe
from isotune.runs import Evaluation, Study
from isotune.train import train

BUDGETS = {"1x": "102400", "2x": "204800", "4x": "409600"}
DECAY_TOKENS = "20480"
EVALUATION = Evaluation(every_tokens=10_240, windows=32, final_windows=256)
# Tokens that each budget lacks in this order; in the others the trunk has no state where a shorter budget leaves it.
RISING_TOKENS = {"1x": 102_400, "2x": 102_400 + 20_480, "4x": 204_800 + 20_480}
ORDERS = {"rising": ("1x", "2x", "4x"), "falling": ("4x", "2x", "1x"), "mixed": ("2x", "4x", "1x")}


def main() -> None:
    result = Proof("budgets")
    if result.needs(list(ORDERS)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            recipes = {
                budget: read_recipe(write_recipe(folder / f"{budget}.toml", tokens, DECAY_TOKENS))
                for budget, tokens in BUDGETS.items()
            }
            expected = {budget: trained(recipe, folder / budget)[1] for budget, recipe in recipes.items()}
            print("each budget is trained alone", flush=True)
            for order, budgets in ORDERS.items():
                result.case(order, partial(together, recipes, folder / order, budgets, expected))
    result.finish()


def trained(recipe: Recipe, study_folder: Path) -> tuple[int, dict[str, bytes]]:
    """The tokens that were trained, and what must not depend on the other runs: the final state and all rows."""
    tokens = []
    train(
        recipe,
        study_folder,
        evaluation=EVALUATION,
        observers=[lambda step, row: tokens.append(step.tokens - step.tokens_before)],
    )
    return sum(tokens), outcome(recipe, study_folder)


def outcome(recipe: Recipe, study_folder: Path) -> dict[str, bytes]:
    study = Study.open(study_folder)
    state = study.state_path(recipe.state_id(study.corpus_fingerprint, recipe.tokens)).read_bytes()
    columns = study.trajectory(recipe).columns
    return {"final state": state} | {name: values.tobytes() for name, values in columns.items()}


def together(
    recipes: dict[str, Recipe], study: Path, budgets: tuple[str, ...], expected: dict[str, dict[str, bytes]]
) -> dict[str, Any]:
    trained_tokens = {budget: trained(recipes[budget], study)[0] for budget in budgets}
    equal = {budget: outcome(recipes[budget], study) == expected[budget] for budget in budgets}
    asked = sum(recipe.tokens for recipe in recipes.values())
    saved = 1 - sum(trained_tokens.values()) / asked
    as_expected = trained_tokens == RISING_TOKENS if budgets == ("1x", "2x", "4x") else saved > 0
    return {
        "passed": all(equal.values()) and as_expected,
        "trained_tokens": trained_tokens,
        "asked_tokens": asked,
        "saved_share": round(saved, 3),
        "equal_bytes": equal,
    }


if __name__ == "__main__":
    main()
