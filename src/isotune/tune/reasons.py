"""Why a question is asked, in words."""

from __future__ import annotations

import math

import numpy as np

from isotune.recipe import format_tokens
from isotune.tune.questions import Goal, Question
from isotune.tune.told import Told, is_near

EARLY_MEMORY, LATE_MEMORY = 0.3, 3.0  # n below which LR alone counts, and above which ELR does


def why(question: Question, goal: Goal, told: Told, recommended: tuple[float, float], price: float) -> str:
    """The question's purpose; LR and WD that would be recommended without an answer, and the price in tokens."""
    share = f"{100 * price / goal.tokens:.3g} % of a full run"
    known = told.trained
    if not len(known):
        return f"a first look, {share}"
    if told.diverged.all():
        return f"a lower LR, since no run has finished yet, {share}"
    n = question.learning_rate * question.weight_decay * question.tokens / (goal.tokens_per_step or math.nan)
    of_seed, has_rate = known.seeds == question.seed, known.have(question.learning_rate)
    has_settings = has_rate & is_near(known.settings[:, 1], question.weight_decay)
    if (has_settings & ~of_seed).any():
        return f"the same with another seed: was it luck? {share}"
    if question.seed != goal.seeds[0]:
        if not of_seed.any():
            return f"another seed, since one may be lucky, {share}"
        return f"to compare it with others of this seed, {share}"
    check = _invariance_check(question, n, known.settings[of_seed & (known.tokens == question.tokens)])
    if check:
        return f"checking that {check}: {share}"
    is_best_rate, is_best_decay = map(math.isclose, (question.learning_rate, question.weight_decay), recommended)
    if is_best_rate and is_best_decay:
        if has_settings.any():
            return f"is the best so far as good at {format_tokens(question.tokens)} tokens? {share}"
        return f"no run had yet the settings expected best, {share}"
    if not is_best_rate:
        return f"another LR, {share}"
    was_run = has_rate.any()
    if was_run and n >= EARLY_MEMORY / 2:
        return f"what does WD do at the LR expected best, where n = {n:.2g}? {share}"
    return f"{'another WD at' if was_run else 'no run had yet'} the LR expected best, {share}"


def _invariance_check(question: Question, n: float, beside: np.ndarray) -> str:
    """What the question, of this n, and one of those settings beside it say of the invariance, where they do: WD alone
    at n << 1, LR against WD at n >> 1."""
    if not n > 0:
        return ""
    lr, wd = (np.array([question.learning_rate, question.weight_decay]) / beside[beside[:, 1] > 0]).T
    has_rate = is_near(lr, 1.0)
    early = has_rate & (np.maximum(n, n / wd) < EARLY_MEMORY)
    late = is_near(lr * wd, 1.0) & ~has_rate & (n > LATE_MEMORY)
    if not (early | late).any():
        return ""
    first = int(np.argmax(early | late))
    if early[first]:
        return f"{_times('WD', wd[first])} changes nothing yet (n = {n:.1g})"
    return f"{_times('WD', wd[first])} at {_times('LR', lr[first])} changes nothing (n = {n:.2g})"


def _times(name: str, factor: float) -> str:
    """
    >>> _times("WD", 4.0), _times("LR", 0.25)
    ('WD x4', 'LR /4')
    """
    return f"{name} x{factor:.3g}" if factor >= 1 else f"{name} /{1 / factor:.3g}"
