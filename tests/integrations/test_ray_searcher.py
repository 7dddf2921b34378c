"""The Ray Tune searcher: on its own, and in an experiment that is killed and restored."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray import tune

from isotune.errors import InputError
from isotune.integrations.ray_searcher import IsotuneSearch

HERE = Path(__file__).parent
SPACE = {"learning_rate": tune.loguniform(2.0**-13, 2.0**-6), "weight_decay": tune.loguniform(2.0**-8, 1.0)}


def make_searcher(**changes):
    searcher = IsotuneSearch(weight_decay_convention="coupled", **changes)
    searcher.set_search_properties("loss", "min", SPACE | {"layers": tune.choice([1, 2, 3]), "name": "x"})
    return searcher


def bowl(configuration):
    lr, wd = configuration["learning_rate"], configuration["weight_decay"]
    return 2 * math.exp(0.01 * math.log2(lr * 2**9) ** 2 + 0.01 * math.log2(lr * wd * 2**14) ** 2)


def play(searcher, num_trials, first=0):
    configurations = []
    for number in range(first, first + num_trials):
        configuration = searcher.suggest(f"trial {number}")
        configurations.append(configuration)
        searcher.on_trial_complete(f"trial {number}", {"loss": bowl(configuration)})
    return configurations


def test_it_finds_the_bottom_of_a_bowl_and_draws_the_rest():
    configurations = play(make_searcher(), 14)
    assert min(map(bowl, configurations)) < 2 * 1.01
    assert {configuration["layers"] for configuration in configurations} == {1, 2, 3}
    assert {configuration["name"] for configuration in configurations} == {"x"}


def test_a_restored_searcher_goes_on_as_if_nothing_had_happened(tmp_path):
    whole = play(make_searcher(), 10)
    searcher = make_searcher()
    begun = play(searcher, 6)
    searcher.save(str(tmp_path / "state"))
    restored = make_searcher()
    restored.restore(str(tmp_path / "state"))
    assert begun + play(restored, 4, first=6) == whole


def test_a_trial_that_still_runs_is_not_asked_again():
    searcher = make_searcher()
    first = [searcher.suggest(f"trial {number}") for number in range(4)]
    settings = {(one["learning_rate"], one["weight_decay"]) for one in first}
    assert len(settings) == 4


def test_a_failure_lowers_the_learning_rate():
    searcher = make_searcher()
    first = searcher.suggest("trial 0")
    searcher.on_trial_complete("trial 0", error=True)
    assert searcher.suggest("trial 1")["learning_rate"] < first["learning_rate"]


def test_points_that_were_evaluated_elsewhere_count_as_its_own():
    played, told = make_searcher(), make_searcher()
    for configuration in play(played, 8):
        told.add_evaluated_point(configuration, bowl(configuration))
    assert told.suggest("next") == played.suggest("next")


def test_mistakes_are_sentences():
    with pytest.raises(InputError, match="mode='min'"):
        IsotuneSearch(weight_decay_convention="coupled").set_search_properties("loss", "max", SPACE)
    searcher = IsotuneSearch(weight_decay_convention="coupled")
    searcher.set_search_properties("loss", "min", {"lr": tune.loguniform(1e-4, 1e-2)})
    with pytest.raises(InputError, match=r"tune\.loguniform"):
        searcher.suggest("trial 0")


def start(folder, *arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["RAY_raylet_start_wait_time_s"] = "120"  # on a busy machine
    environment["TUNE_GLOBAL_CHECKPOINT_S"] = "0.1"  # what happened after Ray's last checkpoint is lost to a kill
    command = [sys.executable, str(HERE / "ray_tuning.py"), str(folder), *arguments]
    with open(folder / "log.txt", "a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def tried(folder):
    path = folder / "tried.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_an_experiment_that_was_killed_is_restored_without_asking_twice(tmp_path):
    process = start(tmp_path)
    give_up_at = time.monotonic() + 240
    while len(tried(tmp_path)) < 5 and process.poll() is None and time.monotonic() < give_up_at:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = len(tried(tmp_path))
    assert before >= 5, (tmp_path / "log.txt").read_text()[-2000:]
    assert start(tmp_path, "restore").wait(timeout=300) == 0, (tmp_path / "log.txt").read_text()[-2000:]
    settings = [(one["learning_rate"], one["weight_decay"]) for one in tried(tmp_path)]
    # What ran or ended after Ray's last checkpoint is trained again; without the searcher's state all would be.
    assert len(settings) - len(set(settings)) <= 2
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["num_trials"] == 10 and best["loss"] < 2 * 1.05
