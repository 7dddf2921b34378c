"""A Ray Tune searcher: LR and WD come from isotune's tuner, other parameters from their own distributions.

    searcher = IsotuneSearch(weight_decay_convention="coupled", tokens=100_000_000, tokens_per_step=64 * 1024)
    tune.Tuner(trainable, tune_config=tune.TuneConfig(search_alg=searcher, metric="loss", mode="min", num_samples=12),
               param_space={"learning_rate": tune.loguniform(1e-4, 1e-2), "weight_decay": tune.loguniform(1e-3, 1)})

One of the two may be a number, which fixes it. Everything else in the space is drawn as Ray's own search draws it. What
was tried is saved with the experiment: a restored one asks no configuration twice. A loss that is not finite is a
divergence, and so are several errors above every LR that has a loss.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
from ray.tune.search import Searcher
from ray.tune.search.sample import Float
from ray.tune.search.variant_generator import generate_variants, parse_spec_vars

from isotune.errors import InputError
from isotune.integrations.proposals import Proposals, Tried
from isotune.runs.files import FORMAT, read_json, write_json
from isotune.runs.trajectory import WeightDecayConvention

VERSION = 2  # of what is saved
Outcome = float | Literal["diverged", "failed"]


class IsotuneSearch(Searcher):
    """Suggests learning rate and weight decay together; everything else in the space is drawn from its domain."""

    def __init__(
        self,
        *,
        weight_decay_convention: WeightDecayConvention,
        tokens: int | None = None,
        tokens_per_step: int | None = None,
        learning_rate: str = "learning_rate",
        weight_decay: str = "weight_decay",
        space: dict[str, Any] | None = None,
        metric: str | None = None,
        mode: str = "min",
        octaves: float = 0.5,
        seed: int = 0,
    ):
        super().__init__(metric=metric, mode=mode)
        self._proposals = Proposals(
            weight_decay_convention=weight_decay_convention,
            tokens=tokens,
            tokens_per_step=tokens_per_step,
            octaves=octaves,
        )
        self._names = (learning_rate, weight_decay)
        self._space: dict[str, Any] = dict(space or {})
        self._seed = seed
        self._asked: dict[str, tuple[float, float]] = {}  # trial -> its LR and WD
        self._told: dict[str, Outcome] = {}

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        if self._space and config:
            return False
        self._space = self._space or dict(config)
        self._metric, self._mode = metric or self._metric, mode or self._mode
        if self._mode != "min":
            raise InputError(f"mode={self._mode!r}: isotune minimizes a loss; give mode='min'")
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        ranges = [self._range(name) for name in self._names]
        lr, wd = (float(value) for value in self._proposals.next(ranges[0], ranges[1], self._tried()))
        configuration = self._drawn(dict(zip(self._names, (lr, wd), strict=True)))
        self._asked[trial_id] = lr, wd
        return configuration

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._told[trial_id] = "failed" if error else _outcome((result or {}).get(self._metric or ""))

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        lr, wd = (parameters.get(name, self._space.get(name)) for name in self._names)
        if not _is_number(lr) or not _is_number(wd):
            return  # it says nothing of LR and WD
        trial_id = f"given {len(self._asked)}"
        self._asked[trial_id] = float(lr), float(wd)
        self._told[trial_id] = "failed" if error else _outcome(value)

    def save(self, checkpoint_path: str) -> None:
        state = {"format": FORMAT, "version": VERSION, "asked": self._asked, "told": self._told, "seed": self._seed}
        write_json(Path(checkpoint_path), state)

    def restore(self, checkpoint_path: str) -> None:
        state = read_json(Path(checkpoint_path), "restore the experiment's folder from a copy")
        if state.get("version") != VERSION:
            raise InputError(f"{checkpoint_path} was written by another version of isotune: use that one")
        self._asked = {trial: (lr, wd) for trial, (lr, wd) in state["asked"].items()}
        self._told = dict(state["told"])
        self._seed = state["seed"]

    def _tried(self) -> list[Tried]:
        return [_as_tried(lr, wd, self._told.get(trial)) for trial, (lr, wd) in self._asked.items()]

    def _drawn(self, chosen: dict[str, float]) -> dict[str, Any]:
        """The space with LR and WD as they were chosen, and a value of every other domain, wherever it is nested."""
        spec = {"config": self._space | chosen}
        if parse_spec_vars(spec)[2]:
            raise InputError("the space has tune.grid_search, which goes with no searcher: give tune.choice instead")
        rng = np.random.default_rng([self._seed, len(self._asked)])
        _, drawn = next(generate_variants(spec, random_state=rng))
        return dict(drawn["config"])

    def _range(self, name: str) -> tuple[float, float]:
        domain = self._space.get(name)
        if isinstance(domain, Float):
            return float(domain.lower), float(domain.upper)
        if _is_number(domain):
            return float(domain), float(domain)
        raise InputError(
            f"the space has no range for {name!r}: give tune.loguniform(low, high) or a number that fixes it, or say "
            "its name with learning_rate= and weight_decay="
        )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _outcome(loss: Any) -> Outcome:
    """What a result says; one without the metric says no more than a failure."""
    if not isinstance(loss, int | float | np.number):
        return "failed"
    return float(loss) if math.isfinite(loss) else "diverged"


def _as_tried(lr: float, wd: float, outcome: Outcome | None) -> Tried:
    if outcome == "failed":
        return Tried(lr, wd, None, has_failed=True)
    return Tried(lr, wd, math.nan if outcome == "diverged" else outcome)
