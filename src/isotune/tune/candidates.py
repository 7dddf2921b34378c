"""Questions that may still be asked, what each would cost, and by how much its answer would help."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
_HALF_OF_NODES = list(zip(_NODES[6:].tolist(), (_WEIGHTS[6:] / _WEIGHTS.sum()).tolist(), strict=True))


@dataclass(frozen=True)
class Candidates:
    """Some cells at every rung at which they may still be asked, with their prices."""

    asked: Asked
    places: Places  # of the targets, one of which will be recommended, and then of the questions
    prices: np.ndarray
    noise: np.ndarray  # of each answer, by itself

    @staticmethod
    def of(
        goal: Goal,
        targets: np.ndarray,
        cells: np.ndarray,
        outlook: Outlook,
        told: Told,
        leave_out: Sequence[Question],
        prices: Prices | None,
        views: Iterable[str],
        num_repeated: int | None = None,
    ) -> Candidates:
        """Of cells that may be asked (`askable`), so many of them with further seeds. `views` are those in which the
        places will be looked at."""
        left_out = Asked.of(leave_out)
        known_seeds = {*told.trained.seeds.tolist(), *left_out.seeds.tolist()}
        rates, budgets = goal.space.settings[:, 0], np.array(goal.rungs)
        board = board_of(goal, np.union1d(targets, cells))
        cells, seeds = _cells_and_seeds(goal, outlook, cells, known_seeds, num_repeated)
        rungs = np.arange(len(cells) * len(budgets)) % len(budgets)
        cells, seeds, tokens = cells.repeat(len(budgets)), seeds.repeat(len(budgets)), budgets[rungs]
        kept = not_hopeless(rates[cells], tokens, told)
        kept &= ~_were_asked(goal, cells, rungs, seeds, (told.trained, left_out), {*known_seeds, *goal.seeds})
        cells, tokens, seeds = cells[kept], tokens[kept], seeds[kept]
        asked = Asked(goal.space.settings[cells], goal.space.cells[cells], tokens, seeds)
        listed = prices(_questions(asked)) if prices and len(asked) else tokens
        new_seeds = set(seeds.tolist()) - known_seeds - {goal.seeds[0]}
        for seed in new_seeds:
            seeds = np.where(seeds == seed, NEW, seeds)
        return Candidates(
            asked,
            board.places_of(targets, cells, rungs[kept], seeds, views),
            np.maximum(1.0, np.array(listed, dtype=float)),
            own_noise(goal.space.cells[cells, 0] - goal.space.middle[0]),
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

    def next(self, posterior: Posterior, told: Told, chosen: Sequence[int], num_observed: int) -> int | None:
        """The place of the question to ask, None if none is left."""
        if len(chosen) == len(self):
            return None
        if not num_observed:
            return self._first(posterior)
        if not chosen and len(told) and told.diverged.all():
            return self._lower(told)
        return self._best(posterior, chosen)

    def _first(self, posterior: Posterior) -> int:
        """Where nothing is known: the shortest run with the settings that are expected to be best."""
        expected = posterior.mean[self.num_targets :]
        return int(np.argmin(np.where(self.asked.tokens == self.asked.tokens.min(), expected, np.inf)))

    def _lower(self, told: Told) -> int:
        """Where no run has finished: a short run half way down, from the lowest LR and WD that were tried to the lowest
        that are left."""
        cells = self.points[:, :2].round(6)
        distance = np.abs(cells - (cells.min(axis=0) + told.asked.cells.min(axis=0)) / 2)
        return int(np.lexsort((self.points[:, 3], distance[:, 1], distance[:, 0]))[0])

    def _best(self, posterior: Posterior, chosen: Sequence[int]) -> int:
        """Among those with a fair part of the largest gain the one with most gain per token."""
        gains = expected_gains(posterior, self.num_targets, self._expected_noise(posterior))
        gains[list(chosen)] = -1.0
        if gains.max() <= 0:  # nothing is left to learn: what is expected to be best
            expected = posterior.mean[self.num_targets :].copy()
            expected[list(chosen)] = np.inf
            return int(np.argmin(expected))
        worth = gains >= MIN_GAIN_SHARE * gains.max()
        return int(np.argmax(np.where(worth, gains / self.prices, -1.0)))

    def _expected_noise(self, posterior: Posterior) -> np.ndarray:
        """Of each question's answer: an answer that is expected to be bad will say little."""
        return raised_noise(self.points, posterior.mean[self.num_targets :], self.noise)


def askable(goal: Goal, told: Told) -> np.ndarray:
    """Cells of the space that may be asked for at some length, each place once."""
    cells = goal.space.distinct
    rates = goal.space.settings[cells, 0]
    return np.asarray(cells[not_hopeless(rates, np.full(len(cells), goal.rungs[0]), told)])


def looked_at(outlook: Outlook, targets: np.ndarray, told: Told, leave_out: Sequence[Question]) -> np.ndarray:
    """The cells whose questions are weighed: of a large space the targets, some of all that may be asked, and some of
    those that have a run left with the first seed, lest there be nothing to ask while most was not."""
    goal = outlook.goal
    cells = askable(goal, told)
    if is_small(goal):
        return cells
    left = cells[_have_runs_left(goal, cells, told, Asked.of(leave_out))]
    parts = [np.intersect1d(targets, cells), outlook.considered(cells), outlook.considered(left)]
    return np.unique(np.concatenate(parts))


def _have_runs_left(goal: Goal, cells: np.ndarray, told: Told, left_out: Asked) -> np.ndarray:
    """Whether a cell may be asked with the first seed at some rung at which it was not."""
    seed, num_rungs = goal.seeds[0], len(goal.rungs)
    earlier = [asked.some(asked.seeds == seed) for asked in (told.trained, left_out)]
    all_cells, rungs = cells.repeat(num_rungs), np.tile(np.arange(num_rungs), len(cells))
    possible = not_hopeless(goal.space.settings[all_cells, 0], np.array(goal.rungs)[rungs], told)
    possible &= ~_were_asked(goal, all_cells, rungs, np.full(len(all_cells), seed), earlier, {seed})
    return np.asarray(possible.reshape(-1, num_rungs).any(axis=1))


def _questions(asked: Asked) -> list[Question]:
    return list(map(Question, *asked.settings.T.tolist(), asked.tokens.tolist(), asked.seeds.tolist()))


def _were_asked(
    goal: Goal,
    cells: np.ndarray,
    rungs: np.ndarray,
    seeds: np.ndarray,
    earlier: Sequence[Asked],
    all_seeds: Collection[float],
) -> np.ndarray:
    """Whether each cell was asked at its rung with its seed."""
    ordered_seeds = np.array(sorted(all_seeds), dtype=float)
    budgets = np.array(goal.rungs, dtype=float)
    were_asked = np.zeros((len(goal.space.cells), len(budgets), len(ordered_seeds)), dtype=bool)
    for asked in earlier:
        if len(asked):
            at, rung = goal.space.find(asked.cells), np.searchsorted(budgets[:-1], asked.tokens)
            inside = (at >= 0) & (budgets[rung] == asked.tokens)
            were_asked[at[inside], rung[inside], np.searchsorted(ordered_seeds, asked.seeds[inside])] = True
    return np.asarray(were_asked[cells, rungs, np.searchsorted(ordered_seeds, seeds)])


def _cells_and_seeds(
    goal: Goal, outlook: Outlook, cells: np.ndarray, known_seeds: set[float], num_repeated: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """(cells, seeds): every cell with the first seed; the best ones also with the others that were asked, and with one
    more."""
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
    above, move = above[could_be_best, None].astype(np.float32), move[could_be_best].astype(np.float32)
    gains = np.zeros(move.shape[1])
    moved = np.empty_like(move)
    for node, weight in _HALF_OF_NODES:
        scaled = move * np.float32(node)
        for moved_by in (np.add, np.subtract):
            moved_by(above, scaled, out=moved)
            gains -= weight * moved.min(axis=0)
    return np.maximum(0.0, gains)
