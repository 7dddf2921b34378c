"""C17 to C24, C27, C30: planted surfaces and laws; the definitions against brute force and `isotune.analyze`."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_rows import (
    BUDGETS,
    LAST,
    RULES,
    SMALL_LR,
    SMALL_WD,
    MadeTables,
    bowl,
    make_run,
    statistics,
    surface_tables,
    verdict,
)

from isotune.analyze.laws import fit_power_law
from isotune.analyze.surface import fit_surface
from isotune.analyze.truth import smooth_surface
from isotune.claims import Rows
from isotune.claims.grids import grid_losses
from isotune.claims.judges.surfaces import explained_by, mean_interval
from isotune.claims.optima import fit_paraboloids, fit_surfaces
from isotune.claims.tuning_lines import Regrets, lines_through

D0 = 1_376_256

pytestmark = pytest.mark.usefixtures("independent_noise")


def law(at, exponent):
    """An optimum that is `at` octaves at D0 tokens and moves as tokens^exponent."""
    return lambda budget: at + exponent * math.log2(budget / D0)


# Definitions


def test_paraboloids_of_many_draws_are_those_of_fit_surface():
    rng = np.random.default_rng(0)
    lr, wd = (grid.ravel().astype(float) for grid in np.meshgrid(SMALL_LR, SMALL_WD))
    true = bowl(-9.3, -5.0, 30)
    losses = np.array([true(x, y, 0) for x, y in zip(lr, wd, strict=True)]) + 0.01 * rng.standard_normal((20, 54))
    losses[3, 7] = np.nan
    losses[4] = 1.5 + 0.004 * (wd + 4) ** 2 + 0.1 * (lr + 9) ** 2  # one LR within the margin: it must be widened
    weights = rng.integers(1, 6, size=54).astype(float)
    drawn = fit_paraboloids(lr, wd, losses, weights, 0.06)
    for index, row in enumerate(losses):
        one = fit_surface(lr, wd, row, weights=weights, margin=0.06)
        assert drawn.angle[index] == pytest.approx(one.salient_direction, abs=1e-5)
        assert drawn.eigenvalue_ratio[index] == pytest.approx(one.eigenvalue_ratio, rel=1e-5)
        place = (one.minimum_log2_learning_rate, one.minimum_log2_weight_decay)
        assert drawn.minimum[index] == pytest.approx(place, abs=1e-5, nan_ok=True)
        assert drawn.lowest[index] == pytest.approx(one.minimum_loss, abs=1e-8, nan_ok=True)


def test_a_paraboloid_without_a_minimum_has_none_in_the_draws():
    lr, wd = (grid.ravel().astype(float) for grid in np.meshgrid(SMALL_LR, SMALL_WD))
    saddle = 1.5 + 0.004 * (lr + 9) ** 2 - 0.002 * (wd + 4) ** 2
    assert np.isnan(fit_paraboloids(lr, wd, saddle[None], np.ones(54), 0.5).minimum).all()


def test_a_law_of_optima_is_the_weighted_power_law_of_the_analysis():
    rows = Rows(surface_tables(bowl(law(-9.2, -0.1), law(-4, -0.4)), noise=3e-3))
    found = fit_surfaces(grid_losses(rows, "small_decays", BUDGETS), RULES.claims["C20"])
    for factor in ("learning_rate", "weight_decay", "effective_learning_rate"):
        ours = found.law(factor, 3)
        inside = [found.optima[budget] for budget in ours.budgets]
        assert len(inside) >= 3
        optima = np.array([2.0 ** one.optimum(factor)[0] for one in inside])
        errors = optima * math.log(2) * np.array([one.error(factor) for one in inside])
        theirs = fit_power_law(ours.budgets, optima, standard_errors=errors)
        assert ours.exponent == pytest.approx(theirs.exponent, rel=1e-6)
        assert 2.0 ** ours.at(1e6)[0] == pytest.approx(theirs.value_at(1e6), rel=1e-6)


def test_explained_share_against_brute_force():
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 5, size=25).astype(float)
    losses = rng.standard_normal((3, 25))
    for row, found in zip(losses, explained_by(losses, groups), strict=True):
        within = sum(((row[groups == g] - row[groups == g].mean()) ** 2).sum() for g in np.unique(groups))
        assert found == pytest.approx(1 - within / (25 - len(np.unique(groups))) / row.var(ddof=1))


def test_the_truth_is_nearer_to_the_planted_surface_than_the_losses_are():
    rng = np.random.default_rng(2)
    lr, wd = (grid.ravel().astype(float) for grid in np.meshgrid(SMALL_LR, SMALL_WD))
    planted = np.array([bowl(-9, -5, top=0.003)(x, y, 0) for x, y in zip(lr, wd, strict=True)])
    planted += 0.003 * np.sin(lr)  # no paraboloid
    losses = planted + 0.004 * rng.standard_normal(54)
    smooth = smooth_surface(lr, wd, losses, np.full(54, 0.004))
    near = smooth.near
    assert np.std((smooth.truth(losses) - planted)[near]) < 0.6 * np.std((losses - planted)[near])
    two = smooth.truth(np.stack([losses, planted]))
    assert two[0] == pytest.approx(smooth.truth(losses))
    assert smooth.truth((losses + planted) / 2) == pytest.approx(two.mean(axis=0))
    exact = smooth_surface(lr, wd, planted, np.full(54, 1e-9))
    assert exact.truth(planted) == pytest.approx(planted, abs=1e-5)


def test_regret_of_lines_against_brute_force():
    true = bowl(-9, -4, 45, 0.004, 0.0)
    rows = Rows(surface_tables(true, noise=1e-3))
    entry = replace(RULES.claims["C27"], numbers=RULES.claims["C27"].numbers | {"bootstrap_draws": 50})
    regrets = Regrets(grid_losses(rows, "small_decays", LAST), entry)
    lines = lines_through(regrets.grid.log2_wd, (-6, -2))
    assert [len(line) for line in lines] == [6] * 5
    found = regrets.of(lines)
    for draw in range(50):
        for index, line in enumerate(lines):
            best = min(line, key=lambda cell: regrets.chosen_on[draw, cell])
            lowest = regrets.truth[draw].min()
            assert found[draw, index] == pytest.approx((regrets.truth[draw, best] - lowest) / lowest)
    assert regrets.of_random_cells(54) == pytest.approx(regrets.of([np.arange(54)])[:, 0])
    # What the truth is smoothed from must not choose.
    drawn = regrets.grid.drawn(entry)[:, :, -1]
    smooth = smooth_surface(
        regrets.grid.log2_lr, regrets.grid.log2_wd, regrets.grid.loss[:, -1], regrets.grid.covariance(-1)
    )
    assert smooth.truth(drawn) == pytest.approx(regrets.truth)
    assert abs(np.corrcoef((drawn - drawn.mean(0)).ravel(), (regrets.chosen_on - drawn.mean(0)).ravel())[0, 1]) < 0.2


def test_mean_interval_is_at_least_students_and_adds_the_errors_of_windows():
    entry = RULES.claims["C24"]
    values = np.array([0.01, 0.02, 0.015, 0.03])
    plain = mean_interval(values, entry)
    reach = 3.182446305 * values.std(ddof=1) / 2
    assert (plain.low, plain.high) == pytest.approx((values.mean() - reach, values.mean() + reach))
    wider = mean_interval(values, entry, np.full(4, 0.01))
    assert wider.high - wider.value == pytest.approx(math.hypot(reach, 1.959963985 * 0.01 / 2))


# Claims


def along_elr(lr, wd, budget):
    return 1.5 + 0.02 * abs(lr + wd + 12)


def along_lr(lr, wd, budget):
    return 1.5 + 0.02 * abs(lr + 9)


def test_c17_holds_where_elr_lr_and_elr_explain_the_losses():
    found = verdict("C17", surface_tables(along_elr, along_lr, along_elr))
    assert found.verdict.verdict == "holds", found.verdict.why
    assert statistics(found)["small_gap"].value > 0.5 > -0.5 > statistics(found)["large_gap"].value


def test_c17_fails_where_lr_explains_the_small_batch():
    assert verdict("C17", surface_tables(along_lr, along_lr, along_elr)).verdict.verdict == "fails"


def test_c17_is_undecided_without_the_scheduler():
    found = verdict("C17", surface_tables(along_elr, along_lr)).verdict
    assert found.verdict == "undecided" and "type2_common" in found.why and "nano-switch" in found.why


@pytest.mark.parametrize(("small", "expected"), [(45, "holds"), (0, "fails"), (30, "undecided")])
def test_c18_by_the_planted_direction(small, expected):
    found = verdict("C18", surface_tables(bowl(-9, -5, small), bowl(-9, -2, 0, other=0.0005)))
    assert found.verdict.verdict == expected, found.verdict.why
    assert statistics(found)["small_angle"].value == pytest.approx(small, abs=1)
    assert statistics(found)["large_angle"].value == pytest.approx(0, abs=1)
    assert statistics(found)["eigenvalue_ratio"].value == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(("exponent", "expected"), [(0.0, "holds"), (-0.3, "fails"), (0.3, "fails")])
def test_c19_by_the_planted_exponent(exponent, expected):
    found = verdict("C19", surface_tables(bowl(law(-9.2, exponent), -4), bowl(law(-8.7, exponent), -1)))
    assert found.verdict.verdict == expected, found.verdict.why
    for part in (0, 1):
        assert statistics(found, part)["lr_exponent"].value == pytest.approx(exponent, abs=0.03)


def test_c19_is_undecided_where_the_minimum_leaves_the_grid():
    found = verdict("C19", surface_tables(bowl(-9.2, -14), bowl(-8.7, -1)))
    assert found.verdict.verdict == "undecided"
    assert "0 of 5 budgets of nano-small have their minimum inside the grid" in found.judgements[0].verdict.why
    assert found.judgements[1].verdict.verdict == "holds"


@pytest.mark.parametrize(("exponent", "expected"), [(-0.5, "holds"), (0.3, "fails"), (0.0, "undecided")])
def test_c20_by_the_planted_exponent(exponent, expected):
    found = verdict("C20", surface_tables(bowl(-9, law(-4, exponent)), bowl(-9, law(-1, exponent))))
    assert found.verdict.verdict == expected, found.verdict.why
    assert statistics(found)["elr_exponent"].value == pytest.approx(exponent, abs=0.05)


def loss_law(lowest, amplitude):
    return lambda budget: lowest + amplitude * (budget / BUDGETS[0]) ** -0.5


@pytest.mark.parametrize(("ahead", "expected"), [(0.05, "holds"), (-0.05, "fails")])
def test_c21_by_who_is_ahead(ahead, expected):
    small = bowl(-9, -4, floor=loss_law(1.2, 0.8))
    large = bowl(-9, -1, floor=lambda b: loss_law(1.2, 0.8)(b) * (1 + ahead) + 0.005 * (b == BUDGETS[0]))
    found = verdict("C21", surface_tables(small, large))
    assert found.verdict.verdict == expected, found.verdict.why
    assert statistics(found)["smallest_gap"].value == pytest.approx(ahead, abs=0.002)


def test_c21_takes_the_posterior_mean_where_the_minimum_is_censored():
    small, large = bowl(-9, -14, floor=loss_law(1.2, 0.8)), bowl(-9, -1, floor=loss_law(1.3, 0.8))
    shown = verdict("C21", surface_tables(small, large)).judgements[0].measured.shown
    (best, how), corner = shown["best loss at batch 4"][str(BUDGETS[-1])], small(-10, -12, BUDGETS[-1])
    assert how == "posterior mean" and best == pytest.approx(corner, abs=0.002)


@pytest.mark.parametrize(
    ("large", "type2", "expected"), [(1.60, 1.48, "holds"), (1.50, 1.495, "fails"), (1.60, 1.52, "fails")]
)
def test_c22_by_the_best_losses(large, type2, expected):
    by_budget = bowl(-9, -1, floor=lambda b: large + 0.2 * (b < LAST[0]))  # the lead at the last budget is the smaller
    found = verdict("C22", surface_tables(bowl(-9, -4, floor=1.5), by_budget, bowl(-9, -3, floor=type2)))
    assert found.verdict.verdict == expected, found.verdict.why
    assert statistics(found)["lead_large"].value == pytest.approx(large / type2 - 1, abs=0.003)
    assert statistics(found)["lead_small"].value == pytest.approx(1.5 / type2 - 1, abs=0.003)


@pytest.mark.parametrize(("shift", "expected"), [(-0.5, "holds"), (1.0, "fails")])
def test_c23_by_the_planted_shift(shift, expected):
    found = verdict("C23", surface_tables(bowl(-9, -4), bowl(-9 + shift, -1)))
    assert found.verdict.verdict == expected, found.verdict.why
    assert statistics(found)["lr_shift"].value == pytest.approx(shift, abs=0.05)
    assert bool(found.judgements[0].measured.notes) == (shift > 0)


def test_c23_is_undecided_where_a_minimum_is_censored():
    found = verdict("C23", surface_tables(bowl(-9, -14), bowl(-9.5, -1)))
    assert found.verdict.verdict == "undecided" and "small batch is censored in weight decay" in found.verdict.why


def switched(penalty, status="finished"):
    """The square-root diagonal and its Type 2 runs; each loses this share of the loss."""
    rng = np.random.default_rng(0)
    windows = 1.5 + 0.5 * rng.standard_normal(4096)
    kept, scaled = [], []
    for lr in range(-11, -7):
        of_cell = penalty * (1 + 0.1 * (lr + 9.5))
        kept.append(make_run(lr, -12 - lr, batch=64, final={LAST[0]: 1.5}, windows=windows, columns={"val_loss": 1.6}))
        scaled.append(
            make_run(
                lr,
                -12 - lr,
                batch=64,
                final={LAST[0]: 1.5 * (1 + of_cell)},
                windows=windows + 1.5 * of_cell + 0.01 * rng.standard_normal(4096),
                columns={"val_loss": 1.6 * (1 + of_cell)},
                status=status if lr == -8 else "finished",
            )
        )
    others = [make_run(lr, wd, batch=64) for lr in range(-11, -6) for wd in range(-4, 1) if lr + wd != -12]
    return MadeTables({"nano-square-root": scaled, "nano-type2": kept + others})


@pytest.mark.parametrize(("penalty", "expected"), [(0.01, "holds"), (-0.01, "fails"), (0.001, "undecided")])
def test_c24_by_the_planted_penalty(penalty, expected):
    found = verdict("C24", switched(penalty))
    assert found.verdict.verdict == expected, found.verdict.why
    assert statistics(found)["penalty"].value == pytest.approx(penalty)
    assert statistics(found)["constant_penalty"].value == pytest.approx(penalty)


def test_c24_counts_a_diverged_run_as_ten_percent():
    found = verdict("C24", switched(0.01, status="diverged"))
    penalties = [0.01 * (1 + 0.1 * x) for x in (-1.5, -0.5, 0.5)] + [0.1]
    assert statistics(found)["penalty"].value == pytest.approx(np.mean(penalties))
    assert found.judgements[0].measured.num_cells == 4


def tilted(lr, wd, budget):
    """A valley of constant ELR that is best in the middle: what WD lines find more often than LR lines."""
    return 1.5 * (1 + 0.003 * (lr + wd + 13) ** 2 + 0.0006 * (lr + 9.5) ** 2)


def test_c27_holds_in_a_valley_of_constant_elr():
    found = verdict("C27", surface_tables(tilted, bowl(-9, 0, 45, 0.004, 0.0), noise=1e-5))
    assert found.verdict.verdict == "holds", found.verdict.why
    assert statistics(found)["wd_advantage"].value == pytest.approx(0.0006 * (2.25 - 1.25), rel=0.3)
    elr = np.mean([0.003 * (each + 13) ** 2 for each in range(-16, -9)])
    assert statistics(found)["elr_line_small"].value == pytest.approx(elr, rel=0.1)


def test_c27_fails_where_a_fixed_wd_is_far_off():
    assert verdict("C27", surface_tables(bowl(-9, -5, 90, 0.01, 0.0), bowl(-9, 0))).verdict.verdict == "fails"


def three_laws(type2_wd, type2_exponent):
    return surface_tables(
        bowl(law(-9.5, 0.0), law(-5, -0.3), 20),
        bowl(law(-8.5, 0.0), law(-1, -0.3), 20),
        bowl(law(-9.0, 0.0), law(type2_wd, type2_exponent), 20),
        noise=2e-5,
    )


def test_c30_holds_between_two_laws_with_another_exponent():
    found = verdict("C30", three_laws(-2.5, -1.0))
    assert found.verdict.verdict == "holds", found.verdict.why
    assert statistics(found)["wd_exponent_gap"].value == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize(("wd", "exponent"), [(-5.0, 1.0), (-3.0, -0.3)])
def test_c30_fails_outside_the_laws_or_with_the_same_exponent(wd, exponent):
    low = surface_tables(bowl(-9.5, -2.0, 20), bowl(-8.5, -1.0, 20), bowl(-9.0, law(wd, 1.0), 20), noise=2e-5)
    made = low if exponent == 1.0 else three_laws(wd, exponent)
    found = verdict("C30", made)
    assert found.verdict.verdict == "fails"
    if exponent == 1.0:  # farthest outside at the first budget: WD 2^-5 against 2^-2
        assert statistics(found)["wd_outside"].value == pytest.approx(3.0, abs=0.2)
