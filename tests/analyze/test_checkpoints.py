"""Which switched runs are compared: a grid behind one checkpoint, and rules that runs of many checkpoints follow."""

from functools import partial

import numpy as np
import pytest

from isotune.analyze.families import make_families
from isotune.recipe import PRESETS, Setup, batch_switch, constant, new_settings, square_root_rule
from isotune.runs.trajectory import Trajectory
from isotune.runs.words import run_info

SWITCH, END = 262_144, 1_048_576
EARLY, LATE = np.arange(1, 9) * SWITCH // 8, np.arange(1, 13) * SWITCH // 4 + SWITCH
RATES, DECAYS = (2.0**-10, 2.0**-9, 2.0**-8), (0.0625, 0.125, 0.25)
WHOLE = "batch 64 after LR 2^-10 and WD 0.125 and batch 4 until 262K"
KEPT = "batch 64 after batch 4 until 262K"

to_end = partial(batch_switch, tokens=END, switch_tokens=SWITCH, batch_size=64)
by_square_root = partial(square_root_rule, tokens=END, switch_tokens=SWITCH, batch_size=64)


def source(lr=2.0**-10, wd=0.125, seed=0):
    return constant(
        Setup(model=PRESETS["nano"], sequence_length=64, seed=seed),
        tokens=END,
        learning_rate=lr,
        weight_decay=wd,
        batch_size=4,
    )


def grid_behind(recipe, **changes):
    """The recipe's state at the switch, then each LR and WD: some keep one of its settings, one all, one is 4 x LR."""
    switch = {"switch_tokens": SWITCH, "tokens": END, "batch_size": 64} | changes
    return [new_settings(recipe, learning_rate=lr, weight_decay=wd, **switch) for lr in RATES for wd in DECAYS]


def trained(recipe, *, status="finished", left_out=()):
    """A run of it with a row before and after its switch, and the words that studies and tables have for it."""
    info = run_info(recipe, status, "made")
    tokens = np.concatenate([EARLY, LATE])
    first, main = recipe.phases[0], recipe.main_phase
    is_early = tokens <= first.tokens
    columns = {
        "tokens": tokens,
        "val_loss": 2.0 + 1e5 / tokens,
        "learning_rate": np.where(is_early, first.peak_learning_rate, main.peak_learning_rate),
        "weight_decay": np.where(is_early, first.weight_decay, main.weight_decay),
        "batch_size": np.where(is_early, first.batch_size, main.batch_size).astype(float),
    }
    if status == "diverged":
        columns = {name: values[:3] for name, values in columns.items()}
    return Trajectory({name: values for name, values in columns.items() if name not in left_out}, info)


def num_cells(recipes, **options):
    return {family.name: family.num_cells for family in make_families([trained(one, **options) for one in recipes])}


def test_a_grid_behind_one_checkpoint_is_one_family_whatever_its_cells_keep():
    recipes = grid_behind(source()) + grid_behind(source(seed=1))
    assert len({run_info(one, "finished", "").history for one in recipes}) == 5, "words differ: the test can fail"
    assert num_cells(recipes) == {WHOLE: 9}
    (family,) = make_families([trained(one) for one in recipes])
    assert len(family.curves) == 18 and sorted(len(budget.ends) for budget in family.budgets) == [18]


def test_grids_behind_different_checkpoints_are_families_of_their_own():
    recipes = [
        *grid_behind(source()),
        *grid_behind(source(wd=0.25)),
        *grid_behind(source(), switch_tokens=2 * SWITCH),
        *grid_behind(source(), batch_size=128),
    ]
    assert num_cells(recipes) == {
        WHOLE: 9,
        WHOLE.replace("0.125", "0.25"): 9,
        WHOLE.replace("262K", "524K"): 9,
        WHOLE.replace("batch 64", "batch 128"): 9,
    }


def test_runs_that_follow_a_rule_stay_together_though_two_rules_share_each_checkpoint():
    sources = [source(lr, wd) for lr in RATES for wd in DECAYS]
    recipes = [switch(one) for one in sources for switch in (to_end, by_square_root)]
    assert num_cells(recipes) == {KEPT: 9, KEPT.replace("batch 4", "LR by the square-root rule and batch 4"): 9}


def test_a_cell_of_a_rule_and_of_a_grid_is_compared_in_both():
    kept = [to_end(source(lr, wd)) for lr in RATES for wd in DECAYS]
    grid = grid_behind(source())
    assert num_cells([*kept, *grid]) == {KEPT: 9, WHOLE: 9}
    assert to_end(source()) in kept and len({*kept, *grid}) == 17


def test_a_run_that_diverged_before_the_switch_is_one_of_its_grid():
    *others, last = grid_behind(source())
    runs = [*(trained(one) for one in others), trained(last, status="diverged")]
    (family,) = make_families(runs)
    assert (family.num_cells, len(family.diverged)) == (8, 1)


@pytest.mark.parametrize("column", ["learning_rate", "weight_decay", "batch_size"])
def test_without_rows_that_tell_the_checkpoint_words_decide(column):
    assert len(num_cells(grid_behind(source()), left_out=[column])) == 5


def test_runs_that_switched_before_are_not_taken_for_runs_of_one_checkpoint():
    """The settings before the last switch are the same, what led there is not."""
    first = {"switch_tokens": SWITCH // 2, "tokens": END}
    led = [new_settings(source(lr), learning_rate=2.0**-10, **first) for lr in (2.0**-9, 2.0**-8)]
    names = num_cells([cell for one in led for cell in grid_behind(one)])
    assert WHOLE not in names and all("until 131K" in name for name in names)
