"""Truth, scores and tuners on surfaces whose answer is known."""

from importlib.util import find_spec

import numpy as np
import pytest
from contenders import CONTENDERS
from landscape import Landscape
from replay import Question, Replay, Spent
from scenarios import DIRECTIONS, landscapes, shuffled_wd
from scores import make_path, price_to_reach, price_to_stay, regret_at, summarize

from isotune.analyze.seed_noise import combine_seeds
from isotune.analyze.truth import smooth_surface

LR, WD = (axis.ravel() for axis in np.meshgrid(np.arange(-12.0, -6), np.arange(-8.0, 1), indexing="ij"))
BUDGETS, DECAY = (100, 200, 400), 40
BOWL = 1.5 + 0.004 * (LR + WD + 13) ** 2 + 0.001 * (LR - WD + 5) ** 2  # lowest at LR 2^-9, WD 2^-4


def bowl_landscape(kept=slice(None)):
    losses = np.column_stack([BOWL + 0.2, BOWL + 0.1, BOWL])
    return Landscape.from_losses(LR[kept], WD[kept], BUDGETS, losses[kept], DECAY)


def test_truth_finds_the_minimum_of_a_noisy_bowl_better_than_the_raw_minimum():
    noise, wrong_raw, errors = 0.01, 0, []
    for seed in range(6):
        noisy = BOWL + noise * np.random.default_rng(seed).standard_normal(len(BOWL))
        truth = smooth_surface(LR, WD, noisy, np.full(len(BOWL), noise)).truth(noisy)
        near = BOWL < 1.6
        errors.append(np.sqrt(np.mean((truth - BOWL)[near] ** 2)))
        wrong_raw += BOWL[np.argmin(noisy)] > 1.504
        assert BOWL[np.argmin(truth)] < 1.51
    assert np.mean(errors) < 0.6 * noise
    assert wrong_raw > 1


def test_truth_without_noise_is_the_loss_and_diverged_cells_are_infinite():
    losses = BOWL.copy()
    losses[-3:] = np.nan
    truth = smooth_surface(LR, WD, losses, None).truth(losses)
    assert truth[:-3] == pytest.approx(BOWL[:-3], abs=1e-4)
    assert np.isinf(truth[-3:]).all() and np.argmin(truth) == np.argmin(BOWL)


def test_a_seed_that_few_cells_have_does_not_lift_them_off_their_neighbours():
    """Runs of one LR share their noise: a second seed of some WDs says nothing about the others' place."""
    rng = np.random.default_rng(0)
    flat = 1.5 + 0.01 * (LR + 9) ** 2
    shared = 0.01**2 * (LR[:, None] == LR) + 1e-5**2 * np.eye(len(LR))
    rows = 0.01 * rng.standard_normal((5, 6))[:, (LR + 12).astype(int)]
    losses = flat + rows
    losses[1:, WD != -6] = np.nan
    combined, errors = combine_seeds(losses, shared)
    truth = smooth_surface(LR, WD, combined, errors).truth(combined)
    row = truth[LR == -9]
    assert np.ptp(row) < 0.001
    assert np.ptp(np.nanmean(losses, axis=0)[LR == -9]) > 0.003, "means would lift it"


def test_tuner_that_knows_the_truth_pays_one_run_and_has_no_regret():
    landscape = bowl_landscape()
    replay = Replay(landscape, 400)
    best = int(np.argmin(landscape.truth(400)))

    def oracle():
        replay.answer(Question(best, 400))
        yield Spent(replay.spent, best, is_done=True)

    summary = summarize([make_path(oracle(), replay.grid_price)], landscape.regrets(400), replay.grid_price)
    assert summary["0.1%"]["stays"] == {
        "mean": pytest.approx(1 / 54, rel=1e-3),
        "p90": pytest.approx(1 / 54, rel=1e-3),
    } | {"failures": 0}
    assert summary["done"]["mean_regret"] == 0


def test_a_recommendation_counts_from_where_it_stays():
    regrets = np.array([0.5, 0.001, 0.0])
    path = make_path([Spent(10, 0), Spent(20, 1), Spent(30, 0), Spent(40, 1), Spent(50, 2), Spent(999, 0)], limit=100)
    assert price_to_stay(path, regrets, 0.01) == 40 and price_to_stay(path, regrets, 0.0) == 50
    assert price_to_reach(path, regrets, 0.01) == 20
    assert regret_at(path, regrets, 35) == 0.5 and np.isnan(regret_at(path, regrets, 5))
    assert path.end_tokens == 50 and path.done_tokens is None


def test_failures_are_charged_the_full_grid():
    path = make_path([Spent(10, 0, is_done=True)], limit=100)
    stays = summarize([path], np.array([0.5]), 100)["0.5%"]["stays"]
    assert stays == {"mean": 1.0, "p90": 1.0, "failures": 1}


def is_installed(name):
    """Whether this contender's library is there: Syne Tune is no dependency of the tests."""
    return find_spec("syne_tune") is not None or not ("syne" in name or "bohb" in name)


@pytest.mark.parametrize("name", [name for name in CONTENDERS if not name.startswith("gp") and is_installed(name)])
def test_every_tuner_finds_the_bottom_of_a_bowl_for_no_more_than_the_grid(name):
    landscape, contender = bowl_landscape((LR < -7) & (WD > -7) & (WD < -1)), CONTENDERS[name]
    paths = []
    for _ in range(2):
        replay = Replay(landscape, 400, can_pause=contender.can_pause)
        paths.append(make_path(contender.tuner(replay, np.random.default_rng(3)), replay.grid_price))
    assert paths[0] == paths[1], "a path is a function of its seed"
    regrets = landscape.regrets(400)
    reached = price_to_stay(paths[0], regrets, 0.005)
    assert reached <= replay.grid_price or (name == "lr-only" and paths[0].done_tokens == 5 * 400)


def test_lr_only_scans_one_row_and_lr_then_wd_a_row_and_a_column():
    for name, runs in (("lr-only", 6), ("lr-then-wd", 6 + 8)):
        replay = Replay(bowl_landscape(), 400)
        *_, last = CONTENDERS[name].tuner(replay, np.random.default_rng(0))
        assert last.is_done and last.tokens == runs * 400


def test_shuffled_labels_hold_the_same_losses_in_another_place():
    landscape = bowl_landscape()
    shuffled = shuffled_wd(landscape)
    assert not np.array_equal(shuffled.losses, landscape.losses)
    for lr in np.unique(LR):
        here = lr == LR
        assert np.array_equal(np.sort(shuffled.losses[here, 2]), np.sort(landscape.losses[here, 2]))


@pytest.mark.parametrize("scenario", DIRECTIONS)
def test_made_scenarios_have_their_minimum_inside_the_grid_and_drift(scenario):
    (landscape,) = landscapes("made", scenario).values()
    best = [int(np.argmin(landscape.losses[:, column])) for column in range(len(landscape.budgets))]
    assert -12 < landscape.log2_lr[best[-1]] < -7 and -8 < landscape.log2_wd[best[-1]] < 0
    elr = landscape.log2_lr[best] + landscape.log2_wd[best]
    assert elr[-1] < elr[0]
