"""C28, C31, C32 and what is beyond the paper: planted truths."""

import math

import numpy as np
import pytest
from made_rows import END, RULES, TOKENS, MadeTables, make_run, statistics, verdict

from isotune.analyze.invariance import invariance
from isotune.claims.definitions import Noise
from isotune.claims.judges.rest import elr_share_of_few
from isotune.claims.rows import RowSet
from isotune.claims.sensitivity import BinAngles, curve_at, fit_curve, prediction_errors, top_angle

MATRICES = ("blocks.0.down", "blocks.0.gate_up", "blocks.1.down", "embedding", "head")


def common(columns, *, batch=4, lrs=range(-11, -6), wds=range(-4, 1)):
    return [make_run(lr, wd, batch=batch, columns=columns(lr, wd)) for lr in lrs for wd in wds]


def norms(exponent_lr, exponent_wd):
    """Norms of hidden matrices as powers of LR and WD with 1 % of scatter; embedding and head do something else."""
    rng = np.random.default_rng(0)

    def columns(lr, wd):
        hidden = {f"parameter_norm.{name}": 2.0 ** (exponent_lr * lr + exponent_wd * wd) for name in MATRICES[:3]}
        others = {f"parameter_norm.{name}": 2.0 ** (3 * lr) for name in MATRICES[3:]}
        return {name: norm * (1 + 0.01 * rng.standard_normal()) for name, norm in (hidden | others).items()} | {
            "parameter_norm": 2.0**lr
        }

    return MadeTables({"nano-small": common(columns)})


def test_c28_fails_where_norms_go_with_the_root_of_lr_over_wd():
    found = verdict("C28", norms(0.5, -0.5))
    assert found.verdict.verdict == "fails"
    assert statistics(found)["contrast"].value == pytest.approx(1.0, abs=0.02)
    assert "3 of 3 hidden matrices" in found.judgements[0].measured.notes[0]


def test_c28_holds_where_norms_go_with_elr():
    found = verdict("C28", norms(0.4, 0.4))
    assert found.verdict.verdict == "holds", found.verdict.why
    assert statistics(found)["contrast"].value == pytest.approx(0.0, abs=0.02)


def beta2_tables(loss, second=True):
    """Both beta2 along their diagonals, and twins that differ by .001."""
    rng = np.random.default_rng(0)
    cells = [(lr, -11 - lr) for lr in range(-11, -7)] + ([(-9, 0), (-8, -1)] if second else [])

    def runs(places, scatter=0.0):
        return [
            make_run(lr, wd, columns={"val_loss": loss(lr, wd) + scatter * rng.standard_normal()}) for lr, wd in places
        ]

    late = [(lr, wd) for lr in range(-11, -6) for wd in range(-4, 1)]
    twins = [(lr, wd) for lr, wd in late if lr + wd in (-11, -10)]
    return MadeTables(
        {
            "nano-beta2-0.9": runs(cells),
            "nano-beta2-0.99": runs(cells),
            "nano-small": runs(late),
            "nano-perturbed": runs(twins, scatter=0.001),
        }
    )


def test_c31_holds_where_the_loss_depends_on_elr_alone():
    found = verdict("C31", beta2_tables(lambda lr, wd: 2 + 0.1 * (lr + wd + 11)))
    assert found.verdict.verdict == "holds", found.verdict.why
    assert [each.part for each in found.judgements] == ["nano-beta2-0.9", "nano-beta2-0.99"]
    assert statistics(found)["across_slope"].value == pytest.approx(0.1)


def test_c31_fails_where_lr_matters_as_much():
    found = verdict("C31", beta2_tables(lambda lr, wd: 2 + 0.1 * (lr + wd + 11) + 0.08 * lr))
    assert found.verdict.verdict == "fails", found.verdict.why
    assert statistics(found)["elr_share"].value == pytest.approx(0.08 / 0.1, abs=0.01)


def test_c31_is_undecided_on_one_diagonal():
    found = verdict("C31", beta2_tables(lambda lr, wd: 2 + 0.1 * (lr + wd + 11), second=False))
    assert found.verdict.verdict == "undecided" and "beta2_second" in found.verdict.why


def test_the_share_of_few_cells_is_that_of_the_analysis_where_that_has_one():
    rng = np.random.default_rng(0)
    runs = tuple(make_run(lr, wd) for lr in range(-11, -6) for wd in range(-4, 1) if lr + wd >= -11)
    rows = RowSet("small_late", "nano-small", runs, 0, len(runs), "")
    entry = RULES.claims["C31"]
    for slope in (0.0, 0.03, 0.1):
        values = 2 + 0.1 * rows.log2_elr + slope * rows.log2_lr + 0.002 * rng.standard_normal(len(runs))
        ours = elr_share_of_few(rows, values, Noise(4e-6, 9.0), entry)
        theirs = invariance(
            rows.log2_lr, rows.log2_wd, values, cell_noise=4e-6, cell_noise_freedom=9.0, level=entry.level
        ).elr_share
        assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high))


@pytest.mark.parametrize(
    ("small", "large", "expected"), [(0.21, 0.15, "holds"), (0.21, 0.25, "fails"), (0.5, 0.4, "fails")]
)
def test_c32_by_the_planted_sizes(small, large, expected):
    def columns(size):
        return lambda lr, wd: {"update_rms": size * 1.02 ** (lr % 2)}

    made = {"nano-small": common(columns(small)), "nano-large": common(columns(large), batch=64)}
    found = verdict("C32", MadeTables(made))
    assert found.verdict.verdict == expected, found.verdict.why
    assert statistics(found)["rms_change"].value == pytest.approx(math.log2(large / small))
    assert statistics(found)["small_rms"].value == pytest.approx(small, rel=0.02)


# Beyond the paper


def init_tables(scaled_far, usual_far):
    """Curves that are so far from the run in the middle: with scaled init, and with the usual one."""

    def run(octaves, far, scale=1.0):
        loss = 2 * (1 + far) * np.ones(len(TOKENS))
        return make_run(-10 + octaves, -3 - octaves, columns={"val_loss": loss}, scale=scale)

    diagonal = [run(octaves, usual_far * abs(octaves)) for octaves in range(-2, 4)]
    wide = [make_run(lr, -4, columns={"val_loss": 2.0}) for lr in range(-12, -7) if lr != -9]
    twins = [make_run(r.log2_lr, r.log2_wd, columns={"val_loss": 2.02}) for r in wide]
    twins += [
        make_run(-10 + k, -3 - k, columns={"val_loss": 2 * (1 + usual_far * abs(k)) * 1.01}) for k in range(-2, 4)
    ]
    scaled = [run(octaves, scaled_far * abs(octaves), 2.0**octaves) for octaves in (-2, -1, 1, 2)]
    return MadeTables({"nano-small": diagonal + wide, "nano-perturbed": twins, "nano-init-<s>": scaled})


@pytest.mark.parametrize(("scaled", "ratio", "expected"), [(0.002, 0.1, "holds"), (0.05, 2.5, "fails")])
def test_b_a_by_how_far_scaled_inits_are(scaled, ratio, expected):
    found = verdict("B_a", init_tables(scaled, 0.02))
    plain = found.judgements[0]
    assert plain.part == "init"
    assert plain.measured.statistics["distance_ratio"].value == pytest.approx(ratio, rel=0.05)
    # Other seeds of the diagonal are not there, so the verdict is what is there says.
    assert plain.verdict.why.endswith(f"with what is there: {expected}")
    assert "init_normalised" in found.judgements[1].verdict.why


def test_an_angle_is_that_of_the_top_eigenvector():
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((50, 7, 2))
    outer = np.einsum("dni,dnj->dij", gradients, gradients)
    for matrix, degrees in zip(outer, top_angle(outer), strict=True):
        x, y = np.linalg.eigh(matrix)[1][:, -1]
        assert math.sin(math.radians(degrees) - math.atan2(y, x)) == pytest.approx(0, abs=1e-9)
        assert -67.5 < degrees <= 112.5


def test_a_planted_curve_is_found_and_predicts_other_tables():
    log2_x = np.arange(-3.0, 4.0)
    angles = curve_at(log2_x, np.array(0.5), np.array(1.4))
    table = BinAngles(log2_x, np.stack([angles, np.where(log2_x == 0, np.nan, angles)]))
    half, q = fit_curve(table.log2_x, table.degrees)
    assert half == pytest.approx(0.5, abs=0.03) and q == pytest.approx(1.4)
    assert prediction_errors([table, table]) == pytest.approx(0, abs=0.6)
    far = BinAngles(log2_x + 4, table.degrees)
    wrong = [curve_at(log2_x, np.array(half), np.array(1.4)) - angles for half in (4.5, -3.5)]
    assert prediction_errors([table, far])[0] == pytest.approx(np.sqrt(np.mean(np.square(wrong))), rel=0.02)


def sensitivity_tables(loss):
    """Four grids with these losses of (log2 LR, log2 WD, n, tokens)."""
    made = {}
    for table, batch, lrs, wds in (
        ("nano-small", 4, range(-12, -6), range(-8, 1)),
        ("nano-large", 64, range(-11, -5), range(-4, 5)),
        ("small32", 4, range(-11, -6), range(-7, -1)),
        ("small32-large", 64, range(-11, -6), range(-7, -1)),
    ):
        longer = (
            10_240_000 / END if table.startswith("small32") else 1.0
        )  # the same rows, stretched to small32's length
        tokens = longer * np.maximum(TOKENS, 1)

        def columns(lr, wd, tokens=tokens, batch=batch):
            return {"val_loss": 3 + 0.01 * loss(lr, wd, 2.0 ** (lr + wd) * tokens / (64 * batch), tokens)}

        made[table] = common(columns, batch=batch, lrs=lrs, wds=wds)
        for run in made[table]:
            run.trajectory.columns["tokens"] = TOKENS * longer
            run.trajectory.columns["step"] = TOKENS * longer / (64 * batch)
    return MadeTables(made)


def test_b_c_finds_one_curve_in_n():
    # The slopes on LR and WD are as 1 + n to n: LR alone at n = 0, ELR at large n, halfway at n = .7.
    found = verdict("B_c", sensitivity_tables(lambda lr, wd, n, tokens: lr + n / math.log(2)))
    assert found.verdict.verdict == "holds", (found.verdict.why, statistics(found))
    for name in ("small_all", "large_decays", "small32_all", "small32_large"):
        half = found.judgements[0].measured.shown[f"n at 22.5 degrees, {name}"].value
        assert half == pytest.approx(math.sqrt(0.5), rel=0.3)


def test_b_c_fails_where_tokens_decide():
    found = verdict("B_c", sensitivity_tables(lambda lr, wd, n, tokens: lr + wd / (1 + 1e6 / tokens)))
    assert found.verdict.verdict == "fails", (found.verdict.why, statistics(found))


def beta2_shift(exponents):
    """The late loss as a function of log2 ELR + c log2((1 - beta2) / .05), c by beta2 and diagonal."""

    def loss(place):
        return 2 + 0.1 * (place + 11) + 0.01 * (place + 11) ** 2

    rng = np.random.default_rng(0)

    def run(lr, wd, shift=0.0):
        return make_run(lr, wd, columns={"val_loss": loss(lr + wd + shift) + 0.0005 * rng.standard_normal()})

    made = {"nano-small": [run(lr, wd) for lr in range(-11, -6) for wd in range(-4, 1)]}
    for beta2 in (0.9, 0.99):
        first, second = (c * math.log2((1 - beta2) / 0.05) for c in exponents[beta2])
        made[f"nano-beta2-{beta2}"] = [run(lr, -11 - lr, first) for lr in range(-11, -7)] + [
            run(lr, -9 - lr, second) for lr in (-9, -8)
        ]
    return MadeTables(made)


@pytest.mark.parametrize(
    ("exponents", "expected"),
    [
        ({0.9: (0.3, 0.3), 0.99: (0.3, 0.3)}, "holds"),
        ({0.9: (0.3, 0.3), 0.99: (0.8, 0.8)}, "fails"),  # another exponent
        ({0.9: (0.3, 0.3), 0.99: (0.05, 0.55)}, "fails"),  # another shift on the other diagonal
    ],
)
def test_b_e_by_the_planted_exponents(exponents, expected):
    found = verdict("B_e", beta2_shift(exponents))
    assert found.verdict.verdict == expected, (found.verdict.why, statistics(found))
    assert found.judgements[0].measured.shown["c at beta2 0.9"].value == pytest.approx(0.3, abs=0.03)


def test_b_d_names_the_rows_that_nobody_planned():
    found = verdict("B_d", MadeTables({}))
    assert found.verdict.verdict == "undecided" and "ramp" in found.verdict.why
