"""Several processes: as one run's ranks, and as rivals for the same segments."""

import json

import numpy as np
import pytest
from small import EVALUATION, contents, rows, small_constant, small_wsd

from isotune.runs import Study
from isotune.train import train


@pytest.fixture(scope="module")
def two_ranks(forks, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "study"
    assert forks.train(small_constant(corpus, 60), folder, EVALUATION, ranks=2)["status"] == 0
    return folder


def test_two_ranks_give_the_losses_of_one_process(corpus, two_ranks, tmp_path):
    recipe = small_constant(corpus, 60)
    one = train(recipe, tmp_path / "one", evaluation=EVALUATION)
    two = Study.open(two_ranks).trajectory(recipe)
    assert two.info.status == "finished"
    assert (one.tokens == two.tokens).all()
    for name in ("train_loss", "gradient_norm", "val_loss", "parameter_norm"):
        np.testing.assert_allclose(two.columns[name][:51], one.columns[name][:51], rtol=1e-5)


@pytest.mark.parametrize("ranks", [2, 4])  # with four, the order of a sum shows in its last bits
def test_ranks_that_are_killed_continue_with_the_same_bytes(forks, corpus, tmp_path, ranks):
    recipe = small_constant(corpus, 60)
    traced = forks.train(recipe, tmp_path / "straight", EVALUATION, ranks=ranks, kill_at_line=-1)
    assert traced["status"] == 0
    saves = [number for number, event in enumerate(traced["events"], start=1) if event.startswith("save:")]
    killed = forks.train(recipe, tmp_path / "study", EVALUATION, ranks=ranks, kill_at_line=saves[len(saves) // 2])
    assert killed["status"] == -9
    assert len(list(tmp_path.glob("study/attempts/*/state.safetensors"))) == 1  # there is something to continue from
    assert forks.train(recipe, tmp_path / "study", EVALUATION, ranks=ranks)["status"] == 0
    assert contents(tmp_path / "study") == contents(tmp_path / "straight")


def test_processes_that_train_the_same_recipe_at_once_all_succeed(forks, corpus, tmp_path):
    recipe, study = small_wsd(corpus, 120), tmp_path / "study"
    assert forks.train(recipe, study, EVALUATION, rivals=3)["status"] == 0
    train(recipe, tmp_path / "alone", evaluation=EVALUATION)
    assert contents(study) == contents(tmp_path / "alone")
    assert list((study / "attempts").glob("?*.*")) == []
    assert len(list((study / "segments").iterdir())) == 3
    assert rows(Study.open(study).trajectory(recipe)) == rows(Study.open(tmp_path / "alone").trajectory(recipe))


def test_a_rival_that_publishes_first_costs_the_other_nothing_but_time(corpus, tmp_path):
    """The second process trains the whole recipe while the first is in the midst of it."""
    recipe, study, done = small_wsd(corpus, 120), tmp_path / "study", []

    def rival(step, row):
        if step.tokens > 60 * 64 and not done:
            done.append(train(recipe, study, evaluation=EVALUATION))

    slower = train(recipe, study, evaluation=EVALUATION, observers=[rival], save_seconds=0.0)
    assert rows(slower) == rows(done[0])
    train(recipe, tmp_path / "alone", evaluation=EVALUATION)
    assert contents(study) == contents(tmp_path / "alone")
    assert list((study / "attempts").glob("?*.*")) == []


def test_a_rival_that_begins_at_the_end_of_an_attempt_has_all_of_it(corpus, tmp_path, monkeypatch):
    """The first process has saved its last state, and not yet moved it, when the second begins with a copy of that."""
    recipe, study, done = small_wsd(corpus, 120), tmp_path / "study", []
    describe = Study.describe

    def rival(self, folder, segment, numerics, status, diverged_at_tokens=None):
        if status == "finished" and segment.end_tokens == recipe.tokens and not done:
            done.append(None)
            train(recipe, study, evaluation=EVALUATION)
        describe(self, folder, segment, numerics, status, diverged_at_tokens)

    monkeypatch.setattr(Study, "describe", rival)
    train(recipe, study, evaluation=EVALUATION)
    assert done
    train(recipe, tmp_path / "alone", evaluation=EVALUATION)
    assert contents(study) == contents(tmp_path / "alone")


def test_an_attempt_that_a_living_process_holds_is_left_alone(corpus, tmp_path):
    recipe, study, seen = small_constant(corpus, 80), tmp_path / "study", []

    def look(step, row):
        if step.tokens == 40 * 64:
            seen.append({path.name for path in (study / "attempts").glob("?*.*")})
            train(small_constant(corpus, 60), study, evaluation=EVALUATION)
            seen.append({path.name for path in (study / "attempts").glob("?*.*")})

    train(recipe, study, evaluation=EVALUATION, observers=[look], save_seconds=0.0)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 1
    found = [json.loads(path.read_text())["end"]["tokens"] // 64 for path in study.glob("segments/*/segment.json")]
    assert sorted(found) == [16, 60, 80]
