"""Training curves that nobody here made: those of "A Multi-Power Law for Loss Curve Prediction" (arXiv 2503.12811).

Three models under constant, cosine, WSD and stepped learning rates, all of one peak LR and one weight decay, from
github.com/thu-yao-01-luo/MultiPowerLaw. They are looked for in the folder that ISOTUNE_MULTI_POWER_LAW names, else in
../shared/data/multi-power-law beside the repository. Weight decay, batch and sequence length are not in the files:
what is given here only sets the clock.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from isotune.analyze.advice import advise
from isotune.analyze.decay import calibrate
from isotune.analyze.diagnosis import diagnose
from isotune.analyze.families import make_families
from isotune.analyze.laws import fit_training_curves
from isotune.analyze.scaling import decays_of, fit_laws
from isotune.errors import InputError
from isotune.integrations.importers import open_source

FOLDER = Path(
    os.environ.get("ISOTUNE_MULTI_POWER_LAW")
    or Path(__file__).parents[2].parent / "shared" / "data" / "multi-power-law"
)
SIZES = ("25", "100", "400")
PEAK = 3e-4

pytestmark = pytest.mark.skipif(
    not all((FOLDER / f"csv_{size}").is_dir() for size in SIZES),
    reason="data from elsewhere: the Multi-Power-Law curves are not here, see ISOTUNE_MULTI_POWER_LAW",
)


def curves(size):
    imported = open_source(
        FOLDER / f"csv_{size}",
        mapping={"learning_rate": "lr", "val_loss": "loss"},
        settings={"batch_size": 128, "sequence_length": 4096, "weight_decay": 0.1, "setup": f"{size}M"},
        weight_decay_convention="coupled",
    )
    assert len(imported.trajectories) == 9
    return imported.trajectories


def family_of(size, shape, history=False):
    (found,) = [one for one in make_families(curves(size)) if one.shape == shape and bool(one.history) == history]
    return found


@pytest.mark.parametrize("size", SIZES)
def test_constant_cosine_and_stepped_runs_come_apart(size):
    families = make_families(curves(size))
    assert sorted((one.shape, bool(one.history)) for one in families) == [
        ("constant", False),
        ("constant", True),
        ("falling", False),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_both_wsd_runs_are_decays_of_the_long_constant_run(size):
    family = family_of(size, "constant")
    assert family.num_cells == 1
    long = max(family.curves, key=lambda run: run.tokens[-1])
    assert long.info.source.endswith("constant_72000.csv")
    assert [Path(end.info.source).stem for end in family.budgets[0].ends] == ["wsd_20000_24000", "wsdld_20000_24000"]


@pytest.mark.parametrize("size", SIZES)
def test_a_run_that_stepped_down_is_not_taken_for_one_that_always_had_that_lr(size):
    stepped = family_of(size, "constant", history=True)
    assert f"LR {PEAK:g} until" in stepped.history
    assert sorted(run.info.learning_rate for run in stepped.curves) == pytest.approx([3e-5, 9e-5, 1.8e-4])


@pytest.mark.parametrize("size", SIZES)
def test_from_one_learning_rate_no_direction_is_inferred(size):
    for diagnosis in diagnose(curves(size)):
        assert diagnosis.invariant == "undecided"
        assert np.isnan(diagnosis.salient_direction)
        if not diagnosis.family.history:
            assert "all runs have one LR (0.0003)" in diagnosis.reason
            assert "no direction can be inferred from one learning rate" in diagnosis.reason
            assert diagnosis.next_run.learning_rate == pytest.approx(2 * PEAK, rel=1e-4)
        else:
            assert "all runs have one WD" in diagnosis.reason


@pytest.mark.parametrize("size", SIZES)
def test_the_long_constant_run_is_a_power_law_that_its_first_part_predicts(size):
    long = max(family_of(size, "constant").curves, key=lambda run: run.tokens[-1])
    at, losses = long.measured("val_loss")
    kept, first = at >= 0.1 * at[-1], at <= 0.5 * at[-1]
    whole = fit_training_curves([at[kept]], [losses[kept]], [PEAK])
    assert whole.r_squared > 0.99
    assert whole.runs[0].relative_error < 0.005
    half = fit_training_curves([at[kept & first]], [losses[kept & first]], [PEAK]).runs[0]
    assert half.predict(float(at[-1])).value == pytest.approx(losses[-1], rel=0.01)


def test_what_decays_gain_at_one_size_predicts_them_at_another_within_a_percent():
    by_size = {size: decays_of(family_of(size, "constant")) for size in SIZES}
    assert all(decay.gain > 0.02 for decays in by_size.values() for decay in decays)
    for size in SIZES:
        others = [decay for other in SIZES if other != size for decay in by_size[other]]
        gain = calibrate(others, "constant")
        for decay in by_size[size]:
            assert gain(decay.trunk) == pytest.approx(decay.decayed_loss, rel=0.01)
            assert abs(gain(decay.trunk) - decay.decayed_loss) < abs(decay.trunk.loss - decay.decayed_loss)


def test_laws_and_advice_say_what_is_missing():
    diagnoses = diagnose([run for size in SIZES for run in curves(size)])
    laws = fit_laws(diagnoses[0])
    assert laws.optimal_learning_rate is None and laws.decays is None
    assert "takes 3" in laws.reasons["optimal_learning_rate"]
    with pytest.raises(InputError, match="nothing can be advised yet"):
        advise(diagnoses, tokens="100B")
