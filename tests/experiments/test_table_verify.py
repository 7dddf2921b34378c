"""A run of a table that is trained again gives its bytes; where numerics differ, chance is the measure."""

import dataclasses

import numpy as np
import pytest
from small import EVALUATION, small_wsd, write_corpus
from table_verify import shortest_beginning, verify_table

from isotune.runs import Study, export_table, read_table
from isotune.train import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    corpus = write_corpus(folder / "corpus")
    for seed in (0, 1, 2):
        train(small_wsd(corpus, 60, seed=seed), folder / "study", evaluation=EVALUATION)
    export_table([Study.open(folder / "study")], folder / "table", name="small")
    return folder


def test_a_first_stretch_trained_again_gives_the_tables_bytes(folder):
    table = read_table(folder / "table")
    run, end = shortest_beginning(table)
    assert (run.seed, end) == (0, 20 * 64)
    found = verify_table(table)
    assert found["passed"] and found["identical"] and found["numerics_are_equal"]
    assert found["rows"] == 3  # evaluations at 0, 10 and 20 steps


def test_a_changed_number_is_found(folder):
    table = read_table(folder / "table")
    run, _ = shortest_beginning(table)
    losses = table.contents.curves[run.run]["val_loss"].copy()
    losses[2] = np.nextafter(losses[2], np.float32(9))
    table.contents.curves[run.run]["val_loss"] = losses
    found = verify_table(table)
    assert not found["passed"] and found["different"] == ["val_loss"]


@pytest.mark.parametrize(("shift", "passes"), [(0.0, True), (1e-4, True), (0.5, False)])
def test_with_other_numerics_seeds_say_how_far_apart_is_chance(folder, shift, passes):
    table = read_table(folder / "table")
    run, _ = shortest_beginning(table)
    (numerics,) = table.contents.numerics.values()
    numerics["torch"] = "0.1"
    losses = table.contents.curves[run.run]["train_loss"]
    table.contents.curves[run.run]["train_loss"] = losses + np.float32(shift)
    found = verify_table(table)
    assert not found["numerics_are_equal"] and found["floor"]["of"] == "seeds"
    assert found["passed"] == found["within_floor"] == passes


def test_a_corpus_that_is_not_here_is_said(folder):
    table = read_table(folder / "table")
    run, _ = shortest_beginning(table)
    recipe = table.recipe(run.run)
    elsewhere = dataclasses.replace(recipe.setup, corpus=str(folder / "nowhere"))
    table._made[("recipe", run.run)] = dataclasses.replace(recipe, setup=elsewhere)
    found = verify_table(table)
    assert not found["passed"] and "nowhere" in found["reason"]
