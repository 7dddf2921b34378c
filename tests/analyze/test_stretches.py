"""Noise over stretches: the values that `measure.windows` estimates, without intervals."""

import numpy as np
import pytest
from made_sweeps import run
from synthetic import EVERY_TOKENS

from isotune.analyze.stretches import stretch_values
from isotune.measure import windows
from isotune.runs.trajectory import Trajectory


def test_stretches_agree_with_the_estimates_of_measure():
    rng = np.random.default_rng(2)
    one = run(2.0**-9, 0.5, 200 * EVERY_TOKENS)
    rows = len(one.tokens)
    columns = {
        "precond_noise_trace": rng.exponential(3.0, rows),
        "precond_gradient_sq_norm": rng.exponential(0.1, rows),
        "noise_clip_factor": rng.uniform(0.2, 1.0, rows),
    }
    columns["precond_noise_trace"][::7] = np.nan
    one = Trajectory(one.columns | columns, one.info)
    edges = np.array([30.0, 90.0, 200.0]) * EVERY_TOKENS
    for stretch, (start, end) in enumerate(((30, 90), (90, 200))):
        rows = (start * EVERY_TOKENS < one.tokens) & (one.tokens <= end * EVERY_TOKENS)
        lr, clip = one.columns["learning_rate"][rows], columns["noise_clip_factor"][rows]
        there = ~np.isnan(columns["precond_noise_trace"][rows])
        noise = windows.scaled_noise(columns["precond_noise_trace"][rows][there], lr[there], 4, clip[there]).value
        norm = windows.scaled_gradient(columns["precond_gradient_sq_norm"][rows], lr, clip).value
        assert stretch_values(one, "scaled_noise", edges)[stretch] == pytest.approx(noise)
        assert stretch_values(one, "scaled_gradient", edges)[stretch] == pytest.approx(norm)


def test_rows_right_after_a_batch_switch_count_in_no_stretch():
    one = run(2.0**-9, 0.5, 40 * EVERY_TOKENS)
    batch = np.where(one.tokens > 20 * EVERY_TOKENS, 64.0, 4.0)
    trace = np.full(len(batch), 0.5 * 4 * 2.0**9)  # LR / 4 * T is .5
    step = np.cumsum(np.diff(one.tokens, prepend=0) / (batch * 64))
    settling = (one.tokens > 20 * EVERY_TOKENS) & (step < step[20] + 60 + 15)
    assert settling.sum() > 2
    trace[settling] = 1e9
    columns = {**one.columns, "batch_size": batch, "precond_noise_trace": trace, "step": step}
    edges = np.array([20.0, 40.0]) * EVERY_TOKENS
    value = stretch_values(Trajectory(columns, one.info), "scaled_noise", edges)[0]
    assert value == pytest.approx(0.5 / 16, rel=1e-6)


def test_a_run_without_noise_has_no_values():
    assert np.isnan(stretch_values(run(2.0**-9, 0.5), "scaled_noise", np.array([0.0, 1e6, 2e6]))).all()
