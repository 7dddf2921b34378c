"""Damaged files are named with a remedy; following it, the same command gives the bytes of an undamaged study."""

import json
import re
import shutil
from pathlib import Path

import pytest
from small import EVALUATION, contents, rows, small_constant, small_wsd

from isotune.errors import InputError
from isotune.runs import Study
from isotune.train import Stopped, train


@pytest.fixture(scope="module")
def original(corpus, tmp_path_factory):
    """A study with a trunk, two decays and nothing wrong with it."""
    folder = tmp_path_factory.mktemp("original") / "study"
    for steps in (80, 120):
        train(small_wsd(corpus, steps), folder, evaluation=EVALUATION)
    return folder


@pytest.fixture
def study(original, tmp_path):
    shutil.copytree(original, tmp_path / "study")
    return tmp_path / "study"


def segment_ending_at(study, steps, start=None):
    for path in study.glob("segments/*/segment.json"):
        value = json.loads(path.read_text())
        if value["end"]["tokens"] == steps * 64 and start in (None, value["start"]["tokens"] // 64):
            return path.parent
    raise AssertionError


def trunk_part_ending_at(study, steps):
    for path in study.glob("segments/*/segment.json"):
        value = json.loads(path.read_text())
        is_constant = not isinstance(value["recipe"]["phases"][-1]["learning_rate"], dict)
        if value["end"]["tokens"] == steps * 64 and is_constant:
            return path.parent
    raise AssertionError


def follow(message):
    """Deletes the file or folder that the message says to delete."""
    path = Path(re.search(r"delete (?:the folder )?(\S*/\S+?),? and repeat", message)[1])
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_a_line(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5] + lines[6:]))


def spoil_a_line(path):
    path.write_bytes(path.read_bytes().replace(b"train_loss", b"train\x00\xff", 1))


def put_garbage(path):
    path.write_bytes(b"\x00\x93garbage")


def put_other_json(path):
    path.write_text('{"format": 1, "status": "finished"}')


@pytest.mark.parametrize("damage", [cut_in_half, lose_a_line, spoil_a_line, put_garbage, Path.unlink])
def test_a_curve(corpus, original, study, damage):
    damage(segment_ending_at(study, 40) / "curve.jsonl")
    check(corpus, original, study)


@pytest.mark.parametrize("damage", [cut_in_half, put_garbage, put_other_json, Path.unlink])
def test_the_description_of_a_segment(corpus, original, study, damage):
    damage(trunk_part_ending_at(study, 80) / "segment.json")
    check(corpus, original, study)


def test_a_segment_that_a_recipe_does_not_need_is_not_in_its_way(corpus, original, study):
    put_garbage(trunk_part_ending_at(study, 80) / "segment.json")
    shorter = small_wsd(corpus, 80)
    assert rows(train(shorter, study)) == rows(Study.open(original).trajectory(shorter))


def test_a_segment_in_another_segments_folder(corpus, original, study):
    first, second = segment_ending_at(study, 16), segment_ending_at(study, 40)
    shutil.copy(first / "segment.json", second / "segment.json")
    check(corpus, original, study)


def check(corpus, original, study):
    before = contents(study)
    for _ in range(2):  # it says so every time, and changes nothing
        with pytest.raises(InputError, match="repeat the training command") as caught:
            train(small_wsd(corpus, 120), study)
        assert contents(study) == before
    follow(str(caught.value))
    for steps in (80, 120):
        trajectory = train(small_wsd(corpus, steps), study)
        assert rows(trajectory) == rows(Study.open(original).trajectory(small_wsd(corpus, steps)))
    assert contents(study) == contents(original)


@pytest.mark.parametrize("damage", [cut_in_half, put_garbage])
def test_a_state(corpus, original, study, damage, tmp_path):
    recipe = small_wsd(corpus, 120, learning_rate=2**-6)
    opened = Study.open(study)
    trunk = small_constant(corpus, 80)
    damage(opened.state_path(trunk.state_id(opened.corpus_fingerprint, trunk.tokens)))
    shutil.rmtree(segment_ending_at(study, 120))  # so that the decay needs the state
    with pytest.raises(InputError, match="delete that file and repeat") as caught:
        train(recipe, study)
    Path(re.search(r"the state (\S+) cannot", str(caught.value))[1]).unlink()
    assert rows(train(recipe, study)) == rows(Study.open(original).trajectory(recipe))
    # It went back to the octave before, so there is a segment more.
    assert contents(study).items() >= contents(original).items()


@pytest.mark.parametrize("damage", [cut_in_half, put_garbage, put_other_json, Path.unlink])
def test_the_description_of_the_study(corpus, original, study, damage):
    recipe, before = small_wsd(corpus, 120), contents(study)
    damage(study / "study.json")
    if (study / "study.json").exists():
        with pytest.raises(InputError, match="delete this file alone and repeat the training command"):
            train(recipe, study)
        (study / "study.json").unlink()
    assert contents(study) == before
    observed = []
    trajectory = train(recipe, study, observers=[lambda step, row: observed.append(step)])
    assert observed == []  # nothing was lost with it
    assert rows(trajectory) == rows(Study.open(original).trajectory(recipe))
    assert json.loads((study / "study.json").read_text()) == json.loads((original / "study.json").read_text())


def test_the_description_of_a_study_with_another_root(corpus, original, study, tmp_path):
    train(small_constant(corpus, 20, precision="bfloat16"), tmp_path / "other", evaluation=EVALUATION)
    shutil.copy(tmp_path / "other" / "study.json", study / "study.json")
    recipe, before = small_wsd(corpus, 120), contents(study)
    with pytest.raises(InputError, match="another precision: use another --study"):
        train(recipe, study)
    assert contents(study) == before
    trajectory = train(recipe, tmp_path / "new", evaluation=EVALUATION)
    assert rows(trajectory) == rows(Study.open(original).trajectory(recipe))


@pytest.mark.parametrize("name", ["state.safetensors", "curve.jsonl", "segment.json"])
@pytest.mark.parametrize("damage", [cut_in_half, put_garbage, Path.unlink])
def test_an_attempt(corpus, original, tmp_path, name, damage):
    recipe, study, asked = small_wsd(corpus, 80), tmp_path / "study", []
    with pytest.raises(Stopped):
        train(recipe, study, evaluation=EVALUATION, should_stop=lambda: asked.append(None) or len(asked) == 4)
    damage(next(study.glob(f"attempts/*/{name}")))
    try:
        train(recipe, study)
    except InputError as error:
        follow(str(error))
    assert rows(train(recipe, study)) == rows(Study.open(original).trajectory(recipe))
    assert list(study.glob("attempts/?*.*")) == []


def test_rows_beyond_the_state_and_a_torn_line_are_cut(corpus, original, tmp_path):
    recipe, study, asked = small_wsd(corpus, 80), tmp_path / "study", []
    with pytest.raises(Stopped):
        train(recipe, study, evaluation=EVALUATION, should_stop=lambda: asked.append(None) or len(asked) == 4)
    curve = next(study.glob("attempts/*/curve.jsonl"))
    with open(curve, "ab") as file:
        file.write(b'{"tokens":3264,"train_loss":1.0}\n{"tokens":33')  # it stopped at 3200
    train(recipe, study)
    assert set(contents(study).items()) <= set(contents(original).items())
