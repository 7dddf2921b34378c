"""What is kept of very many observations."""

import math

import numpy as np
import pytest
from surfaces import GOAL, TOKENS, nano_like, play

from isotune.tune import Answer, Question
from isotune.tune.kernels import SEED_LEVEL, SEED_NOISE
from isotune.tune.observations import MAX_OBSERVATIONS, Repeats, fewer
from isotune.tune.told import Told, observations


@pytest.mark.parametrize(("num_cells", "num_answers"), [(1, 150), (1, 218), (2, 150), (3, 218)])
def test_what_is_kept_of_equal_places_does_not_depend_on_their_order(num_cells, num_answers):
    """Runs of one cell lie equally high on any surface; rounding must not choose between them."""
    rng = np.random.default_rng(num_cells)
    answers = []
    for index in range(num_answers):
        rung = int(rng.integers(5))
        question = Question(2.0**-9, 0.1 * 3 ** (index % num_cells), TOKENS >> rung)
        answers.append(Answer(question, (1.5 + 0.1 * rung) * math.exp(rng.normal(0, 0.01))))
    kept = set()
    for order in range(40):
        shuffled = [answers[index] for index in np.random.default_rng(order).permutation(num_answers)]
        found = fewer(observations(GOAL, Told.of(shuffled)))
        assert len(found) == MAX_OBSERVATIONS
        kept.add(tuple(sorted(found.values.tolist())))
    assert len(kept) == 1


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_the_unit_of_the_loss_does_not_matter(factor):
    """A loss that is summed over a sequence is a thousand times the mean."""
    answers, suggestions = play(nano_like)
    scaled, others = play(lambda *question: factor * nano_like(*question))
    best, other = suggestions[-1].recommendation, others[-1].recommendation
    assert [answer.question for answer in scaled] == [answer.question for answer in answers]
    assert (best.learning_rate, best.weight_decay) == (other.learning_rate, other.weight_decay)
    assert other.loss == pytest.approx(factor * best.loss, rel=1e-2)
    assert other.regret == pytest.approx(best.regret, rel=0.1, abs=1e-5)


def test_seeds_are_likely_by_the_square_of_how_much_they_scatter():
    squares, freedom, own = 3e-4, 4.0, 1e-6
    of_one_cell = Repeats(np.zeros(0), np.zeros((1, 0)), np.array([squares]), np.array([freedom]), np.array([own]))
    for scatter, found in zip((0.5, 3.0), of_one_cell.log_likelihoods((0.5, 3.0)), strict=True):
        variance = scatter**2 * (SEED_NOISE**2 + SEED_LEVEL**2) + own
        assert found == pytest.approx(-(freedom * math.log(variance) + squares / variance) / 2)
