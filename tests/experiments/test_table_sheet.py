"""Data sheets of tables whose losses were put in: optimum, errors and floors must come back."""

import dataclasses
import math

import made_tables
import numpy as np
import pytest
from made import EVALUATION, FINGERPRINT, MODEL, NUMERICS, STEP
from made_tables import train_by_hand
from table_sheet import BEGIN, END, make_sheet, sheet_text, update_block

from isotune.errors import InputError
from isotune.recipe import Init, Setup, wsd
from isotune.runs import Study, export_table, read_table

LOG2_LR, LOG2_WD = range(-10, -6), range(-6, -2)
SEEDS = (0, 1)
MINIMUM = (-8.4, -4.3)
NUM_WINDOWS = EVALUATION.final_windows


def recipe(log2_lr, log2_wd, seed=0, init=None):
    setup = Setup(model=MODEL, sequence_length=16, seed=seed, init=init or Init())
    settings = {"learning_rate": 2.0**log2_lr, "weight_decay": 2.0**log2_wd, "batch_size": 4}
    return wsd(setup, tokens=44 * STEP, decay_tokens=4 * STEP, **settings)


def chance(*numbers):
    return np.random.default_rng([number + 100 for number in numbers])


def planted_loss(x, y, seed):
    """A bowl, a level for each seed, and what is left to chance."""
    bowl = 2 + 0.005 * (x - MINIMUM[0]) ** 2 + 0.004 * (y - MINIMUM[1]) ** 2
    return bowl + 0.05 * seed + 0.002 * chance(x, y, seed).standard_normal()


def planted_windows(recipe):
    """Windows differ from each other by far more than cells do on the same ones."""
    x, y = round(math.log2(recipe.learning_rate)), round(math.log2(recipe.weight_decay))
    shared = 0.5 * chance(7).standard_normal(NUM_WINDOWS)
    own = 0.01 * chance(8, x, y).standard_normal(NUM_WINDOWS)
    return (planted_loss(x, y, recipe.setup.seed) + (shared - shared.mean()) + (own - own.mean())).astype(np.float32)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made_tables, "window_losses", planted_windows)
        folder = tmp_path_factory.mktemp("sheet")
        study = Study.create(folder / "study", recipe(-9, -4).setup, "made", FINGERPRINT, EVALUATION, NUMERICS)
        for x in LOG2_LR:
            for y in LOG2_WD:
                for seed in SEEDS:
                    train_by_hand(study, recipe(x, y, seed))
        moved = recipe(-9, -4, init=Init(perturbation=1e-6))
        twins = Study.create(folder / "twins", moved.setup, "made", FINGERPRINT, EVALUATION, NUMERICS)
        train_by_hand(twins, moved, shift=0.001)
        return export_table([study, twins], folder / "table", name="made", description="", planned=[moved])


@pytest.fixture(scope="module")
def sheet(table):
    recipes = [recipe(x, -4) for x in (*LOG2_LR, -6)]
    return make_sheet("made", table, [], {"one": recipes})


def losses():
    return np.array([[[planted_loss(x, y, seed) for seed in SEEDS] for y in LOG2_WD] for x in LOG2_LR])


def test_the_minimum_that_was_put_in_lies_inside_the_grid(sheet):
    (family,) = sheet["families"]
    assert (family["cells"], family["seeds"]) == (16, ["0", "1"])
    (optimum,) = family["optima"]
    assert optimum["inside"] and optimum["tokens"] == 44 * STEP
    for name, truth in zip(("learning_rate", "weight_decay"), MINIMUM, strict=True):
        value, low, high = (math.log2(end) for end in optimum["minimum"][name])
        assert low <= truth <= high and value == pytest.approx(truth, abs=0.3)
    assert optimum["best_cell"]["at_edge"] == []


def test_cells_with_every_seed_have_the_mean_over_seeds_and_the_error_of_independent_differences(sheet):
    """The noise that was put in is independent from cell to cell and seed to seed."""
    values = losses().reshape(16, 2)
    left = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    deviation = math.sqrt((left**2).sum() / 15)
    errors = sheet["families"][0]["errors"]
    assert [row["loss"] for row in errors["cells"]] == pytest.approx(np.sort(values.mean(axis=1))[:5], abs=1e-5)
    found = [row["seed_error"] * row["loss"] for row in errors["cells"]]
    assert found == pytest.approx([deviation] * 5, rel=0.5), "sqrt(2) deviations over sqrt(2) seeds"


def test_errors_of_windows_are_those_of_differences(sheet):
    first, second = sheet["families"][0]["errors"]["cells"][:2]
    places = [[round(math.log2(row[name])) for name in ("learning_rate", "weight_decay")] for row in (first, second)]
    one, other = (chance(8, x, y).standard_normal(NUM_WINDOWS) for x, y in places)
    expected = 0.01 * (one - other).std(ddof=1) / math.sqrt(NUM_WINDOWS)
    assert first["window_error"] * first["loss"] == pytest.approx(expected, rel=0.02)
    assert second["window_error"] * second["loss"] == pytest.approx(expected, rel=0.02)


def test_the_goal_is_held_against_both_errors(sheet):
    for row in sheet["families"][0]["errors"]["cells"]:
        assert row["error"] == pytest.approx(math.hypot(row["window_error"], row["seed_error"]))
        assert row["reaches_goal"] == (row["error"] <= 0.001)


def test_floors_are_those_of_twins_and_seeds(sheet):
    twins, seeds = sheet["floors"]
    assert (twins["of"], twins["pairs"], seeds["of"], seeds["pairs"]) == ("perturbed twins", 1, "seeds", 16)
    losses = [made_tables.val_loss_at(recipe(-9, -4), 10 * step * STEP) for step in range(1, 5)]
    assert twins["median"] == pytest.approx(0.001 / np.sqrt(np.mean(np.square(losses))), rel=1e-3)
    assert seeds["median"] > 20 * twins["median"]


def test_plan_and_price_are_counted(sheet, table):
    assert sheet["planned"]["one"]["decays"] == 5 and sheet["planned"]["one"]["decays_there"] == 4
    assert sheet["planned"]["one"]["tokens"] == 5 * 44 * STEP
    assert sheet["price"]["tokens"] == 33 * 44 * STEP
    assert sheet["price"]["core_hours"] == pytest.approx(33 * 44 * made_tables.SECONDS_PER_STEP / 3600, abs=1e-5)


def test_the_text_has_a_row_for_every_number(sheet):
    text = sheet_text(sheet)
    for words in ("| `one` | 5 | 4 |", "perturbed twins", "yes", "2^-8", "scatters by"):
        assert words in text


def test_what_a_fit_warns_of_stands_below_its_budgets(sheet):
    (optimum,) = sheet["families"][0]["optima"]
    warned = optimum | {"warnings": ["it may lie elsewhere"]}
    families = [sheet["families"][0] | {"optima": [warned, warned | {"tokens": 2_000_000}]}]
    assert "- 2.82K, 2M: it may lie elsewhere" in sheet_text(sheet | {"families": families})


def test_one_seed_says_that_its_scatter_is_unknown(table, tmp_path):
    kept = {name: run for name, run in table.contents.runs.items() if run.seed == 0}
    decays = {name: decay for name, decay in table.contents.decays.items() if decay.run in kept}
    contents = dataclasses.replace(table.contents, runs=kept, decays=decays)
    sheet = make_sheet("made", dataclasses.replace(table, contents=contents, _made={}), [], {})
    errors = sheet["families"][0]["errors"]
    assert errors["seed_deviation"] is None and not any(row["reaches_goal"] for row in errors["cells"])
    assert "Too few seeds" in sheet_text(sheet)


def test_a_table_that_is_not_there_yet_says_so():
    sheet = make_sheet("made", None, [], {"one": [recipe(-9, -4), recipe(-8, -4)]})
    text = sheet_text(sheet)
    assert "Not exported yet" in text and "| `one` | 2 | 0 | 5.63K |" in text


def test_a_block_is_replaced_and_the_rest_stays(tmp_path):
    path = tmp_path / "made.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for text in ("new", "newer"):
        update_block(path, text)
        assert path.read_text() == f"before\n{BEGIN}\n{text}\n{END}\nafter\n"
    path.write_text("no markers")
    with pytest.raises(InputError, match="needs one line"):
        update_block(path, "new")
    with pytest.raises(InputError, match="write the data sheet"):
        update_block(tmp_path / "absent.md", "new")


def test_the_sheet_of_a_table_that_was_read_again_is_the_same(table, sheet):
    recipes = [recipe(x, -4) for x in (*LOG2_LR, -6)]
    assert make_sheet("made", read_table(table.folder), [], {"one": recipes}) == sheet
