"""`isotune table`, end to end: a small study becomes a table that is checked, merged and shown."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_mistakes import assert_one_sentence

from isotune.recipe import ModelShape, Setup, wsd
from isotune.runs import Study, export_table, read_table
from isotune.train import train

MODEL = ModelShape(width=16, num_layers=1, num_heads=2, ffn_width=32, vocabulary_size=256)


def recipe(tokens=12_800, learning_rate=2**-8):
    return wsd(
        Setup(model=MODEL, sequence_length=16),
        tokens=tokens,
        learning_rate=learning_rate,
        weight_decay=0.1,
        batch_size=4,
        warmup_tokens=1280,
        decay_tokens=2560,
    )


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """A study with two budgets, a worse learning rate and one that diverges."""
    folder = tmp_path_factory.mktemp("swept") / "study"
    evaluation = {"every_tokens": 3200, "windows": 16, "final_windows": 64, "noise_every_tokens": 1600}
    for each in (recipe(), recipe(25_600), recipe(learning_rate=2**-12), recipe(learning_rate=1e30)):
        train(each, folder, evaluation=evaluation)
    return folder


@pytest.fixture
def swept(trained_once, tmp_path):
    return Path(shutil.copytree(trained_once, tmp_path / "study"))


@pytest.fixture
def exported(swept, tmp_path):
    folder = tmp_path / "tables" / "tiny"
    export_table([Study.open(swept)], folder, name="tiny", description="Three learning rates.")
    return folder


def test_export_says_what_it_wrote(isotune, swept, tmp_path):
    done = isotune("table", "export", "study", "--out", "tables/tiny", "--description", "Three learning rates.")
    assert done.returncode == 0, done.stderr
    assert "tables/tiny: 3 runs (33.4K tokens) and 3 decays (7.68K tokens)" in done.stdout
    table = read_table(tmp_path / "tables" / "tiny")
    assert (table.name, table.contents.description) == ("tiny", "Three learning rates.")


def test_a_trained_study_comes_back_out_of_its_table(exported, swept):
    study, table = Study.open(swept), read_table(exported)
    finished = [decay for decay in table.decays() if decay.status == "finished"]
    assert len(finished) == 3
    for decay in finished:
        whole, thinned = study.trajectory(table.recipe(decay.decay)), table.trajectory(decay.decay)
        for name in ("val_loss", "parameter_norm", "noise_trace", "root_moment_sum"):
            (at, values), (expected_at, expected) = thinned.measured(name), whole.measured(name)
            assert at.tolist() == expected_at.tolist()
            np.testing.assert_allclose(values, expected, rtol=1e-6)
        assert decay.final_val_loss == whole.last("final_val_loss")
        assert decay.window_losses.mean(dtype=np.float64) == pytest.approx(decay.final_val_loss, abs=1e-4)
    assert all(run.core_seconds > 0 for run in table.runs() if run.status == "finished")


def test_a_sound_table_is_said_to_be_sound(isotune, exported):
    done = isotune("table", "check", "tables/tiny")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tables/tiny: sound, 3 runs" in done.stdout


def test_every_problem_is_a_sentence_and_the_exit_code_is_2(isotune, exported):
    for name in ("runs.parquet", "decays.parquet"):
        (exported / name).unlink()
    done = isotune("table", "check", "tables/tiny")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("isotune: tables/tiny has no ") for line in lines)


def test_a_grid_shows_the_best_cell_and_what_diverged(isotune, exported):
    done = isotune("table", "show", "tables/tiny", "--tokens", "12800")
    assert done.returncode == 0, done.stderr
    assert "Three learning rates." in done.stdout
    assert "final_val_loss at 12.8K tokens, batch size 4, decay of 2.56K, seed 0" in done.stdout
    assert "\x1b" not in done.stdout, "colours in a file"
    row = next(line.split() for line in done.stdout.splitlines() if line.strip().startswith("0.1 "))
    assert row[-1] == "div"
    assert [cell.endswith("*") for cell in row[1:]] == [False, True, False]


def test_the_largest_budget_is_shown_unless_another_is_asked_for(isotune, exported):
    shown = json.loads(isotune("table", "show", "tables/tiny", "--json").stdout)
    (grid,) = shown["grids"]
    assert grid["tokens"] == 25_600
    assert grid["best"] == {"learning_rate": 2**-8, "weight_decay": 0.1}
    assert shown["totals"]["runs"] == 3
    both = isotune("table", "show", "tables/tiny", "--tokens", "12800", "--tokens", "25600", "--json").stdout
    assert [grid["tokens"] for grid in json.loads(both)["grids"]] == [12_800, 25_600]


def test_other_columns_are_read_off_the_curves(isotune, exported):
    done = isotune("table", "show", "tables/tiny", "--column", "parameter_norm", "--tokens", "6400", "--json")
    (grid,) = json.loads(done.stdout)["grids"]
    table = read_table(exported)
    expected = {run.learning_rate: table.value(run.run, "parameter_norm", 6400) for run in table.runs()}
    assert {c["learning_rate"]: c["mean"] for c in grid["cells"] if c["mean"]} == pytest.approx(
        {lr: value for lr, value in expected.items() if not np.isnan(value)}
    )


def test_a_terminal_sees_colours(isotune_on_terminal, exported):
    assert "48;2;" in isotune_on_terminal("table", "show", "tables/tiny", "--tokens", "12800")


def test_what_was_trained_since_is_merged(isotune, swept, exported):
    train(recipe(38_400), swept)
    assert isotune("table", "export", "study", "--out", "more").returncode == 0
    done = isotune("table", "merge", "tables/tiny", "more")
    assert done.returncode == 0, done.stderr
    assert "0 runs added, 1 lengthened" in done.stdout
    assert "1 decays added" in done.stdout
    assert isotune("table", "check", "tables/tiny", "more").returncode == 0


def test_mistakes_are_said_in_a_sentence(isotune, exported, tmp_path):
    before = {path: path.read_bytes() for path in exported.iterdir()}
    assert_one_sentence(isotune("table", "export", "study", "--out", "tables/tiny"), "--replace")
    assert_one_sentence(isotune("table", "export", "tables", "--out", "new"), "tables is not a study")
    assert_one_sentence(isotune("table", "show", "study"), "study is not a table", "isotune table export")
    assert_one_sentence(isotune("table", "show", "tables/tin"), "tables/tin does not exist")
    assert_one_sentence(isotune("table", "merge", "tables/tiny", "study"), "study is not a table")
    assert_one_sentence(isotune("table", "show", "tables/tiny", "--tokens", "many"), "many")
    assert_one_sentence(isotune("table", "show", "tables/tiny", "--tokens", "1280"), "12.8K, 25.6K")
    assert_one_sentence(isotune("table", "show", "tables/tiny", "--column", "los"), "final_val_loss")
    assert {path: path.read_bytes() for path in exported.iterdir()} == before
