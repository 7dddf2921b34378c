"""The Optuna sampler: Optuna's own conformance suite, and what it is for."""

import contextlib
import math
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import optuna
import pytest
from optuna.testing.pytest_samplers import BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase

from isotune.errors import InputError
from isotune.integrations import optuna_sampler
from isotune.integrations.optuna_sampler import IsotuneSampler
from isotune.integrations.proposals import Proposals, Tried, _with_divergences

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


def test_the_best_trial_is_nearly_the_best_there_is():
    """What Optuna returns is the best of what was tried: what is expected best has to be among it."""
    regrets = {"ours": [], "random": []}
    for seed in range(8):
        rng = np.random.default_rng(seed)
        best_lr, best_wd = rng.uniform(-12, -8), rng.uniform(-7, -1)

        def excess(lr, wd, best_lr=best_lr, best_wd=best_wd):
            return 0.01 * (math.log2(lr) - best_lr) ** 2 + 0.003 * (math.log2(wd) - best_wd) ** 2

        def objective(trial, rng=rng, excess=excess):
            return 2 * math.exp(excess(*settings(trial)) + 0.001 * rng.standard_normal())

        samplers = {"ours": make_sampler(), "random": optuna.samplers.RandomSampler(seed=seed)}
        for name, sampler in samplers.items():
            regrets[name].append(excess(*optimize(sampler, 12, objective).best_params.values()))
    assert np.mean(regrets["ours"]) < 0.002  # a quarter of an octave off costs .0008
    assert np.mean(regrets["ours"]) < np.mean(regrets["random"]) / 2


@pytest.mark.parametrize("convention", ["coupled", "independent"])
def test_the_recommendation_of_all_trials_is_in_the_users_own_meaning_of_weight_decay(convention):
    sampler = IsotuneSampler(weight_decay_convention=convention)
    with pytest.raises(InputError, match="run some first"):
        sampler.recommendation(optuna.create_study(sampler=sampler))

    def objective(trial):
        lr = trial.suggest_float("learning_rate", 2.0**-13, 2.0**-6, log=True)
        if convention == "coupled":
            return bowl(lr, trial.suggest_float("weight_decay", 2.0**-8, 1.0, log=True))
        return bowl(lr, trial.suggest_float("weight_decay", 2.0**-17, 2.0**-10, log=True) / lr)

    best = sampler.recommendation(optimize(sampler, 14, objective))
    assert abs(math.log2(best.learning_rate) + 9) <= 0.5
    assert abs(math.log2(best.weight_decay) - (-5 if convention == "coupled" else -14)) <= 1
    assert 0 <= best.regret <= best.regret_bound < 0.01


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


def pairs(study):
    return [tuple(trial.params.values()) for trial in study.trials]


def test_failures_above_all_that_finished_are_divergences():
    def objective(trial):
        lr, wd = settings(trial)
        if lr > 2.0**-9:
            raise RuntimeError("diverged")
        return bowl(lr, wd, best_lr=2.0**-10)

    study = optimize(make_sampler(), 16, objective)
    failed = [trial.params["learning_rate"] for trial in study.trials if trial.state == optuna.trial.TrialState.FAIL]
    assert failed[1:] == sorted(failed[1:], reverse=True), "from the second on each failure lowers the highest LR"
    assert study.best_value < 2 * 1.02


@pytest.mark.parametrize("num_failed", [1, 2, 3, 5, 10])
def test_failures_for_a_time_do_not_close_the_range(num_failed, caplog):
    """A full disk at the beginning: as soon as others have a loss, LRs that failed are tried again."""

    def objective(trial):
        lr, wd = settings(trial)
        if trial.number < num_failed:
            raise RuntimeError("disk full")
        return bowl(lr, wd, best_lr=2.0**-8)

    study = optimize(make_sampler(), num_failed + 20, objective)
    assert study.best_value < 2 * 1.02
    assert len(set(pairs(study))) == num_failed + 20, "while others are left no setting is asked for twice"
    if num_failed == 2:
        assert "failed where none has a loss" in caplog.text


def test_what_always_fails_above_is_tried_more_and_more_rarely():
    def objective(trial):
        lr, wd = settings(trial)
        if lr > 2.0**-9.2:
            raise RuntimeError("diverged")
        return bowl(lr, wd, best_lr=2.0**-8)

    study = optimize(make_sampler(), 40, objective)
    failed = [trial.number for trial in study.trials if trial.state == optuna.trial.TrialState.FAIL]
    assert len([number for number in failed if number >= 20]) <= len([number for number in failed if number < 20])
    assert len(failed) <= 12
    assert study.best_trial.params["learning_rate"] > 2.0**-10.1


def test_when_all_was_tried_what_failed_is_tried_once_more_and_then_the_best():
    def objective(trial):
        lr = trial.suggest_float("learning_rate", 2.0**-10, 2.0**-6, log=True)
        wd = trial.suggest_float("weight_decay", 0.0, 0.0)
        if lr > 2.0**-8.5:
            raise RuntimeError("diverged")
        return 2 + 0.1 * (math.log2(lr) + 9) ** 2 + wd

    study = optimize(IsotuneSampler(weight_decay_convention="coupled", octaves=1.0, seed=0), 20, objective)
    rates = [round(math.log2(trial.params["learning_rate"]), 3) for trial in study.trials]
    assert all(rates.count(rate) <= 2 for rate in (-8, -7, -6))
    assert rates[-1] == -9.0 and rates.count(-9.0) >= 12


@pytest.mark.parametrize(
    "fails", [lambda lr, wd: wd > 2.0**-4, lambda lr, wd: wd < 2.0**-5, lambda lr, wd: lr < 2.0**-10]
)
def test_an_end_where_all_fails_is_left_out_for_a_time(fails):
    """High WDs, low ones, or low LRs: other trials there are not better for having failed."""

    def objective(trial):
        lr, wd = settings(trial)
        if fails(lr, wd):
            raise RuntimeError("no")
        return bowl(lr, wd)

    study = optimize(make_sampler(), 30, objective)
    failed = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.FAIL]
    assert 1 <= len(failed) <= 12
    assert len(set(pairs(study))) == 30
    good = [bowl(2.0**lr, 2.0**wd) for lr in range(-13, -5) for wd in range(-8, 1) if not fails(2.0**lr, 2.0**wd)]
    assert study.best_value < 1.03 * min(good)


def test_what_is_recommended_has_not_failed_whenever_it_is_asked():
    sampler = make_sampler()
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        lr, wd = settings(trial)
        if lr > 2.0**-9.2:
            raise RuntimeError("diverged")
        return bowl(lr, wd, best_lr=2.0**-8)

    too_high = 0
    for _ in range(30):
        study.optimize(objective, n_trials=1, catch=(RuntimeError,))
        if any(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials[:-4]):
            too_high += sampler.recommendation(study).learning_rate > 2.0**-9.2
    assert not too_high


def test_where_low_learning_rates_fail_as_often_the_rate_is_not_the_reason():
    failing = Tried(2.0**-7, 0.1, None, has_failed=True)
    finished = [Tried(2.0**-10, 0.1, 2.0), Tried(2.0**-9, 0.1, 2.1)]
    assert [math.isnan(one.loss or 0) for one in _with_divergences([*finished, failing, failing])] == [0, 0, 1, 1]
    below = Tried(2.0**-10, 0.2, None, has_failed=True)
    tried = [*finished, below, below, failing, failing]
    assert _with_divergences(tried) == tried


def test_where_all_trials_fail_no_setting_is_asked_for_twice():
    def objective(trial):
        settings(trial)
        raise RuntimeError("no device")

    study = optimize(make_sampler(), 25, objective)
    assert len(set(pairs(study))) == 25


def test_one_failure_costs_its_own_cell_alone():
    def objective(trial):
        lr, wd = settings(trial)
        if trial.number == 0:
            raise RuntimeError("disk full")
        return bowl(lr, wd, best_lr=2.0**-7)

    study = optimize(make_sampler(), 12, objective)
    assert study.best_trial.params["learning_rate"] > 2 * study.trials[0].params["learning_rate"]
    assert len(set(pairs(study))) == 12


def test_a_cell_that_failed_is_asked_again_when_nothing_else_is_left():
    def objective(trial):
        lr = trial.suggest_float("learning_rate", 2.0**-10, 2.0**-8)
        trial.suggest_float("weight_decay", 0.1, 0.1)
        if trial.number == 2:
            raise RuntimeError("disk full")
        return bowl(lr, 0.1)

    sampler = IsotuneSampler(weight_decay_convention="coupled", octaves=1.0, seed=0)
    tried = pairs(optimize(sampler, 4, objective))
    assert len(set(tried)) == 3 and tried[3] == tried[2], "of three cells the first trial takes the middle"


def test_a_cell_whose_weight_decay_was_never_asked_for_is_asked_again_when_nothing_else_is_left():
    def objective(trial):
        lr = trial.suggest_float("learning_rate", 2.0**-10, 2.0**-8)
        if trial.number != 2:
            trial.suggest_float("weight_decay", 0.1, 0.1)
        return bowl(lr, 0.1)

    sampler = IsotuneSampler(weight_decay_convention="coupled", octaves=1.0, seed=0)
    rates = [trial.params["learning_rate"] for trial in optimize(sampler, 4, objective).trials]
    assert len(set(rates)) == 3 and rates[3] == rates[2], "of three cells the first trial takes the middle"


@pytest.mark.parametrize("outlier", [5.0, 1e6])
def test_a_loss_far_above_others_that_are_below_zero_blinds_nobody(outlier):
    """Above a cliff in LR: as bad as a divergence, however bad it is. The means are over places of the optimum."""

    def excess(seed):
        best_lr, best_wd = np.random.default_rng(seed).uniform((-12.5, -6.0), (-9.5, 0.0))

        def objective(trial):
            lr, wd = (math.log2(value) for value in settings(trial))
            if lr > -9:
                return outlier
            return -3 + 2 * math.exp(0.02 * (lr - best_lr) ** 2 + 0.01 * (wd - best_wd) ** 2)

        return optimize(make_sampler(), 16, objective).best_value + 1

    assert np.mean([excess(seed) for seed in range(6)]) < 0.02, "it was .028 where the outlier set the scale"


def test_nan_counts_as_diverged():
    study = optimize(make_sampler(), 10, lambda trial: math.nan if settings(trial)[0] > 2.0**-10 else 2.0)
    assert sum(trial.state == optuna.trial.TrialState.FAIL for trial in study.trials) <= 4


@pytest.mark.parametrize("end", ["fails", "is pruned"])
def test_a_last_report_that_is_not_finite_is_a_divergence_at_once(end):
    def objective(trial):
        settings(trial)
        trial.report(math.nan, 1)
        raise RuntimeError if end == "fails" else optuna.TrialPruned

    first, second = pairs(optimize(make_sampler(), 2, objective))
    assert second[0] < first[0]


def test_pruned_trials_are_not_asked_for_again_and_teach_where_not_to_go():
    def objective(trial):
        loss = bowl(*settings(trial))
        for step, above in enumerate((2.0, 1.5, 1.2)):
            trial.report(above * loss, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=0)
    study = optuna.create_study(sampler=make_sampler(), pruner=pruner)
    study.optimize(objective, n_trials=14)
    assert sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials) > 3
    assert len(set(pairs(study))) == 14
    assert study.best_value < 2 * 1.02


def test_a_pruner_that_stops_nearly_all_does_not_keep_it_from_the_best():
    regrets = []
    for octaves in (-11.0, -9.3, -7.7):

        def loss(trial, best=octaves):
            lr = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
            wd = trial.suggest_float("weight_decay", 0.003, 1.0, log=True)
            end = 2.5 * math.exp(0.012 * (math.log2(lr) - best) ** 2 + 0.002 * (math.log2(wd) + 4) ** 2)
            for step in range(1, 5):
                trial.report(end * (1 + 1 / step), step)
                if trial.should_prune():
                    raise optuna.TrialPruned
            return end

        sampler = IsotuneSampler(weight_decay_convention="coupled", tokens=100_000_000, tokens_per_step=65_536, seed=0)
        study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.SuccessiveHalvingPruner())
        study.optimize(loss, n_trials=20)
        regrets.append(study.best_value / 2.5 - 1)
    assert np.mean(regrets) < 0.0035, regrets


def test_pruned_trials_that_reported_nothing_are_not_asked_for_again():
    def objective(trial):
        loss = bowl(*settings(trial))
        if trial.number > 1:
            raise optuna.TrialPruned
        return loss

    assert len(set(pairs(optimize(make_sampler(), 5, objective)))) == 5


@pytest.mark.parametrize("fixed_decay", [0.1, 0.0])
def test_with_a_fixed_weight_decay_the_learning_rate_is_tuned(fixed_decay):
    def objective(trial):
        lr = trial.suggest_float("learning_rate", 2.0**-13, 2.0**-6, log=True)
        trial.suggest_float("weight_decay", fixed_decay, fixed_decay)
        return bowl(lr, 0.1, best_elr=0.1 * lr)

    study = optimize(make_sampler(), 7, objective)
    assert len(set(pairs(study))) == 7
    assert study.best_value < 2 * 1.005
    best = make_sampler().recommendation(study)
    assert best.weight_decay == pytest.approx(fixed_decay) and abs(math.log2(best.learning_rate) + 9) <= 0.5
    steps = [2 * (math.log2(trial.params["learning_rate"]) + 13) for trial in study.trials[1:]]
    assert np.allclose(steps, np.round(steps)), "a half-octave lattice, so LR came from the tuner"


def test_with_a_fixed_learning_rate_the_weight_decay_is_tuned():
    def objective(trial):
        lr = trial.suggest_float("learning_rate", 2.0**-9, 2.0**-9)
        return bowl(lr, trial.suggest_float("weight_decay", 2.0**-8, 1.0, log=True))

    study = optimize(make_sampler(), 7, objective)
    assert len(set(pairs(study))) == 7
    assert study.best_value < 2 * 1.005
    assert make_sampler().recommendation(study).learning_rate == 2.0**-9


def lr_alone(trial):
    return trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True), 0.1


def decay_of_a_list(trial):
    return trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True), trial.suggest_categorical("weight_decay", [0.1])


def rate_of_a_list(trial):
    return trial.suggest_categorical("learning_rate", [0.1]), trial.suggest_float("weight_decay", 0.01, 1.0)


def steps(trial):
    return trial.suggest_float("learning_rate", 0.0, 1.0, step=1e-3), trial.suggest_float("weight_decay", 0.1, 0.2)


@pytest.mark.parametrize("suggest", [lr_alone, decay_of_a_list, rate_of_a_list, steps])
def test_what_cannot_be_tuned_is_the_inner_samplers_and_said_once(suggest, caplog):
    study = optimize(make_sampler(), 8, lambda trial: sum(suggest(trial)))
    assert len(set(pairs(study))) == 8
    assert sum("TPESampler chooses them" in record.message for record in caplog.records) == 1


def test_trials_that_run_at_once_all_differ():
    together = threading.Barrier(4, timeout=120)

    def objective(trial):
        loss = bowl(*settings(trial))
        together.wait()
        return loss

    sampler = IsotuneSampler(weight_decay_convention="coupled", octaves=1.0, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=8, n_jobs=4)
    assert len(set(pairs(study))) == 8


@pytest.mark.parametrize("lr_is_fixed", [False, True])
def test_trials_that_begin_at_once_begin_at_different_places(lr_is_fixed):
    study = optuna.create_study(sampler=make_sampler())
    trials = [study.ask() for _ in range(4)]
    highest = 2.0**-13 if lr_is_fixed else 2.0**-6
    rates = [trial.suggest_float("learning_rate", 2.0**-13, highest, log=True) for trial in trials]
    decays = [trial.suggest_float("weight_decay", 2.0**-8, 1.0, log=True) for trial in trials]
    assert len(set(zip(rates, decays, strict=True))) == 4


def test_processes_that_share_a_storage_see_what_others_were_given(tmp_path):
    def open_storage():
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "trials")))

    optuna.create_study(study_name="shared", storage=open_storage()).add_trial(
        optuna.create_trial(
            params={"learning_rate": 2.0**-9, "weight_decay": 0.1},
            distributions={
                "learning_rate": optuna.distributions.FloatDistribution(2.0**-13, 2.0**-6, log=True),
                "weight_decay": optuna.distributions.FloatDistribution(2.0**-8, 1.0, log=True),
            },
            value=2.0,
        )
    )
    given = []
    for _ in range(3):
        study = optuna.load_study(study_name="shared", storage=open_storage(), sampler=make_sampler())
        trial = study.ask()
        trial.suggest_float("learning_rate", 2.0**-13, 2.0**-6, log=True)  # and not yet its WD
        given.append(tuple(trial.relative_params.values()))
    assert len(set(given)) == 3


def two_that_ask_at_once(monkeypatch, after_first):
    """A study, its ranges, and two samplers and trials as of two processes; what each is first proposed goes through
    `after_first(number)` before it is noted."""
    monkeypatch.setattr(optuna_sampler, "_ONE_AT_A_TIME", contextlib.nullcontext())
    study = optimize(make_sampler(), 2, lambda trial: bowl(*settings(trial)))
    space = study.trials[0].distributions
    storage = study._storage
    trials = [storage.get_trial(storage.create_new_trial(study._study_id)) for _ in range(2)]
    proposed = []

    def sampler_of(number):
        sampler, has_asked = make_sampler(), []

        def propose(self, *arguments):
            found = Proposals.next(self, *arguments)
            if not has_asked:
                has_asked.append(True)
                proposed.append(found)
                after_first(number)
            return found

        kind = type("Slow", (Proposals,), {"next": propose})
        sampler._proposals = kind(weight_decay_convention="coupled")
        return sampler

    samplers = [sampler_of(number) for number in range(2)]

    def ask(number):
        return tuple(samplers[number].sample_relative(study, trials[number], space).values())

    return ask, proposed, study, trials


@pytest.mark.parametrize("slow", [0, 1])
def test_a_process_gives_way_to_one_that_was_faster(monkeypatch, slow):
    found = {}

    def after_first(number):
        if number == slow:  # has its proposal, and has not noted it: the other one asks and is answered
            found[1 - slow] = ask(1 - slow)

    ask, proposed, *_ = two_that_ask_at_once(monkeypatch, after_first)
    found[slow] = ask(slow)
    assert proposed[0] == proposed[1] == found[1 - slow] != found[slow]


def test_processes_that_ask_at_once_are_given_different_settings(monkeypatch):
    both = threading.Barrier(2, timeout=60)
    ask, proposed, *_ = two_that_ask_at_once(monkeypatch, lambda number: both.wait())
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(ask, range(2)))
    assert proposed[0] == proposed[1] in found and len(set(found)) == 2


def test_a_process_that_died_before_it_kept_its_setting_is_not_waited_for_for_long(monkeypatch):
    monkeypatch.setattr(optuna_sampler, "PATIENCE_SECONDS", 0.2)

    def after_first(number):
        if number == 0:
            note = [*proposed[0], False]
            study._storage.set_trial_system_attr(trials[1]._trial_id, optuna_sampler.GIVEN, note)

    ask, proposed, study, trials = two_that_ask_at_once(monkeypatch, after_first)
    assert ask(0) == proposed[0]


def test_the_brackets_of_hyperband_know_of_each_other():
    def objective(trial):
        loss = bowl(*settings(trial))
        for step in range(9):
            trial.report(loss * (1 + 1 / (step + 1)), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9)
    study = optuna.create_study(sampler=make_sampler(), pruner=pruner)
    study.optimize(objective, n_trials=20)
    brackets = {pruner._get_bracket_id(study, trial) for trial in study.trials}
    assert len(brackets) > 1 and len(set(pairs(study))) == 20


def test_where_no_trial_has_a_loss_nothing_is_recommended():
    def fail(trial):
        settings(trial)
        raise RuntimeError

    study = optimize(make_sampler(), 3, fail)
    with pytest.raises(InputError, match="no trial has a loss"):
        study.sampler.recommendation(study)


def test_the_sampler_can_be_pickled():
    study = optimize(make_sampler(), 2, lambda trial: bowl(*settings(trial)))
    copy = optuna.create_study(sampler=pickle.loads(pickle.dumps(study.sampler)))
    copy.add_trials(study.trials)
    for one in (study, copy):
        one.optimize(lambda trial: bowl(*settings(trial)), n_trials=1)
    assert pairs(study) == pairs(copy)


def test_with_a_parameter_that_another_sampler_fixes_the_inner_one_chooses_and_it_is_said(caplog):
    study = optimize(make_sampler(), 1, lambda trial: bowl(*settings(trial)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.sampler = optuna.samplers.PartialFixedSampler({"weight_decay": 0.1}, study.sampler)
    study.optimize(lambda trial: bowl(*settings(trial)), n_trials=4)
    assert len(set(pairs(study))) == 5
    assert sum("TPESampler chooses them" in record.message for record in caplog.records) == 1


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


@pytest.mark.parametrize("convention", ["coupled", "independent"])
def test_ranges_need_not_be_powers_of_two(convention):
    def objective(trial):
        lr = trial.suggest_float("learning_rate", 1.7e-5, 1.1e-2, log=True)
        wd = trial.suggest_float("weight_decay", 1e-3, 0.97, log=True)
        return 2 * math.exp(0.01 * math.log2(lr / 3e-4) ** 2 + 0.003 * math.log2(wd / 0.02) ** 2)

    sampler = IsotuneSampler(weight_decay_convention=convention, tokens=10**8, tokens_per_step=65536)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=12)
    assert study.best_value < 2.2
