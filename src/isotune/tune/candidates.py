"""Questions that may still be asked, what each would cost, and by how much its answer would help."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from isotune.tune.belief import Posterior
from isotune.tune.board import board_of
from isotune.tune.considered import Outlook, is_small
from isotune.tune.kernels import NEW, Places
from isotune.tune.observations import NOISE, own_noise, raised_noise
from isotune.tune.questions import Goal, Prices, Question
from isotune.tune.told import Asked, Told, not_hopeless

NUM_REPEATED = 16  # cells that further seeds are considered for, the best; half as many in large spaces
MIN_GAIN_SHARE = 0.3  # of the largest gain: below, a question is cheap and useless
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(11)
_MIDDLE = len(_NODES) // 2
_OTHER_NODES = np.delete(_NODES, _MIDDLE).astype(np.float32)[:, None, None]
_OTHER_WEIGHTS = np.delete(_WEIGHTS / _WEIGHTS.sum(), _MIDDLE)
MAX_MOVED = 1 << 16  # numbers that are moved at once, to each node


@dataclass(frozen=True)
class Candidates:
    """Some cells at every rung at which they may still be asked, with their prices."""

    asked: Asked
    places: Places  # of the targets, one of which will be recommended, and then of the questions
    prices: np.ndarray
    noise: np.ndarray  # of each answer, by itself

    @staticmethod
    def of(
        outlook: Outlook,
        targets: np.ndarray,
        cells: np.ndarray,
        prices: Prices | None,
        views: Iterable[str],
        num_repeated: int | None = None,
    ) -> Candidates:
        """Of cells that may be asked (`askable`), so many of them with further seeds. `views` are those in which the
        places will be looked at."""
        goal, register = outlook.goal, outlook.register
        board = board_of(goal, targets, cells)
        known_seeds = {*outlook.told.trained.seeds.tolist(), *outlook.unanswered.seeds.tolist()}
        cells, seeds = _cells_and_seeds(outlook, cells, known_seeds, num_repeated)
        budgets = np.array(goal.rungs)
        cells, seeds, rungs = cells.repeat(len(budgets)), seeds.repeat(len(budgets)), _tiled(len(budgets), len(cells))
        kept = ~register.has(cells, rungs, seeds)
        kept &= not_hopeless(goal.space.settings[cells, 0], budgets[rungs], outlook.told)
        cells, rungs, seeds = cells[kept], rungs[kept], seeds[kept]
        asked = Asked(goal.space.settings[cells], goal.space.cells[cells], budgets[rungs], seeds)
        listed = prices(_questions(asked)) if prices and len(asked) else asked.tokens
        for seed in set(seeds.tolist()) - known_seeds - {goal.seeds[0]}:
            seeds = np.where(seeds == seed, NEW, seeds)
        return Candidates(
            asked,
            board.places_of(targets, cells, rungs, seeds, views),
            np.maximum(1.0, np.array(listed, dtype=float)),
            own_noise(asked.cells[:, 0] - goal.space.middle[0]),
        )

    def __len__(self) -> int:
        return len(self.asked)

    @property
    def num_targets(self) -> int:
        return len(self.places) - len(self)

    @property
    def points(self) -> np.ndarray:
        """Of the questions."""
        return self.places.points[self.num_targets :]

    def question(self, index: int) -> Question:
        learning_rate, weight_decay = self.asked.settings[index].tolist()
        return Question(learning_rate, weight_decay, self.asked.tokens[index].item(), self.asked.seeds[index].item())

    def priced(self, index: int) -> tuple[Question, float]:
        return self.question(index), self.prices[index].item()

    def next(
        self,
        posterior: Posterior,
        told: Told,
        chosen: Sequence[int],
        num_observed: int,
        most_tokens: float = math.inf,
    ) -> int | None:
        """The place of the question to ask beside the chosen ones; None if none is left that is paid for and worth
        asking."""
        left = most_tokens - self.prices[list(chosen)].sum()
        if len(chosen) == len(self) or left < self.prices.min():
            return None
        if not num_observed:
            return self._first(posterior, left)
        if not chosen and len(told) and told.diverged.all():
            return self._lower(told, left)
        return self._best(posterior, chosen, left)

    def _first(self, posterior: Posterior, left: float) -> int:
        """Where nothing is known: the shortest run with the settings that are expected to be best."""
        expected = posterior.mean[self.num_targets :]
        affordable = self.prices <= left
        is_shortest = affordable & (self.asked.tokens == self.asked.tokens[affordable].min())
        return int(np.argmin(np.where(is_shortest, expected, np.inf)))

    def _lower(self, told: Told, left: float) -> int:
        """Where no run has finished: a short run half way down, from the lowest LR and WD that were tried to the lowest
        that are left."""
        cells = self.points[:, :2].round(6)
        distance = np.abs(cells - (cells.min(axis=0) + told.asked.cells.min(axis=0)) / 2)
        return int(np.lexsort((self.points[:, 3], distance[:, 1], distance[:, 0], self.prices > left))[0])

    def _best(self, posterior: Posterior, chosen: Sequence[int], left: float) -> int | None:
        """Among those with a fair part of the largest gain the one with most gain per token, of those that so many
        tokens pay for."""
        gains = expected_gains(posterior, self.num_targets, self._expected_noise(posterior))
        gains[list(chosen)] = -1.0
        if gains.max() <= 0:  # nothing is left to learn: what is expected to be best
            expected = np.where(self.prices <= left, posterior.mean[self.num_targets :], np.inf)
            expected[list(chosen)] = np.inf
            return int(np.argmin(expected)) if expected.min() < np.inf else None
        worth = (gains >= MIN_GAIN_SHARE * gains.max()) & (self.prices <= left)
        return int(np.argmax(np.where(worth, gains / self.prices, -1.0))) if worth.any() else None

    def _expected_noise(self, posterior: Posterior) -> np.ndarray:
        """Of each question's answer: an answer that is expected to be bad will say little."""
        return raised_noise(self.places.which[self.num_targets :], posterior.mean[self.num_targets :], self.noise)


def askable(goal: Goal, told: Told) -> np.ndarray:
    """Cells of the space that may be asked for at some length, each place once."""
    cells = goal.space.distinct
    rates = goal.space.settings[cells, 0]
    return np.asarray(cells[not_hopeless(rates, np.full(len(cells), goal.rungs[0]), told)])


def looked_at(outlook: Outlook, targets: np.ndarray) -> np.ndarray:
    """The cells whose questions are weighed: of a large space the targets, some of all that may be asked, and some of
    those that have a run left with the first seed, lest there be nothing to ask while most was not."""
    goal = outlook.goal
    cells = askable(goal, outlook.told)
    if is_small(goal):
        return cells
    chosen, may_be_asked = (np.zeros(len(goal.space.cells), dtype=bool) for _ in range(2))
    may_be_asked[cells] = True
    left = cells[_have_runs_left(outlook, cells)]
    for some in (targets, outlook.considered(cells), outlook.considered(left)):
        chosen[some] = True
    return np.flatnonzero(chosen & may_be_asked)


def _have_runs_left(outlook: Outlook, cells: np.ndarray) -> np.ndarray:
    """Whether a cell may be asked with the first seed at some rung at which it was not."""
    goal = outlook.goal
    is_left = ~outlook.register.has(cells, slice(None), goal.seeds[0])
    budgets = np.array(goal.rungs)[_tiled(len(goal.rungs), len(cells))]
    is_left &= not_hopeless(goal.space.settings[cells, 0].repeat(len(goal.rungs)), budgets, outlook.told).reshape(
        is_left.shape
    )
    return np.asarray(is_left.any(axis=1))


def _tiled(length: int, times: int) -> np.ndarray:
    """0, 1, ... up to a length, so many times: the same as np.tile, whose checks take longer than that."""
    return np.arange(length * times) % length


def _questions(asked: Asked) -> list[Question]:
    return list(map(Question, *asked.settings.T.tolist(), asked.tokens.tolist(), asked.seeds.tolist()))


def _cells_and_seeds(
    outlook: Outlook, cells: np.ndarray, known_seeds: set[float], num_repeated: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """(cells, seeds): every cell with the first seed; the best ones also with the others that were asked, and with one
    more."""
    goal = outlook.goal
    others = [seed for seed in goal.seeds[1:] if seed in known_seeds] + [
        seed for seed in goal.seeds[1:] if seed not in known_seeds
    ][:1]
    if not others or not known_seeds:
        return cells, np.full(len(cells), goal.seeds[0])
    if num_repeated is None:
        num_repeated = NUM_REPEATED if is_small(goal) else NUM_REPEATED // 2
    best = np.argsort(outlook.expected[cells])[:num_repeated]
    seeds = np.concatenate([np.full(len(cells), goal.seeds[0]), np.repeat(others, len(best))])
    return np.concatenate([cells, np.tile(cells[best], len(others))]), seeds


def expected_gains(posterior: Posterior, num_targets: int, noise: float | np.ndarray = NOISE) -> np.ndarray:
    """By how much an answer at each later point lowers the lowest expected log loss of the targets, which come first:
    the knowledge gradient."""
    points = slice(num_targets, None)
    mean, deviation = posterior.mean[:num_targets], posterior.deviation[:num_targets]
    best = int(np.argmin(mean))
    # A target that no answer can move below the best is left out: nothing changes, and most are. First by what is known
    # of both, since an answer cannot move them apart by more than that; then by how far the answers do.
    targets = np.flatnonzero(mean - mean[best] <= _NODES[-1] * (deviation + deviation[best]))
    above = mean[targets] - mean[best]
    # How far an answer that is one deviation higher than expected moves each target: [targets x points]. That it moves
    # all of them by something does not matter.
    move = posterior.covariance(targets, points)
    move -= move[np.searchsorted(targets, best)].copy()
    move /= np.hypot(posterior.deviation[points], noise)
    reach = _NODES[-1] * np.maximum(move.max(axis=1, initial=0.0), -move.min(axis=1, initial=0.0))
    could_be_best = above <= reach
    # Single precision is enough for differences, and takes half of the time. The middle node moves nothing.
    above, move = above[could_be_best].astype(np.float32), move[could_be_best].astype(np.float32)
    gains = np.empty(move.shape[1])
    at_once = max(1, MAX_MOVED // move.shape[0])
    for begin in range(0, len(gains), at_once):
        moved = _OTHER_NODES * move[:, begin : begin + at_once]
        moved += above[:, None]
        gains[begin : begin + at_once] = -_OTHER_WEIGHTS @ moved.min(axis=1)
    return np.maximum(0.0, gains, out=gains)
