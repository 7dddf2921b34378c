"""Advice: the planted law at budgets that were not measured, and refusals that say what to do."""

import ast
import re

import numpy as np
import pytest
from made_sweeps import BUDGETS, best_settings, decay_off, drifting_optimum, run, with_info
from synthetic import TOKENS_PER_STEP, WIDE_LR, WIDE_WD

from isotune.analyze.advice import advise, paste_in
from isotune.analyze.diagnosis import diagnose
from isotune.analyze.scaling import fit_laws
from isotune.errors import InputError
from isotune.recipe import format_tokens
from isotune.recipe.quantities import format_number
from isotune.report.words import law_sentences


@pytest.fixture(scope="module")
def diagnoses():
    return diagnose(drifting_optimum(np.random.default_rng(0), num_parameters=133_440))


@pytest.fixture(scope="module")
def advice(diagnoses):
    return advise(diagnoses, tokens=4 * BUDGETS[-1])


def test_at_four_times_the_tokens_the_planted_law_is_inside_the_intervals(advice):
    lr, wd, loss = best_settings(4 * BUDGETS[-1])
    for setting, truth in (
        (advice.learning_rate, lr),
        (advice.weight_decay, wd),
        (advice.effective_learning_rate, lr * wd),
        (advice.expected_loss, loss),
    ):
        assert setting.low <= truth <= setting.high
        assert setting.value == pytest.approx(truth, rel=0.1)
        assert setting.high / setting.low < 2
    assert advice.extrapolation_factor == pytest.approx(4)
    assert "laws of 5 budgets" in advice.basis


def test_a_budget_that_was_measured_is_answered_by_its_own_minimum(diagnoses):
    advice = advise(diagnoses, tokens=BUDGETS[2])
    lr, wd, loss = best_settings(BUDGETS[2])
    assert advice.learning_rate.value == pytest.approx(lr, rel=0.03)
    assert advice.weight_decay.value == pytest.approx(wd, rel=0.05)
    assert advice.expected_loss.value == pytest.approx(loss, abs=1e-3)
    assert advice.extrapolation_factor == 1
    assert "which was measured" in advice.basis


def test_between_two_budgets_the_law_is_used_without_extrapolating(diagnoses):
    tokens = int(BUDGETS[2] * 1.4)
    advice = advise(diagnoses, tokens=tokens)
    assert advice.learning_rate.value == pytest.approx(best_settings(tokens)[0], rel=0.05)
    assert advice.extrapolation_factor == 1


def test_n_at_the_end_is_the_sum_of_lr_times_wd(advice):
    steps = 4 * BUDGETS[-1] / TOKENS_PER_STEP
    assert advice.memory_times == pytest.approx(advice.learning_rate.value * advice.weight_decay.value * steps)


def bowl_in_lr(rng, tokens):
    """Runs in which LR decides at every n; WD has a minimum, and little to say."""

    def one(lr, wd):
        x, y, noise = np.log2(lr) + 8.4, np.log2(wd) + 2.1, 5e-4 * rng.standard_normal()
        return run(lr, wd, tokens, loss=lambda at: 2 + 8 * (at + 1e3) ** -0.3 + 0.05 * x**2 + 0.0012 * y**2 + noise)

    return [one(2.0**x, 2.0**y) for x in range(-11, -5) for y in range(-5, 2)]


def test_what_the_runs_show_stands_before_a_shift_that_was_measured_on_others():
    tokens = 120 * 61_440
    found = advise(diagnose(bowl_in_lr(np.random.default_rng(1), tokens)), tokens=tokens)
    assert found.memory_times > 4, "where the shift of other runs says that ELR decides"
    assert found.forecast.direction == "LR"
    assert found.forecast.degrees == pytest.approx(0, abs=3)
    assert "where n > 3 these runs are alike at equal LR" in found.forecast.reason
    assert "does not hold here" in found.forecast.reason and "agree" not in found.forecast.reason


def test_the_three_settings_agree_with_each_other(advice):
    assert advice.effective_learning_rate.value == pytest.approx(
        advice.learning_rate.value * advice.weight_decay.value, rel=1e-12
    )


def test_rules_of_thumb_stand_beside_it_and_their_disagreement_is_one_sentence(advice):
    assert {rule.name for rule in advice.rules} >= {"Step Law", "Bjorck et al.", "Wang and Aitchison"}
    assert sum("rules of thumb" in warning for warning in advice.warnings) <= 1


# What is pasted


def numbers(line):
    return {name: float(value) for name, value in re.findall(r"(\w+)=([-+.e\d]+)", line)}


@pytest.mark.parametrize(("learning_rate", "weight_decay"), [(0.001, 0.1), (7.7314159e-4, 9.68271828e-3), (2**-9, 3.3)])
def test_the_independent_line_trains_as_the_coupled_one_does(learning_rate, weight_decay):
    """Ten steps of both updates under a falling LR, from the lines alone."""
    lines = paste_in(learning_rate, weight_decay)
    coupled, independent = numbers(lines["torch"]), numbers(lines["independent"])
    w = v = 1.0
    for share in np.linspace(1, 0, 10):
        lr = coupled["lr"] * share
        w = w * (1 - lr * coupled["weight_decay"]) - lr * 0.5
        lr = independent["lr"] * share
        v = v * (1 - independent["weight_decay"] * lr / independent["lr"]) - lr * 0.5
    assert v == pytest.approx(w, rel=1e-9)


def test_the_torch_line_is_a_call_of_adamw():
    call = ast.parse(paste_in(0.001, 0.1)["torch"], mode="eval").body
    assert ast.unparse(call.func) == "torch.optim.AdamW"
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == {
        "lr": 0.001,
        "weight_decay": 0.1,
        "betas": (0.9, 0.95),
    }


def test_runs_with_independent_weight_decay_are_advised_in_their_own_words():
    runs = drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:1])
    independent = [
        with_info(
            one,
            weight_decay_convention="independent",
            weight_decay=one.info.weight_decay * one.info.learning_rate,
        )
        for one in runs
    ]
    for one in independent:
        del one.columns["weight_decay"]
    coupled, same = (advise(diagnose(each), tokens=BUDGETS[0]) for each in (runs, independent))
    assert same.weight_decay_convention == "independent"
    assert same.effective_learning_rate.value == pytest.approx(coupled.effective_learning_rate.value, rel=1e-6)
    assert same.weight_decay.value == pytest.approx(coupled.weight_decay.value, rel=1e-6)
    with pytest.raises(InputError) as refusal:
        advise(diagnose(independent), tokens=8 * BUDGETS[0])
    told = float(re.search(r"the best is LR .*?, WD ([-.e\d]+);", str(refusal.value))[1])
    assert told == pytest.approx(same.effective_learning_rate.value, rel=1e-3)


# Refusals


def refused(diagnoses, *words, **question):
    with pytest.raises(InputError) as refusal:
        advise(diagnoses, **question)
    for word in words:
        assert word in str(refusal.value), str(refusal.value)


def test_another_model_size_is_refused(diagnoses):
    refused(diagnoses, "133K parameters", "1B", "train a sweep at that size", tokens="1M", num_parameters="1B")
    assert advise(diagnoses, tokens=BUDGETS[0], num_parameters=133_000).tokens == BUDGETS[0]


def test_of_several_model_sizes_the_one_that_is_asked_for_answers(diagnoses):
    larger = [with_info(one, num_parameters=9_000_000) for one in drifting_optimum(np.random.default_rng(1))]
    both = [*diagnoses, *diagnose(larger)]
    assert advise(both, tokens=BUDGETS[0], num_parameters="133K").learning_rate.value > 0
    assert advise(both, tokens=BUDGETS[0], num_parameters="9M").learning_rate.value > 0
    refused(both, "133K or 9M parameters", tokens=BUDGETS[0], num_parameters="1B")


def test_what_is_as_good_is_told_around_the_advised_settings(diagnoses):
    measured = advise(diagnoses, tokens=BUDGETS[1])
    assert measured.flat_set.startswith(f"at {format_tokens(BUDGETS[1])} tokens any (LR, WD) of the grid")
    for asked, nearest in ((int(BUDGETS[0] * 1.3), BUDGETS[0]), (8 * BUDGETS[-1], BUDGETS[-1])):
        advice = advise(diagnoses, tokens=asked)
        assert advice.flat_set.startswith(f"if it is as flat as at {format_tokens(nearest)} tokens, any (LR, WD) with")
        low, high = map(float, re.search(r"LR in \[2\^(\S+), 2\^(\S+)\]", advice.flat_set).groups())
        assert low < np.log2(advice.learning_rate.value) < high
        assert high - low == pytest.approx(width_of_flat_set(advise(diagnoses, tokens=nearest)), abs=0.02)


def width_of_flat_set(advice):
    low, high = map(float, re.search(r"LR in \[2\^(\S+), 2\^(\S+)\]", advice.flat_set).groups())
    return high - low


def test_users_of_independent_weight_decay_are_told_their_own(diagnoses):
    """The same sweep, written down by users whose WD is LR * WD: all words and the advice mean theirs."""
    runs = drifting_optimum(np.random.default_rng(0))
    theirs = [
        with_info(
            one, weight_decay=one.info.learning_rate * one.info.weight_decay, weight_decay_convention="independent"
        )
        for one in runs
    ]
    ours, (independent,) = diagnose(runs)[0], diagnose(theirs)
    best = ours.surfaces[-1].surface
    elr, wd = 2.0**best.minimum_log2_effective_learning_rate, 2.0**best.minimum_log2_weight_decay
    assert f"WD {format_number(wd)}, loss" in ours.evidence[-1]
    assert f"WD {format_number(elr)}, loss" in independent.evidence[-1]
    assert re.search(r"WD in \[", advise([ours], tokens=BUDGETS[-1]).flat_set)
    assert re.search(r"WD / LR in \[", advise([independent], tokens=BUDGETS[-1]).flat_set)
    words = " ".join(law_sentences(fit_laws(independent)))
    assert "best WD / LR against tokens" in words and "ELR against tokens" not in words


def test_the_square_root_rule_is_not_judged_across_model_sizes():
    small = drifting_optimum(np.random.default_rng(0), num_parameters=1_000_000)
    batch = small[0].info.batch_size
    for size, is_judged in ((1_000_000, True), (8_000_000, False)):
        large = drifting_optimum(np.random.default_rng(1), num_parameters=size, batch_size=4 * batch)
        advice = advise(diagnose(small + large), tokens=BUDGETS[-1], batch_size=batch, num_parameters=1_000_000)
        assert (advice.square_root is not None) == is_judged


def test_a_budget_far_below_those_measured_is_told_as_a_part_of_them(diagnoses):
    with pytest.raises(InputError, match=r"100 tokens are 1/\S+ of what was measured"):
        advise(diagnoses, tokens=100)


def test_a_model_size_is_refused_where_that_of_the_runs_is_unknown():
    diagnoses = diagnose(drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:1]))
    refused(diagnoses, "is unknown", "num_parameters", tokens="1M", num_parameters="1B")


def test_another_batch_size_is_refused(diagnoses):
    refused(diagnoses, "batch size 64", "only 4", "add runs at 64", tokens="1M", batch_size=64)


def test_another_family_is_refused_with_the_names_that_there_are(diagnoses):
    refused(diagnoses, "'batch 8'", "'batch 4' (54 cells)", tokens="1M", family="batch 8")


def test_too_far_is_refused(diagnoses):
    halfway = f"such as {format_tokens(100 * BUDGETS[-1])} tokens"  # between the largest budget and the one asked for
    refused(diagnoses, "times what was measured", "too far", halfway, tokens=10_000 * BUDGETS[-1])


def test_two_budgets_do_not_reach_a_third():
    diagnoses = diagnose(drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:2]))
    refused(diagnoses, "takes 3 budgets", "there are 2", "at 655K tokens the best is LR", tokens=BUDGETS[4])


def test_a_minimum_outside_the_grid_is_refused_with_the_run_to_add():
    runs = drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:3], lr=WIDE_LR[:2], wd=WIDE_WD)
    refused(diagnose(runs), "nothing can be advised yet", "the run to add is LR", tokens=BUDGETS[0])


def test_runs_that_never_ended_together_are_refused():
    diagnoses = diagnose([run(2**-9, 2**-4, 614_400), run(2**-8, 2**-3, 1_228_800)])
    refused(diagnoses, "no two finished runs", "the run to add is", tokens="1M")


@pytest.mark.parametrize("tokens", [0, "0", -5, "many"])
def test_a_budget_that_is_none_is_refused(diagnoses, tokens):
    refused(diagnoses, "tokens=", tokens=tokens)


# Which family


def test_the_family_with_a_minimum_is_asked_first():
    """Six cells at batch 64 whose minimum is not bounded, more than those at batch 4."""
    good = drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:1])
    trunks = [run(2.0**x, 2.0**y, batch_size=64) for x in range(-14, -6) for y in range(-8, 0)]
    bad = [decay_off(one, BUDGETS[0], 3 - np.log2(one.info.learning_rate) * 0.01) for one in trunks]
    advice = advise(diagnose([*good, *trunks, *bad]), tokens=BUDGETS[0])
    assert advice.batch_size == 4


def test_an_unknown_batch_size_is_said_to_be_unknown():
    runs = drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:1], batch_size="unknown")
    advice = advise(diagnose(runs), tokens=BUDGETS[0])
    assert advice.batch_size == "unknown"
    assert any("batch size or sequence length is unknown" in warning for warning in advice.warnings)
