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
import torch
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


@pytest.mark.parametrize("number", [float, np.float64, torch.tensor])
def test_points_that_were_evaluated_elsewhere_count_as_its_own(number):
    played, told = make_searcher(), make_searcher()
    for configuration in play(played, 8):
        point = configuration | {name: number(configuration[name]) for name in SPACE}
        told.add_evaluated_point(point, bowl(configuration))
    assert told.suggest("next") == played.suggest("next")


def curve_of(configuration, length):
    """The loss of an ordinary run on its way: 3.5 times the final one at the first report."""
    return bowl(configuration) * (1 + 2.5 / length - 2.5 / 16)


def complete(searcher, trial, configuration, length, **more):
    """Reports up to a length; Ray tells the last report of a trial only when it is complete."""
    for iteration in range(1, length):
        report = {"loss": curve_of(configuration, iteration), "training_iteration": iteration}
        searcher.on_trial_result(trial, report)
    last = {"loss": curve_of(configuration, length), "training_iteration": length}
    searcher.on_trial_complete(trial, last | more)


def outcome_of(searcher, trial):
    return dict(zip(searcher._asked, searcher._tried(), strict=True))[trial]


def test_a_trial_that_was_stopped_early_counts_as_it_would_have_ended():
    searcher = make_searcher()
    one, other = searcher.suggest("whole"), searcher.suggest("stopped")
    complete(searcher, "stopped", other, 4)
    assert outcome_of(searcher, "stopped").loss == curve_of(other, 4), "nobody came farther"
    complete(searcher, "whole", one, 16)
    assert outcome_of(searcher, "whole").loss == bowl(one) and outcome_of(searcher, "whole").noise is None
    stopped = outcome_of(searcher, "stopped")
    assert stopped.loss == pytest.approx(bowl(other)) and stopped.noise is not None


def test_a_paused_trial_that_a_scheduler_ended_counts_as_stopped_not_as_failed():
    # HyperBand's way: Ray then tells no result.
    searcher = make_searcher()
    one, other, third = (searcher.suggest(name) for name in ("whole", "stopped", "silent"))
    complete(searcher, "whole", one, 16)
    for length in (1, 2, 3):
        searcher.on_trial_result("stopped", {"loss": curve_of(other, length), "training_iteration": length})
    searcher.on_trial_complete("stopped")
    searcher.on_trial_complete("silent")
    stopped, silent = outcome_of(searcher, "stopped"), outcome_of(searcher, "silent")
    assert stopped.loss == pytest.approx(bowl(other)) and stopped.noise is not None
    assert silent.loss is None and not silent.has_failed
    assert third not in [searcher.suggest(f"next {number}") for number in range(4)]
    searcher.on_trial_complete("next 0", error=True)
    assert outcome_of(searcher, "next 0").has_failed


@pytest.mark.parametrize("end", [math.nan, math.inf])
def test_a_paused_trial_that_had_diverged_has_diverged(end, tmp_path):
    searcher = make_searcher()
    one, other = searcher.suggest("whole"), searcher.suggest("diverged")
    complete(searcher, "whole", one, 16)
    searcher.on_trial_result("diverged", {"loss": 1.5, "training_iteration": 1})
    searcher.on_trial_result("diverged", {"loss": end, "training_iteration": 2})
    searcher.save(str(tmp_path / "state"))
    searcher = make_searcher()
    searcher.restore(str(tmp_path / "state"))
    assert math.isnan(outcome_of(searcher, "diverged").loss), "at once"
    searcher.on_trial_complete("diverged")
    assert math.isnan(outcome_of(searcher, "diverged").loss)
    searcher.on_trial_result("diverged", {"loss": curve_of(other, 3), "training_iteration": 3})
    assert outcome_of(searcher, "diverged").loss is None, "it went on from an earlier state"


def test_trials_that_still_run_tell_that_another_was_stopped():
    searcher = make_searcher()
    one, other = searcher.suggest("running"), searcher.suggest("stopped")
    for length in (1, 2, 3):
        searcher.on_trial_result("running", {"loss": curve_of(one, length), "training_iteration": length})
    complete(searcher, "stopped", other, 1)
    assert outcome_of(searcher, "running").loss is None
    assert outcome_of(searcher, "stopped").loss == pytest.approx(curve_of(one, 3) * bowl(other) / bowl(one))


@pytest.mark.parametrize("changes", [{"max_t": 1_600}, {"max_t": 1_600, "time_attr": "seconds"}])
def test_the_length_may_be_told_and_then_a_trial_alone_may_have_been_stopped(changes):
    searcher = make_searcher(**({"time_attr": "tokens"} | changes))
    complete(searcher, "a", searcher.suggest("a"), 4, tokens=400, seconds=400)
    complete(searcher, "b", searcher.suggest("b"), 15, tokens=1_500, seconds=1_500)
    assert outcome_of(searcher, "a").loss is None, "no other trial has a report where it was stopped"
    assert outcome_of(searcher, "b").loss is not None


def test_without_a_length_all_that_end_have_finished():
    searcher = make_searcher(time_attr=None)
    one, other = searcher.suggest("long"), searcher.suggest("short")
    complete(searcher, "long", one, 16)
    complete(searcher, "short", other, 2)
    assert outcome_of(searcher, "short").loss == curve_of(other, 2)


def test_early_stops_leave_the_search_as_good(tmp_path):
    """A scheduler stops, at the first report, whatever is worse than the median there: ASHA's way."""
    searcher, tried, seen = make_searcher(), [], []
    for number in range(14):
        if number == 7:
            searcher.save(str(tmp_path / "state"))
            searcher = make_searcher()
            searcher.restore(str(tmp_path / "state"))
        configuration = searcher.suggest(f"trial {number}")
        tried.append(configuration)
        seen.append(curve_of(configuration, 1))
        complete(searcher, f"trial {number}", configuration, 1 if seen[-1] > np.median(seen) else 16)
    assert min(map(bowl, tried)) < 2 * 1.01
    told = zip(searcher._tried(), map(bowl, tried), strict=True)
    assert all(one.loss is None or one.loss == pytest.approx(loss) for one, loss in told)


def test_a_long_curve_is_thinned_and_one_that_begins_again_is_replaced():
    from isotune.integrations.ray_searcher import MAX_REPORTS, _with_report

    curve = {}
    for length in range(1, 5_001):
        curve = _with_report(curve, length, 1 / length)
    assert len(curve) <= MAX_REPORTS and list(curve)[:: len(curve) - 1] == [1, 5_000]
    assert _with_report(curve, 1, 2.0) == {1: 2.0} and _with_report(curve, math.nan, 2.0) == curve


def test_a_point_that_was_pruned_elsewhere_is_not_asked_again_and_says_nothing():
    searcher = make_searcher()
    first = make_searcher().suggest("trial 0")
    searcher.add_evaluated_point(first, 1e-3, pruned=True)
    assert searcher._tried()[0].loss is None
    assert searcher.suggest("trial 0") != first


@pytest.mark.parametrize("wrap", [np.float32, torch.tensor, lambda loss: torch.tensor([loss])])
def test_a_loss_may_be_wrapped(wrap):
    searcher = make_searcher()
    searcher.suggest("trial 0")
    searcher.on_trial_complete("trial 0", {"loss": wrap(2.5)})
    assert searcher._told == {"trial 0": 2.5}


@pytest.mark.parametrize("loss", [None, "2.5", torch.ones(2), {}])
def test_what_is_no_number_is_a_failure(loss):
    searcher = make_searcher()
    searcher.suggest("trial 0")
    searcher.on_trial_complete("trial 0", {"loss": loss})
    assert searcher._told == {"trial 0": "failed"}


def test_quantized_ranges_keep_their_quantum_and_no_setting_is_asked_twice():
    searcher = IsotuneSearch(weight_decay_convention="coupled")
    space = {"learning_rate": tune.qloguniform(1e-5, 1e-2, 1e-5), "weight_decay": tune.quniform(0, 0.3, 0.05)}
    searcher.set_search_properties("loss", "min", space)
    tried = play(searcher, 12)
    for one in tried:
        for value, step, high in ((one["learning_rate"], 1e-5, 1e-2), (one["weight_decay"], 0.05, 0.3)):
            assert value / step == pytest.approx(round(value / step)) and 0.99 * step < value < 1.0001 * high
    assert len({tuple(one.values()) for one in tried}) == 12


def test_mistakes_are_sentences():
    with pytest.raises(InputError, match="mode='min'"):
        IsotuneSearch(weight_decay_convention="coupled").set_search_properties("loss", "max", SPACE)
    with pytest.raises(InputError, match="mode='min'"):
        IsotuneSearch(weight_decay_convention="coupled", space=SPACE, metric="accuracy", mode="max")
    with pytest.raises(InputError, match="max_t"):
        make_searcher(max_t=0)
    for space, words in (
        ({"train_loop_config": SPACE}, r"'learning_rate' inside 'train_loop_config'.*move it to the top level"),
        (SPACE | {"learning_rate": tune.randn(1, 1)}, r"tune\.loguniform"),
    ):
        searcher = IsotuneSearch(weight_decay_convention="coupled")
        searcher.set_search_properties("loss", "min", space)
        with pytest.raises(InputError, match=words):
            searcher.suggest("trial 0")
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
