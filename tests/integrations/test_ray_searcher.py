"""The Ray Tune searcher: on its own, and in an experiment that is killed and restored."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
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


@pytest.mark.parametrize("loss", [math.nan, math.inf, np.float32(math.inf)])
def test_a_divergence_lowers_the_learning_rate_and_is_saved(tmp_path, loss):
    searcher = make_searcher()
    first = searcher.suggest("trial 0")
    searcher.on_trial_complete("trial 0", {"loss": loss})
    searcher.save(str(tmp_path / "state"))
    restored = make_searcher()
    restored.restore(str(tmp_path / "state"))
    assert restored.suggest("trial 1")["learning_rate"] < first["learning_rate"]
    assert restored.suggest("trial 2") == [searcher.suggest(f"trial {number}") for number in (1, 2)][1]


def test_one_error_costs_a_cell_and_several_the_learning_rates_above():
    searcher = make_searcher()
    rates = []
    for number in range(4):
        rates.append(searcher.suggest(f"trial {number}")["learning_rate"])
        searcher.on_trial_complete(f"trial {number}", error=True)
    beside = make_searcher()
    running = [beside.suggest(f"trial {number}")["learning_rate"] for number in range(2)]
    assert rates[:2] == running, "it may have been a full disk: as if the first were still running"
    assert rates[2] < min(rates[:2]) and rates[3] < rates[2]


def test_everything_else_is_drawn_wherever_it_stands_and_need_not_be_json(tmp_path):
    space = SPACE | {
        "model": {"dropout": tune.uniform(0.0, 1.0), "sizes": [tune.choice([8, 16]), 32]},
        "clip": tune.sample_from(lambda spec: 10 * spec.config.learning_rate),
        "constant": Path("corpus"),
    }
    searcher = IsotuneSearch(weight_decay_convention="coupled")
    searcher.set_search_properties("loss", "min", space)
    drawn = [searcher.suggest(f"trial {number}") for number in range(4)]
    assert all(0 <= one["model"]["dropout"] <= 1 and one["model"]["sizes"][0] in (8, 16) for one in drawn)
    assert len({one["model"]["dropout"] for one in drawn}) == 4
    assert all(one["clip"] == 10 * one["learning_rate"] and one["constant"] == Path("corpus") for one in drawn)
    searcher.save(str(tmp_path / "state"))
    assert isinstance(space["model"]["dropout"], tune.search.sample.Domain), "the user's space is as it was"


@pytest.mark.parametrize("fixed_decay", [0.1, 0, 0.0])
def test_a_fixed_weight_decay_leaves_the_learning_rate_to_be_tuned(fixed_decay):
    searcher = IsotuneSearch(weight_decay_convention="coupled")
    searcher.set_search_properties("loss", "min", SPACE | {"weight_decay": fixed_decay})
    tried = []
    for number in range(7):
        one = searcher.suggest(f"trial {number}")
        tried.append((bowl(one | {"weight_decay": 2.0**-14 / one["learning_rate"]}), one["learning_rate"]))
        assert one["weight_decay"] == fixed_decay
        searcher.on_trial_complete(f"trial {number}", {"loss": tried[-1][0]})
    assert len({lr for _, lr in tried}) == 7
    assert min(tried)[0] < 2 * 1.005


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
    searcher = IsotuneSearch(weight_decay_convention="coupled")
    searcher.set_search_properties("loss", "min", SPACE | {"layers": tune.grid_search([1, 2])})
    with pytest.raises(InputError, match=r"tune\.choice"):
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
