"""Truth, scores and tuners on surfaces whose answer is known."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import head_to_head
import numpy as np
import pytest
import race
from contenders import CONTENDERS
from head_to_head import free_seeds, paired_ratios, ratio_interval, verdict_words
from landscape import Landscape
from race import Course, Heat, course_results, markdown
from replay import Question, Replay, Spent
from scenarios import DIRECTIONS, OFF_CENTRE, SEVERAL_SEEDS, landscapes, off_centre, shuffled_wd
from scores import Path as TunerPath
from scores import make_path, price_to_reach, price_to_settle, price_to_stay, regret_at, summarize

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


def test_truth_is_smooth_where_single_runs_scatter_more_than_their_seeds_tell():
    told, real, errors, rests = 0.0005, 0.005, [], []
    for seed in range(6):
        noisy = BOWL + real * np.random.default_rng(seed).standard_normal(len(BOWL))
        surface = smooth_surface(LR, WD, noisy, np.full(len(BOWL), told))
        near = BOWL < 1.6
        errors.append(np.sqrt(np.mean((surface.truth(noisy) - BOWL)[near] ** 2)))
        rests.append(surface.rest)
    assert np.mean(errors) < 0.6 * real
    assert np.mean(rests) == pytest.approx(real, rel=0.3)
    exact = smooth_surface(LR, WD, BOWL, np.full(len(BOWL), told))
    assert exact.rest < 0.001, "a shape is not taken for noise"


def test_replays_scatter_about_the_truth_by_what_seeds_tell_and_by_the_rest():
    landscape = landscapes("small32")["batch 64"]
    drawn = np.array([landscape.losses_of(seed) - landscape.truths for seed in range(1, 400)])
    u, near = landscape.log2_lr, landscape.regrets(landscape.budgets[-1]) < 0.05
    alone = np.diag(landscape.noise.nearness(u, landscape.memory[:, -1])) * landscape.noise.deviations[-1] ** 2
    expected = np.sqrt(alone + landscape.rests[-1] ** 2)
    assert landscape.rests[-1] > 0
    assert drawn[:, near, -1].std(axis=0) == pytest.approx(expected[near], rel=0.2)


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


def test_a_table_without_a_third_of_its_lrs_is_judged_by_the_truth_of_all():
    whole = bowl_landscape()
    lower, upper = off_centre(whole, are_lower=True), off_centre(whole, are_lower=False)
    assert np.unique(lower.log2_lr).tolist() == [-12, -11, -10, -9]
    assert np.unique(upper.log2_lr).tolist() == [-10, -9, -8, -7]
    for part in (lower, upper):
        kept = np.isin(LR, part.log2_lr)
        assert np.array_equal(part.log2_wd, WD[kept]) and np.array_equal(part.truth(400), whole.truth(400)[kept])
        assert part.grid_price(400) == 4 * 9 * 400
        replay = Replay(part, 400)
        assert replay.answer(Question(int(np.argmin(part.truth(400))), 400)) == pytest.approx(BOWL.min())
        assert [float(curve.info.learning_rate) for curve in part.curves] == (2.0**part.log2_lr).tolist()
    assert len({whole.fingerprint, lower.fingerprint, upper.fingerprint}) == 3


@pytest.mark.parametrize("scenario", DIRECTIONS)
def test_made_scenarios_have_their_minimum_inside_the_grid_and_drift(scenario):
    (landscape,) = landscapes("made", scenario).values()
    best = [int(np.argmin(landscape.losses[:, column])) for column in range(len(landscape.budgets))]
    assert -12 < landscape.log2_lr[best[-1]] < -7 and -8 < landscape.log2_wd[best[-1]] < 0
    elr = landscape.log2_lr[best] + landscape.log2_wd[best]
    assert elr[-1] < elr[0]


def raced(shares, *, scenario="real", table="small32", seeds=100, failures=None, intervals=None, free=None):
    """What race.py writes of a course, with the same mean share of each tuner at every target."""
    targets = head_to_head.RATIO_GOALS
    tuners = {
        name: {"seeds": seeds}
        | {
            target: {
                "stays": {"mean": mean, "p90": 1.0, "failures": (failures or {}).get(name, 0)},
                "first": {"mean": mean**2, "p90": 1.0, "failures": 0},
            }
            for target in targets
        }
        for name, mean in shares.items()
    }
    course = {"table": table, "scenario": scenario, "family": "batch 4", "budget": 1 << 20, "cells": 50}
    more = {
        "ratio_intervals": dict.fromkeys(targets, intervals or {}),
        "paired_ratios": {target: {} for target in targets},
        "free_seeds": dict.fromkeys(targets, free or {}),
    }
    return course | {"tuners": tuners} | more


def rows(kind, *races):
    return {row["target"]: row for row in head_to_head.head_to_head(races)[kind]}


def test_the_best_baseline_is_the_lowest_of_the_others_and_never_an_ablation():
    shares = {"isotune": 0.04, "isotune-without-rungs": 0.01, "random": 0.3, "tpe-elr": 0.07, "gp": 0.2}
    found = rows("duels", raced(shares))
    assert {row["baseline"]["name"] for row in found.values()} == {"tpe-elr"}
    assert [row["ratio"] for row in found.values()] == [pytest.approx(4 / 7, rel=1e-3)] * 3
    assert [row["ratio_goal_met"] for row in found.values()] == [False, False, True], "half of it, half of it, no worse"
    assert [row["share_goal_met"] for row in found.values()] == [True, False, False], "5, 3 and 2 %"
    assert all(verdict_words(row) in ("met", "missed") for row in found.values())


def test_arrivals_are_told_beside_what_stays():
    shares = {"isotune": 0.2, "random": 0.3}
    found = head_to_head.head_to_head([raced(shares)])
    assert [row["ratio"] for row in found["arrivals"]] == [pytest.approx(4 / 9, rel=1e-3)] * 3
    assert [row["ratio_goal_met"] for row in found["arrivals"]] == [True] * 3
    assert [row["ratio_goal_met"] for row in found["duels"]] == [False, False, True]
    text = head_to_head.head_to_head_text(found)
    assert (
        "| is within | 0.1 % | 4 % | 9 % (0.44) | 9 % (random; 0.44) | ≤ 0.5: met in 1 of 1 | ≤ 5 %: met in 1 of 1 |"
        in text
    )
    assert "| stays within | 0.1 % | 20 % | 30 % (0.67) | 30 % (random; 0.67) | ≤ 0.5: met in 0 of 1 |" in text


def test_the_mean_regret_settles_where_no_later_mean_is_above_the_target():
    regrets = np.array([0.0, 0.004, 0.02, np.inf])
    paths = [
        TunerPath(((1, 2), (4, 1), (8, 0)), None, 9),  # 2 %, .4 %, 0
        TunerPath(((2, 1), (6, 0)), None, 9),  # .4 %, 0
        TunerPath(((3, 0), (5, 1), (7, 0)), None, 9),  # 0, .4 %, 0
    ]
    means = {1: np.inf, 2: np.inf, 3: 0.008, 4: 0.008 / 3, 5: 0.004, 6: 0.008 / 3, 7: 0.004 / 3, 8: 0.0}
    for target in (0.01, 0.005, 0.003, 0.001):
        brute = next(at for at in means if all(means[later] <= target for later in means if later >= at))
        assert price_to_settle(paths, regrets, target) == brute
    assert price_to_settle([TunerPath(((1, 3),), None, 9)], regrets, 0.5) == np.inf, (
        "what diverged is no recommendation"
    )
    assert price_to_settle([TunerPath((), None, 9)], regrets, 0.5) == np.inf
    early = price_to_settle([TunerPath(((1, 0), (2, 2), (3, 0)), None, 9)], regrets, 0.001)
    assert early == 3, "within the target at first, and lost again"


def test_what_settles_is_told_of_tuners_with_many_seeds_alone():
    shares = {"isotune": 0.2, "random": 0.3, "gp": 0.1}
    race = raced(shares)
    for name, mean in {"isotune": 0.1, "random": 0.4, "gp": 0.05}.items():
        for target in head_to_head.RATIO_GOALS:
            race["tuners"][name][target]["settles"] = {"mean": mean, "failures": 0}
    race["tuners"]["gp"]["seeds"] = head_to_head.MIN_SETTLED_SEEDS - 1
    found = head_to_head.head_to_head([race])
    assert {row["baseline"]["name"] for row in found["settled"]} == {"random"}
    assert {row["baseline"]["name"] for row in found["duels"]} == {"gp"}
    text = head_to_head.head_to_head_text(found)
    assert (
        "| stays within in the mean over seeds | 0.1 % | 10 % | 40 % (0.25) | 40 % (random; 0.25) | ≤ 0.5: met" in text
    )
    race["tuners"]["random"]["0.1%"]["settles"] = {"mean": 1.0, "failures": 100}
    assert "| random | never |" in head_to_head.head_to_head_text(head_to_head.head_to_head([race]))
    race["tuners"]["isotune"]["seeds"] = 1
    assert not head_to_head.head_to_head([race])["settled"]


def test_grids_of_several_seeds_stand_apart():
    shares = {"isotune": 0.1, "random": 0.2}
    found = head_to_head.head_to_head([raced(shares, scenario=SEVERAL_SEEDS), raced(shares)])
    assert [row["scenario"] for row in found["duels"]] == ["real"] * 3 + [SEVERAL_SEEDS] * 3
    text = head_to_head.head_to_head_text(found)
    assert text.index("### Tables that were in view") < text.index("### Tables with 16 seeds in each cell that were")


def test_tables_without_some_lrs_stand_apart():
    shares = {"isotune": 0.1, "random": 0.2}
    found = head_to_head.head_to_head([raced(shares, scenario=name) for name in (*OFF_CENTRE, SEVERAL_SEEDS, "real")])
    order = ["real", SEVERAL_SEEDS, *OFF_CENTRE]
    assert list(dict.fromkeys(row["scenario"] for row in found["duels"])) == order
    assert "### Tables without a third of their LRs that were in view" in head_to_head.head_to_head_text(found)


def test_who_is_ahead_is_said_in_words():
    ahead = {"isotune": 0.4, "random": 0.5, "asha": 0.3}
    assert verdict_words(rows("duels", raced(ahead))["0.5%"]) == "missed: asha wins"
    surely, perhaps = {"asha": [1.1, 1.6]}, {"asha": [0.9, 1.6]}
    assert verdict_words(rows("duels", raced(ahead, intervals=surely))["0.1%"]) == "missed: asha wins"
    assert (
        verdict_words(rows("duels", raced(ahead, intervals=perhaps))["0.1%"]) == "missed: asha is ahead, within chance"
    )
    never = raced({"isotune": 1.0, "asha": 0.9}, failures={"isotune": 100})
    assert verdict_words(rows("duels", never)["0.5%"]) == "missed: asha wins, isotune fails with every seed"
    nobody = raced({"isotune": 1.0, "asha": 1.0}, failures={"isotune": 100, "asha": 100})
    assert verdict_words(rows("duels", nobody)["0.5%"]) == "missed: nobody gets there"


def test_controls_are_held_against_sobol_with_a_quadratic_alone():
    shares = {"isotune": 0.23, "random": 0.1, "sobol-quadratic": 0.2}
    found = head_to_head.head_to_head([raced(shares, scenario="shuffled-wd")])
    assert not found["duels"] and {row["baseline"]["name"] for row in found["controls"]} == {"sobol-quadratic"}
    assert verdict_words(found["controls"][0]) == "met: sobol-quadratic wins", "15 % more, of 20 % that are allowed"
    worse = rows("controls", raced(shares | {"isotune": 0.25}, scenario="made-round", table="made"))
    assert not worse["0.1%"]["ratio_goal_met"]


def test_a_table_that_is_shuffled_in_several_orders_is_judged_by_their_mean():
    shares = {"shuffled-lr": (0.3, 0.1), "shuffled-lr-2": (0.1, 0.3), "shuffled-lr-3": (0.1, 0.1)}
    races = [
        raced({"isotune": ours, "sobol-quadratic": its}, scenario=scenario) for scenario, (ours, its) in shares.items()
    ]
    text = head_to_head.head_to_head_text(head_to_head.head_to_head(races))
    line = next(line for line in text.splitlines() if "shuffled-lr," in line and "| 0.5 % |" in line)
    assert "| 16.7 % | 16.7 % | 1 | ≤ 1.2: met |" in line and line.endswith("| 3, 0.33, 1 |")
    assert "shuffled-lr-2" not in text
    alone = head_to_head.head_to_head_text(head_to_head.head_to_head(races[:1]))
    assert "≤ 1.2: missed: sobol-quadratic is ahead" in alone


def test_orders_of_shuffled_labels_differ():
    found = {name: landscapes("nano", name)["batch 4"] for name in ("shuffled-lr", "shuffled-lr-2", "shuffled-wd-2")}
    assert len({landscape.fingerprint for landscape in found.values()}) == 3


def test_ablations_are_told_over_isotune_with_the_same_seeds():
    ours = {seed: 0.1 if seed < 10 else 0.9 for seed in range(40)}
    shares = {
        "isotune": ours,
        "isotune-without-rungs": dict.fromkeys(range(10), 0.2),
        "gp-elr": {0: 0.4},
        "gp": ours,
    }
    race = raced(dict.fromkeys(shares, 0.1)) | {"paired_ratios": {"0.1%": paired_ratios(shares)}}
    found = {row["without"]: row for row in head_to_head.ablations(race, "0.1%")}
    assert {name: row["ratio"] for name, row in found.items()} == {"isotune-without-rungs": 2.0, "gp-elr": 4.0}
    assert {name: row["seeds"] for name, row in found.items()} == {"isotune-without-rungs": 10, "gp-elr": 1}
    assert found["isotune-without-rungs"]["interval"] == [2.0, 2.0] and found["gp-elr"]["interval"] is None


def test_goals_that_only_free_seeds_reach_are_not_called_met():
    shares = {"isotune": 0.015, "random": 0.031}
    half_free = rows("duels", raced(shares, free={"isotune": 50}))  # 50 cells: a run is 2 % of the grid
    assert half_free["0.1%"]["isotune"]["charged_mean"] == pytest.approx(0.025)
    assert verdict_words(half_free["0.1%"]) == "met by free seeds only"
    assert verdict_words(half_free["0.5%"]) == verdict_words(rows("duels", raced(shares))["0.1%"]) == "met"
    text = head_to_head.head_to_head_text(head_to_head.head_to_head([raced(shares, free={"isotune": 50})]))
    assert "| ≤ 0.5: met in 0 of 1 | ≤ 5 %: met in 1 of 1 |" in text and "1.5 % (100), 50 free" in text
    assert "| ≤ 2 %: met by free seeds only |" in text
    assert free_seeds({"isotune": {0: 0.0, 1: 0.1, 2: 0.0}, "random": {0: 0.1}}) == {"isotune": 2}


def test_tables_that_the_tuner_had_never_seen_come_first():
    shares = {"isotune": 0.1, "random": 0.2}
    tables = ("nano", "small32", "german48")
    found = head_to_head.head_to_head([*(raced(shares, table=table) for table in tables), raced({"random": 0.1})])
    assert [row["table"] for row in found["duels"]] == ["german48"] * 3 + ["small32"] * 3 + ["nano"] * 3
    text = head_to_head.head_to_head_text(found)
    titles = ["were trained when the tuner was finished", "were in view", "on which constants of the tuner were set"]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


def test_the_readme_shows_the_tables_that_the_tuner_had_never_seen():
    races = [raced({"isotune": ours, "random": its}, table="german48") for ours, its in ((0.1, 0.3), (0.3, 0.5))]
    for one in races:
        for tuner in one["tuners"].values():
            for target in head_to_head.RATIO_GOALS:
                tuner[target]["settles"] = {"mean": tuner[target]["stays"]["mean"] / 2, "failures": 0}
    text = head_to_head.readme_block({"races": [raced({"isotune": 1.0, "random": 1.0, "tpe": 1.0}), *races]})
    assert "| best of 1 others |" in text and "| is within 0.1 % / 0.25 % | 5 % / 5 % | 17 % / 17 % |" in text
    assert "| stays within 0.1 % / 0.25 % | 20 % / 20 % | 40 % / 40 % |" in text
    assert "| stays within 0.1 % / 0.25 % in the mean over seeds | 10 % / 10 % | 20 % / 20 % |" in text


def test_ratios_of_paired_seeds_have_the_interval_of_their_pairs():
    rng = np.random.default_rng(0)
    others = dict(enumerate(rng.uniform(0.2, 1.0, 40).tolist()))
    assert ratio_interval({seed: share / 2 for seed, share in others.items()}, others) == [0.5, 0.5]
    assert ratio_interval(dict(list(others.items())[:9]), others) is None, "too few to tell"
    assert ratio_interval(others, dict.fromkeys(others, 0.0)) is None


def test_ratios_with_unequal_seeds_have_the_interval_of_the_delta_method():
    """The oracle: independent means, (sd ratio / ratio)^2 = (sd one / mean one)^2 / n + the same of the other."""
    rng = np.random.default_rng(1)
    ones, others = rng.uniform(0.1, 0.5, 400), rng.uniform(0.2, 1.0, 100)
    low, high = ratio_interval(dict(enumerate(ones)), dict(enumerate(others)))
    ratio = ones.mean() / others.mean()
    paired = -2 * np.cov(ones[:100], others)[0, 1] / 400 / (ones.mean() * others.mean())
    variance = sum(np.var(shares) / len(shares) / shares.mean() ** 2 for shares in (ones, others)) + paired
    assert (low + high) / 2 == pytest.approx(ratio, rel=0.01)
    assert (high - low) / 2 == pytest.approx(1.645 * ratio * np.sqrt(variance), rel=0.1)


def test_what_a_race_writes_of_a_course_is_what_the_paths_say():
    course = Course("made", "made-elr", "made-elr", 344_064)
    regrets, grid_price = course.landscape.regrets(course.budget), course.landscape.grid_price(course.budget)
    best, worst = int(np.argmin(regrets)), int(np.argmax(regrets))
    heats = [Heat(course, "", tuner, seed) for tuner in ("isotune", "random") for seed in range(12)]

    def path(heat):
        if heat.tuner == "random":
            return TunerPath(((grid_price // 2, best),), None, grid_price)
        start = ((0, best),) if heat.seed < 3 else ((0, worst), (grid_price // 4, best))
        return TunerPath(start, None, grid_price)

    result = json.loads(json.dumps(course_results(course, heats, {heat: path(heat) for heat in heats})))
    assert result["free_seeds"] == {target: {"isotune": 3} for target in head_to_head.RATIO_GOALS}
    (duel, *_) = head_to_head.head_to_head([result])["duels"]
    assert duel["ratio"] == pytest.approx(0.375, rel=1e-3), "9 of 12 seeds pay half of what the other pays"
    low, high = duel["interval"]
    assert 0.2 < low < 0.375 < high <= 0.5
    early, *_, late = head_to_head.head_to_head([result])["regrets"]
    assert early["share"] == "2.5%" and early["baseline"] is None, "nothing is recommended before half of the grid"
    assert early["isotune"] == pytest.approx(0.75 * regrets[worst], rel=1e-3)
    assert late["share"] == "50%" and late["isotune"] == 0
    assert late["baseline"] == {"name": "random", "regret": 0, "seeds": 12}
    text = markdown([result])
    assert text.index("## Head to head") < text.index("### Surfaces made by a formula") < text.index("## All tuners")


def test_the_pages_show_the_committed_race():
    results = json.loads(head_to_head.RESULTS.read_text())
    for path, text in (
        (head_to_head.PAGE, head_to_head.page_block(results)),
        (head_to_head.README, head_to_head.readme_block(results)),
    ):
        block = path.read_text().split(head_to_head.BEGIN)[1].split(head_to_head.END)[0]
        assert block.strip() == text, "run python benchmarks/tuners/head_to_head.py"
    made = head_to_head.head_to_head(results["races"])
    assert results.get("head_to_head", made) == made


def test_a_heat_that_fails_ends_the_race_before_the_others_are_run(monkeypatch):
    ran = []

    def run(heat):
        ran.append(heat)
        if heat == 3:
            raise ModuleNotFoundError("a rival is not installed")
        time.sleep(0.005)
        return heat

    monkeypatch.setattr(race, "ProcessPoolExecutor", lambda processes, mp_context: ThreadPoolExecutor(1))
    monkeypatch.setattr(race, "run_heat", run)
    with pytest.raises(ModuleNotFoundError, match="not installed"):
        list(race._run_all(range(2000), 2))
    assert len(ran) < 2000


def test_what_rivals_did_is_kept_and_what_isotune_did_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(race, "CACHE", tmp_path / "cache" / "paths.jsonl")
    course, kept = Course("made", "made-elr", "made-elr", 172_032), tmp_path / "rivals.jsonl.gz"
    heats = [Heat(course, "abc", tuner, seed) for tuner in ("isotune", "isotune-one-seed", "random") for seed in (0, 1)]
    path = TunerPath(((5, 1), (9, 2)), 9, 12)
    race.keep(dict.fromkeys(heats, path), kept)
    first = kept.read_bytes()
    race.keep(dict.fromkeys(heats[-1:], path), kept)
    assert kept.read_bytes() == first, "what was kept stays, in the same bytes"
    ran = []
    monkeypatch.setattr(race, "run_heat", lambda heat: ran.append(heat) or path)
    assert race.race(heats, kept=kept) == dict.fromkeys(heats, path)
    assert {heat.tuner for heat in ran} == {"isotune", "isotune-one-seed"}
    ran.clear()
    race.race(heats, again=["random"], kept=kept)
    assert {heat.tuner for heat in ran} == {"random"}, "isotune is in the cache by now"
    ran.clear()
    other = [Heat(course, "def", "random", 0)]
    race.race(other, kept=kept)
    assert ran == other, "other numbers are another race"
