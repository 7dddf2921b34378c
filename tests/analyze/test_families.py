"""Which runs are compared with which, and what they ended with."""

import numpy as np
import pytest
from made_sweeps import DECAY, cosine, decay_off, run, with_info, without
from synthetic import EVERY_TOKENS, trajectory

from isotune.analyze.families import cells_of, make_families
from isotune.errors import InputError
from isotune.runs.trajectory import Trajectory

BUDGETS = tuple(EVERY_TOKENS * k for k in range(3, 13))


def only(runs, **options):
    families = make_families(runs, **options)
    assert len(families) == 1, [family.name for family in families]
    return families[0]


# Curves


@pytest.mark.parametrize("seed", [0, "unknown"])
def test_ten_decays_off_a_trunk_are_one_curve_and_ten_budgets(seed):
    trunk = run(2**-9, 0.1, seed=seed)
    family = only([trunk, *(decay_off(trunk, end, 2.0 - 0.01 * k) for k, end in enumerate(BUDGETS))])
    assert len(family.curves) == 1
    assert family.curves[0].tokens[-1] == trunk.tokens[-1]
    assert tuple(budget.tokens for budget in family.budgets) == BUDGETS
    assert [budget.ends[0].loss for budget in family.budgets] == pytest.approx([2.0 - 0.01 * k for k in range(10)])
    assert {budget.decay_tokens for budget in family.budgets} == {DECAY}


def test_without_the_trunk_the_longest_decay_up_to_its_fall_is_the_curve():
    trunk = run(2**-9, 0.1)
    family = only([decay_off(trunk, end, 2.0) for end in BUDGETS])
    (curve,) = family.curves
    assert BUDGETS[-1] - DECAY - EVERY_TOKENS < curve.tokens[-1] <= BUDGETS[-1] - DECAY
    assert np.nanmax(curve.columns["learning_rate"]) == curve.columns["learning_rate"][-1]


def test_runs_of_unknown_seed_that_begin_differently_are_different_runs():
    one, other = (run(2**-9, 0.1, seed="unknown", loss=lambda tokens, k=k: 2.0 + k + 0 * tokens) for k in (0, 1))
    assert len(only([one, other, one]).curves) == 2


def test_seeds_are_curves_of_one_cell_and_a_cell_is_their_mean():
    family = only([run(2**-9, 0.1, seed=k, loss=lambda tokens, k=k: 2.0 + k + 0 * tokens) for k in range(3)])
    assert (family.num_cells, len(family.curves)) == (1, 3)
    cells = family.budgets[-1].cells()
    assert (cells.value.tolist(), cells.num_runs.tolist()) == ([3.0], [3.0])


def test_the_same_run_twice_counts_once():
    trunk = run(2**-9, 0.1)
    family = only([trunk, trunk, decay_off(trunk, BUDGETS[0], 2.0), decay_off(trunk, BUDGETS[0], 2.0)])
    assert len(family.curves) == 1
    assert family.budgets[0].cells().num_runs.tolist() == [1.0]
    assert "2 runs are there twice, with the same values: counted once" in family.warnings
    thrice = only([trunk] * 3)
    assert "1 run is there more than once, with the same values: counted once" in thrice.warnings
    other_seed = with_info(trunk, seed=1)
    assert not any("the same values" in warning for warning in only([trunk, other_seed]).warnings)


def test_two_runs_of_one_cell_and_seed_with_other_losses_are_told():
    runs = [run(2**-9, 0.1), run(2**-9, 0.2)]
    others = [Trajectory(one.columns | {"val_loss": one.columns["val_loss"] * 1.1}, one.info) for one in runs]
    family = only(runs + others)
    assert len(family.curves) == 2
    assert any("2 curves have the LR, WD and seed of another one" in warning for warning in family.warnings)
    assert not any("of another one" in warning for warning in only(runs + runs).warnings)


def test_two_different_decays_off_one_trunk_are_two_ends_of_one_cell():
    trunk = run(2**-9, 0.1)
    family = only([trunk, decay_off(trunk, BUDGETS[0], 2.0), decay_off(trunk, BUDGETS[0], 2.2)])
    assert family.budgets[0].cells().value.tolist() == pytest.approx([2.1])


def test_settings_that_were_rounded_when_written_are_one_cell():
    as_float32 = float(np.float32(0.001))
    family = only([run(0.001, 0.1, seed=0), run(as_float32, float(f"{0.1 * (1 + 1e-5):.8g}"), seed=1)])
    assert family.num_cells == 1
    assert len(family.budgets[-1].cells().value) == 1


def test_settings_of_a_random_search_are_not_merged_because_they_lie_dense():
    rng = np.random.default_rng(0)
    lr, wd = 2.0 ** rng.uniform(-11, -7, 300), 2.0 ** rng.uniform(-6, 0, 300)
    one = run(1e-3, 0.1, 4 * EVERY_TOKENS)
    runs = [with_info(one, learning_rate=a, weight_decay=b) for a, b in zip(lr, wd, strict=True)]
    assert len(cells_of([run.info for run in runs], np.zeros(300)).value) == 300
    assert only(runs).num_cells == 300


def test_perturbed_twins_are_kept_apart():
    family = only([run(2**-9, 0.1), run(2**-9, 0.1, perturbation=1e-6)])
    assert (len(family.curves), len(family.twins)) == (1, 1)
    assert len(family.budgets[-1].ends) == 1


def test_independent_weight_decay_lies_where_the_coupled_run_of_equal_elr_does():
    coupled = run(2**-9, 2**-3)
    independent = with_info(run(2**-9, 2**-12), weight_decay_convention="independent")
    cells = cells_of([coupled.info, independent.info], np.array([1.0, 3.0]))
    assert cells.value.tolist() == [2.0]
    assert cells.log2_elr.tolist() == [-12.0]


def test_a_sweep_that_was_written_half_coupled_and_half_independent_has_each_cell_once():
    coupled = [run(lr, wd, seed=0) for lr in (1e-3, 3e-3) for wd in (0.1, 0.3)]
    independent = [
        with_info(run(lr, lr * wd, seed=1), weight_decay_convention="independent")
        for lr in (1e-3, 3e-3)
        for wd in (0.1, 0.3)
    ]
    family = only(coupled + independent)
    assert (family.num_cells, len(family.curves)) == (4, 8)
    assert family.weight_decay_convention == "coupled"
    assert sorted({round(one.info.weight_decay, 12) for one in family.curves}) == [0.1, 0.3]
    same_seed = [with_info(one, seed=0) for one in independent]
    assert len(only(coupled + same_seed).curves) == 4


def test_runs_that_are_all_independent_keep_their_own_words():
    family = only([with_info(run(1e-3, 1e-4), weight_decay_convention="independent")])
    assert family.weight_decay_convention == "independent"
    assert family.curves[0].info.weight_decay == pytest.approx(1e-4)


# Families


def test_setups_batch_sizes_histories_and_lengths_of_sequences_are_families_of_their_own():
    one = run(2**-9, 0.1)
    others = [{"setup": "micro"}, {"batch_size": 8}, {"history": "batch 2 until 640K"}, {"sequence_length": 128}]
    others += [{"num_parameters": 9_000_000}]
    families = make_families([one, *(with_info(one, **change) for change in others)])
    names = {family.name for family in families}
    assert len(families) == len(names) == 6
    assert any("9M parameters" in name for name in names)
    assert any("batch 4 after batch 2 until 640K" in name for name in names)


def test_cosine_runs_are_a_family_of_their_own_and_compared_at_one_length():
    short, long = 10 * EVERY_TOKENS, 20 * EVERY_TOKENS
    runs = [cosine(2.0**-k, 0.1, end) for k, end in ((8, short), (9, long), (10, long))]
    constant, falling = sorted(make_families([run(2**-9, 0.1), *runs]), key=lambda family: family.shape)
    assert (constant.shape, falling.shape) == ("constant", "falling")
    assert sorted(curve.tokens[-1] for curve in falling.curves) == [long, long]
    assert any("compared at one length" in warning and "1 other" in warning for warning in falling.warnings)
    assert [budget.tokens for budget in falling.budgets] == [short, long]


def test_a_run_without_a_known_schedule_says_how_to_give_one():
    family = only([without(run(2**-9, 0.1, decay_tokens="unknown"), "learning_rate")])
    assert family.shape == "unknown"
    assert any("decay_tokens" in warning and "learning_rate" in warning for warning in family.warnings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_decay": 0.0}, ["1 run left out", "weight_decay is 0", "logarithmic axis"]),
        ({"weight_decay_convention": "unknown"}, ["coupled", "independent", "--wd-convention"]),
        ({"learning_rate": "unknown"}, ["learning_rate is unknown", "--map learning_rate="]),
        ({"weight_decay": "unknown"}, ["weight_decay is unknown", "--set weight_decay="]),
    ],
)
def test_a_run_without_a_place_is_left_out_with_a_remedy(changes, words):
    family = only([run(2**-9, 0.1), run(2**-8, 0.1, **changes)])
    assert len(family.curves) == 1
    assert any(all(word in warning for word in words) for warning in family.warnings), family.warnings
    with pytest.raises(InputError, match="no run can be placed by its LR and WD") as refusal:
        make_families([run(2**-8, 0.1, **changes)])
    assert all(word in str(refusal.value) for word in words)


def test_nothing_at_all_is_refused():
    with pytest.raises(InputError, match="there are no runs"):
        make_families([])


def test_diverged_runs_are_remembered_and_have_neither_curve_nor_end():
    family = only([run(2**-9, 0.1), run(2**-5, 0.1, status="diverged")])
    assert [info.learning_rate for info in family.diverged] == [2**-5]
    assert family.num_cells == 1 and len(family.budgets[-1].ends) == 1


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_run_that_has_not_ended_has_a_curve_and_no_end(status):
    family = only([run(2**-9, 0.1), run(2**-8, 0.1, status=status)])
    assert family.num_cells == 2
    assert [len(budget.ends) for budget in family.budgets] == [1]


def test_of_a_run_that_was_stopped_in_its_decay_only_the_fall_is_cut_off():
    trunk = run(2**-9, 0.1)
    whole = decay_off(trunk, 12 * EVERY_TOKENS, 2.0, length=4 * EVERY_TOKENS, status="failed")
    early = Trajectory({name: values[:10] for name, values in whole.columns.items()}, whole.info)
    assert early.tokens[-1] < 9 * EVERY_TOKENS
    (curve,) = only([early]).curves
    assert curve.tokens[-1] == 8 * EVERY_TOKENS  # its planned decay is longer than what there is of it


# Budgets


def test_a_few_decays_do_not_hide_many_runs_that_ended_without():
    trunks = [run(2.0**-k, 0.1) for k in range(6, 12)]
    family = only([*trunks, decay_off(trunks[0], BUDGETS[0], 1.0)])
    (budget,) = family.budgets
    assert (budget.decay_tokens, len(budget.ends)) == (0, 6)


def test_trunks_that_end_where_decays_end_are_not_mixed_with_them():
    trunks = [run(2.0**-k, 0.1, BUDGETS[-1]) for k in range(6, 12)]
    family = only([*trunks, *(decay_off(trunk, BUDGETS[-1], 1.0) for trunk in trunks)])
    (budget,) = family.budgets
    assert budget.decay_tokens == DECAY
    assert budget.cells().value.tolist() == [1.0] * 6


def test_decays_of_an_unusual_length_are_left_out_of_their_budget_with_a_word():
    trunks = [run(2.0**-k, 0.1) for k in range(6, 10)]
    usual = [decay_off(trunk, BUDGETS[-1], 1.0) for trunk in trunks[:3]]
    odd = decay_off(trunks[3], BUDGETS[-1], 9.0, length=3 * DECAY)
    family = only([*trunks[:1], *usual, odd])
    assert [end.loss for end in family.budgets[0].ends] == [1.0, 1.0, 1.0]
    assert any("1 decays left out" in warning for warning in family.warnings)


def test_the_loss_on_many_windows_counts_where_a_run_ends_with_it():
    decayed = decay_off(run(2**-9, 0.1), BUDGETS[-1], 2.0)
    final = np.full(len(decayed.tokens), np.nan)
    final[-1] = 1.9
    (end,) = only([Trajectory(decayed.columns | {"final_val_loss": final}, decayed.info)]).budgets[0].ends
    assert (end.loss, end.curve_loss) == (1.9, 2.0)
    passed = Trajectory(run(2**-9, 0.1).columns | {"final_val_loss": np.full(21, np.nan)}, run(2**-9, 0.1).info)
    passed.columns["final_val_loss"][3] = 1.9
    assert only([passed]).budgets[0].ends[0].loss == passed.last("val_loss")


def test_a_decay_that_was_not_evaluated_at_its_end_has_no_budget():
    family = only([run(2**-9, 0.1), decay_off(run(2**-9, 0.1), BUDGETS[-1], np.nan)])
    assert [budget.decay_tokens for budget in family.budgets] == [0]
    assert any("1 run has no val_loss near the end" in warning for warning in family.warnings)


def test_a_run_that_was_evaluated_only_at_its_start_has_no_budget():
    one = run(2**-9, 0.1)
    one.columns["val_loss"][1:] = np.nan
    assert only([one]).budgets == ()


def test_another_loss_is_compared_where_it_is_named():
    one = run(2**-9, 0.1)
    other = Trajectory(one.columns | {"train_loss": one.columns["val_loss"] + 1}, one.info)
    family = only([other], loss="train_loss")
    assert family.budgets[0].ends[0].loss == one.last("val_loss") + 1


def test_a_seed_with_a_level_of_its_own_does_not_tilt_the_cells():
    """Seeds 1 and 2 lie lower by .1 and higher by .3, and only some cells have them."""
    rng = np.random.default_rng(0)
    infos, values, truth = [], [], {}
    for lr in range(-12, -7):
        for wd in range(-6, 0):
            truth[lr, wd] = 1.5 + 0.01 * (lr + 10) ** 2
            for seed, level in ((0, 0.0), (1, -0.1), (2, 0.3)):
                if seed == 0 or (lr > -10 and wd > -5 + seed):
                    run = trajectory(lr, wd, [0, 1024], [1.0, 1.0], seed=seed)
                    infos.append(run.info)
                    values.append(truth[lr, wd] + level)
    order = rng.permutation(len(infos))
    cells = cells_of([infos[k] for k in order], np.array(values)[order], 1024)
    expected = [truth[round(x), round(y)] for x, y in zip(cells.log2_lr, cells.log2_wd, strict=True)]
    average = (0.0 - 0.1 + 0.3) / 3
    assert cells.value == pytest.approx(np.array(expected) + average, abs=1e-5)


def test_seeds_that_share_no_cell_stay_as_they_are():
    runs = [trajectory(lr, -3, [0, 1024], [1.0, 1.0], seed=seed) for lr, seed in ((-10, 0), (-9, 1))]
    assert sorted(cells_of([run.info for run in runs], np.array([1.0, 2.0]), 1024).value) == pytest.approx([1.0, 2.0])


def test_a_seeds_luck_at_an_lr_is_taken_off_the_cells_that_have_that_seed_alone():
    """Seed 0 was lucky at LR 2^-10, as four other seeds at one WD show; its other WDs there shared that luck."""
    luck = {(0, -10): -0.02, (1, -10): 0.01, (2, -10): 0.01, (0, -9): 0.0, (1, -9): 0.005, (2, -9): -0.005}
    settings = [(lr, wd, 0) for lr in (-10, -9) for wd in (-9, -8, -7)]
    settings += [(lr, -8, seed) for lr in (-10, -9) for seed in (1, 2)]
    runs = [trajectory(lr, wd, [0, 1024], [1.0, 1.0], seed=seed) for lr, wd, seed in settings]
    values = np.array([1.5 + luck[seed, lr] for lr, _, seed in settings])
    cells = cells_of([run.info for run in runs], values, 1024)
    assert cells.value == pytest.approx(np.full(6, 1.5), abs=2e-3)
    plain = cells_of([run.info for run in runs], values)
    assert np.ptp(plain.value) > 0.015, "means of unlike seeds differ by luck alone"
