"""What a sweep says: the truth that was put in, or undecided with the reason."""

import math

import numpy as np
import pytest
from made_sweeps import DECAY, decay_off, drifting_optimum, run, with_info, without
from synthetic import EVERY_TOKENS, LR, WD, WIDE_LR, WIDE_WD, grid, round_bowl, scaling_loss, sweep, trajectory

from isotune.analyze.diagnosis import _some, diagnose
from isotune.runs.trajectory import Trajectory


def only(runs, **options):
    (diagnosis,) = diagnose(runs, **options)
    return diagnosis


def verdicts(diagnosis):
    return {finding.stage: finding.verdict for finding in diagnosis.stages}


def bowl(noise=0.001):
    """The same circles around the middle of the grid at every moment: no invariance."""
    x, y = grid()
    rng = np.random.default_rng(0)
    height = 0.02 * round_bowl(rng, x, y, noise)
    return sweep(rng, x, y, lambda x, y, step: 2.0 + height[:, None] + 3 * step**-0.3, noise=1e-4)


@pytest.fixture(scope="module")
def shifting():
    rng = np.random.default_rng(0)
    return only(with_known_end(sweep(rng, *grid(WIDE_LR, WIDE_WD), noise=0.003)))


def with_known_end(runs):
    return [with_info(one, decay_tokens=0) for one in runs]


# The truth comes out


def test_a_shifting_sweep_is_lr_invariant_early_and_elr_invariant_late(shifting):
    assert verdicts(shifting)["early"] == "LR"
    assert verdicts(shifting)["late"] == "ELR"
    assert shifting.invariant == "ELR" and shifting.reason == ""


def test_the_shift_is_at_the_n_that_was_planted():
    runs = with_known_end(sweep(np.random.default_rng(3), *grid(), scaling_loss, noise=1e-3))
    assert only(runs).shift.memory_times.value == pytest.approx(1.3, rel=0.05)


def test_early_curves_lie_apart_by_lr_and_late_ones_by_elr(shifting):
    early, late = shifting.stages[0], shifting.stages[-1]
    assert early.by_lr.ratio > 3 > early.by_elr.ratio
    assert late.by_elr.ratio > 3 > late.by_lr.ratio


def test_independent_weight_decay_gives_the_same_verdicts_as_coupled(shifting):
    rng = np.random.default_rng(0)
    runs = sweep(rng, *grid(WIDE_LR, WIDE_WD), noise=0.003, convention="independent")
    assert verdicts(only(with_known_end(runs))) == verdicts(shifting)


def test_a_bowl_is_neither():
    diagnosis = only(bowl())
    assert set(verdicts(diagnosis).values()) <= {"neither", "undecided"}
    assert diagnosis.invariant == "neither"


def test_the_salient_direction_is_that_of_the_planted_paraboloid():
    """loss ~ .003 u^2 + .001 (u + v)^2: the mean of gradient gradient' over the grid has its top eigenvector here."""
    diagnosis = only(drifting_optimum(np.random.default_rng(0), budgets=(1_310_720,)))
    hessian = 2 * np.array([[0.004, 0.001], [0.001, 0.001]])
    surface = diagnosis.surfaces[0].surface
    inside = np.array(surface.fitted_cells) - [surface.minimum_log2_learning_rate, surface.minimum_log2_weight_decay]
    gradient = inside @ hessian
    top = np.linalg.eigh(gradient.T @ gradient)[1][:, -1]
    expected = (math.degrees(math.atan2(top[1], top[0])) + 90) % 180 - 90
    assert diagnosis.salient_direction == pytest.approx(expected, abs=0.5)
    assert diagnosis.interval[0] <= diagnosis.salient_direction <= diagnosis.interval[1]


def test_seeds_settle_what_single_runs_leave_open():
    """Late losses of six cells have no term left to take their noise from; seeds give it."""
    x, y = grid(np.array([-8.0, -7.0, -6.0]), np.array([-2.0, 0.0]))
    rng = np.random.default_rng(1)
    seeds = [with_info(one, seed=k) for k in range(3) for one in with_known_end(sweep(rng, x, y, noise=1e-3))]
    alone, together = only(seeds[: len(x)]), only(seeds)
    assert math.isnan(alone.stages[-1].invariance.cell_noise)
    late = together.stages[-1].invariance
    start, end = together.stages[-1].tokens
    points = (end - start) / EVERY_TOKENS
    # A third of the variance of one run's mean over the window, whose points correlate by 1/2: three count as one.
    assert late.cell_noise == pytest.approx(1e-6 * 3 / points / 3, rel=0.6)


def test_perturbed_twins_give_the_noise_of_a_cell():
    x, y = grid()
    rng = np.random.default_rng(2)
    runs = with_known_end(sweep(rng, x, y))
    twins = []
    for k, one in enumerate(runs[:8]):
        offset = 0.01 if k % 2 else -0.01
        columns = one.columns | {"val_loss": one.columns["val_loss"] + offset}
        twins.append(with_info(Trajectory(columns, one.info), perturbation=1e-6))
    found = {finding.stage: finding.invariance for finding in only([*runs, *twins]).stages}
    assert found["early"].cell_noise == pytest.approx(0.01**2 / 2)


def test_a_cosine_sweep_is_diagnosed_as_a_family_without_a_shift():
    x, y = grid()
    runs = []
    for one in sweep(np.random.default_rng(0), x, y, noise=0.003):
        rate = one.info.learning_rate * 0.5 * (1 + np.cos(np.pi * one.tokens / one.tokens[-1]))
        fallen = Trajectory(one.columns | {"learning_rate": np.maximum(rate, 1e-12)}, one.info)
        runs.append(with_info(fallen, decay_tokens=int(one.tokens[-1])))
    diagnosis = only(runs)
    assert diagnosis.family.shape == "falling"
    assert diagnosis.shift is None
    assert any("LR falls all the way" in warning for warning in diagnosis.warnings)
    assert any(finding.invariance is not None for finding in diagnosis.stages)


def test_one_run_that_ended_early_does_not_hide_the_shift_of_the_others(shifting):
    stub = run(2**-9, 2**-10, 614_400)
    runs = with_known_end(sweep(np.random.default_rng(0), *grid(WIDE_LR, WIDE_WD), noise=0.003))
    assert only([*runs, stub]).shift.memory_times.value == pytest.approx(shifting.shift.memory_times.value, rel=0.1)


# Undecided, and why


@pytest.mark.parametrize(
    ("lr", "wd", "words"),
    [
        (LR[:1], WD, ["all runs have one LR", "no direction can be inferred", "add runs with another LR"]),
        (LR[:1], WD[:1], ["all runs have one LR (2^-11) and one WD", "no direction can be inferred"]),
        (LR, WD[:1], ["all runs have one WD", "add runs with another WD"]),
        (LR[:2], WD[:2], ["4 cells are too few", "three LR by two WD"]),
    ],
)
def test_too_little_is_undecided_for_a_reason_in_words(lr, wd, words):
    diagnosis = only(with_known_end(sweep(np.random.default_rng(0), *grid(lr, wd))))
    assert diagnosis.invariant == "undecided"
    assert all(word in diagnosis.reason for word in words), diagnosis.reason
    assert {finding.reason for finding in diagnosis.stages} == {diagnosis.reason}
    assert diagnosis.evidence[0] == diagnosis.reason


def test_two_runs_on_a_diagonal_say_that_they_share_their_elr():
    diagnosis = only([run(2**-9, 2**-3), run(2**-8, 2**-4)])
    assert "all runs have one ELR" in diagnosis.reason


def test_curves_that_are_all_alike_are_undecided():
    x, y = grid()
    diagnosis = only(
        with_known_end(sweep(np.random.default_rng(0), x, y, lambda x, y, step: 2 + 0 * x[:, None] + 0 * step))
    )
    assert diagnosis.invariant == "undecided"
    assert "all values are equal" in diagnosis.reason
    assert math.isnan(diagnosis.salient_direction)


def test_runs_that_have_not_ended_have_no_direction_of_their_final_loss(shifting):
    running = [with_info(one, status="running") for one in shifting.family.curves]
    assert math.isnan(only(running).salient_direction)


def test_without_the_size_of_a_step_n_is_unknown_and_the_remedy_is_named():
    runs = sweep(np.random.default_rng(0), *grid())
    blind = [without(with_info(one, batch_size="unknown", decay_tokens=0), "step") for one in runs]
    reason = only(blind).reason
    assert "n is unknown" in reason and "batch_size" in reason


def test_a_sweep_of_unfinished_runs_has_verdicts_and_no_surface():
    runs = [with_info(one, status="running") for one in with_known_end(sweep(np.random.default_rng(0), *grid()))]
    diagnosis = only(runs)
    assert diagnosis.surfaces == ()
    assert diagnosis.stages[0].invariance is not None


def test_diverged_runs_are_named():
    runs = with_known_end(sweep(np.random.default_rng(0), *grid()))
    diverged = [with_info(one, status="diverged", learning_rate=0.5) for one in runs[:6]]
    warnings = only([*runs, *diverged]).warnings
    assert any("6 runs diverged: LR 0.5" in warning and "and 2 more" in warning for warning in warnings)


def test_budgets_of_two_cells_have_no_surface_and_say_so():
    trunks = [run(2.0**-k, 2**-4) for k in (8, 9)]
    diagnosis = only([*trunks, *(decay_off(trunk, 614_400, 2.0) for trunk in trunks)])
    (finding,) = diagnosis.surfaces
    assert finding.surface is None and finding.reason
    assert finding.decay_tokens == DECAY


def test_every_family_is_diagnosed_for_itself():
    rng = np.random.default_rng(0)
    small = with_known_end(sweep(rng, *grid(LR[:2], WD[:1])))
    other = [with_info(one, batch_size=64) for one in with_known_end(sweep(rng, *grid(LR[:1], WD)))]
    first, second = diagnose([*small, *other])
    assert [one.family.batch_size for one in (first, second)] == [64, 4]


def test_of_many_curves_whole_seeds_are_compared():
    """Cells within seeds repeat every 25 runs: taking every 25th run would compare one cell with itself."""
    x, y = grid()
    infos = [trajectory(a, b, [0], [1.0], seed=seed).info for seed in range(40) for a, b in zip(x, y, strict=True)]
    rows = _some(infos, 0)
    assert len(rows) == 400
    chosen = [infos[row] for row in rows]
    assert len({info.seed for info in chosen}) == 16
    assert len({(info.learning_rate, info.weight_decay) for info in chosen}) == 25
