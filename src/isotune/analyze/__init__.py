"""Trajectories -> findings. numpy and scipy only; every result carries its uncertainty and says why it refuses.

    diagnose     runs -> what they are invariant to, which direction matters, what to run next
    fit_laws     a diagnosis -> the laws of its curves, noise and optima
    advise       diagnoses -> LR, WD and batch for a budget, or a refusal

The rest is what these are made of. Names are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isotune.analyze.advice import Advice, advise
    from isotune.analyze.angle import index_angle
    from isotune.analyze.batches import batch_schedule, square_root_rule
    from isotune.analyze.curves import Curves, common_curves, effective_learning_rate, memory_times
    from isotune.analyze.decay import calibrate, compare_predictors, read_decay, read_trunk
    from isotune.analyze.diagnosis import Diagnosis, diagnose
    from isotune.analyze.distances import group_distances, relative_distances
    from isotune.analyze.families import Family, make_families
    from isotune.analyze.forecast import forecast_direction
    from isotune.analyze.invariance import Invariance, invariance_of_curves
    from isotune.analyze.laws import (
        PowerLaw,
        SaturatingPowerLaw,
        TrainingCurves,
        fit_power_law,
        fit_saturating_power_law,
        fit_training_curves,
    )
    from isotune.analyze.next_run import NextRun
    from isotune.analyze.regime import Regime, batch_regime
    from isotune.analyze.rules_of_thumb import rules
    from isotune.analyze.scaling import Laws, fit_laws
    from isotune.analyze.shift import Shift, find_shift
    from isotune.analyze.surface import LossSurface, fit_surface

__all__ = [
    "Advice",
    "Curves",
    "Diagnosis",
    "Family",
    "Invariance",
    "Laws",
    "LossSurface",
    "NextRun",
    "PowerLaw",
    "Regime",
    "SaturatingPowerLaw",
    "Shift",
    "TrainingCurves",
    "advise",
    "batch_regime",
    "batch_schedule",
    "calibrate",
    "common_curves",
    "compare_predictors",
    "diagnose",
    "effective_learning_rate",
    "find_shift",
    "fit_laws",
    "fit_power_law",
    "fit_saturating_power_law",
    "fit_surface",
    "fit_training_curves",
    "forecast_direction",
    "group_distances",
    "index_angle",
    "invariance_of_curves",
    "make_families",
    "memory_times",
    "read_decay",
    "read_trunk",
    "relative_distances",
    "rules",
    "square_root_rule",
]

_HOMES = {
    "advice": ("Advice", "advise"),
    "angle": ("index_angle",),
    "batches": ("batch_schedule", "square_root_rule"),
    "curves": ("Curves", "common_curves", "effective_learning_rate", "memory_times"),
    "decay": ("calibrate", "compare_predictors", "read_decay", "read_trunk"),
    "diagnosis": ("Diagnosis", "diagnose"),
    "distances": ("group_distances", "relative_distances"),
    "families": ("Family", "make_families"),
    "forecast": ("forecast_direction",),
    "invariance": ("Invariance", "invariance_of_curves"),
    "laws": (
        "PowerLaw",
        "SaturatingPowerLaw",
        "TrainingCurves",
        "fit_power_law",
        "fit_saturating_power_law",
        "fit_training_curves",
    ),
    "next_run": ("NextRun",),
    "regime": ("Regime", "batch_regime"),
    "rules_of_thumb": ("rules",),
    "scaling": ("Laws", "fit_laws"),
    "shift": ("Shift", "find_shift"),
    "surface": ("LossSurface", "fit_surface"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            import importlib

            return getattr(importlib.import_module(f"isotune.analyze.{home}"), name)
    raise AttributeError(f"module 'isotune.analyze' has no attribute {name!r}")
