"""Sweeps in words: what axes, grids and files mean, what their recipes share, and one sentence for every mistake."""

import dataclasses
import doctest
import itertools
import math
import pickle
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isotune.errors import InputError
from isotune.recipe import (
    PRESETS,
    Setup,
    batch_switch,
    constant,
    cosine,
    new_settings,
    read_recipe,
    recipe_from_table,
    recipe_to_table,
    shared_tokens,
    square_root_rule,
    wsd,
)
from isotune.sweep import grids
from isotune.sweep.axes import parse_axis
from isotune.sweep.grids import Grid, Sweep, read_sweep, recipes_of, sweep_from_options

SHIPPED = Path(__file__).parents[2] / "recipes"
SETUP = Setup(model=PRESETS["nano"])
WARMUP_AND_DECAY = {"warmup_tokens": "25.6K", "decay_tokens": "128K"}
RECIPE = wsd(SETUP, tokens="2.56M", learning_rate="2^-10", weight_decay=0.125, batch_size=4, **WARMUP_AND_DECAY)
CELLS = {"learning_rate": "2^-11..2^-8", "weight_decay": "2^-6..2^-2"}
SMALL = {"learning_rate": "2^-10", "weight_decay": 0.125, "batch_size": 4, "budgets": "640K", **WARMUP_AND_DECAY}
SWITCH = {"switch_tokens": "256K", "switch_batch_size": 64}
SOURCE = {"source_learning_rate": "2^-10", "source_weight_decay": 0.125}
LARGE_STEP = 64 * 64


def rounded(tokens, quantum=LARGE_STEP):
    return math.floor(tokens / quantum + 0.5) * quantum


def shipped(name):
    return SHIPPED / f"{name}.toml"


def sweep_file(folder, text, name="sweep.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_the_examples_of_the_module_give_what_they_show():
    results = doctest.testmod(grids)
    assert results.attempted > 0
    assert results.failed == 0


# Axes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2^-11..2^-7", [2.0**-11, 2.0**-10, 2.0**-9, 2.0**-8, 2.0**-7]),
        ("2^-11 .. 2^-7 by 2^2", [2.0**-11, 2.0**-9, 2.0**-7]),
        ("2^-11..2^-7 by 4", [2.0**-11, 2.0**-9, 2.0**-7]),
        ("2^-2..1", [0.25, 0.5, 1.0]),
        ("10^-4..10^-1", [1e-4, 1e-3, 1e-2, 1e-1]),
        ("0.025..0.4", [0.025, 0.05, 0.1, 0.2, 0.4]),
        ("0.001..1 by 10", [0.001, 0.01, 0.1, 1.0]),
        ("0.1,0.2, 2^-3", [0.1, 0.2, 0.125]),
        ("0, 2^-6..2^-5", [0.0, 2.0**-6, 2.0**-5]),
        ("2^-3..2^-3", [0.125]),
        ("0.3", [0.3]),
        (0.3, [0.3]),
        ([0.1, "2^-3", "2^-2..2^-1"], [0.1, 0.125, 0.25, 0.5]),
    ],
)
def test_an_axis_in_words(text, expected):
    assert parse_axis("weight_decay", text) == tuple(expected)


@given(st.integers(-30, 5), st.integers(0, 20), st.sampled_from(["1", "0.5", "0.25", "0.2", "2"]))
def test_a_range_of_powers_holds_what_one_would_write_out(first, num_steps, step):
    exponents = [first + k * float(step) for k in range(num_steps + 1)]
    written = ",".join(f"2^{round(exponent, 6)}" for exponent in exponents)
    text = f"2^{first}..2^{round(exponents[-1], 6)} by 2^{step}"
    assert parse_axis("learning_rate", text) == parse_axis("learning_rate", written)


@given(st.floats(1e-6, 1e3), st.sampled_from([2, 3, 10]), st.integers(0, 8))
def test_a_range_of_plain_numbers_goes_up_in_equal_ratios_and_meets_its_end(first, ratio, num_steps):
    with localcontext(prec=60):
        last = Decimal(repr(first)) * ratio**num_steps
    values = parse_axis("weight_decay", f"{first!r}..{last} by {ratio}")
    assert len(values) == num_steps + 1
    assert values[0] == first and values[-1] == float(last)
    assert all(b / a == pytest.approx(ratio, rel=1e-14) for a, b in itertools.pairwise(values))


def test_whole_axes_double_and_seeds_count():
    assert parse_axis("batch_size", "4..32") == (4, 8, 16, 32)
    assert parse_axis("batch_size", "4..64 by 4") == (4, 16, 64)
    assert parse_axis("batch_size", "4..9 by 1.5") == (4, 6, 9)
    assert parse_axis("budgets", "640K..2.56M") == (640_000, 1_280_000, 2_560_000)
    assert parse_axis("budgets", ["1M", 2_500_000]) == (1_000_000, 2_500_000)
    assert parse_axis("seed", "0..4") == (0, 1, 2, 3, 4)
    assert parse_axis("seed", "7, 0..1") == (7, 0, 1)
    assert all(type(value) is int for name in ("batch_size", "seed") for value in parse_axis(name, "4..4,8"))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", "fast", ["'fast'", "2^-10"]),
        ("learning_rate", "2^-7..2^-11", ["goes down", "2^-11..2^-7"]),
        ("learning_rate", "2^-11..", ["not a range", "2^-11..2^-7"]),
        ("learning_rate", "2^-11..2^-7 in 3", ["not a range", "by 2^0.5"]),
        ("learning_rate", "2^-11..2^-7 by 2^0.3", ["does not meet its end"]),
        ("learning_rate", "2^-11..2^-7 by 2^-1", ["above 1"]),
        ("learning_rate", "2^-11..2^-7 by 1", ["above 1"]),
        ("learning_rate", "2^-11..2^-7 by 2^0.0001", ["more than 1000"]),
        ("learning_rate", "0.1..0.3", ["does not meet its end", "0.1,0.2,2^-3"]),
        ("learning_rate", "0.1..1e9 by 1.0001", ["more than 1000"]),
        ("learning_rate", "0.1..1e9 by 1.000000000000000000001", ["more than 1000"]),
        ("learning_rate", "0.1..0.4 by 2^0.01", ["does not meet its end"]),
        ("learning_rate", "0.1..0.4 by two", ["by='two'", "2^-10"]),
        ("learning_rate", "0.5^3..0.5^1", ["does not meet its end"]),
        ("learning_rate", "1e-300..1e300", ["more than 1000"]),
        ("learning_rate", f"0.1..0.2 by 1.{'0' * 400}1", ["more than 1000"]),
        ("learning_rate", "0..0.1", ["above 0"]),
        ("learning_rate", "1e-999999999..1", ["above 0"]),
        ("learning_rate", "2^0.5.5..2^1", ["2^0.5.5"]),
        ("learning_rate", "0.125,2^-3", ["0.125 twice", "remove"]),
        ("learning_rate", "0.1,,0.2", ["''"]),
        ("learning_rate", "-0.1", ["-0.1", "at least 0"]),
        ("learning_rate", [], ["no value", "2^-11..2^-7"]),
        ("learning_rate", [[0.1]], ["[0.1]"]),
        ("learning_rate", {"from": 1}, ["from"]),
        ("learning_rate", True, ["True"]),
        ("learning_rate", None, ["None"]),
        ("weight_decay", [0.1] * 2000, ["more than 1000"]),
        ("batch_size", "4.5", ["'4.5'", "4,64"]),
        ("batch_size", "0", ["at least 1"]),
        ("batch_size", "0:4 640K:64", ["schedule", "switch_tokens"]),
        ("batch_size", "3..12 by 1.5", ["does not meet its end"]),
        ("batch_size", "2..9 by 1.5", ["does not meet"]),
        ("budgets", "1.5", ["whole number of tokens"]),
        ("budgets", "1M..3M", ["does not meet its end", "640K..2.56M"]),
        ("seed", "-1", ["-1", "0..4"]),
        ("seed", "0..4 by 2", ["count by one"]),
        ("seed", "0..1000000", ["more than 1000"]),
        ("seed", 2**32, ["2^32"]),
    ],
)
def test_a_bad_axis_gets_one_sentence_with_its_value_and_a_remedy(name, value, words):
    with pytest.raises(InputError) as error:
        parse_axis(name, value)
    assert str(error.value).startswith(name)
    for word in words:
        assert word in str(error.value)


@settings(max_examples=300)
@given(
    st.sampled_from(["learning_rate", "batch_size", "budgets", "seed"]), st.text("0123456789.^-+, byeKM", max_size=20)
)
def test_any_text_is_an_axis_or_an_input_error(name, text):
    try:
        values = parse_axis(name, text)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert len(set(values)) == len(values) > 0


# Grids and their recipes


def test_the_recipes_of_a_grid_are_counted_by_the_product_of_its_axes():
    grid = Grid(**CELLS, batch_size="4,64", seed="0..2", budgets="640K,1.28M,2.56M", **WARMUP_AND_DECAY)
    recipes = recipes_of(SETUP, grid)
    assert len(recipes) == len(set(recipes)) == 4 * 5 * 2 * 3 * 3
    found = {(r.learning_rate, r.weight_decay, r.batch_size, r.setup.seed, r.tokens) for r in recipes}
    budgets = [rounded(budget) for budget in grid.budgets]
    axes = (grid.learning_rate, grid.weight_decay, (4, 64), (0, 1, 2), budgets)
    assert found == set(itertools.product(*axes))
    assert all(recipe.phases[-1].ends_a_decay for recipe in recipes)


def test_a_recipe_of_a_grid_is_the_one_its_constructor_writes():
    settings = {"learning_rate": 2**-9, "weight_decay": 0.25, "batch_size": 4, "decay_shape": "cosine"}
    (recipe,) = recipes_of(SETUP, Grid(**settings, budgets="640K", **WARMUP_AND_DECAY))
    assert recipe == wsd(SETUP, tokens="640K", **settings, **WARMUP_AND_DECAY)
    assert recipe.phases[0].requested_tokens == 25_600


def test_recipes_come_cell_by_cell_budgets_before_the_trunk():
    grid = Grid(**{**SMALL, "learning_rate": "2^-11,2^-10", "budgets": "1.28M,640K"}, trunk_extra_tokens="64K")
    recipes = recipes_of(SETUP, grid)
    assert [recipe.learning_rate for recipe in recipes] == [2**-11] * 3 + [2**-10] * 3
    assert [recipe.tokens for recipe in recipes[:3]] == [1_280_000, 640_000, 1_280_000 - 128_000 + 64_000]
    assert recipes == recipes_of(SETUP, grid)


@settings(deadline=None)
@given(
    st.lists(st.integers(300_000, 3_000_000), min_size=2, max_size=4),
    st.sampled_from(["4", "4,64", "4,16", "48,96"]),
    st.integers(3_100, 40_000),
    st.integers(7_000, 200_000),
    st.sampled_from([None, 0, 64_000, 1_000_001]),
)
def test_the_budgets_of_a_cell_share_their_trunk_up_to_every_branch(budgets, batches, warmup, decay, extra):
    quantum = max(int(size) for size in batches.split(",")) * 64
    assume(len({rounded(budget, quantum) for budget in budgets}) == len(budgets))
    grid = Grid(learning_rate="2^-10", weight_decay=0.1, batch_size=batches, budgets=budgets, warmup_tokens=warmup,
                decay_tokens=decay, trunk_extra_tokens=None if extra and extra < quantum else extra)  # fmt: skip
    recipes = recipes_of(SETUP, grid)
    assert all(phase.tokens % quantum == 0 for recipe in recipes for phase in recipe.phases)
    for batch_size in grid.batch_size:
        cell = [recipe for recipe in recipes if recipe.batch_size == batch_size]
        assert len({recipe.phases[0].learning_rate for recipe in cell}) == 1, "one warm-up"
        for a, b in itertools.combinations(cell, 2):
            branches = [r.tokens - (r.phases[-1].tokens if r.phases[-1].ends_a_decay else 0) for r in (a, b)]
            assert shared_tokens(a, b) == min(branches)


def test_without_a_decay_a_cell_has_one_trunk_on_which_its_budgets_lie():
    for entries in ({"decay_tokens": 0}, {"decay_tokens": None}):
        grid = Grid(**{**SMALL, "budgets": "640K..2.56M"} | entries)
        assert recipes_of(SETUP, grid) == [
            constant(SETUP, tokens="2.56M", learning_rate=2**-10, weight_decay=0.125, batch_size=4,
                     warmup_tokens="25.6K")
        ]  # fmt: skip


def test_trunks_go_on_as_far_as_asked():
    last = Grid(**{**SMALL, "budgets": "640K,1.28M"}, trunk_tokens="3M")
    assert [recipe.tokens for recipe in recipes_of(SETUP, last)] == [640_000, 1_280_000, 3_000_064]
    none_extra = Grid(**SMALL, trunk_extra_tokens=0)
    assert recipes_of(SETUP, none_extra)[-1].tokens == 512_000
    assert recipes_of(SETUP, none_extra)[-1].phases[-1].is_constant


def test_half_a_decay_past_the_branch_has_the_flow_time_of_the_decayed_run():
    decayed, trunk = recipes_of(SETUP, Grid(**SMALL, trunk_extra_tokens="64K"))
    assert trunk.flow_time_at(trunk.tokens) == pytest.approx(decayed.flow_time_at(decayed.tokens), rel=1e-12)


def test_a_decay_fraction_is_a_part_of_every_budget():
    grid = Grid(**{**SMALL, "decay_tokens": None, "budgets": "1.28M,2.56M"}, decay_fraction=0.05)
    assert [recipe.phases[-1].tokens for recipe in recipes_of(SETUP, grid)] == [64_000, 128_000]


@given(st.integers(-14, -4), st.integers(-20, -6))
def test_on_a_line_of_elr_weight_decay_is_elr_over_lr_exactly(log2_lr, log2_elr):
    grid = Grid(learning_rate=f"2^{log2_lr}..2^{log2_lr + 3}", effective_learning_rate=f"2^{log2_elr},0.0001",
                batch_size=4, budgets="640K")  # fmt: skip
    assert len(grid.cells) == 8
    assert {lr * wd for lr, wd in grid.cells} == {2.0**log2_elr, 0.0001}
    assert {recipe.effective_learning_rate for recipe in recipes_of(SETUP, grid)} == {2.0**log2_elr, 0.0001}


def test_a_grid_over_elr_holds_the_diagonals_of_one_over_weight_decay():
    whole = set(Grid(learning_rate="2^-11..2^-8", weight_decay="2^-9..2^2", batch_size=4, budgets="1M").cells)
    lines = Grid(learning_rate="2^-11..2^-8", effective_learning_rate="2^-16..2^-10", batch_size=4, budgets="1M")
    assert set(lines.cells) <= whole
    assert len(lines.cells) == 4 * 7


def test_grids_that_overlap_make_each_recipe_once():
    wide = Grid(**{**SMALL, **CELLS})
    line = Grid(**{**SMALL, "weight_decay": None, "learning_rate": "2^-11..2^-7"}, effective_learning_rate="2^-13")
    together = recipes_of(SETUP, wide, line)
    # WD = 2^-2 .. 2^-5 on LR 2^-11 .. 2^-8 is in both; 2^-6 at LR 2^-7 is new.
    assert len(together) == 20 + 1
    assert together[:20] == recipes_of(SETUP, wide)


def test_one_rounding_holds_for_all_grids():
    small, large = Grid(**SMALL), Grid(**{**SMALL, "batch_size": 64})
    assert [recipe.phases[0].tokens for recipe in recipes_of(SETUP, small)] == [25_600]
    assert [recipe.phases[0].tokens for recipe in recipes_of(SETUP, small, large)] == [24_576, 24_576]


# Switches


def test_type_2_switches_the_batch_of_every_cell():
    entries = {**SMALL, **CELLS, "budgets": "640K,1.28M"}
    recipes = recipes_of(SETUP, Grid(**entries, switch="type2", **SWITCH))
    assert len(recipes) == 4 * 5 * 2
    source = constant(SETUP, tokens="640K", learning_rate=2**-11, weight_decay=2**-6, batch_size=4,
                      warmup_tokens="25.6K", quantum_tokens=LARGE_STEP)  # fmt: skip
    assert recipes[0] == batch_switch(
        source, switch_tokens="256K", tokens="640K", batch_size=64, decay_tokens="128K", quantum_tokens=LARGE_STEP
    )
    assert {(r.learning_rate, r.weight_decay) for r in recipes} == set(Grid(**entries).cells)


def test_type_1_has_one_source_for_all_cells():
    recipes = recipes_of(SETUP, Grid(**{**SMALL, **CELLS}, switch="type1", **SWITCH, **SOURCE, trunk_extra_tokens=0))
    assert len(recipes) == 4 * 5 * 2
    switch = rounded(256_000)
    assert all(shared_tokens(a, b) >= switch for a, b in itertools.combinations(recipes, 2))
    assert shared_tokens(recipes[0], recipes[2]) == switch
    source = constant(SETUP, tokens="640K", learning_rate=2**-10, weight_decay=0.125, batch_size=4,
                      warmup_tokens="25.6K", quantum_tokens=LARGE_STEP)  # fmt: skip
    assert recipes[2] == new_settings(
        source, switch_tokens="256K", tokens="640K", learning_rate=2**-11, weight_decay=2**-5, batch_size=64,
        decay_tokens="128K", quantum_tokens=LARGE_STEP,
    )  # fmt: skip


def test_the_square_root_rule_is_type_2_with_a_larger_learning_rate():
    (plain,) = recipes_of(SETUP, Grid(**SMALL, switch="type2", **SWITCH))
    (larger,) = recipes_of(SETUP, Grid(**SMALL, switch="square_root", **SWITCH))
    assert larger.learning_rate == 4 * plain.learning_rate
    assert larger.weight_decay == plain.weight_decay
    assert shared_tokens(plain, larger) == rounded(256_000)
    source = constant(SETUP, tokens="640K", learning_rate=2**-10, weight_decay=0.125, batch_size=4,
                      warmup_tokens="25.6K", quantum_tokens=LARGE_STEP)  # fmt: skip
    expected = {"switch_tokens": "256K", "tokens": "640K", "batch_size": 64, "decay_tokens": "128K"}
    assert larger == square_root_rule(source, **expected, quantum_tokens=LARGE_STEP)


def test_the_budgets_of_a_switched_cell_share_their_trunk_too():
    entries = {**SMALL, "budgets": "640K,1.28M,2.56M"}
    for switch in ({"switch": "type1", **SOURCE}, {"switch": "type2"}, {"switch": "square_root"}):
        short, middle, long, trunk = recipes_of(SETUP, Grid(**entries, **SWITCH, **switch, trunk_extra_tokens="64K"))
        for a, b in ((short, middle), (middle, long), (long, trunk), (short, trunk)):
            assert shared_tokens(a, b) == a.tokens - a.phases[-1].tokens


# Sweeps from options


@pytest.mark.parametrize("name", ["nano-wsd", "nano-constant", "micro-wsd", "paper-164m"])
def test_a_sweep_without_options_is_its_recipe(name):
    recipe = read_recipe(shipped(name))
    assert sweep_from_options(recipe, {}).recipes == (recipe,)
    assert read_sweep(shipped(name)).recipes == (recipe,)


def test_options_replace_what_the_recipe_says_and_none_replaces_nothing():
    options = {**CELLS, "effective_learning_rate": None, "batch_size": "4,64", "budgets": "640K,1.28M,2.56M",
               "seed": "0..2", "decay_tokens": None, "trunk_extra_tokens": "64K", "corpus": "other"}  # fmt: skip
    sweep = sweep_from_options(RECIPE, options, name="mine")
    setup = dataclasses.replace(SETUP, corpus="other")
    grid = Grid(**CELLS, batch_size=(4, 64), budgets=(640_000, 1_280_000, 2_560_000), seed=(0, 1, 2),
                trunk_extra_tokens=64_000, **WARMUP_AND_DECAY)  # fmt: skip
    assert sweep == Sweep("mine", setup, (grid,))
    assert sweep.recipes == tuple(recipes_of(setup, grid))
    assert len(sweep.recipes) == 20 * 2 * 3 * 4


def test_lengths_of_the_recipe_are_rounded_once_from_what_was_asked():
    recipe = wsd(SETUP, tokens="2.56M", learning_rate=0.1, weight_decay=0, batch_size=4, warmup_tokens=25_700,
                 decay_tokens="128K")  # fmt: skip
    (grid,) = sweep_from_options(recipe, {"batch_size": 64}).grids
    assert (grid.warmup_tokens, grid.decay_tokens, grid.budgets) == (25_700, 128_000, (2_560_000,))


def test_saying_a_thing_in_its_other_way_replaces_the_recipes_way():
    (grid,) = sweep_from_options(RECIPE, {"effective_learning_rate": "2^-13", "decay_fraction": "0.1"}).grids
    assert (grid.weight_decay, grid.decay_tokens) == (None, None)
    assert grid.cells == ((2**-10, 2**-3),)


def test_a_sweep_travels_between_processes_and_its_recipes_as_json():
    sweep = sweep_from_options(RECIPE, CELLS)
    assert pickle.loads(pickle.dumps(sweep)).recipes == sweep.recipes
    assert all(recipe_from_table(recipe_to_table(recipe), "copy") == recipe for recipe in sweep.recipes)


# Sweeps from files


def test_the_shipped_grid_is_what_its_comment_says():
    sweep = read_sweep(shipped("sweeps/nano-grid"))
    assert sweep.name == "nano-grid"
    assert len(sweep.recipes) == 80
    assert sum(recipe.tokens for recipe in sweep.recipes) == 139_520_000
    assert {recipe.tokens for recipe in sweep.recipes} == {640_000, 1_280_000, 2_560_000, 2_496_000}
    assert read_recipe(shipped("nano-wsd")) in sweep.recipes


def test_the_shipped_switches_share_their_sources_by_kind():
    type2, square_root, type1 = read_sweep(shipped("sweeps/nano-switch")).grids
    assert type2.cells == square_root.cells
    assert type1.source_learning_rate == 2**-10
    recipes = read_sweep(shipped("sweeps/nano-switch")).recipes
    assert len(recipes) == 9 + 9 + 6
    for a, b in zip(recipes[:9], recipes[9:18], strict=True):
        assert shared_tokens(a, b) == rounded(720_000)


def test_a_file_and_options_say_the_same(tmp_path):
    text = f"""
recipe = "{shipped("nano-wsd")}"
[[grid]]
learning_rate = ["2^-11", 0.0009765625]
weight_decay = "2^-6..2^-2"
budgets = ["640K", 2_560_000]
seed = [0, 1]
"""
    options = {"learning_rate": "2^-11,2^-10", "weight_decay": "2^-6..2^-2", "budgets": "640K,2.56M", "seed": "0..1"}
    from_options = sweep_from_options(read_recipe(shipped("nano-wsd")), options, name="sweep")
    assert read_sweep(sweep_file(tmp_path, text)) == from_options


def test_a_file_may_hold_its_recipe_itself(tmp_path):
    recipe = shipped("nano-wsd").read_text()
    path = sweep_file(tmp_path, recipe + '\n[[grid]]\nlearning_rate = "2^-11..2^-7"\n[[grid]]\nweight_decay = 1\n')
    sweep = read_sweep(path)
    assert len(sweep.recipes) == 5 + 1
    assert sweep.setup == read_recipe(shipped("nano-wsd")).setup


def test_a_recipe_is_found_beside_the_file_or_by_its_name(tmp_path):
    (tmp_path / "mine.toml").write_text(shipped("nano-wsd").read_text())
    beside = read_sweep(sweep_file(tmp_path, 'recipe = "mine.toml"'))
    by_name = read_sweep(sweep_file(tmp_path, 'recipe = "nano-wsd"'), find=shipped)
    assert beside == by_name
    with pytest.raises(InputError, match="no file beside it: give the path"):
        read_sweep(sweep_file(tmp_path, 'recipe = "nano-wsd"'))
    with pytest.raises(InputError, match="did you mean .*mine.toml"):
        read_sweep(sweep_file(tmp_path, 'recipe = "mnie.toml"'))


def test_overrides_reach_every_grid_and_replace_the_other_way_of_saying_it():
    overrides = {"effective_learning_rate": "2^-13", "budgets": "640K", "precision": "bfloat16", "seed": None}
    sweep = read_sweep(shipped("sweeps/nano-grid"), overrides)
    assert sweep.setup.precision == "bfloat16"
    assert {recipe.effective_learning_rate for recipe in sweep.recipes} == {2**-13}
    assert len(sweep.recipes) == 4 * 2


# Mistakes


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"weight_decay": 1, "effective_learning_rate": 1}, ["both weight_decay and effective_learning_rate", "keep"]),
        ({"decay_tokens": 1, "decay_fraction": 0.1}, ["both decay_tokens and decay_fraction", "keep"]),
        ({"trunk_tokens": "3M", "trunk_extra_tokens": 0}, ["both trunk_tokens and trunk_extra_tokens", "keep"]),
        ({"decay_fraction": 0}, ["decay_fraction=0", "decay_tokens = 0"]),
        ({"decay_fraction": 1.5}, ["1.5", "at most 1"]),
        ({"decay_fraction": 0.995}, ["does not hold warmup_tokens=25600"]),
        ({"decay_shape": "square"}, ["'square'", "one_minus_sqrt"]),
        ({"learning_rate": 0}, ["learning_rate=0 trains nothing"]),
        ({"budgets": "140K"}, ["140032", "warmup_tokens=25600", "decay_tokens=128000", "raise it"]),
        ({"budgets": "640000,640001"}, ["640000 and 640001", "same after rounding"]),
        ({"budgets": 3}, ["budgets=3", "256"]),
        ({"trunk_tokens": "1M"}, ["trunk_tokens=999936", "last decay branches off at 2432000"]),
        ({"trunk_tokens": "1M", "decay_tokens": 0}, ["largest budget ends at 2560000"]),
        ({"batch_size": "4,6"}, ["batch_size 4", "choose batch sizes that divide the largest one"]),
        ({"switch": "type2"}, ["'type2' lacks switch_tokens"]),
        ({"switch": "type2", "switch_tokens": "256K"}, ["lacks switch_batch_size"]),
        ({"switch": "type1", **SWITCH}, ["'type1' lacks source_learning_rate"]),
        ({"switch": "type1", **SWITCH, "source_learning_rate": 1}, ["lacks source_weight_decay"]),
        (
            {"switch": "type2", **SWITCH, **SOURCE},
            ["source_learning_rate", "means nothing to switch = 'type2'", "type1"],
        ),
        ({"switch_tokens": "256K"}, ["switch_tokens=256000", "without a switch", "switch = 'type2'"]),
        ({"switch": "type3", **SWITCH}, ["'type3'", "type1, type2, square_root"]),
        ({"switch": "type2", **SWITCH, "switch_batch_size": 4}, ["switch_batch_size=4", "nothing switches"]),
        ({"switch": "type2", **SWITCH, "switch_batch_size": "x"}, ["switch_batch_size='x'", "whole number"]),
        ({"switch": "type2", **SWITCH, "switch_tokens": "10K"}, ["inside warmup_tokens", "switch later"]),
        ({"switch": "type2", **SWITCH, "budgets": "350K"}, ["leaves nothing", "switch earlier"]),
        ({"switch": "type2", **SWITCH, "budgets": "256K", "decay_tokens": 0}, ["leaves nothing"]),
        ({"learning_rat": 1}, ["'learning_rat'", "did you mean 'learning_rate'"]),
        ({"model": "micro"}, ["model='micro'", "seeds apart", "another sweep"]),
        ({"max_epochs": 2}, ["max_epochs=2", "another sweep"]),
        ({"seed": "0..999", "weight_decay": "2^-99..2^1", "learning_rate": "2^-9,1"}, ["202000 recipes", "fewer"]),
    ],
)
def test_a_wrong_grid_gets_one_sentence_and_in_a_file_its_number(entries, words, tmp_path):
    with pytest.raises(InputError) as error:
        sweep_from_options(RECIPE, entries)
    message = str(error.value)
    assert "grid 2" not in message and "\n" not in message
    assert ": " in message or "must be one of" in message, "no remedy"
    for word in words:
        assert word in message
    lines = "\n".join(f"{key} = {value!r}" for key, value in entries.items())
    path = sweep_file(tmp_path, f"recipe = '{shipped('nano-wsd')}'\n[[grid]]\nseed = 5\n[[grid]]\n{lines}\n")
    with pytest.raises(InputError) as error:
        read_sweep(path)
    assert str(error.value).startswith(f"{path}: ")
    if "batch_size" not in entries:  # batch sizes must agree over all grids
        assert f"{path}: grid 2: " in str(error.value)


@pytest.mark.parametrize(
    "recipe",
    [
        cosine(SETUP, tokens="2.56M", learning_rate=0.1, weight_decay=0, batch_size=4, warmup_tokens="25.6K"),
        cosine(SETUP, tokens="2.56M", learning_rate=0.1, weight_decay=0, batch_size=4),
        batch_switch(RECIPE, switch_tokens="720K", tokens="2.56M", batch_size=64),
        new_settings(RECIPE, switch_tokens="720K", tokens="2.56M", learning_rate=0.1, decay_tokens="128K"),
    ],
)
def test_a_recipe_that_is_no_warm_up_constant_and_decay_cannot_start_a_sweep(recipe):
    with pytest.raises(InputError, match="kind constant or wsd, and say what switches in the grid"):
        sweep_from_options(recipe, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("recipe = 3", ["recipe=3", 'recipe = "nano-wsd"']),
        ('recipe = "x.toml"\nmodel = "nano"', ["'model'"]),
        ('model = "nano"', ["neither of [schedule] and [[phases]]"]),
        ("grid = 3", ["grid=3", "[[grid]]"]),
        ("grid = []", ["grid=[]", "[[grid]]"]),
        ("a = = 1", ["not TOML", "line 1"]),
        ('recipe = "x.toml"\ngrids = 3', ["'grids'"]),
    ],
)
def test_a_wrong_file_gets_one_sentence_with_its_path(text, words, tmp_path):
    path = sweep_file(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_sweep(path)
    assert str(error.value).startswith(f"{path}: ")
    for word in words:
        assert word in str(error.value)


def test_a_file_that_does_not_exist_is_named_with_one_like_it(tmp_path):
    sweep_file(tmp_path, "", "sweep.toml")
    with pytest.raises(InputError, match="did you mean .*sweep.toml"):
        read_sweep(tmp_path / "sweeep.toml")


def test_a_sweep_without_a_grid_is_refused():
    with pytest.raises(InputError, match="without a grid"):
        Sweep("empty", SETUP, ())
