"""Gradient noise in our own runs."""

import dataclasses

import numpy as np
import pytest
from small import STEP, small_constant, small_wsd

from isotune.errors import InputError
from isotune.measure import windows
from isotune.recipe import AdamW
from isotune.runs import Evaluation, Study
from isotune.train import Execution, train

NOISE = Evaluation(every_tokens=0, windows=1, final_windows=1, noise_every_tokens=5 * STEP)
PAIRS = [
    ("noise_trace", "gradient_sq_norm"),
    ("precond_noise_trace", "precond_gradient_sq_norm"),
    ("precond_noise_trace_p1", "precond_gradient_sq_norm_p1"),
]


def test_measuring_noise_never_changes_a_state(corpus, tmp_path):
    recipe, states = small_wsd(corpus, 80), []
    plans = [0, 5 * STEP, STEP, 7 * STEP + 1]
    for number, every in enumerate(plans):
        plan = dataclasses.replace(NOISE, noise_every_tokens=every)
        train(recipe, tmp_path / str(number), evaluation=plan)
        states.append({path.name: path.read_bytes() for path in (tmp_path / str(number) / "states").iterdir()})
    assert all(other == states[0] for other in states)


def test_noise_lies_on_its_grid_with_all_columns(corpus, tmp_path):
    trajectory = train(small_constant(corpus, 52), tmp_path / "study", evaluation=NOISE)
    for noise, gradient in PAIRS:
        for name in (noise, gradient, f"{noise}_all", f"{gradient}_all"):
            assert trajectory.measured(name)[0].tolist() == [5 * STEP * k for k in range(1, 11)], name
    assert len(trajectory.measured("root_moment_sum")[0]) == 10


def test_a_run_cut_into_segments_measures_the_same_noise(corpus, tmp_path):
    longer = small_wsd(corpus, 120)
    train(small_wsd(corpus, 80), tmp_path / "both", evaluation=NOISE)
    cut = train(longer, tmp_path / "both", evaluation=NOISE)
    alone = train(longer, tmp_path / "alone", evaluation=NOISE)
    np.testing.assert_array_equal(cut.columns["precond_noise_trace"], alone.columns["precond_noise_trace"])


def test_microbatches_are_measured_where_a_step_has_them(corpus, tmp_path):
    """Then no probe is made, and the noise is that of the step's own gradient: its raw square norm is known."""
    recipe = small_constant(corpus, 40, batch_size=8)
    execution = Execution(micro_batch_size=2)
    trajectory = train(recipe, tmp_path / "study", evaluation=NOISE, execution=execution)
    rows = ~np.isnan(trajectory.columns["noise_trace_all"])
    noise, signal = trajectory.columns["noise_trace_all"][rows], trajectory.columns["gradient_sq_norm_all"][rows]
    np.testing.assert_allclose(signal + noise / 8, trajectory.columns["gradient_norm"][rows] ** 2, rtol=1e-4)


def test_a_tenth_of_the_clip_leaves_trajectory_and_reported_noise_unchanged(corpus, tmp_path):
    curves = []
    for clip in (1e-3, 1e-4):
        optimizer = AdamW(clip_norm=clip, epsilon=1e-30)
        recipe = small_constant(corpus, 100, optimizer=optimizer)
        trajectory = train(recipe, tmp_path / str(clip), evaluation=NOISE)
        columns = trajectory.columns
        assert np.nanmax(columns["clip_factor"]) < 0.1, "clipping is always active"
        rows = ~np.isnan(columns["precond_noise_trace"])
        noise, lr, batch, factor = (
            columns[name][rows] for name in ("precond_noise_trace", "learning_rate", "batch_size", "noise_clip_factor")
        )
        curves.append(
            {
                "train_loss": columns["train_loss"][1:],
                "corrected": windows.scaled_noise(noise, lr, batch, factor).value,
                "uncorrected": windows.scaled_noise(noise, lr, batch).value,
                "free": np.mean(lr * columns["root_moment_sum"][rows]) / np.mean(factor),
            }
        )
    # The threshold is a power of ten, not of two, and torch adds 1e-6 to the norm: equal up to rounding, not in bytes.
    np.testing.assert_allclose(curves[0]["train_loss"], curves[1]["train_loss"], rtol=2e-3)
    assert curves[0]["corrected"] == pytest.approx(curves[1]["corrected"], rel=0.02)
    assert curves[0]["free"] == pytest.approx(curves[1]["free"], rel=0.02)
    assert curves[1]["uncorrected"] == pytest.approx(10 * curves[0]["uncorrected"], rel=0.05)


def test_a_probe_of_the_batch_has_its_own_clip_factor(corpus, tmp_path):
    """The factor that a batch with the probe's gradient would have met: its raw square norm is T / B + g2."""
    recipe = small_constant(corpus, 40, optimizer=AdamW(clip_norm=1e-2))
    columns = train(recipe, tmp_path / "study", evaluation=NOISE).columns
    rows = ~np.isnan(columns["noise_trace_all"])
    squares = columns["noise_trace_all"][rows] / recipe.batch_size + columns["gradient_sq_norm_all"][rows]
    np.testing.assert_allclose(columns["noise_clip_factor"][rows], 1e-2 / np.sqrt(squares), rtol=1e-3)
    assert not np.allclose(columns["noise_clip_factor"][rows], columns["clip_factor"][rows], rtol=1e-3)


def test_a_probe_smaller_than_the_batch_goes_with_the_clip_factor_of_the_step(corpus, tmp_path):
    recipe = small_constant(corpus, 40, batch_size=16, optimizer=AdamW(clip_norm=1e-2))
    columns = train(recipe, tmp_path / "study", evaluation=NOISE).columns
    rows = ~np.isnan(columns["noise_trace_all"])
    assert rows.any()
    np.testing.assert_allclose(columns["noise_clip_factor"][rows], columns["clip_factor"][rows], rtol=1e-6)


def test_a_noise_too_large_for_its_column_is_left_out_and_ends_no_run(corpus, tmp_path, monkeypatch):
    from isotune.train import noise

    monkeypatch.setattr(noise, "free_noise", lambda optimizer, parameters: 1e39)
    trajectory = train(small_constant(corpus, 40), tmp_path / "study", evaluation=NOISE)
    assert trajectory.info.status == "finished"
    assert "root_moment_sum" not in trajectory.columns and len(trajectory.measured("noise_trace")[0])


def test_two_ranks_measure_the_noise_of_their_microbatches(forks, corpus, tmp_path):
    recipe = small_constant(corpus, 30)
    assert forks.train(recipe, tmp_path / "two", NOISE, ranks=2)["status"] == 0
    two = Study.open(tmp_path / "two").trajectory(recipe)
    one = train(recipe, tmp_path / "one", evaluation=NOISE, execution=Execution(micro_batch_size=2))
    for noise, gradient in PAIRS:
        for name in (noise, gradient):
            np.testing.assert_allclose(two.columns[name], one.columns[name], rtol=1e-3, atol=1e-6)


def test_noise_plans_that_cannot_be_are_refused():
    for bad in ({"noise_every_tokens": -1}, {"noise_sequences": 1}):
        with pytest.raises(InputError, match="noise every"):
            dataclasses.replace(NOISE, **bad)


def test_a_probe_must_divide_into_two_halves(corpus, tmp_path):
    plan = dataclasses.replace(NOISE, noise_sequences=7)
    with pytest.raises(InputError, match="use 8"):
        train(small_constant(corpus, 20), tmp_path / "study", evaluation=plan)
