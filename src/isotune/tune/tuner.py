"""Which run to ask for next, and what to recommend: a pure function of what is known.

The belief gives the joint distribution of all losses. Of every question that could be asked (a cell at a budget) it is
computed by how much the answer would lower the regret that is to be expected of the recommendation, E[min] before minus
after (the knowledge gradient), and what it costs in tokens that are not trained yet. Among the questions with a fair
part of the largest gain the cheapest gain per token is taken. It ends when the expected regret is below the tolerance
and the recommended LR was run, with two seeds where there are several, both as long as any run with it: one lucky run
can look sure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from isotune.errors import InputError
from isotune.recipe import format_tokens
from isotune.tune.belief import HELP_ODDS, INVARIANCE_ODDS, ROUGH_ODDS, Belief, Posterior, believe
from isotune.tune.kernels import (
    HELPED,
    INVARIANT,
    NEW,
    ROUGH,
    Kernel,
    helped_kernel,
    invariant_kernel,
    plain_kernel,
    rough_kernel,
)
from isotune.tune.observations import NOISE, Observations, own_noise, raised_noise, with_noise
from isotune.tune.questions import Answer, Goal, Prices, Question, log2_cells

MAX_CONSIDERED = 400  # cells
NUM_REPEATED = 16  # cells that further seeds are considered for, those expected to be best
MIN_GAIN_SHARE = 0.3  # of the largest gain: below, a question is cheap and useless
EVEN_SHARE = 0.1  # of the tolerance: expected losses that differ by less are even, and the surest of them is taken
NUM_DRAWS = 256
MAX_LOG_REGRET = 100.0  # a space of very many octaves has larger ones, before anything is known
EARLY_MEMORY, LATE_MEMORY = 0.3, 3.0  # n below which LR alone counts, and above which ELR does
# A diverged run counts as this much worse than the worst of its budget, give or take: it tells that its LR is too high,
# which no cell with that LR needs a fit for, and nothing of how the bowl bends.
DIVERGED_EXCESS, DIVERGED_NOISE = 0.15, 0.2
# In log loss above the best run that was no longer, a factor of 2: what has a higher LR and such a loss has stopped
# learning. However bad a loss is, the belief, which is local, cannot use more than MAX_EXCESS of it.
EXPLODED_EXCESS, MAX_EXCESS = 0.7, 2.0
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(11)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


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
    is_done: bool
    is_confirmed: bool = True  # that runs have tried the recommended LR, with two seeds where there are several


def suggest(
    goal: Goal,
    answers: Sequence[Answer],
    prices: Prices | None = None,
    *,
    count: int = 1,
    pending: Sequence[Question] = (),
    leave_out: Sequence[Question] = (),
    random_seed: int = 0,
) -> Suggestion:
    """The next questions (a round of `count`, or fewer), by what is known; the same answer whenever it is asked again.

    `pending` questions were asked and are not answered yet: they count as if they came out as expected. Those in
    `leave_out` are not asked.
    """
    if count < 1:
        raise InputError(f"count={count} must be at least 1: that many questions are asked")
    answers = mark_exploded(answers)
    observed = _with_pending(goal, _observations(goal, answers), pending)
    belief = believe(kernels_of(goal), observed)
    cells = _promising(goal, belief, _recommendable(goal, answers))
    candidates = _Candidates.of(goal, cells, belief, answers, (*pending, *leave_out), prices)
    posterior = belief.at(candidates.places)
    recommendation = recommend(goal, cells, posterior, random_seed)
    confirming = candidates.confirming(goal, recommendation, answers)
    is_sure = recommendation.regret <= goal.tolerance
    if is_sure and answers and confirming is not None:
        chosen = [confirming]  # by itself, since its answer may end the tuning
    else:
        chosen = _round(goal, candidates, posterior, observed, answers, count)
    questions = tuple(candidates.question(index) for index in chosen)
    costs = [float(candidates.prices[index]) for index in chosen]
    reasons = tuple(
        _why(question, goal, answers, recommendation, cost) for question, cost in zip(questions, costs, strict=True)
    )
    is_confirmed = confirming is None
    return Suggestion(questions, reasons, recommendation, is_sure and is_confirmed, is_confirmed)


def _round(
    goal: Goal,
    candidates: _Candidates,
    posterior: Posterior,
    observed: Observations,
    answers: Sequence[Answer],
    count: int,
) -> list[int]:
    """The places of so many questions, or of those that are left; each as if those before came out as expected."""
    chosen: list[int] = []
    while (best := candidates.next(posterior, answers, chosen, len(observed))) is not None:
        chosen.append(best)
        if len(chosen) == count:
            break
        observed = _with_pending(goal, observed, [candidates.question(best)])
        posterior = believe(kernels_of(goal), observed).at(candidates.places)
    return chosen


def recommend_now(goal: Goal, answers: Sequence[Answer], random_seed: int = 0) -> Recommendation:
    """What these answers recommend."""
    belief = believe_answers(goal, answers)
    cells = _promising(goal, belief, _recommendable(goal, mark_exploded(answers)))
    return recommend(goal, cells, belief.at(goal.points(cells, goal.tokens)), random_seed)


def recommend(goal: Goal, cells: np.ndarray, posterior: Posterior, random_seed: int = 0) -> Recommendation:
    """The cell with the lowest expected loss; the posterior's first points are these cells at the goal's budget."""
    targets = slice(0, len(cells))
    mean = posterior.mean[targets]
    best = _surest(mean, posterior.deviation[targets], EVEN_SHARE * goal.tolerance)
    draws = posterior.draws(targets, NUM_DRAWS, np.random.default_rng(random_seed))
    regrets = np.expm1(np.minimum(draws[:, best] - draws.min(axis=1), MAX_LOG_REGRET))
    reach = float(special.ndtri((1 + goal.level) / 2)) * float(posterior.deviation[best])
    others = [index for index in np.argsort(mean) if index != best and mean[index] - mean[best] <= goal.tolerance]
    learning_rate, weight_decay = goal.space.settings_at(cells[best : best + 1])[0].tolist()
    return Recommendation(
        learning_rate,
        weight_decay,
        math.exp(mean[best]),
        (math.exp(mean[best] - reach), math.exp(mean[best] + reach)),
        float(regrets.mean()),
        max(_quantile(regrets, goal.level), float(regrets.mean())),  # rare large ones may have a mean above it
        goal.level,
        tuple((lr, wd) for lr, wd in goal.space.settings_at(cells[others]).tolist()),
        math.nan if goal.tokens_per_step is None else posterior.probability(INVARIANT, HELPED, ROUGH),
    )


def _quantile(values: np.ndarray, level: float) -> float:
    """The same as np.quantile, whose checks take longer than that."""
    return float(np.interp(level * (len(values) - 1), np.arange(len(values)), np.sort(values)))


def _surest(mean: np.ndarray, deviation: np.ndarray, even: float) -> int:
    """Of the places with the lowest expected losses the one that is known best."""
    return int(np.argmin(np.where(mean <= mean.min() + even, deviation, np.inf)))


def believe_answers(goal: Goal, answers: Sequence[Answer]) -> Belief:
    """The belief that answers lead to; several seeds of one question count as what they are, several."""
    return believe(kernels_of(goal), _observations(goal, mark_exploded(answers)))


def mark_exploded(answers: Sequence[Answer]) -> Sequence[Answer]:
    """The answers, those diverged whose loss is finite but far above that of the best run that was no longer, and whose
    LR is higher than its. At a lower LR, or in fewer tokens, such a run has learned too little, which is no divergence.
    """
    finished = [answer for answer in answers if not answer.has_diverged]
    if not finished:
        return answers
    best = min(finished, key=lambda answer: answer.loss)
    if best.loss <= 0:
        raise InputError(
            f"a loss is {best.loss:.4g}: losses must be above 0, since their logarithms are compared; add a constant"
        )
    factor = math.exp(EXPLODED_EXCESS)
    if max(answer.loss for answer in finished) <= factor * best.loss:
        return answers
    best_to: dict[int, Answer] = {}  # by tokens
    for tokens in {answer.question.tokens for answer in finished}:
        best_to[tokens] = min(
            (answer for answer in finished if answer.question.tokens <= tokens), key=lambda answer: answer.loss
        )

    def has_exploded(answer: Answer) -> bool:
        rival = best_to.get(answer.question.tokens)
        return (
            rival is not None
            and answer.loss > factor * rival.loss
            and answer.question.learning_rate > rival.question.learning_rate
        )

    return [replace(one, loss=math.nan, status="diverged") if has_exploded(one) else one for one in answers]


# What is known


def _observations(goal: Goal, answers: Sequence[Answer]) -> Observations:
    usable = [answer for answer in answers if answer.question.tokens <= goal.tokens]
    cells, tokens = _log2_cells([answer.question for answer in usable]), _tokens(usable)
    values = np.array([math.nan if answer.has_diverged else math.log(answer.loss) for answer in usable])
    of_runs = own_noise(cells[:, 0] - goal.space.middle[0])
    of_answers = np.array([answer.noise or 0.0 for answer in usable])
    noise = np.where([answer.has_diverged for answer in usable], DIVERGED_NOISE, np.hypot(of_runs, of_answers))
    diverged = np.isnan(values)
    if not diverged.all():
        values = np.minimum(values, np.nanmin(values) + MAX_EXCESS)
    for index in np.flatnonzero(diverged):
        here = ~diverged & (tokens == tokens[index])
        known = values[here] if here.any() else values[~diverged]
        values[index] = (known.max() if len(known) else 0.0) + DIVERGED_EXCESS
    seeds = np.array([answer.question.seed for answer in usable], dtype=float)
    return with_noise(goal.points(cells, tokens, seeds), values, noise)


def _with_pending(goal: Goal, observed: Observations, pending: Sequence[Question]) -> Observations:
    """The observations, and questions without an answer as if each came out as expected."""
    usable = [question for question in pending if question.tokens <= goal.tokens]
    if not usable:
        return observed
    tokens, seeds = (np.array([getattr(question, name) for question in usable]) for name in ("tokens", "seed"))
    points = goal.points(_log2_cells(usable), tokens, seeds)
    expected = believe(kernels_of(goal), observed).at(points).mean
    return Observations(
        np.vstack([observed.points, points]),
        np.append(observed.values, expected),
        np.append(observed.noise, own_noise(points[:, 0] - goal.space.middle[0])),
    )


def kernels_of(goal: Goal) -> dict[Kernel, float]:
    """What the losses may be like, with odds."""
    cells = goal.space.cells
    middle, reach = goal.space.middle, (cells.max(axis=0) - cells.min(axis=0)) / 2
    plain = plain_kernel(float(middle[0]), float(middle[1]))
    if goal.tokens_per_step is None:
        return {plain: 1.0}
    invariant = invariant_kernel(float(middle[0]), max(1.0, float(reach[0]) / 1.25))
    return {
        invariant: INVARIANCE_ODDS,
        helped_kernel(invariant): HELP_ODDS,
        rough_kernel(invariant): ROUGH_ODDS,
        plain: 1.0,
    }


def _log2_cells(questions: Sequence[Question]) -> np.ndarray:
    return log2_cells([(question.learning_rate, question.weight_decay) for question in questions])


def _tokens(answers: Sequence[Answer]) -> np.ndarray:
    return np.array([answer.question.tokens for answer in answers], dtype=float)


_Key = tuple[float, float, int, int]


def _keys(cells: np.ndarray, tokens: Sequence[int], seeds: Sequence[int]) -> Iterator[_Key]:
    """Of questions their places, budgets and seeds, equal where only the last digits of the settings differ."""
    return zip(*cells.round(6).T.tolist(), tokens, seeds, strict=True)


# What to ask


@dataclass(frozen=True)
class _Candidates:
    """Every cell at every rung that may still be asked, with its price."""

    settings: np.ndarray  # [questions x 2]: LR, WD
    tokens: np.ndarray
    seeds: np.ndarray
    points: np.ndarray
    prices: np.ndarray
    noise: np.ndarray  # of each answer, by itself
    targets: np.ndarray  # the cells that may be recommended, at the goal's budget

    @staticmethod
    def of(
        goal: Goal,
        recommendable: np.ndarray,
        belief: Belief,
        answers: Sequence[Answer],
        leave_out: Sequence[Question],
        prices: Prices | None,
    ) -> _Candidates:
        asked = [*(answer.question for answer in answers if answer.status != "read"), *leave_out]
        asked_seeds = {question.seed for question in asked}
        known = set(_keys(_log2_cells(asked), [one.tokens for one in asked], [one.seed for one in asked]))
        cells = goal.space.cells
        rates = goal.space.settings_at(cells)[:, 0]
        cells = cells[_not_hopeless(rates, np.full(len(cells), goal.rungs[0]), answers)]
        cells, seeds = _cells_and_seeds(goal, belief, _promising(goal, belief, cells), asked_seeds)
        tokens = np.tile(np.array(goal.rungs), len(cells))
        settings = goal.space.settings_at(cells).repeat(len(goal.rungs), axis=0)
        cells, seeds = cells.repeat(len(goal.rungs), axis=0), seeds.repeat(len(goal.rungs))
        possible = _not_hopeless(settings[:, 0], tokens, answers).tolist()
        keys = _keys(cells, tokens.tolist(), seeds.tolist())
        kept = [index for index, key in enumerate(keys) if possible[index] and key not in known]
        cells, settings, tokens, seeds = cells[kept], settings[kept], tokens[kept], seeds[kept]
        listed = prices(_questions(settings, tokens, seeds)) if prices else tokens
        is_new = ~np.isin(seeds, [*asked_seeds, goal.seeds[0]])
        points = goal.points(cells, tokens, np.where(is_new, NEW, seeds))
        targets = goal.points(recommendable, goal.tokens)
        costs = np.maximum(1.0, np.array(listed, dtype=float))
        noise = own_noise(points[:, 0] - goal.space.middle[0])
        return _Candidates(settings, tokens, seeds, points, costs, noise, targets)

    @property
    def places(self) -> np.ndarray:
        """The targets, then the questions."""
        return np.vstack([self.targets, self.points])

    def question(self, index: int) -> Question:
        return _questions(*(column[index : index + 1] for column in (self.settings, self.tokens, self.seeds)))[0]

    def next(
        self, posterior: Posterior, answers: Sequence[Answer], chosen: Sequence[int], num_observed: int
    ) -> int | None:
        """The place of the question to ask, None if none is left."""
        if not num_observed:
            return self.first(posterior)
        if not chosen and answers and all(answer.has_diverged for answer in answers):
            return self.lower(answers)
        return self.best(posterior, chosen)

    def confirming(self, goal: Goal, recommendation: Recommendation, answers: Sequence[Answer]) -> int | None:
        """The place of the cheapest question that would confirm the recommended LR, None if it needs none: two seeds,
        or all that there are, were run with it, as long as any was. One lucky run, or an LR that nobody tried, can
        look sure."""
        rate = recommendation.learning_rate
        runs = {
            (answer.question.tokens, answer.question.seed)
            for answer in answers
            if answer.status != "read"
            and answer.question.tokens <= goal.tokens
            and math.isclose(answer.question.learning_rate, rate)
        }
        longest = max((tokens for tokens, _ in runs), default=0)
        tried = [seed for tokens, seed in runs if tokens == longest]
        if len(tried) >= min(2, len(goal.seeds)):
            return None
        is_same = np.isclose(self.settings, (rate, recommendation.weight_decay), rtol=1e-9, atol=0).all(axis=1)
        places = np.flatnonzero(is_same & ~np.isin(self.seeds, tried) & (self.tokens >= longest))
        return int(places[np.argmin(self.prices[places])]) if len(places) else None

    def first(self, posterior: Posterior) -> int | None:
        """Where nothing is known: the shortest run with the settings that are expected to be best."""
        if not len(self.tokens):
            return None
        expected = posterior.mean[len(self.targets) :]
        return int(np.argmin(np.where(self.tokens == self.tokens.min(), expected, np.inf)))

    def lower(self, answers: Sequence[Answer]) -> int | None:
        """Where no run has finished: a short run half way down, from the lowest LR and WD that were tried to the lowest
        that are left."""
        if not len(self.tokens):
            return None
        cells = self.points[:, :2].round(6)
        tried = _log2_cells([answer.question for answer in answers]).min(axis=0)
        distance = np.abs(cells - (cells.min(axis=0) + tried) / 2)
        return int(np.lexsort((self.points[:, 3], distance[:, 1], distance[:, 0]))[0])

    def best(self, posterior: Posterior, chosen: Sequence[int]) -> int | None:
        """Among those with a fair part of the largest gain the one with most gain per token."""
        if len(chosen) == len(self.tokens):
            return None
        gains = expected_gains(posterior, len(self.targets), self._expected_noise(posterior))
        gains[list(chosen)] = -1.0
        worth = gains >= MIN_GAIN_SHARE * gains.max()
        return int(np.argmax(np.where(worth, gains / self.prices, -1.0)))

    def _expected_noise(self, posterior: Posterior) -> np.ndarray:
        """Of each question's answer: an answer that is expected to be bad will say little."""
        return raised_noise(self.points, posterior.mean[len(self.targets) :], self.noise)


def _questions(settings: np.ndarray, tokens: np.ndarray, seeds: np.ndarray) -> list[Question]:
    return list(map(Question, *settings.T.tolist(), tokens.tolist(), seeds.tolist()))


def _cells_and_seeds(goal: Goal, belief: Belief, cells: np.ndarray, asked: set[int]) -> tuple[np.ndarray, np.ndarray]:
    """Every cell with the first seed; the best ones also with the others that were asked, and with one more."""
    others = [seed for seed in goal.seeds[1:] if seed in asked] + [
        seed for seed in goal.seeds[1:] if seed not in asked
    ][:1]
    if not others or not asked:
        return cells, np.full(len(cells), goal.seeds[0])
    best = np.argsort(belief.at(goal.points(cells, goal.tokens)).mean)[:NUM_REPEATED]
    seeds = np.concatenate([np.full(len(cells), goal.seeds[0]), np.repeat(others, len(best))])
    return np.concatenate([cells, np.tile(cells[best], (len(others), 1))]), seeds


def _promising(goal: Goal, belief: Belief, cells: np.ndarray) -> np.ndarray:
    """Of very many cells those that are expected to be best, and those that may be: all pairs would take long."""
    if len(cells) <= MAX_CONSIDERED:
        return cells
    posterior = belief.at(goal.points(cells, goal.tokens))
    expected = np.argsort(posterior.mean, kind="stable")[: MAX_CONSIDERED // 2]
    possible = posterior.mean - 2 * posterior.deviation
    possible[expected] = np.inf
    return cells[np.sort([*expected, *np.argsort(possible, kind="stable")[: MAX_CONSIDERED // 2]])]


def _not_hopeless(learning_rates: np.ndarray, tokens: np.ndarray, answers: Sequence[Answer]) -> np.ndarray:
    """Whether no run with this LR or a lower one diverged in so few tokens; an LR that also finished stays."""
    possible = np.ones(len(tokens), dtype=bool)
    diverged = {answer.question for answer in answers if answer.has_diverged}
    if not diverged:
        return possible
    for question in diverged:
        possible &= (learning_rates < question.learning_rate) | (tokens < question.tokens)
    finished = [answer.question.learning_rate for answer in answers if not answer.has_diverged]
    return possible | np.isin(learning_rates, finished)


def _recommendable(goal: Goal, answers: Sequence[Answer]) -> np.ndarray:
    """The cells [cells x 2] whose LR is not known to diverge: no run with it or a lower one did, or a run with it or a
    higher one, and as long, did not; and that did not diverge themselves, with any seed. Where this leaves nothing,
    those with the lowest LR."""
    cells = goal.space.cells
    diverged = {answer.question for answer in answers if answer.has_diverged and answer.question.tokens <= goal.tokens}
    if not diverged:
        return cells
    rates, possible = cells[:, 0].round(6), np.ones(len(cells), dtype=bool)
    finished = [answer.question for answer in answers if not answer.has_diverged]
    for question in diverged:
        as_long = [_log2_rate(one) for one in finished if one.tokens >= question.tokens]
        possible &= (rates < _log2_rate(question)) | (rates <= max(as_long, default=-math.inf))
    diverged_themselves = _log2_cells(list(diverged)).round(6).tolist()
    possible &= np.array([cell not in diverged_themselves for cell in cells.round(6).tolist()])
    return cells[possible] if possible.any() else cells[rates == rates.min()]


def _log2_rate(question: Question) -> float:
    """Rounded, since equal settings may differ in their last digits."""
    return round(math.log2(question.learning_rate), 6)


def expected_gains(posterior: Posterior, num_targets: int, noise: float | np.ndarray = NOISE) -> np.ndarray:
    """By how much an answer at each later point lowers the lowest expected log loss of the targets, which come first:
    the knowledge gradient."""
    targets, points = slice(0, num_targets), slice(num_targets, None)
    mean = posterior.mean[targets]
    # How far an answer that is one deviation higher than expected moves each target: [targets x points].
    move = posterior.covariance(targets, points) / np.hypot(posterior.deviation[points], noise)
    # A target that no answer can move below all others is left out: nothing changes, and most are.
    reach = float(np.abs(_NODES).max()) * np.abs(move).max(axis=1, initial=0.0)
    could_be_best = mean - reach <= (mean + reach).min()
    mean, move = mean[could_be_best], move[could_be_best]
    after = np.zeros(move.shape[1])
    moved = np.empty_like(move)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS.tolist(), strict=True):
        np.multiply(move, node, out=moved)
        moved += mean[:, None]
        after += weight * moved.min(axis=0)
    return np.maximum(0.0, float(mean.min()) - after)


def _why(
    question: Question, goal: Goal, answers: Sequence[Answer], recommendation: Recommendation, price: float
) -> str:
    """The question's purpose in words."""
    share = f"{100 * price / goal.tokens:.3g} % of a full run"
    known = [answer.question for answer in answers if answer.status != "read"]
    if not known:
        return f"a first look, {share}"
    if all(answer.has_diverged for answer in answers):
        return f"a lower LR, since no run has finished yet, {share}"
    if any(other.seed != question.seed and _has_settings(other, question) for other in known):
        return f"the same with another seed: was it luck? {share}"
    if question.seed != goal.seeds[0]:
        if not any(other.seed == question.seed for other in known):
            return f"another seed, since one may be lucky, {share}"
        return f"to compare it with others of this seed, {share}"
    beside = [other for other in known if (other.tokens, other.seed) == (question.tokens, question.seed)]
    check = next(filter(None, (_invariance_check(question, other, goal) for other in beside)), "")
    if check:
        return f"checking that {check}: {share}"
    if _has_settings(question, recommendation):
        if any(_has_settings(question, other) for other in known):
            return f"is the best so far as good at {format_tokens(question.tokens)} tokens? {share}"
        return f"no run had yet the settings expected best, {share}"
    if not math.isclose(question.learning_rate, recommendation.learning_rate):
        return f"another LR, {share}"
    was_run = any(math.isclose(question.learning_rate, other.learning_rate) for other in known)
    return f"{'another WD at' if was_run else 'no run had yet'} the LR expected best, {share}"


def _has_settings(one: Question | Recommendation, other: Question | Recommendation) -> bool:
    same_rate = math.isclose(one.learning_rate, other.learning_rate)
    return same_rate and math.isclose(one.weight_decay, other.weight_decay)


def _invariance_check(question: Question, other: Question, goal: Goal) -> str:
    """What two runs say of the invariance, where they do: WD alone at n << 1, LR against WD at n >> 1."""
    if goal.tokens_per_step is None or 0 in (question.weight_decay, other.weight_decay):
        return ""
    lr, wd = question.learning_rate / other.learning_rate, question.weight_decay / other.weight_decay
    n = question.learning_rate * question.weight_decay * question.tokens / goal.tokens_per_step
    if math.isclose(lr, 1.0) and max(n, n / wd) < EARLY_MEMORY:
        return f"{_times('WD', wd)} changes nothing yet (n = {n:.1g})"
    if math.isclose(lr * wd, 1.0) and not math.isclose(lr, 1.0) and n > LATE_MEMORY:
        return f"{_times('WD', wd)} at {_times('LR', lr)} changes nothing (n = {n:.2g})"
    return ""


def _times(name: str, factor: float) -> str:
    """
    >>> _times("WD", 4.0), _times("LR", 0.25)
    ('WD x4', 'LR /4')
    """
    return f"{name} x{factor:.3g}" if factor >= 1 else f"{name} /{1 / factor:.3g}"
