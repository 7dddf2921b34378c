import numpy as np
import pytest

from isotune.corpus.shuffle import shuffled


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4095, 4097, 10**5])
def test_a_pass_visits_every_window_once(size):
    for seed in (0, 1, 2**32 - 1):
        assert np.array_equal(np.sort(shuffled(0, size, size, seed=seed)), np.arange(size))


@pytest.mark.parametrize("size", [3, 10, 5000])
def test_every_later_pass_visits_every_window_once(size):
    passes = shuffled(0, 5 * size, size, seed=7).reshape(5, size)
    assert np.array_equal(np.sort(passes, axis=1), np.tile(np.arange(size), (5, 1)))


def test_passes_and_seeds_have_orders_of_their_own():
    size = 1000
    orders = [shuffled(epoch * size, size, size, seed=seed) for seed in range(4) for epoch in range(4)]
    for i, order in enumerate(orders):
        for other in orders[:i]:
            # Two random orders agree at about one place; 12 has a probability below 1e-9.
            assert np.count_nonzero(order == other) < 12


def test_a_stretch_of_the_order_does_not_depend_on_how_it_is_asked_for():
    whole = shuffled(0, 20_000, 3000, seed=3)
    assert all(shuffled(i, 1, 3000, seed=3)[0] == whole[i] for i in range(0, 20_000, 97))
    assert np.array_equal(shuffled(4090, 9000, 3000, seed=3), whole[4090:13_090])
    assert shuffled(5, 0, 3000, seed=3).size == 0


@pytest.mark.parametrize("size", [4096, 50_000, 99_999])
def test_an_order_looks_random(size):
    order = shuffled(0, size, size, seed=11)
    limit = 5 / np.sqrt(size)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < limit
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < limit
    # A random permutation has about ln(size) cycles' worth of structure and one fixed point on average.
    assert np.count_nonzero(order == np.arange(size)) < 12
    # Differences of neighbours spread like those of independent draws: mean |a - b| = size / 3.
    assert np.mean(np.abs(np.diff(order))) == pytest.approx(size / 3, rel=0.03)


def test_all_orders_of_three_windows_are_about_equally_frequent():
    orders = [tuple(shuffled(0, 3, 3, seed=seed).tolist()) for seed in range(1200)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert min(counts) > 200 * 0.7 and max(counts) < 200 * 1.3


def test_the_order_is_the_one_of_earlier_releases():
    # Studies on disk depend on it: if this fails, NUMERICS_VERSION has to be raised.
    assert shuffled(0, 8, 1000, seed=0).tolist() == [404, 729, 623, 343, 661, 703, 586, 465]
