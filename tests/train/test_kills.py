"""Runs killed with SIGKILL, wherever, and repeated end with the bytes of one that was not."""

import random
import subprocess
import sys

import pytest
from small import EVALUATION, NO_EVALUATION, contents, small_constant, small_wsd

from isotune.runs.files import PARTS, remove_parts
from isotune.train import train


@pytest.fixture(scope="module")
def recipe(corpus):
    return small_wsd(corpus, 90)


@pytest.fixture(scope="module")
def expected(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "study"
    train(recipe, folder, evaluation=EVALUATION)
    return contents(folder)


def leftovers(study):
    parts = [path for pattern in PARTS for path in study.rglob(pattern)]
    return [*study.glob("attempts/?*.*"), *parts, *study.glob("*/*/lock")]


def test_what_safetensors_leaves_when_it_is_killed_is_known_by_its_name(tmp_path):
    script = (
        "import os, sys, threading, torch\n"
        "from safetensors.torch import save_file\n"
        "def kill():\n"
        "    while not os.listdir(sys.argv[1]):\n"
        "        pass\n"
        "    os.kill(os.getpid(), 9)\n"
        "threading.Thread(target=kill, daemon=True).start()\n"
        "save_file({'a': torch.zeros(100_000_000, dtype=torch.uint8)}, sys.argv[1] + '/state.safetensors')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    remove_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"state.safetensors"}


def test_five_kills_at_random_moments_change_no_byte(forks, recipe, expected, tmp_path):
    rng, statuses = random.Random(0), []
    for number in range(5):
        study = tmp_path / str(number)
        seconds = rng.uniform(0.02, 0.2)  # a whole run takes .3 on a quiet machine
        statuses += [forks.train(recipe, study, EVALUATION, kill_after_seconds=seconds)["status"] for _ in range(2)]
        assert forks.train(recipe, study, EVALUATION)["status"] == 0
        assert contents(study) == expected
        assert leftovers(study) == []
    assert -9 in statuses


def test_a_kill_before_any_line_that_writes_changes_no_byte(forks, recipe, expected, tmp_path):
    events = forks.train(recipe, tmp_path / "traced", EVALUATION, kill_at_line=-1)["events"]
    names = (
        "finish:",
        "publish:",
        "keep_state:",
        "_settle:",
        "save:",
        "move:",
        "create:",
        "write_first_json:",
        "new_attempt:",
    )
    writing = [number for number, event in enumerate(events, start=1) if event.startswith(names)]
    for number in random.Random(1).sample(writing, 8):
        study = tmp_path / str(number)
        assert forks.train(recipe, study, EVALUATION, kill_at_line=number)["status"] == -9
        assert forks.train(recipe, study, EVALUATION)["status"] == 0, events[number - 1]
        assert contents(study) == expected, events[number - 1]
        assert leftovers(study) == [], events[number - 1]


def test_a_kill_between_the_state_and_its_publication_costs_no_token(forks, recipe, corpus, tmp_path):
    events = forks.train(recipe, tmp_path / "traced", EVALUATION, kill_at_line=-1)["events"]
    moved = [number for number, event in enumerate(events, start=1) if event.startswith("keep_state:")][-1]
    published = next(n for n, event in enumerate(events, start=1) if n > moved and event.startswith("publish:"))
    assert forks.train(recipe, tmp_path / "study", EVALUATION, kill_at_line=published)["status"] == -9
    observed = []
    train(recipe, tmp_path / "study", evaluation=EVALUATION, observers=[lambda step, row: observed.append(step)])
    assert observed == []


def test_a_run_without_evaluation_that_is_killed_continues_too(forks, corpus, tmp_path):
    recipe = small_constant(corpus, 100)
    train(recipe, tmp_path / "straight", evaluation=NO_EVALUATION)
    events = forks.train(recipe, tmp_path / "traced", NO_EVALUATION, kill_at_line=-1)["events"]
    saves = [number for number, event in enumerate(events, start=1) if event.startswith("save:")]
    assert forks.train(recipe, tmp_path / "study", NO_EVALUATION, kill_at_line=saves[len(saves) // 2])["status"] == -9
    observed = []
    train(recipe, tmp_path / "study", evaluation=NO_EVALUATION, observers=[lambda step, row: observed.append(step)])
    assert 0 < len(observed) < 100  # it continued, it did not begin again
    assert contents(tmp_path / "study") == contents(tmp_path / "straight")
