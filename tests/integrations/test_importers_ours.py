"""Our own studies and tables as sources, and the way of a study through a CSV file and back."""

import csv
import dataclasses
import math

import numpy as np
import pytest
from made_tables import STEP, made_constant, made_study, made_wsd, train_by_hand

from isotune.errors import InputError
from isotune.integrations.importers import open_source
from isotune.objectives.journal import Entry, Journal
from isotune.runs import export_table, read_table
from isotune.tune.questions import Question


@pytest.fixture
def study(tmp_path):
    study = made_study(tmp_path / "study")
    for rate in (2**-6, 2**-7):
        train_by_hand(study, made_wsd(40, learning_rate=rate))
    train_by_hand(study, made_constant(40, learning_rate=2**-2), diverged_at_tokens=20 * STEP)
    return study


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


def test_a_study_gives_its_own_trajectories(study):
    imported = open_source(study.folder)
    assert imported.kind == "study"
    expected = [study.trajectory(recipe) for recipe in study.recipes()]
    assert [t.info for t in imported.trajectories] == [t.info for t in expected]
    assert all(same(a.columns, b.columns) for a, b in zip(imported.trajectories, expected, strict=True))
    assert imported.notes == ()


def test_a_table_gives_trunks_and_decays(study, tmp_path):
    export_table([study], tmp_path / "table", name="made")
    imported = open_source(tmp_path / "table")
    table = read_table(tmp_path / "table")
    assert imported.kind == "table"
    assert len(imported.trajectories) == len(table.runs()) + len(table.decays())
    assert imported.trajectories[0].info == table.trajectory(table.runs()[0].run).info


def test_a_study_through_csv_and_back_is_the_same(study, tmp_path):
    expected = {study.run_id(recipe): study.trajectory(recipe) for recipe in study.recipes()}
    settings = [f.name for f in dataclasses.fields(expected[next(iter(expected))].info) if f.name != "source"]
    for run, trajectory in expected.items():
        with open(tmp_path / f"{run}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(trajectory.columns)
            columns = [values.tolist() for values in trajectory.columns.values()]
            writer.writerows(["" if v != v else v for v in row] for row in zip(*columns, strict=True))
    with open(tmp_path / "settings.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *settings])
        writer.writerows([run, *(getattr(t.info, name) for name in settings)] for run, t in expected.items())
    for run, trajectory in expected.items():
        imported = open_source(tmp_path / f"{run}.csv", settings_file=tmp_path / "settings.csv")
        (back,) = imported.trajectories
        assert same(trajectory.columns, back.columns)
        assert dataclasses.replace(back.info, source="") == dataclasses.replace(trajectory.info, source="")


def test_mappings_and_settings_are_not_for_our_own(study):
    imported = open_source(study.folder, mapping={"val_loss": "x"}, settings={"batch_size": 1})
    assert [note for note in imported.notes if "mapping and settings not used" in note]


def test_a_loss_that_no_run_has_is_refused(study):
    with pytest.raises(InputError, match="has no run with bleu"):
        open_source(study.folder, loss="bleu", kind="study")


def test_answers_of_a_command_are_runs_of_which_the_end_is_known(tmp_path):
    journal = Journal(tmp_path / "answers.jsonl")
    for question, status, loss in (
        (Question(2**-6, 0.5, 6400, 1), "finished", 2.5),
        (Question(2**-5, 0.5, 6400), "diverged", math.nan),
        (Question(2**-4, 0.5, 6400), "failed", math.nan),
    ):
        journal.add(Entry(question, status, loss))
    (tmp_path / "run-1.jsonl").write_text('{"tokens": 6400, "val_loss": 2.5}\n')  # what the command wrote itself
    imported = open_source(tmp_path, settings={"tokens_per_step": 64})
    finished, diverged = imported.trajectories
    assert imported.kind == "answers"
    assert (finished.info.learning_rate, finished.info.weight_decay, finished.info.seed) == (2**-6, 0.5, 1)
    assert (finished.info.weight_decay_convention, finished.info.status) == ("coupled", "finished")
    assert {name: values.tolist() for name, values in finished.columns.items()} == {
        "tokens": [6400],
        "val_loss": [2.5],
        "step": [100],
    }
    assert (diverged.info.learning_rate, diverged.info.status) == (2**-5, "diverged")
    assert "runs that failed, left out: 1" in imported.notes
