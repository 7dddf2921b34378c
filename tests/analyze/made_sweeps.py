"""Sweeps with decays, budgets, seeds and noise, from a known truth."""

from __future__ import annotations

import dataclasses

import numpy as np
from synthetic import EVERY_TOKENS, TOKENS_PER_STEP, WIDE_LR, WIDE_WD, grid, trajectory

from isotune.runs.trajectory import Trajectory

K = 0.2  # of planted_decays: gain = K * noise
FIRST_BUDGET = 327_680
BUDGETS = tuple(FIRST_BUDGET * 2**k for k in range(5))
DECAY = 65_536
LR_EXPONENT, WD_EXPONENT = -0.3, -0.5  # of drifting_optimum, in tokens
LR_AT_FIRST, WD_AT_FIRST = 2.0**-8.5, 2.0**-3.5


def run(lr, wd, end=20 * EVERY_TOKENS, *, loss=None, **info):
    """A run at constant LR whose loss falls like a power of tokens; `info` replaces what is known of it."""
    tokens = np.concatenate([[0], np.arange(EVERY_TOKENS, end + 1, EVERY_TOKENS)])
    values = 1.0 + 40 * np.maximum(tokens, 1e3) ** -0.3 if loss is None else loss(tokens)
    return with_info(trajectory(np.log2(lr), np.log2(wd), tokens, values), **({"decay_tokens": 0} | info))


def with_info(run, **changes):
    return Trajectory(run.columns, dataclasses.replace(run.info, **changes))


def without(run, *names):
    return Trajectory({name: values for name, values in run.columns.items() if name not in names}, run.info)


def decay_off(trunk, end, loss, *, length=DECAY, status="finished"):
    """The trunk up to the decay, then LR that falls to 0 until `end`, where the loss is this."""
    kept = trunk.tokens <= end - length
    falling = np.linspace(end - length, end, 9)[1:].astype(np.int64)
    columns = {}
    for name, values in trunk.columns.items():
        added = np.full(len(falling), np.nan)
        if name == "tokens":
            added = falling
        elif name == "step":
            added = falling // TOKENS_PER_STEP
        elif name == "learning_rate":
            added = trunk.info.learning_rate * (end - falling) / length
        elif name == "weight_decay":
            added = np.full(len(falling), trunk.info.weight_decay)
        elif name == "val_loss":
            added[-1] = loss
        columns[name] = np.concatenate([values[kept], added])
    return with_info(Trajectory(columns, trunk.info), decay_tokens=length, status=status)


def cosine(lr, wd, end, **info):
    """LR falls from the end of the warm-up to the end of the run."""
    one = run(lr, wd, end)
    rate = lr * 0.5 * (1 + np.cos(np.pi * one.tokens / one.tokens[-1]))
    fallen = Trajectory(one.columns | {"learning_rate": rate}, one.info)
    return with_info(fallen, **({"decay_tokens": int(one.tokens[-1])} | info))


def best_settings(tokens):
    """(LR, WD, loss) of the planted optimum."""
    ratio = tokens / FIRST_BUDGET
    return LR_AT_FIRST * ratio**LR_EXPONENT, WD_AT_FIRST * ratio**WD_EXPONENT, 1.0 + 30 * tokens**-0.3


def drifting_optimum(rng, budgets=BUDGETS, *, lr=WIDE_LR, wd=WIDE_WD, noise=2e-4, **info):
    """Trunks and their decays: at each budget a paraboloid around the planted optimum, which drifts."""
    runs = []
    for x, y in zip(*grid(lr, wd), strict=True):
        trunk = run(2.0**x, 2.0**y, budgets[-1], **info)
        runs.append(trunk)
        for tokens in budgets:
            best_lr, best_wd, best_loss = best_settings(tokens)
            u, v = x - np.log2(best_lr), y - np.log2(best_wd)
            loss = best_loss * (1 + 0.003 * u**2 + 0.001 * (u + v) ** 2) + noise * rng.standard_normal()
            runs.append(decay_off(trunk, tokens, loss))
    return runs


def planted_decays(rng):
    """Trunks with a noise column, one decay each: it gains K times the scaled noise, which is no function of ELR."""
    runs = []
    for x, y in zip(*grid(), strict=True):
        trunk = run(2.0**x, 2.0**y)
        level = 2.0 ** rng.uniform(-1, 1) * 0.3  # what LR / B * T shall be
        trace = np.full(len(trunk.tokens), level * trunk.info.batch_size / 2.0**x)
        trace[0] = np.nan  # LR is lower there
        trunk = Trajectory(trunk.columns | {"precond_noise_trace": trace}, trunk.info)
        end = 16 * EVERY_TOKENS
        at = end - DECAY / 2
        loss = 1.0 + 40 * at**-0.3 - K * level + 1e-4 * rng.standard_normal()
        runs += [trunk, decay_off(trunk, end, loss)]
    return runs
