"""The belief: against the textbook's formula, and whether evidence moves it."""

import numpy as np
import pytest

from isotune.tune.belief import SCATTERS, SIZES, believe
from isotune.tune.evidence import MIN_WEIGHT
from isotune.tune.kernels import (
    HELPED,
    INVARIANT,
    ROUGH,
    SEED_NOISE,
    Places,
    expected_losses,
    helped_kernel,
    invariant_kernel,
    plain_kernel,
    rough_kernel,
    seed_covariance,
    seed_variance,
)
from isotune.tune.observations import CELL, MAX_OBSERVATIONS, NOISE, Groups, Observations, with_noise

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_draws_in_any_order_of_tests():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def points(count, steps=13.4, low=-12.0, high=-7.0):
    return np.column_stack(
        [
            RNG.uniform(low, high, count),
            RNG.uniform(-8, 0, count),
            np.full(count, steps),
            RNG.choice([-3.0, -2.0, -1.0, 0.0], count),
            RNG.choice([0.0, 1.0, np.nan], count),
        ]
    )


KERNELS = [invariant_kernel(-9.5, 2.0), plain_kernel(-9.5, -4.0)]
KERNELS += [helped_kernel(KERNELS[0]), rough_kernel(KERNELS[0])]
BOTH = {KERNELS[0]: 4.0, KERNELS[1]: 1.0}
ALL = dict(zip(KERNELS, (4.0, 1.0, 2.0, 1.0), strict=True))  # as the tuner has them


def covariance(kernel, a, b, size=1.0, scatter=1.0):
    a, b = Places.of([kernel], a), Places.of([kernel], b)
    return kernel.shared(a, b).covariance(kernel.weights(size)) + scatter**2 * seed_covariance(a, b)


@pytest.mark.parametrize(("size", "scatter"), [(1.0, 1.0), (4.0, 2.5)])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_posterior_is_the_textbooks(kernel, size, scatter):
    seen, asked = points(12), points(5)
    values, noise = RNG.normal(0.4, 0.02, 12), RNG.uniform(0.001, 0.01, 12)
    belief = believe({kernel: 1.0}, Observations(seen, values, noise), {size: 1.0}, {scatter: 1.0})
    posterior, noise = belief.at(asked), belief.observations.noise  # raised where a value is taken for luck
    inverse = np.linalg.inv(covariance(kernel, seen, seen, size, scatter) + np.diag(noise**2))
    cross = covariance(kernel, asked, seen, size, scatter)
    before = [expected_losses([(kernel, size)], Places.of([kernel], where))[0] for where in (seen, asked)]
    assert posterior.mean == pytest.approx(before[1] + cross @ inverse @ (values - before[0]), abs=1e-6)
    prior = covariance(kernel, asked, asked, size, scatter)
    expected = prior - cross @ inverse @ cross.T
    assert posterior.covariance(slice(None), slice(None)) == pytest.approx(expected, abs=1e-7)
    assert posterior.deviation == pytest.approx(np.sqrt(np.diag(expected)), abs=1e-5)
    diagonal = kernel.variance(Places.of([kernel], asked), kernel.weights(size)) + scatter**2 * seed_variance(
        asked[:, 4]
    )
    assert diagonal == pytest.approx(np.diag(prior))


def test_a_loss_far_below_all_expectation_is_luck_until_another_seed_says_the_same():
    lr = np.arange(-12.0, -6.0)
    seen = np.column_stack([lr, np.full(6, -6.0), np.full(6, 13.4), np.zeros(6), np.zeros(6)])
    values = 0.4 + 0.009 * (lr + 10) ** 2
    values[-1] -= 0.15
    once = believe(ALL, Observations(seen, values, np.full(6, NOISE)))
    assert once.observations.noise[-1] > 0.03 and (once.observations.noise[:-1] == NOISE).all()
    assert np.argmin(once.at(seen).mean) != 5
    twins = np.vstack([seen, seen[[0, 2, 5]] + [0, 0, 0, 0, 1.0]])
    again = believe(ALL, Observations(twins, np.append(values, values[[0, 2, 5]] + 0.002), np.full(9, NOISE)))
    assert np.argmin(again.at(seen).mean) == 5


def test_high_losses_are_no_luck():
    seen = np.column_stack([np.arange(-12.0, -6.0), np.full(6, -6.0), np.full(6, 13.4), np.zeros(6), np.zeros(6)])
    values = np.array([0.44, 0.41, 0.4, 0.41, 0.44, 0.9])
    observed = with_noise(seen, values)
    assert (believe(ALL, observed).observations.noise == observed.noise).all()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_covariance_has_no_negative_eigenvalue(kernel):
    where = points(60)
    assert np.linalg.eigvalsh(covariance(kernel, where, where)).min() > -1e-9


@pytest.mark.parametrize("kernels", [BOTH, ALL], ids=["two", "all"])
def test_rivals_make_the_mixture_of_their_posteriors(kernels):
    seen, asked = points(6), points(4)
    observed = Observations(seen, RNG.normal(0.4, 0.02, 6), np.full(6, 0.003))
    both = believe(kernels, observed)
    assert sum(rival.weight for rival in both.rivals) == pytest.approx(1.0) and len(both.rivals) > 2
    alone = [believe({one.kernel: 1.0}, observed, {one.size: 1.0}, {one.scatter: 1.0}).at(asked) for one in both.rivals]
    mixed = both.at(asked)
    assert mixed.mean == pytest.approx(sum(w * one.mean for w, one in zip(mixed.weights, alone, strict=True)))
    draws = mixed.draws(slice(None), np.random.default_rng(1).standard_normal((200_000, 4)))
    assert draws.mean(axis=0) == pytest.approx(mixed.mean, abs=3e-3)
    assert np.cov(draws.T) == pytest.approx(mixed.covariance(slice(None), slice(None)), rel=0.05, abs=1e-4)


def test_many_points_and_none_are_looked_at_like_few(monkeypatch):
    seen, asked = points(20), points(30)
    belief = believe(ALL, Observations(seen, RNG.normal(0.4, 0.02, 20), np.full(20, 0.003)))
    at_once = belief.at(asked)
    assert len(belief.rivals) > 2 and len(belief.at(asked[:0]).mean) == 0
    monkeypatch.setattr("isotune.tune.belief.MAX_AT_ONCE", 30 * 20)  # one rival after the other
    one_by_one = belief.at(asked)
    assert one_by_one.mean == pytest.approx(at_once.mean) and one_by_one.deviation == pytest.approx(at_once.deviation)
    single = belief.at(asked.astype(np.float32)).mean
    assert single == pytest.approx(at_once.mean, abs=1e-4)


@pytest.mark.parametrize("count", [0, 3, 40, 90])
def test_what_is_expected_is_the_mean_of_the_posterior(count):
    seen, asked = Places.of(ALL, points(count)), Places.of(ALL, points(20))
    belief = believe(ALL, Observations(seen.points, RNG.normal(0.4, 0.02, count), np.full(count, 0.003)))
    assert belief.expected(asked) == pytest.approx(belief.at(asked).mean, abs=1e-9)
    best = belief.likeliest()
    likeliest = max(belief.rivals, key=lambda rival: rival.weight)
    assert [(one.kernel, one.size, one.scatter, one.weight) for one in best.rivals] == [
        (likeliest.kernel, likeliest.size, likeliest.scatter, 1.0)
    ]
    assert best.expected(asked) == pytest.approx(best.at(asked).mean, abs=1e-9)


@pytest.mark.parametrize("count", [3, 12, 40])
@pytest.mark.parametrize("deviation", [0.002, 0.05])
def test_rivals_that_are_not_tried_would_have_weighed_nothing(count, deviation):
    """Against all rivals, each believed alone: their weights are odds times evidence."""
    rng = np.random.default_rng(count)
    seen = points(count)
    values = 0.4 + 0.01 * (seen[:, 0] + 9.5) ** 2 - 0.07 * seen[:, 3] + rng.normal(0, deviation, count)
    belief = believe(ALL, Observations(seen, values, np.full(count, NOISE)))
    noise = belief.observations.noise
    logs = {}
    for kernel, odds in ALL.items():
        for size, size_odds in SIZES.items():
            for scatter, scatter_odds in SCATTERS.items():
                total = covariance(kernel, seen, seen, size, scatter) + np.diag(noise**2)
                off = values - expected_losses([(kernel, size)], Places.of([kernel], seen))[0]
                evidence = -(np.linalg.slogdet(total)[1] + off @ np.linalg.solve(total, off)) / 2
                logs[kernel.name, size, scatter] = evidence + np.log(odds * size_odds * scatter_odds)
    weights = np.exp(np.array(list(logs.values())) - max(logs.values()))
    expected = dict(zip(logs, weights / weights.sum(), strict=True))
    found = {(one.kernel.name, one.size, one.scatter): one.weight for one in belief.rivals}
    assert all(expected[key] < 1.1 * MIN_WEIGHT for key in expected.keys() - found.keys())
    kept = sum(expected[key] for key in found)
    assert found == pytest.approx({key: expected[key] / kept for key in found}, rel=1e-3)


@pytest.mark.parametrize("steep", [False, True], ids=["round", "walled"])
def test_a_bowl_with_a_wall_on_one_side_is_told_from_a_round_one(steep):
    """WD matters through n alone, so that the plain rival is no way out."""
    lr, wd = (axis.ravel() for axis in np.meshgrid(np.arange(-12.0, -6.5, 0.5), [-8.0, -4.0, -1.0, 0.0]))
    seen = np.column_stack([lr, wd, np.full(len(lr), 13.4), np.zeros(len(lr)), np.full(len(lr), np.nan)])
    bowl = np.where(lr < -9.5, 0.1 * (-9.5 - lr), 0.005 * (lr + 9.5)) if steep else 0.009 * (lr + 9.5) ** 2
    z = np.log2(1 + np.exp2(lr + wd + 13.4))
    values = 0.4 + bowl + 0.007 * z**2 + np.random.default_rng(0).normal(0, NOISE, len(lr))
    at = believe(ALL, with_noise(seen, values)).at(seen[:1])
    assert at.probability(INVARIANT, HELPED) > 0.9 if not steep else at.probability(ROUGH) > 0.9


def test_weight_decay_cannot_matter_where_memory_has_not_turned_over():
    kernel, spread = KERNELS[0], []
    # n of .001 and .008, then of 4 and 32
    for cells in ([[-10.0, -8.0, 8.0], [-10.0, -5.0, 8.0]], [[-10.0, -3.0, 15.0], [-10.0, 0.0, 15.0]]):
        where = np.column_stack([cells, np.zeros(2), np.full(2, np.nan)])
        c = covariance(kernel, where, where)
        spread.append((c[0, 0] + c[1, 1] - 2 * c[0, 1]) ** 0.5)
    assert spread[0] < 1e-3 < 0.01 < spread[1]


def difference_left(row, scatters=None, values=None):
    """What is not known of the difference between two LRs after these runs."""
    targets = np.array([[-10.0, -8.0, 8.0, 0.0, np.nan], [-8.5, -8.0, 8.0, 0.0, np.nan]])
    observed = Observations(row, np.full(len(row), 0.4) if values is None else values, np.full(len(row), 1e-4))
    posterior = believe({KERNELS[0]: 1.0}, observed, {1.0: 1.0}, scatters or {1.0: 1.0}).at(targets)
    c = posterior.covariance(slice(None), slice(None))
    return float(c[0, 0] + c[1, 1] - 2 * c[0, 1]) ** 0.5


def test_other_weight_decays_of_a_seed_do_not_average_its_noise_out():
    """Four runs of one seed at one LR and n << 1 tell what one of them tells; four seeds at both LRs tell more."""
    one, decays, seeds = (
        np.array([[lr, wd, 8.0, 0.0, seed] for lr in (-10.0, -8.5) for wd, seed in zip(wds, seeds, strict=True)])
        for wds, seeds in (([-8.0], [0]), ([-8.0, -7.0, -6.0, -5.0], [0] * 4), ([-8.0] * 4, range(4)))
    )
    noise = SEED_NOISE * np.sqrt(2)
    assert difference_left(one) == pytest.approx(noise, rel=0.1)
    assert difference_left(decays) == pytest.approx(noise, rel=0.1)
    assert difference_left(seeds) == pytest.approx(noise / 2, rel=0.15)


def test_a_seed_has_a_level_so_that_seeds_are_compared_within_themselves():
    """One LR with seed 0 and the other with seed 1 tell less than both with seed 0."""
    same, other = (np.array([[-10.0, -8.0, 8.0, 0.0, 0.0], [-8.5, -8.0, 8.0, 0.0, seed]]) for seed in (0.0, 1.0))
    assert difference_left(other) > 1.05 * difference_left(same)


def test_how_much_seeds_scatter_is_learnt_from_them():
    row = np.array([[lr, -8.0, 8.0, 0.0, seed] for lr in (-11.0, -10.0, -9.0) for seed in range(4)])
    signs = np.array([1, -1, 1, -1, -1, 1, 1, -1, 1, 1, -1, -1])
    both = {1.0: 1.0, 3.0: 1.0}
    for size, expected in ((1.0, 1.0), (3.0, 3.0)):
        values = 0.4 + 0.008 * (row[:, 0] + 10) ** 2 + size * SEED_NOISE * signs
        belief = believe({KERNELS[0]: 1.0}, Observations(row, values, np.full(12, 5e-4)), {1.0: 1.0}, both)
        assert sum(rival.weight for rival in belief.rivals if rival.scatter == expected) > 0.8


@pytest.mark.parametrize("scatter", [0.5, 1.5, 4.5])
def test_of_very_many_runs_the_means_of_cells_say_what_the_runs_say(scatter, monkeypatch):
    """Against the belief of all runs, one by one: the losses that seeds scatter about are the same to the last digits,
    and so is, about, how much they scatter, of which means alone would tell little."""
    cells = np.array([(lr / 2, wd, 13.4, 0.0, np.nan) for lr in range(-21, -16) for wd in (-8, -7, -3)], dtype=float)
    runs = np.repeat(cells, 6, axis=0)
    runs[:, 4] = np.tile(np.arange(6.0), len(cells))
    places = Places.of(ALL, runs)
    noise = scatter**2 * seed_covariance(places, places) + NOISE**2 * np.eye(len(runs))
    drawn = np.linalg.cholesky(noise) @ np.random.default_rng(1).standard_normal(len(runs))
    observed = with_noise(runs, 0.009 * (runs[:, 0] + 9.4) ** 2 + drawn)
    merged, merged_scatter = believe(ALL, observed, scatters={scatter: 1.0}), believe(ALL, observed)
    monkeypatch.setattr("isotune.tune.observations.MAX_OBSERVATIONS", 1000)
    exact, exact_scatter = believe(ALL, observed, scatters={scatter: 1.0}), believe(ALL, observed)
    assert len(merged.observations) == len(cells) and len(exact.observations) == len(runs)
    assert np.allclose(merged.at(cells).mean, exact.at(cells).mean, rtol=0, atol=1e-6)
    assert np.allclose(merged.at(cells).deviation, exact.at(cells).deviation, rtol=1e-3)
    for belief, least in ((merged_scatter, 0.75), (exact_scatter, 0.95)):
        assert sum(rival.weight for rival in belief.rivals if rival.scatter == scatter) > least


def test_a_deeper_bowl_is_seen():
    cells = np.array([[lr, -8.0, 9.0, 0.0, 0.0] for lr in np.arange(-12.0, -6.0)])
    sizes = []
    for steepness in (1.0, 5.0):
        values = 0.4 + 0.008 * steepness * (cells[:, 0] + 9) ** 2
        belief = believe(BOTH, Observations(cells, values, np.full(6, 0.003)))
        sizes.append(sum(rival.weight * np.log2(rival.size) for rival in belief.rivals))
    assert sizes[1] > sizes[0] + 1


def test_evidence_decides_between_the_kernels():
    """Losses that turn with WD where n is tiny refute the invariance; losses that do not turn confirm it."""
    cells = np.array([[lr, wd, 9.0, 0.0, 0.0] for lr in (-11.0, -10.0, -9.0) for wd in (-8.0, -6.0, -4.0)])
    flat = 0.4 + 0.008 * (cells[:, 0] + 10) ** 2
    tilted = flat + 0.01 * (cells[:, 1] + 6)
    for values, expected in ((flat, "invariant"), (tilted, "plain")):
        assert believe(BOTH, with_noise(cells, values)).at(cells).probability(expected) > 0.9


def test_a_short_run_says_less_than_a_long_one():
    target = np.array([[-10.0, -6.0, 13.4, 0.0, np.nan]])
    beside = np.array([[1.0, 0.0, 0.0, 0.0, 0.0]])
    left = []
    for d in (-4.0, -2.0, -1.0, 0.0):
        seen = target.copy()
        seen[0, 2:] = 13.4 + d, d, 0.0
        others = seen + beside
        observed = Observations(np.vstack([seen, others]), np.array([0.5, 0.5]), np.full(2, NOISE))
        both = believe({KERNELS[0]: 1.0}, observed).at(np.vstack([target, target + beside]))
        c = both.covariance(slice(None), slice(None))
        left.append(c[0, 0] + c[1, 1] - 2 * c[0, 1])  # variance of the difference that is asked about
    assert left == sorted(left, reverse=True)


def test_runs_of_one_cell_and_budget_are_found_as_numpy_finds_them():
    seen = points(30)[RNG.integers(0, 30, 80)] + RNG.choice([0.0, 1e-9], (80, 5))
    seen[:, 4] = RNG.integers(0, 2, 80)
    groups = Groups(seen)
    for columns in (CELL, CELL, (4,), (3, 0), (3, 0, 4)):
        expected, which = np.unique(seen[:, columns].round(6), axis=0, return_inverse=True)
        found = groups.ranks(*columns)
        assert found[0] == len(expected) and found[1].tolist() == which.ravel().tolist()


def test_bad_losses_count_less_and_of_very_many_the_best_are_kept():
    cells = points(500)
    values = RNG.normal(0.4, 0.1, 500)
    observed = with_noise(cells, values)
    worst, best = int(np.argmax(values)), int(np.argmin(values))
    assert observed.noise[worst] > 10 * observed.noise[best] and observed.noise[best] == pytest.approx(NOISE)
    kept = believe(BOTH, observed).observations
    assert len(kept) == MAX_OBSERVATIONS
    assert np.isclose(kept.values, values[best]).any() and not np.isclose(kept.values, values[worst]).any()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_space_of_a_hundred_octaves_breaks_no_factor(kernel):
    # Variances of millions beside noise of a thousandth: rounding alone makes such a covariance indefinite.
    rates, decays = np.meshgrid(np.arange(-100.0, 1, 5), np.arange(-100.0, 1, 5))
    size = rates.size
    asked = np.column_stack([rates.ravel(), decays.ravel(), np.full(size, 13.4), np.zeros(size), np.full(size, np.nan)])
    seen = asked[::7].copy()
    seen[:, 4] = 0.0
    belief = believe({kernel: 1.0}, Observations(seen, np.full(len(seen), 0.9), np.full(len(seen), NOISE)))
    draws = belief.at(asked).draws(slice(None), np.random.default_rng(0).standard_normal((8, size)))
    assert np.isfinite(draws).all() and draws[:, ::7] == pytest.approx(0.9, abs=0.5)
