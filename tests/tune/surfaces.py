"""Losses with a known best cell, for tuners that train nothing."""

import math

from isotune.tune import Answer, Goal, Space, suggest

TOKENS_PER_STEP = 256
TOKENS = 2_752_512
CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-12, -6) for wd in range(-8, 1))
GOAL = Goal(
    tokens=TOKENS, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=TOKENS_PER_STEP, tolerance=0.0025
)


def nano_like(learning_rate, weight_decay, tokens, seed=0):
    """As the nano table has it: a bowl in LR whose bottom drifts down with the budget, WD through n alone."""
    d = math.log2(tokens / TOKENS)
    u = math.log2(learning_rate) + 10 + 0.4 * d
    z = math.log2(1 + learning_rate * weight_decay * tokens / TOKENS_PER_STEP)
    return 1.5 * math.exp(0.009 * u * u - 0.001 * u**3 + 0.003 * z + 0.01 * z * z - 0.07 * d + 0.008 * d * d)


def round_bowl(learning_rate, weight_decay, tokens, seed=0):
    """No invariance: WD matters as much as LR, whatever n."""
    d = math.log2(tokens / TOKENS)
    x, y = math.log2(learning_rate) + 9, math.log2(weight_decay) + 3
    return 1.5 * math.exp(0.008 * x * x + 0.008 * y * y - 0.07 * d)


def play(surface, goal=GOAL, most=60):
    """(answers, suggestions) until the tuner is done."""
    answers, suggestions = [], []
    while len(answers) < most:
        suggestion = suggest(goal, answers)
        suggestions.append(suggestion)
        if (suggestion.is_done and answers) or not suggestion.questions:
            break
        question = suggestion.questions[0]
        loss = surface(question.learning_rate, question.weight_decay, question.tokens)
        answers.append(Answer(question, loss, "finished" if math.isfinite(loss) else "diverged"))
    return answers, suggestions


def regret(surface, goal, recommendation):
    losses = [surface(lr, wd, goal.tokens) for lr, wd in (2.0**goal.space.cells).tolist()]
    return surface(recommendation.learning_rate, recommendation.weight_decay, goal.tokens) / min(losses) - 1


def failing_above(log2_rate, asked):
    """A trainer whose runs fail above an LR; what was asked is noted."""

    def train(learning_rate, weight_decay, tokens, seed):
        asked.append(learning_rate)
        if learning_rate > 2.0**log2_rate:
            raise RuntimeError("out of memory")
        return nano_like(learning_rate, weight_decay, tokens)

    return train
