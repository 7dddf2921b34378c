"""Sweeps drawn from a known truth, without training: what is found in them can be compared with what was put in.

A bowl of cells: the value is a function of one index LR^a WD^b, or of none. A sweep of runs: curves on a token axis
whose dependence moves from LR to ELR with n = memory_times, and noise that resembles its neighbours (AR(1)).
"""

from __future__ import annotations

import numpy as np

from isotune.runs.trajectory import RunInfo, Trajectory

TOKENS_PER_STEP = 256  # batches of 4 sequences of 64 tokens
EVERY_TOKENS = 61_440
END_TOKENS = 2_686_976
WARMUP_STEPS = 4
LR = np.arange(-11.0, -6.0)
WD = np.arange(-4.0, 1.0)
WIDE_LR = np.arange(-12.0, -6.0)
WIDE_WD = np.arange(-8.0, 1.0)


def grid(lr=LR, wd=WD):
    """(log2 LR, log2 WD) of all cells."""
    x, y = np.meshgrid(lr, wd, indexing="ij")
    return x.ravel(), y.ravel()


def index_values(rng, x, y, degrees, noise, *, curvature=0.3):
    """A slope of 1 per octave of the index, with a bend; the noise is a share of that slope."""
    u = np.cos(np.deg2rad(degrees)) * x + np.sin(np.deg2rad(degrees)) * y
    u = (u - u.mean()) * np.sqrt(2)  # so that the slope across ELR is 1 at 45 degrees
    return u + curvature * u**2 / np.ptp(u) + noise * rng.standard_normal(len(x))


def round_bowl(rng, x, y, noise):
    """No invariance: circles around the middle of the grid."""
    u, v = x - x.mean(), y - y.mean()
    return (u * u + v * v) / 4 + noise * rng.standard_normal(len(x))


def shuffled(rng, x, y, degrees, noise):
    """Values that have an index, on the wrong cells."""
    return rng.permutation(index_values(rng, x, y, degrees, noise))


def ar1(rng, shape, correlation):
    """Noise with variance 1 whose neighbours along the last axis correlate."""
    z = rng.standard_normal(shape)
    for point in range(1, shape[-1]):
        z[..., point] = correlation * z[..., point - 1] + np.sqrt(1 - correlation**2) * z[..., point]
    return z


def shifting_loss(x, y, step):
    """Loss [runs x steps] that forgets LR and comes to know ELR: A (LR t)^-a exp(-n) + P ELR^q (1 - exp(-n)) + ..."""
    lr, elr = 2.0 ** x[:, None], 2.0 ** (x + y)[:, None]
    n = elr * step
    return 1.2 + 0.4 * (lr * step) ** -0.3 * np.exp(-n) + 3.0 * elr**0.45 * (1 - np.exp(-n)) + 3.0 * step**-0.3


def scaling_loss(x, y, step, *, n_shift=1.3, exponent=1.0, power=1.0):
    """Loss whose differences at equal LR and at equal ELR are equal exactly where n, for exponent 1, is n_shift.

    L = 3 - .1 log2 LR + g m^q, m = ELR^exponent * t. An octave of LR along a line of equal ELR changes it by -.1; an
    octave of WD at equal LR by as much where m / n_shift, in the middle between both runs, is 1.
    """
    memory = 2.0 ** (exponent * (x + y) + (1 - exponent) * (x + y).mean())[:, None] * step
    growth = 0.1 / (2.0 ** (exponent * power / 2) - 2.0 ** (-exponent * power / 2))
    return 3 - 0.1 * x[:, None] + growth * (memory / n_shift) ** power


def sweep(rng, x, y, loss=shifting_loss, *, noise=0.0, correlation=0.5, convention="coupled", end=END_TOKENS):
    """Trajectories with a row per evaluation, warm-up included."""
    tokens = np.concatenate([[0, WARMUP_STEPS * TOKENS_PER_STEP], np.arange(EVERY_TOKENS, end + 1, EVERY_TOKENS)])
    values = loss(x, y, np.maximum(tokens / TOKENS_PER_STEP, 1.0))
    values = values + noise * ar1(rng, values.shape, correlation)
    values[:, 1] = np.nan  # a row that was logged and not evaluated
    return [trajectory(a, b, tokens, row, convention=convention) for a, b, row in zip(x, y, values, strict=True)]


def trajectory(log2_lr, log2_wd, tokens, values, *, convention="coupled", status="finished", seed=0, **columns):
    """A run with LR and WD columns: LR rises over the warm-up and then stays."""
    step = np.asarray(tokens) // TOKENS_PER_STEP
    lr = 2.0**log2_lr * np.minimum(1.0, (np.maximum(step, 1) - 0.5) / WARMUP_STEPS)
    wd = 2.0**log2_wd if convention == "coupled" else 2.0 ** (log2_lr + log2_wd)
    info = RunInfo(
        learning_rate=2.0**log2_lr,
        weight_decay=wd,
        batch_size=4,
        sequence_length=64,
        weight_decay_convention=convention,
        schedule="constant",
        seed=seed,
        status=status,
        source="synthetic",
    )
    rows = {
        "tokens": np.asarray(tokens),
        "step": step,
        "learning_rate": np.where(step >= WARMUP_STEPS, 2.0**log2_lr, lr),
        "weight_decay": np.full(len(step), wd),
        "val_loss": np.asarray(values, dtype=float),
        **columns,
    }
    return Trajectory(rows, info)
