"""Stretches of n: enough cells, every run inside the range, nothing of the warm-up."""

import numpy as np
import pytest
from made_sweeps import run, without
from synthetic import TOKENS_PER_STEP, WARMUP_STEPS, WIDE_LR, WIDE_WD, grid, sweep

from isotune.analyze.curves import memory_times
from isotune.analyze.stages import MIN_CELLS, MIN_POINTS, STAGES, find_stretch, knows_memory_times
from isotune.runs.trajectory import Trajectory

RUNS = sweep(np.random.default_rng(0), *grid(WIDE_LR, WIDE_WD))


@pytest.mark.parametrize("stage", STAGES)
def test_in_a_stretch_every_run_has_its_n_in_the_range(stage):
    stretch = find_stretch(stage, RUNS, "val_loss")
    low, high = STAGES[stage]
    assert len(stretch.runs) >= MIN_CELLS
    for one in stretch.runs:
        n = np.interp([stretch.start, stretch.end], one.tokens, memory_times(one))
        assert low <= n[0] < n[1] <= high
        at = one.measured("val_loss")[0]
        assert ((stretch.start <= at) & (at <= stretch.end)).sum() >= MIN_POINTS


def test_no_run_that_belongs_is_left_out_of_its_stretch():
    stretch = find_stretch("late", RUNS, "val_loss")
    late = [one for one in RUNS if np.interp(stretch.start, one.tokens, memory_times(one)) >= 3]
    assert len(stretch.runs) == len(late)


def test_a_stretch_prefers_cells_to_length():
    """Twelve cells pass n = 3 at two thirds of the run; six of them much earlier."""
    x, y = np.repeat([-8.0, -9.0], 6), np.tile(np.arange(-5.0, 1.0), 2)
    stretch = find_stretch("late", sweep(np.random.default_rng(0), x, y), "val_loss")
    everywhere = [np.interp(stretch.start, one.tokens, memory_times(one)) for one in stretch.runs]
    most = sum(2.0 ** (a + b) * 2_686_976 / TOKENS_PER_STEP > 3.6 for a, b in zip(x, y, strict=True))
    assert len(everywhere) >= most - 1


def test_the_warm_up_is_no_part_of_a_stretch():
    assert find_stretch("early", RUNS, "val_loss").start >= WARMUP_STEPS * TOKENS_PER_STEP


@pytest.mark.parametrize("runs", [[], RUNS[:5]])
def test_five_cells_are_too_few_for_a_stretch(runs):
    assert find_stretch("early", runs, "val_loss") is None


def test_seeds_of_five_cells_are_five_cells():
    assert find_stretch("early", RUNS[:5] * 3, "val_loss") is None


def test_a_loss_that_was_never_measured_has_no_stretch():
    assert find_stretch("early", RUNS, "train_loss") is None


def test_n_is_unknown_where_the_size_of_a_step_is():
    one = without(run(2**-9, 0.1, batch_size="unknown"), "step")
    assert not knows_memory_times([one])
    assert knows_memory_times([one, run(2**-9, 0.1)])
    assert find_stretch("early", [Trajectory(one.columns, one.info)] * 8, "val_loss") is None
