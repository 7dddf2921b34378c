"""Who takes part in the race. One more tuner is one more line here."""

from __future__ import annotations

from dataclasses import dataclass

import baselines
import multi_fidelity
import oracle
import ours
import seed_by_seed
from baselines import Tuner


@dataclass(frozen=True)
class Contender:
    """A tuner, whether its runs can be paused, resumed and branched, and whether it asks for single seeds."""

    tuner: Tuner
    can_pause: bool = True
    by_seed: bool = False


CONTENDERS = {
    "isotune": Contender(ours.isotune, by_seed=True),
    "isotune-without-readings": Contender(ours.isotune_without_readings, by_seed=True),
    "isotune-without-invariance": Contender(ours.isotune_without_invariance, by_seed=True),
    "isotune-without-rungs": Contender(ours.isotune_without_rungs, by_seed=True),
    "isotune-without-prefixes": Contender(ours.isotune, can_pause=False, by_seed=True),
    "isotune-one-seed": Contender(ours.isotune_with_one_seed, by_seed=True),
    "oracle": Contender(oracle.oracle, by_seed=True),
    "grid": Contender(baselines.grid),
    "random": Contender(baselines.random),
    "sobol": Contender(baselines.sobol),
    "sobol-quadratic": Contender(baselines.sobol_quadratic),
    "lr-only": Contender(baselines.lr_only),
    "lr-then-wd": Contender(baselines.lr_then_wd),
    "tpe": Contender(baselines.tpe),
    "tpe-elr": Contender(baselines.tpe_elr),
    "gp": Contender(baselines.gp),
    "gp-elr": Contender(baselines.gp_elr),
    "cma-es": Contender(baselines.cma_es),
    "tpe-hyperband": Contender(multi_fidelity.tpe_hyperband),
    "tpe-hyperband-decayed": Contender(multi_fidelity.tpe_hyperband_decayed),
    "asha": Contender(multi_fidelity.asha),
    "asha-decayed": Contender(multi_fidelity.asha_decayed),
    "asha-decayed-unpaused": Contender(multi_fidelity.asha_decayed, can_pause=False),
    "bohb": Contender(multi_fidelity.bohb),
    "bohb-decayed": Contender(multi_fidelity.bohb_decayed),
    "asha-syne-tune": Contender(multi_fidelity.asha_syne_tune),
    "bohb-syne-tune": Contender(multi_fidelity.bohb_syne_tune),
    "grid-by-seed": Contender(seed_by_seed.grid, by_seed=True),
    "lr-only-by-seed": Contender(seed_by_seed.lr_only, by_seed=True),
    "lr-then-wd-by-seed": Contender(seed_by_seed.lr_then_wd, by_seed=True),
    "sobol-quadratic-by-seed": Contender(seed_by_seed.sobol_quadratic, by_seed=True),
    "halving-by-seed": Contender(seed_by_seed.halving, by_seed=True),
}
