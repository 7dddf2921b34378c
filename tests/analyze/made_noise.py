"""Runs whose noise scale is known."""

import numpy as np
from made import made_info

from isotune.runs.trajectory import Trajectory

LENGTH = 64
WARMUP_STEPS = 100


def noisy_run(scale, batch=8, *, steps=4000, every=10, tail=0.5, seed=0, p1_scale=None, **columns):
    """A run whose noise scale at each row is `scale` (a number or a function of the step), measured every ten steps.

    T is log-normal around scale * g2 with mean one; the measured g2 scatters as T/B does, below zero at times.
    """
    rng = np.random.default_rng(seed)
    step = np.arange(every, steps + 1, every)
    size = np.asarray(batch(step) if callable(batch) else np.full(len(step), batch), dtype=float)
    lr = 2.0**-9 * np.minimum(step / WARMUP_STEPS, 1.0)
    rows = {
        "tokens": np.cumsum(size * every * LENGTH),
        "step": step,
        "learning_rate": lr,
        "batch_size": size,
    }
    for suffix, truth in (("", scale), ("_p1", p1_scale)):
        if truth is not None:
            noise = np.asarray(truth(step) if callable(truth) else np.full(len(step), truth), dtype=float)
            heavy = np.exp(tail * rng.standard_normal(len(step)) - tail**2 / 2)
            rows[f"precond_noise_trace{suffix}"] = 3.0 * noise * heavy
            rows[f"precond_gradient_sq_norm{suffix}"] = 3.0 + noise / 20 * rng.standard_normal(len(step))
    return Trajectory(rows | columns, made_info(batch_size=int(size[-1]), sequence_length=LENGTH))
