"""Reading and extending a study, against rows that are functions of their position."""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from made import (
    EVALUATION,
    FINGERPRINT,
    NUMERICS,
    STEP,
    loss_at,
    made_constant,
    made_study,
    made_wsd,
    setup,
    train_by_hand,
    write_rows,
)

from isotune.errors import InputError
from isotune.recipe import Init, batch_switch
from isotune.runs import Evaluation, Study
from isotune.runs.files import require_writable, write_whole


@pytest.fixture
def study(tmp_path):
    return made_study(tmp_path / "study")


def check_rows(trajectory, recipe, num_steps):
    """The oracle: the recipe's own steps."""
    steps = list(recipe.steps())[:num_steps]
    assert trajectory.tokens.tolist() == [0] + [step.tokens for step in steps]
    assert trajectory.columns["train_loss"][1:].tolist() == [loss_at(recipe, step) for step in steps]
    assert trajectory.columns["learning_rate"][1:].tolist() == [step.learning_rate for step in steps]
    assert trajectory.columns["batch_size"][1:].tolist() == [step.batch_size for step in steps]
    assert trajectory.columns["step"].tolist() == list(range(num_steps + 1))


def test_importing_the_room_does_not_import_torch():
    script = "import sys, isotune.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_recipe_is_read_by_walking_its_prefix(study):
    recipe = made_wsd(20)
    assert train_by_hand(study, recipe) == 20 * STEP
    trajectory = study.trajectory(recipe)
    assert trajectory.info.status == "finished"
    check_rows(trajectory, recipe, 20)
    assert study.missing(recipe) == []


def test_a_damaged_curve_stops_its_own_family_alone(study):
    """Both recipes lack tokens; of one a published curve is cut, which must be mended before anything is trained."""
    for rate in (2**-6, 2**-7):
        train_by_hand(study, made_constant(20, learning_rate=rate))
    longer = [made_constant(40, learning_rate=rate) for rate in (2**-6, 2**-7)]
    record = study.path(longer[0])[0]
    curve = record.folder / "curve.jsonl"
    curve.write_bytes(curve.read_bytes()[:100])
    again = Study.open(study.folder)
    for refuses in (again.missing, again.trajectory):
        with pytest.raises(InputError, match=f"{record.segment.id}.*delete the folder"):
            refuses(longer[0])
    assert [segment.start_tokens for segment in again.missing(longer[1])] == [20 * STEP]
    check_rows(again.trajectory(longer[1]), longer[1], 20)
    (record.folder / "segment.json").write_text("{}")  # now nobody knows whose it is
    with pytest.raises(InputError, match=record.segment.id):
        Study.open(study.folder).missing(longer[1])


def test_shorter_runs_are_cut_out_of_longer_ones(study):
    train_by_hand(study, made_constant(40))
    for num_steps in (1, 7, 39, 40):
        trajectory = study.trajectory(made_constant(num_steps))
        assert trajectory.info.status == "finished"
        check_rows(trajectory, made_constant(num_steps), num_steps)


def test_a_decay_that_leaves_a_trunk_where_no_state_is_trains_from_the_last_one(study):
    train_by_hand(study, made_constant(10))
    train_by_hand(study, made_constant(40))
    missing = study.missing(made_wsd(24))
    assert [(s.start_tokens // STEP, s.end_tokens // STEP) for s in missing] == [(10, 20), (20, 24)]
    train_by_hand(study, made_wsd(24))
    check_rows(study.trajectory(made_wsd(24)), made_wsd(24), 24)
    assert [(s.start_tokens // STEP) for s in study.missing(made_wsd(44))] == [40]


def test_without_any_state_everything_is_trained_again(study):
    train_by_hand(study, made_constant(20), with_states=False)
    assert study.missing(made_constant(20)) == []
    assert [(s.start_tokens, s.end_tokens) for s in study.missing(made_constant(30))] == [(0, 30 * STEP)]


def test_batch_switches_share_the_trunk(study):
    source = made_constant(40)
    switched = batch_switch(source, switch_tokens=16 * STEP, tokens=40 * STEP, batch_size=16)
    train_by_hand(study, made_constant(16))
    train_by_hand(study, source)
    assert [s.start_tokens // STEP for s in study.missing(switched)] == [16]
    train_by_hand(study, switched)
    check_rows(study.trajectory(switched), switched, 16 + 6)


def test_seeds_and_settings_are_not_mixed(study):
    recipes = [made_wsd(20), made_wsd(20, seed=1), made_wsd(20, learning_rate=2**-7), made_wsd(20, decay_steps=8)]
    for recipe in recipes:
        train_by_hand(study, recipe)
    for recipe in recipes:
        check_rows(study.trajectory(recipe), recipe, 20)
    assert sorted(map(study.run_id, study.recipes())) == sorted(map(study.run_id, recipes))


def test_a_running_attempt_is_read_as_far_as_it_has_come(study):
    recipe = made_wsd(20)
    assert len(study.trajectory(recipe).tokens) == 0
    trunk, decay = study.missing(recipe)
    first, second = (study.new_attempt(trunk, NUMERICS) for _ in range(2))
    write_rows(first, trunk, through_tokens=5 * STEP)
    write_rows(second, trunk, through_tokens=8 * STEP)
    with open(second / "curve.jsonl", "a") as file:
        file.write('{"tokens":576,"tra')  # torn
    trajectory = study.trajectory(recipe)
    assert trajectory.info.status == "running"
    check_rows(trajectory, recipe, 8)
    check_rows(study.trajectory(made_wsd(10)), made_wsd(10), 6)  # another decay, on what is there of the trunk
    assert len(study.trajectory(made_wsd(20, seed=1)).tokens) == 0
    assert study.recipes() == [trunk.recipe]
    assert decay.start_tokens == 16 * STEP


def test_a_running_decay_continues_a_published_trunk(study):
    train_by_hand(study, made_constant(16))
    (decay,) = study.missing(made_wsd(20))
    write_rows(study.new_attempt(decay, NUMERICS), decay, through_tokens=18 * STEP)
    check_rows(study.trajectory(made_wsd(20)), made_wsd(20), 18)
    assert study.recipes() == [made_wsd(20)]


def test_a_divergence_is_inherited_from_where_it_happened(study):
    train_by_hand(study, made_constant(40), diverged_at_tokens=20 * STEP)
    for recipe in (made_constant(40), made_constant(80), made_constant(20), made_wsd(30)):
        trajectory = study.trajectory(recipe)
        assert trajectory.info.status == "diverged"
        check_rows(trajectory, recipe, 19)
        assert study.missing(recipe) == []
    assert study.trajectory(made_constant(19)).info.status == "finished"
    assert study.trajectory(made_wsd(20)).info.status == "running"  # leaves at 16
    assert study.missing(made_wsd(20)) != []


def test_a_thousand_segments_are_listed_in_about_a_second(study, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a thousand of them would take longer than the test
    for seed in range(84):
        for learning_rate in (2**-6, 2**-7):
            for num_steps in (8, 12, 16):
                train_by_hand(study, made_wsd(num_steps, seed=seed, learning_rate=learning_rate, decay_steps=2))
    opened = Study.open(study.folder)
    began = time.process_time()
    records, recipes = opened.records(), opened.recipes()
    assert len(records) == 1008
    assert len(recipes) == 504
    assert time.process_time() - began < 2  # .4 on a quiet core
    began = time.process_time()
    for recipe in recipes:
        assert opened.trajectory(recipe).info.status == "finished"
    assert time.process_time() - began < 4


def test_the_first_publication_wins(study):
    (segment,) = study.missing(made_constant(8))
    folders = [study.new_attempt(segment, NUMERICS) for _ in range(2)]
    for folder in folders:
        write_rows(folder, segment)
        study.describe(folder, segment, NUMERICS, "finished")
    assert [study.publish(folder, segment.id) for folder in folders] == [True, False]
    assert not folders[0].exists()
    assert folders[1].exists()
    check_rows(study.trajectory(made_constant(8)), made_constant(8), 8)


def test_of_studies_created_at_once_one_is_created(tmp_path):
    def create(number):
        plan = Evaluation(every_tokens=number, windows=8, final_windows=32)
        return Study.create(tmp_path / "study", setup(), "made", FINGERPRINT, plan, NUMERICS).evaluation

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(1, 9)))
    assert len(set(created)) == 1
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["study.json"]


def test_a_copy_without_its_empty_folders_is_a_study_too(study, tmp_path):
    train_by_hand(study, made_constant(8))
    for name in ("attempts", "states"):
        shutil.rmtree(study.folder / name)
    shutil.move(study.folder, tmp_path / "moved")
    moved = Study.open(tmp_path / "moved")
    check_rows(moved.trajectory(made_constant(8)), made_constant(8), 8)
    assert moved.missing(made_constant(8)) == []


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a study \(it has no study.json\)"):
        Study.open(tmp_path)


def test_a_newer_format_is_refused(study):
    path = study.folder / "study.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="has format 2, this version of isotune reads format 1"):
        Study.open(study.folder)


def test_another_root_is_refused_by_name(study):
    study.require_root(setup(seed=3), FINGERPRINT)
    with pytest.raises(InputError, match="another corpus: use another --study"):
        study.require_root(setup(), "e" * 32)
    with pytest.raises(InputError, match="another init"):
        study.require_root(setup(init=Init(std=0.01)), FINGERPRINT)


def test_a_folder_that_was_begun_and_nothing_foreign_may_become_a_study(tmp_path):
    assert Study.may_begin_in(tmp_path / "absent")
    (tmp_path / "begun" / "segments").mkdir(parents=True)
    (tmp_path / "begun" / ".study.json.0a1b2c3d.part").touch()
    assert Study.may_begin_in(tmp_path / "begun")
    (tmp_path / "begun" / "thesis.tex").touch()
    assert not Study.may_begin_in(tmp_path / "begun")


@pytest.mark.parametrize(
    "bad", [{"every_tokens": -1}, {"every_tokens": 1, "windows": 0}, {"every_tokens": 1, "windows": 9}]
)
def test_impossible_evaluations_are_refused(bad):
    with pytest.raises(InputError, match="is impossible: use"):
        Evaluation(**({"windows": 8, "final_windows": 8} | bad))


def test_evaluations_are_due_where_a_multiple_is_passed():
    due = [tokens for tokens in range(STEP, 100 * STEP, STEP) if EVALUATION.is_due(tokens - STEP, tokens)]
    assert due == [10 * STEP * k for k in range(1, 10)]
    odd = Evaluation(every_tokens=100, windows=1, final_windows=1)
    passed = [tokens for tokens in range(STEP, 20 * STEP, STEP) if odd.is_due(tokens - STEP, tokens)]
    expected = [int(np.ceil(100 * k / STEP)) * STEP for k in range(1, 13)]
    assert passed == [tokens for tokens in expected if tokens < 20 * STEP]


def test_what_cannot_be_written_is_known_before_and_named_by_its_own_name(tmp_path):
    require_writable(tmp_path / "new" / "folder", "--out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/out cannot be written \(Not a directory\): choose another --out"):
        require_writable(tmp_path / "file" / "out", "--out")
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "absent" / "page.html", lambda path: path.touch())
    assert caught.value.filename == str(tmp_path / "absent" / "page.html")
