"""The run that would tell most, from what is there."""

import numpy as np
import pytest
from made_sweeps import BUDGETS, drifting_optimum, run, with_info
from synthetic import EVERY_TOKENS, grid

from isotune.analyze.diagnosis import diagnose
from isotune.analyze.families import make_families
from isotune.analyze.next_run import choose_next_run
from isotune.analyze.surface import fit_surface

END = 20 * EVERY_TOKENS


def ended(cells, loss, **info):
    """Runs that end with this loss of (log2 LR, log2 WD)."""
    return [run(2.0**x, 2.0**y, loss=lambda tokens, x=x, y=y: loss(x, y) + 0.0 * tokens, **info) for x, y in cells]


def rectangle(lr, wd):
    return list(zip(*grid(np.array(lr, dtype=float), np.array(wd, dtype=float)), strict=True))


def propose(runs, invariant="undecided"):
    (family,) = make_families(runs)
    surfaces = {}
    for budget in family.budgets:
        cells = budget.cells()
        if len(cells.value) >= 7:
            surfaces[budget.tokens] = fit_surface(cells.log2_lr, cells.log2_wd, cells.value)
    return choose_next_run(family, surfaces, invariant)


def place(proposal):
    return np.log2(proposal.learning_rate), np.log2(proposal.weight_decay)


def bowl(x, y, lr=-9.0, wd=-4.0):
    return 2 + 0.01 * (x - lr) ** 2 + 0.004 * (y - wd) ** 2


@pytest.mark.parametrize("cells", [[(-9, -4)], rectangle([-9], [-5, -4, -3]), rectangle([-10, -9, -8], [-4])])
def test_with_one_lr_or_one_wd_it_is_the_run_of_equal_elr(cells):
    proposal = propose(ended(cells, bowl))
    assert place(proposal) == (-8, -5)
    assert "equal ELR" in proposal.why


def test_where_twice_the_lr_diverged_it_is_half_of_it():
    diverged = ended([(-8, -5)], bowl, status="diverged")
    assert place(propose(ended([(-9, -4)], bowl) + diverged)) == (-10, -3)


def test_with_one_elr_it_is_another_wd_at_the_best_lr():
    proposal = propose(ended([(-10, -3), (-9, -4), (-8, -5)], bowl))
    assert place(proposal) == (-9, -3)
    assert "all runs have one ELR" in proposal.why


def test_with_few_cells_it_completes_the_rectangle_next_to_the_best():
    proposal = propose(ended([(-9, -4), (-8, -4), (-9, -3)], bowl))
    assert place(proposal) == (-8, -3)
    assert "rectangle" in proposal.why


def test_a_corner_that_diverged_is_not_proposed_again():
    runs = ended([(-9, -4), (-8, -4), (-9, -3)], bowl) + ended([(-8, -3)], bowl, status="diverged")
    assert place(propose(runs)) not in [(-9, -4), (-8, -4), (-9, -3), (-8, -3)]


@pytest.mark.parametrize(
    ("centre", "step"),
    [((-13.0, -4.0), (-1, 0)), ((-5.0, -4.0), (1, 0)), ((-9.0, 3.0), (0, 1)), ((-9.0, -11.0), (0, -1))],
)
def test_with_the_best_cell_at_the_edge_it_lies_beyond_that_edge(centre, step):
    lr, wd = np.arange(-11.0, -6.0), np.arange(-6.0, -1.0)
    proposal = propose(ended(rectangle(lr, wd), lambda x, y: bowl(x, y, *centre)), "ELR")
    x, y = place(proposal)
    best = (np.clip(centre[0], -11, -7), np.clip(centre[1], -6, -2))
    assert np.sign(x - best[0]) * abs(step[0]) + np.sign(y - best[1]) * abs(step[1]) == sum(step)
    assert not (-11 <= x <= -7 and -6 <= y <= -2)
    assert "beyond its edge" in proposal.why


def test_an_edge_beyond_which_runs_diverged_is_left_alone():
    lr, wd = np.arange(-11.0, -6.0), np.arange(-6.0, -1.0)
    gone = ended(rectangle([-6], np.arange(-8.0, 1.0)), bowl, status="diverged")
    proposal = propose(ended(rectangle(lr, wd), lambda x, y: bowl(x, y, -5.0, -4.0)) + gone, "ELR")
    assert place(proposal)[0] < -6


def test_undecided_with_a_grid_and_no_seeds_it_is_another_seed_of_the_best():
    lr, wd = np.arange(-11.0, -6.0), np.arange(-6.0, -1.0)
    proposal = propose(ended(rectangle(lr, wd), bowl))
    assert place(proposal) == (-9, -4) and proposal.seed == "another"


def test_decided_at_one_budget_it_goes_to_a_longer_one_for_a_law():
    lr, wd = np.arange(-11.0, -6.0), np.arange(-6.0, -1.0)
    proposal = propose(ended(rectangle(lr, wd), bowl), "ELR")
    assert place(proposal) == pytest.approx((-9, -4), abs=1e-6)
    assert proposal.tokens == 4 * END
    assert "take 3 budgets" in proposal.why and "1 is there" in proposal.why


def test_a_minimum_between_the_cells_is_where_nobody_has_been():
    lr, wd = np.arange(-13.0, -4.0, 2.0), np.arange(-9.0, 2.0, 2.0)
    proposal = propose(ended(rectangle(lr, wd), lambda x, y: bowl(x, y, -8.0, -4.0)), "ELR")
    assert place(proposal) == pytest.approx((-8, -4), abs=1e-6)
    assert proposal.tokens == END


def test_the_surface_of_the_budget_that_it_goes_by_counts_and_not_that_of_a_longer_one_with_two_runs():
    runs = drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:3])
    longer = [with_info(run(2.0**-9, 2.0**-k, 8 * BUDGETS[2]), decay_tokens=0) for k in (4, 5)]
    (diagnosis,) = diagnose([*runs, *longer])
    assert diagnosis.next_run.tokens in (BUDGETS[2], 4 * BUDGETS[2])


def test_without_finished_runs_it_goes_by_the_curves():
    proposal = propose(ended([(-9, -4), (-8, -4), (-9, -3)], bowl, status="running"))
    assert (place(proposal), proposal.tokens) == ((-8, -3), END)


def test_with_nothing_but_diverged_runs_there_is_no_proposal():
    assert propose(ended([(-9, -4), (-8, -4)], bowl, status="diverged")) is None


def test_where_all_losses_are_equal_there_is_no_proposal():
    (found,) = diagnose([run(2.0**x, 2.0**y) for x, y in zip(*grid(), strict=True)])
    assert found.next_run is None
    assert not any("outside the grid" in warning for warning in found.warnings)


def test_each_convention_reads_its_own_weight_decay():
    proposal = propose(ended([(-9, -4)], bowl))
    assert proposal.words("coupled") == "LR 2^-8, WD 2^-5, 1.23M tokens"
    assert proposal.words("independent") == "LR 2^-8, WD 2^-13, 1.23M tokens"
