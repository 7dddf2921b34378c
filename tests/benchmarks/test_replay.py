"""The ledger of replays against brute force: sets of tokens, each trained stretch counted once."""

import math
from dataclasses import replace

import numpy as np
import pytest
import seed_by_seed
from landscape import Landscape, relabelled
from oracle import oracle
from replay import Question, Replay

from isotune.analyze.seed_noise import SeedNoise
from isotune.errors import InputError

BUDGETS, DECAY = (20, 40, 80), 8
LR, WD = np.repeat([-10.0, -9.0, -8.0], 2), np.tile([-4.0, -3.0], 3)
LOSSES = 2 + np.arange(6)[:, None] / 10 - np.arange(3) / 100


def made(losses=LOSSES, **options):
    return Landscape.from_losses(LR, WD, BUDGETS, losses, DECAY, **options)


def random_questions(rng, count=60):
    for _ in range(count):
        cell = int(rng.integers(6))
        if rng.random() < 0.5:
            yield Question(cell, int(rng.integers(1, 81)), decayed=False)
        else:
            yield Question(cell, int(rng.choice(BUDGETS)))


def trained_tokens(question, diverged_at):
    """All tokens of the run that answers a question, one by one, as (cell, decay or trunk, token)."""
    cell, last = question.cell, diverged_at[question.cell]
    if not question.decayed:
        return {(cell, None, token) for token in range(min(question.tokens, last))}
    branch = question.tokens - DECAY
    trunk = {(cell, None, token) for token in range(min(branch, last))}
    decay = set() if last <= branch else {(cell, question.tokens, token) for token in range(branch, question.tokens)}
    return trunk | decay


@pytest.mark.parametrize("seed", range(20))
def test_ledger_is_the_union_of_all_trained_stretches(seed):
    losses = LOSSES.copy()
    losses[1, 1:] = math.nan  # diverges at 32 tokens
    losses[4, 2:] = math.nan  # diverges at 72
    diverged_at = [999, 32, 999, 999, 72, 999]
    replay, trained = Replay(made(losses), 80), set()
    for question in random_questions(np.random.default_rng(seed)):
        before, price = replay.spent, replay.price(question)
        replay.answer(question)
        new = trained_tokens(question, diverged_at) - trained
        trained |= new
        assert replay.spent - before == len(new) <= price
        assert replay.spent == len(trained)
        assert replay.price(question) == 0


@pytest.mark.parametrize("seed", range(5))
def test_price_is_what_is_charged_where_nothing_diverges(seed):
    replay = Replay(made(), 80)
    for question in random_questions(np.random.default_rng(seed)):
        price, before = replay.price(question), replay.spent
        replay.answer(question)
        assert replay.spent - before == price


def test_decays_off_one_trunk_share_it():
    replay = Replay(made(), 80)
    assert [replay.price(Question(0, budget)) for budget in BUDGETS] == [20, 40, 80]
    for budget in BUDGETS:
        replay.answer(Question(0, budget))
    assert replay.spent == (80 - DECAY) + 3 * DECAY


def test_who_cannot_pause_pays_whole_runs():
    replay = Replay(made(), 80, can_pause=False)
    for budget in BUDGETS:
        assert replay.price(Question(0, budget)) == budget
        replay.answer(Question(0, budget))
    assert replay.spent == sum(BUDGETS)
    assert replay.price(Question(0, 80)) == replay.price(Question(0, 72, decayed=False)) == 0
    assert replay.price(Question(0, 73, decayed=False)) == 73


def test_diverged_run_costs_its_tokens_and_is_known_afterwards():
    losses = LOSSES.copy()
    losses[0, 1:] = math.nan
    replay = Replay(made(losses), 80)
    assert replay.price(Question(0, 80)) == 80, "a price must not tell that the run will diverge"
    assert math.isnan(replay.answer(Question(0, 80)))
    assert replay.spent == 40 - DECAY and replay.is_known_to_diverge(0)
    assert replay.price(Question(0, 40)) == replay.price(Question(0, 40, decayed=False)) == 0
    assert math.isnan(replay.answer(Question(0, 40, decayed=False))) and replay.spent == 40 - DECAY
    assert replay.answer(Question(0, 20)) == losses[0, 0] and replay.spent == 40


def test_curve_shows_what_was_trained_and_no_more():
    replay = Replay(made(curve=lambda cell, tokens: 5 - tokens / 100), 80)
    assert not len(replay.curve(3).tokens)
    assert replay.answer(Question(3, 33, decayed=False)) == pytest.approx(4.67)
    assert replay.curve(3).tokens[-1] <= 33 < replay.curve(3).tokens[-1] + 2
    assert replay.spent == 33


def test_budgets_beyond_the_target_cannot_be_asked():
    replay = Replay(made(), 40)
    assert replay.budgets == (20, 40) and replay.grid_price == 240
    with pytest.raises(InputError, match="no decay ends at 80"):
        replay.answer(Question(0, 80))


def test_points_snap_to_the_nearest_cell():
    assert Replay(made(), 80).nearest(-8.6, -3.9) == 2
    assert Replay(made(), 80).nearest(0.0, 5.0) == 5


def test_seeds_add_noise_to_whole_rows_and_seed_0_adds_none():
    landscape = made(noise=SeedNoise(np.array([0.1, 0.2, 0.3]), np.ones((3, 3))))  # budgets share all of it
    asked = [[Replay(landscape, 80, seed).answer(Question(0, budget)) for budget in BUDGETS] for seed in range(300)]
    added = np.array(asked) - LOSSES[0]
    assert np.allclose(added[0], 0)
    assert np.allclose(added[:, 1:], added[:, :1] * [2, 3], atol=1e-6)
    assert added[1:, 0].std() == pytest.approx(0.1, rel=0.15)
    shifted = Replay(landscape, 80, 1)
    loss = shifted.answer(Question(0, 40, decayed=False))
    assert loss == pytest.approx(LOSSES[0, 1] + added[1, 1]), "the trunk moves with its decays"


def test_a_repeat_is_another_run_at_the_full_price_with_noise_and_a_level_of_its_own():
    noise = SeedNoise(np.array([0.1, 0.2, 0.3]), np.ones((3, 3)), level=1.0)
    first = Replay(made(noise=noise), 80)
    first.answer(Question(0, 80))
    assert first.price(Question(0, 80)) == 0 and first.price(Question(0, 80, repeat=1)) == 80
    asked = [Replay(made(noise=noise), 80, seed).answer(Question(0, 20, repeat=1)) for seed in range(300)]
    assert np.std(asked) == pytest.approx(math.hypot(0.1, 1.0), rel=0.15)
    spent = first.spent
    loss = first.answer(Question(0, 20, repeat=1))
    assert first.spent == spent + 20 and loss == asked[0] != first.answer(Question(0, 20))
    assert first.trained(0, 1) == 12 and len(first.curve(0, 1).tokens) < len(first.curve(0).tokens)


SEEDS = SeedNoise(np.array([0.1, 0.2, 0.3]), np.ones((3, 3)), level=1.0)


def several(num_seeds=4):
    return replace(made(noise=SEEDS), num_seeds=num_seeds)


def test_a_cell_with_several_seeds_is_their_mean_for_the_price_of_all():
    whole, single = Replay(several(), 80, 3), Replay(several(), 80, 3, by_seed=True)
    assert whole.grid_price == single.grid_price == 4 * 6 * 80
    losses = [single.answer(Question(2, 40, repeat=repeat)) for repeat in range(4)]
    assert len(set(losses)) == 4
    assert whole.price(Question(2, 40)) == 4 * 40 and single.price(Question(2, 80)) == 80 - (40 - DECAY)
    assert whole.answer(Question(2, 40)) == pytest.approx(np.mean(losses))
    assert whole.spent == single.spent == 4 * 40
    assert whole.answer(Question(2, 40)) == pytest.approx(np.mean(losses)) and whole.spent == 4 * 40
    assert several().fingerprint != several(1).fingerprint == made(noise=SEEDS).fingerprint


def test_a_grid_of_seeds_is_exhausted_when_all_are_known():
    replay = Replay(several(2), 20, 1, by_seed=True)
    for cell in range(6):
        replay.answer(Question(cell, 20))
    assert not replay.is_exhausted
    for cell in range(6):
        replay.answer(Question(cell, 20, repeat=1))
    assert replay.is_exhausted and replay.spent == replay.grid_price


def runs_of(replay):
    """How many seeds of each cell were trained to the target."""
    return np.bincount([charge.cell for charge in replay.charges if charge.decay_to == replay.budget], minlength=6)


def test_halving_gives_the_better_half_twice_the_seeds():
    replay = Replay(replace(made(), num_seeds=8), 80, by_seed=True)
    last = list(seed_by_seed.halving(replay, np.random.default_rng(0)))[-1]
    assert runs_of(replay).tolist() == [8, 8, 2, 1, 1, 1], "6 cells, the best 3, then the best 2 to the end"
    assert last.cell == 0 and last.is_done and last.tokens == replay.spent


@pytest.mark.parametrize("name", ["grid", "lr_only", "lr_then_wd", "sobol_quadratic", "halving"])
def test_who_goes_seed_by_seed_gets_right_what_the_mean_of_all_seeds_tells(name):
    noise = SeedNoise(np.full(3, 0.02), np.ones((3, 3)))
    path = []
    for seed in range(1, 6):
        replay = Replay(replace(made(noise=noise), num_seeds=16), 80, seed, by_seed=True)
        path = list(getattr(seed_by_seed, name)(replay, np.random.default_rng(seed)))
        assert path[-1].is_done and path[-1].tokens <= replay.grid_price
        wanted = 1 if name == "lr_only" else 0  # the WD nearest to 0.1 is the second
        assert path[-1].cell == wanted or abs(LOSSES[path[-1].cell, 2] - LOSSES[wanted, 2]) < 0.02
    assert [point.tokens for point in path] == sorted(point.tokens for point in path)


def test_relabelled_cells_keep_their_losses_and_scaled_noise():
    landscape = made()
    order = np.array([2, 3, 0, 1, 4, 5])
    swapped = relabelled(landscape, order, "swapped")
    assert np.array_equal(swapped.losses, landscape.losses[order])
    assert swapped.curves[0].info.learning_rate == 2.0**-10
    assert swapped.fingerprint != landscape.fingerprint


def oracle_path(noise, seed):
    return list(oracle(Replay(made(noise=noise), 80, seed), np.random.default_rng(0)))


def test_the_oracle_needs_one_pair_without_noise_and_as_many_as_a_random_walk_says_with_it():
    start = oracle_path(None, 0)[0]
    assert (start.tokens, start.cell) == (160, 0)
    gap, deviation = LOSSES[2, 2] - LOSSES[0, 2], 0.2
    noise = SeedNoise(np.full(3, deviation), np.ones((3, 3)), level=5.0)  # a pair has one level, which cancels
    first = [oracle_path(noise, seed)[0].cell for seed in range(1, 401)]
    right = 0.5 * (1 + math.erf(gap / (2 * deviation)))  # of one pair, whose difference scatters by sqrt(2) deviations
    assert np.mean([cell == 0 for cell in first]) == pytest.approx(right, abs=0.06)
