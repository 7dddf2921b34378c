"""Losses with a known best cell, for tuners that train nothing."""

import math

TOKENS_PER_STEP = 256
TOKENS = 2_752_512


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
