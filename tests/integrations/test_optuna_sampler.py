"""The Optuna sampler: Optuna's own conformance suite, and what it is for."""

import math

import numpy as np
import optuna
import pytest
from optuna.testing.pytest_samplers import BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase

from isotune.errors import InputError
from isotune.integrations.optuna_sampler import IsotuneSampler

optuna.logging.set_verbosity(optuna.logging.WARNING)


def make_sampler():
    return IsotuneSampler(weight_decay_convention="coupled", seed=0)


class TestConformance(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self):
        return make_sampler


def bowl(lr, wd, best_lr=2.0**-9, best_elr=2.0**-14):
    """A loss that is lowest at an LR and an ELR."""
    return 2 * math.exp(0.01 * math.log2(lr / best_lr) ** 2 + 0.01 * math.log2(lr * wd / best_elr) ** 2)


def optimize(sampler, num_trials, objective):
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=num_trials, catch=(RuntimeError,))
    return study


def settings(trial):
    lr = trial.suggest_float("learning_rate", 2.0**-13, 2.0**-6, log=True)
    return lr, trial.suggest_float("weight_decay", 2.0**-8, 1.0, log=True)


def test_it_finds_the_bottom_of_a_bowl_in_a_dozen_trials():
    study = optimize(make_sampler(), 14, lambda trial: bowl(*settings(trial)))
    assert study.best_value < 2 * 1.01
    randomly = optimize(optuna.samplers.RandomSampler(seed=0), 14, lambda trial: bowl(*settings(trial)))
    assert study.best_value < randomly.best_value


def test_learning_rate_and_weight_decay_come_out_together_and_others_from_the_inner_sampler():
    def objective(trial):
        lr, wd = settings(trial)
        width = trial.suggest_categorical("width", ["a", "b"])
        return bowl(lr, wd) * (1.1 if width == "a" else 1.0)

    study = optimize(make_sampler(), 12, objective)
    assert {trial.params["width"] for trial in study.trials} == {"a", "b"}
    later = study.trials[5:]
    lattice = {round(2 * (math.log2(trial.params["learning_rate"]) + 13), 3) for trial in later}
    assert all(step == int(step) for step in lattice), "a half-octave lattice, so LR came from the tuner"


def test_a_learning_rate_that_diverges_is_not_tried_again_above():
    def objective(trial):
        lr, wd = settings(trial)
        if lr > 2.0**-9:
            raise RuntimeError("diverged")
        return bowl(lr, wd, best_lr=2.0**-10)

    study = optimize(make_sampler(), 16, objective)
    failed = [trial.params["learning_rate"] for trial in study.trials if trial.state == optuna.trial.TrialState.FAIL]
    assert failed == sorted(failed, reverse=True), "each failure lowers the highest LR that is tried"
    assert study.best_value < 2 * 1.02


def test_nan_counts_as_diverged():
    study = optimize(make_sampler(), 10, lambda trial: math.nan if settings(trial)[0] > 2.0**-10 else 2.0)
    assert sum(trial.state == optuna.trial.TrialState.FAIL for trial in study.trials) <= 4


def test_independent_weight_decay_is_tuned_in_its_own_units():
    sampler = IsotuneSampler(weight_decay_convention="independent", seed=0)

    def objective(trial):
        lr = trial.suggest_float("learning_rate", 2.0**-13, 2.0**-6, log=True)
        wd = trial.suggest_float("weight_decay", 2.0**-20, 2.0**-8, log=True)
        return bowl(lr, wd / lr)

    study = optimize(sampler, 16, objective)
    assert study.best_value < 2 * 1.01


def test_ranges_that_begin_at_zero_and_steps_are_kept():
    def objective(trial):
        lr = trial.suggest_float("learning_rate", 0.0, 0.01)
        wd = trial.suggest_float("weight_decay", 0.0, 0.3, step=0.1)
        assert 0 <= lr <= 0.01 and any(np.isclose(wd, value) for value in (0, 0.1, 0.2, 0.3))
        return 2 + lr + wd

    assert len(optimize(make_sampler(), 8, objective).trials) == 8


def test_it_refuses_to_maximize():
    study = optuna.create_study(direction="maximize", sampler=make_sampler())
    with pytest.raises(ValueError, match="minimizes a loss"):
        study.optimize(lambda trial: bowl(*settings(trial)), n_trials=2)


def test_the_convention_must_be_said():
    with pytest.raises(InputError, match="coupled"):
        IsotuneSampler(weight_decay_convention="unknown")
    with pytest.raises(InputError, match="go together"):
        IsotuneSampler(weight_decay_convention="coupled", tokens=1000)
