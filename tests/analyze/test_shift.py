"""When LR gives way to ELR: the shift that was put in comes out, and where there is none a reason does."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from synthetic import WIDE_LR, WIDE_WD, grid, scaling_loss, shifting_loss, sweep

from isotune.analyze.curves import common_curves
from isotune.analyze.shift import find_shift
from isotune.errors import InputError


@pytest.mark.parametrize("noise", [0.0, 0.003, 0.02])
@pytest.mark.parametrize(("n_shift", "exponent"), [(1.3, 1.0), (3.0, 1.0), (1.3, 0.7)])
def test_the_shift_that_was_put_in_comes_out(noise, n_shift, exponent):
    x, y = grid(WIDE_LR)
    loss = partial(scaling_loss, n_shift=n_shift, exponent=exponent)
    found = find_shift(sweep(np.random.default_rng(1), x, y, loss, noise=noise))
    assert found.verdict == "shift"
    slack = 0.02 + 5 * noise
    assert found.learning_rate.value == pytest.approx(-exponent, abs=slack)
    assert found.weight_decay.value == pytest.approx(-exponent, abs=slack)
    if exponent == 1:
        assert found.memory_times.value == pytest.approx(n_shift, rel=0.02 + 5 * noise)
    assert len(found.crossings) == 40 and found.reasons


def test_intervals_of_the_shift_cover_with_and_without_what_stays_with_a_run():
    """A quick version of proofs/analysis_controls.py; offsets of runs, as of seeds, are as large as the noise."""
    x, y = grid()
    for offset in (0.0, 0.01):
        held = []
        for seed in range(30):
            rng = np.random.default_rng(seed)
            curves = common_curves(sweep(rng, x, y, scaling_loss, noise=0.01))
            curves = replace(curves, values=curves.values + offset * rng.standard_normal((len(x), 1)))
            found = find_shift(curves, num_windows=1)
            held += [one.low <= -1 <= one.high for one in (found.learning_rate, found.weight_decay)]
            held.append(found.memory_times.low <= 1.3 <= found.memory_times.high)
        assert 0.75 <= np.mean(held) <= 0.99


def test_cells_with_different_seeds_shift_where_those_with_one_do():
    """Seeds lie .15 apart, a change of an octave is .1: cell by cell, seeds alone would decide."""
    x, y = grid()
    rng = np.random.default_rng(1)
    one_seed = common_curves(sweep(rng, x, y, scaling_loss, noise=0.003))
    values, infos, n = [], [], []
    for cell, info in enumerate(one_seed.infos):
        for seed in (0, 1, 2) if cell % 3 == 0 else (0,) if cell % 3 == 1 else (1, 2):
            values.append(one_seed.values[cell] + 0.15 * seed)
            infos.append(replace(info, seed=seed))
            n.append(one_seed.memory_times[cell])
    seeds = replace(one_seed, values=np.array(values), infos=tuple(infos), memory_times=np.array(n))
    expected, found = find_shift(one_seed), find_shift(seeds)
    assert found.verdict == "shift"
    for name in ("memory_times", "learning_rate", "weight_decay"):
        assert getattr(found, name).value == pytest.approx(getattr(expected, name).value, rel=1e-3)
        assert getattr(found, name).high == pytest.approx(getattr(expected, name).high, rel=1e-3)


def test_scatter_beyond_the_noise_along_runs_widens_and_says_so():
    x, y = grid()
    curves = common_curves(sweep(np.random.default_rng(1), x, y, scaling_loss, noise=0.003))
    offset = replace(curves, values=curves.values + 0.01 * np.random.default_rng(2).standard_normal((len(x), 1)))
    calm, moved = find_shift(curves), find_shift(offset)
    assert not calm.warnings or "scatter" not in calm.warnings[0]
    assert "seeds differ" in moved.warnings[0]
    assert moved.learning_rate.high - moved.learning_rate.low > 2 * (calm.learning_rate.high - calm.learning_rate.low)


def test_a_forgetting_sweep_shifts_at_an_n_of_about_one():
    x, y = grid(WIDE_LR, WIDE_WD)
    found = find_shift(sweep(np.random.default_rng(1), x, y, shifting_loss, noise=0.003))
    assert found.verdict == "shift" and 0.3 < found.memory_times.value < 2
    assert found.quartiles[0] < found.memory_times.value < found.quartiles[1]
    late = found.angles[-1]
    assert late.median_memory_times > found.angles[0].median_memory_times
    assert late.angle.degrees > 20 > found.angles[0].angle.degrees


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda x, y, step: 3 - 0.1 * x[:, None] + 0 * step, "runs of equal ELR do not lie closer"),
        (lambda x, y, step: 3 + 0.1 * (x + y)[:, None] + 0 * step, "runs of equal LR do not lie closer"),
        (lambda x, y, step: 3 + 0 * x[:, None] * step, "no shift is seen"),
    ],
)
def test_without_a_shift_the_answer_is_open(loss, words):
    x, y = grid()
    for seed in range(10):
        found = find_shift(sweep(np.random.default_rng(seed), x, y, loss, noise=0.01))
        assert found.verdict == "undecided" and words in found.reasons[0]


def test_too_few_runs_or_points_and_an_unknown_n_have_no_shift():
    x, y = grid([-9.0, -8.0], [-2.0, -1.0])
    assert "too few" in find_shift(sweep(np.random.default_rng(0), x, y)).reasons[0]
    x, y = grid()
    short = common_curves(sweep(np.random.default_rng(0), x, y), num_points=4)
    assert "4 points" in find_shift(short).reasons[0]
    with pytest.raises(InputError, match="convention"):
        find_shift(sweep(np.random.default_rng(0), x, y, convention="unknown"))
