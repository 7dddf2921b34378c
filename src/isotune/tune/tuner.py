"""Which run to ask for next, and what to recommend: a pure function of what is known.

The belief gives the joint distribution of all losses. Of every question that could be asked (a cell at a budget; in a
large space, of the cells that are looked at) it is computed by how much the answer would lower the regret that is to be
expected of the recommendation, E[min] before minus after (the knowledge gradient), and what it costs in tokens that are
not trained yet. Among the questions with a fair part of the largest gain the cheapest gain per token is taken. It ends
when the expected regret is below the tolerance and nothing is left that has to be asked before (last.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from isotune.errors import InputError
from isotune.tune.belief import Belief, Posterior, believe
from isotune.tune.board import MAX_ON_BOARD, kernels_of, target_places
from isotune.tune.candidates import Candidates, looked_at
from isotune.tune.considered import Outlook
from isotune.tune.kernels import HELPED, INVARIANT, ROUGH
from isotune.tune.last import last_question
from isotune.tune.observations import Observations, own_noise
from isotune.tune.questions import Answer, Goal, Prices, Question
from isotune.tune.reasons import why
from isotune.tune.told import Asked, Told, observations, recommendable

EVEN_SHARE = 0.1  # of the tolerance: expected losses that differ by less are even, and the surest of them is taken
NUM_DRAWS = 256
MAX_LOG_REGRET = 100.0  # a space of very many octaves has larger ones, before anything is known


@dataclass(frozen=True)
class Recommendation:
    """The settings with the lowest expected loss, and how far from the best they may be."""

    learning_rate: float
    weight_decay: float
    loss: float  # expected at the goal's budget
    loss_interval: tuple[float, float]
    regret: float  # expected, relative
    regret_bound: float  # that it stays under with probability `level`
    level: float
    as_good: tuple[tuple[float, float], ...]  # other (LR, WD) expected within the tolerance
    invariance_weight: float  # probability that WD matters through n alone; NaN where n is unknown


@dataclass(frozen=True)
class Suggestion:
    """What to ask next, why, and what would be recommended now."""

    questions: tuple[Question, ...]
    reasons: tuple[str, ...]
    recommendation: Recommendation
    is_done: bool  # the regret is expected within the tolerance, and runs have confirmed the recommended LR


def suggest(
    goal: Goal,
    answers: Sequence[Answer],
    prices: Prices | None = None,
    *,
    count: int = 1,
    pending: Sequence[Question] = (),
    leave_out: Sequence[Question] = (),
    most_tokens: float = math.inf,
    random_seed: int = 0,
) -> Suggestion:
    """The next questions (a round of `count`, or fewer), by what is known; the same answer whenever it is asked again.

    Together they cost no more than `most_tokens`, and none of them is asked only for being cheap.

    `pending` questions were asked and are not answered yet: they count as if they came out as expected. Those in
    `leave_out` are not asked.
    """
    if count < 1:
        raise InputError(f"count={count} must be at least 1: that many questions are asked")
    told = Told.of(answers)
    observed = _with_pending(goal, observations(goal, told), pending)
    belief = believe(kernels_of(goal), observed)
    outlook = Outlook(goal, told, belief, Asked.of((*pending, *leave_out)))
    possible = recommendable(goal, told)
    targets = outlook.considered(possible)
    cells = looked_at(outlook, targets)
    # A round of several looks with beliefs of its own, in which other rivals may have a chance.
    views = belief.views if count == 1 else tuple(dict.fromkeys(kernel.view for kernel in kernels_of(goal)))
    candidates = Candidates.of(outlook, targets, cells, prices, views)
    posterior = belief.at(candidates.places)
    recommendation = recommend(outlook, possible, targets, posterior, random_seed)
    best = (recommendation.learning_rate, recommendation.weight_decay)
    is_sure = bool(len(told)) and recommendation.regret <= goal.tolerance
    last = last_question(outlook, best, prices) if is_sure else None
    # The last one is asked by itself, since its answer may end the tuning.
    if last is None:
        chosen = _round(goal, candidates, posterior, observed, told, count, most_tokens)
    else:
        chosen = [last] if last[1] <= most_tokens else []
    reasons = tuple(why(one, goal, told, best, price) for one, price in chosen)
    return Suggestion(tuple(one for one, _ in chosen), reasons, recommendation, is_sure and last is None)


def _round(
    goal: Goal,
    candidates: Candidates,
    posterior: Posterior,
    observed: Observations,
    told: Told,
    count: int,
    most_tokens: float,
) -> list[tuple[Question, float]]:
    """So many questions, or those that are left, with their prices; each as if those before came out as expected."""
    chosen: list[int] = []
    while (best := candidates.next(posterior, told, chosen, len(observed), most_tokens)) is not None:
        chosen.append(best)
        if len(chosen) == count:
            break
        observed = _with_pending(goal, observed, [candidates.question(best)])
        posterior = believe(kernels_of(goal), observed).at(candidates.places)
    return [candidates.priced(place) for place in chosen]


def recommend_now(goal: Goal, answers: Sequence[Answer], random_seed: int = 0) -> Recommendation:
    """What these answers recommend."""
    told = Told.of(answers)
    belief = believe(kernels_of(goal), observations(goal, told))
    possible = recommendable(goal, told)
    outlook = Outlook(goal, told, belief)
    targets = outlook.considered(possible)
    return recommend(outlook, possible, targets, belief.at(target_places(goal).some(targets)), random_seed)


def recommend(
    outlook: Outlook, possible: np.ndarray, cells: np.ndarray, posterior: Posterior, random_seed: int = 0
) -> Recommendation:
    """Of these cells, which are the posterior's first points, the one with the lowest expected loss; as good may be all
    that are possible."""
    goal, targets = outlook.goal, slice(0, len(cells))
    mean = posterior.mean[targets]
    expected = mean if len(cells) == len(possible) else outlook.expected[possible]
    best = _surest(mean, posterior.deviation[targets], EVEN_SHARE * goal.tolerance)
    draws = posterior.draws(targets, _normals(goal, cells, random_seed))
    regrets = np.expm1(np.minimum(draws[:, best] - draws.min(axis=1), MAX_LOG_REGRET))
    regret = float(regrets.mean())
    reach = float(special.ndtri((1 + goal.level) / 2)) * float(posterior.deviation[best])
    order = np.argsort(expected, kind="stable")
    others = possible[order[expected[order] - mean[best] <= goal.tolerance]]
    others = others[others != cells[best]]
    learning_rate, weight_decay = goal.space.settings[cells[best]].tolist()
    return Recommendation(
        learning_rate,
        weight_decay,
        math.exp(mean[best]),
        (math.exp(mean[best] - reach), math.exp(mean[best] + reach)),
        regret,
        max(_quantile(regrets, goal.level), regret),  # rare large ones may have a mean above it
        goal.level,
        tuple((lr, wd) for lr, wd in goal.space.settings[others].tolist()),
        math.nan if goal.tokens_per_step is None else posterior.probability(INVARIANT, HELPED, ROUGH),
    )


def _normals(goal: Goal, cells: np.ndarray, random_seed: int) -> np.ndarray:
    """[draws x cells]: the same for a cell throughout a tuning, but in a very large space."""
    num_cells = len(goal.space.cells)
    return _drawn(random_seed, num_cells)[:, cells] if num_cells <= MAX_ON_BOARD else _drawn(random_seed, len(cells))


@lru_cache(maxsize=4)
def _drawn(random_seed: int, num_cells: int) -> np.ndarray:
    """Kept, since drawing them takes longer than what is done with them."""
    return np.random.default_rng(random_seed).standard_normal((NUM_DRAWS, num_cells))


def _quantile(values: np.ndarray, level: float) -> float:
    """The same as np.quantile, whose checks take longer than that."""
    ordered, place = np.sort(values), level * (len(values) - 1)
    before, after = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
    return before + (place - math.floor(place)) * (after - before)


def _surest(mean: np.ndarray, deviation: np.ndarray, even: float) -> int:
    """Of the places with the lowest expected losses the one that is known best."""
    return int(np.argmin(np.where(mean <= mean.min() + even, deviation, np.inf)))


def believe_answers(goal: Goal, answers: Sequence[Answer]) -> Belief:
    """The belief that answers lead to; several seeds of one question count as what they are, several."""
    return believe(kernels_of(goal), observations(goal, Told.of(answers)))


def _with_pending(goal: Goal, observed: Observations, pending: Sequence[Question]) -> Observations:
    """The observations, and questions without an answer as if each came out as expected."""
    usable = Asked.of([question for question in pending if question.tokens <= goal.tokens])
    if not len(usable):
        return observed
    points = goal.points(usable.cells, usable.tokens, usable.seeds)
    expected = believe(kernels_of(goal), observed).at(points).mean
    return Observations(
        np.vstack([observed.points, points]),
        np.append(observed.values, expected),
        np.append(observed.noise, own_noise(points[:, 0] - goal.space.middle[0])),
    )
