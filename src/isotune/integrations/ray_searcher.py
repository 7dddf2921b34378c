"""A Ray Tune searcher: LR and WD come from isotune's tuner, other parameters from their own distributions.

    searcher = IsotuneSearch(weight_decay_convention="coupled", tokens=100_000_000, tokens_per_step=64 * 1024)
    tune.Tuner(trainable, tune_config=tune.TuneConfig(search_alg=searcher, metric="loss", mode="min", num_samples=12),
               param_space={"learning_rate": tune.loguniform(1e-4, 1e-2), "weight_decay": tune.loguniform(1e-3, 1)})

What was tried is saved with the experiment: a restored one asks no configuration twice. Trials that fail, or end with
NaN, count as diverged.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from ray.tune.search import Searcher
from ray.tune.search.sample import Domain, Float

from isotune.errors import InputError
from isotune.integrations.proposals import Proposals, Tried
from isotune.runs.files import read_json, write_json
from isotune.runs.trajectory import WeightDecayConvention

FORMAT = 1


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
        self._asked: dict[str, dict[str, Any]] = {}  # trial -> its configuration
        self._told: dict[str, float] = {}  # trial -> its loss, NaN if it failed

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
        lr, wd = self._proposals.next(ranges[0], ranges[1], self._tried())
        rng = np.random.default_rng([self._seed, len(self._asked)])
        configuration = {
            name: _drawn(value, rng) for name, value in self._space.items() if name not in self._names
        } | dict(zip(self._names, (float(lr), float(wd)), strict=True))
        self._asked[trial_id] = configuration
        return configuration

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        value = (result or {}).get(self._metric or "", math.nan)
        self._told[trial_id] = math.nan if error else float(value)

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        trial_id = f"given {len(self._asked)}"
        self._asked[trial_id] = dict(parameters)
        self._told[trial_id] = math.nan if error else float(value)

    def save(self, checkpoint_path: str) -> None:
        told = {trial: None if math.isnan(loss) else loss for trial, loss in self._told.items()}
        state = {"format": FORMAT, "asked": self._asked, "told": told, "seed": self._seed}
        write_json(Path(checkpoint_path), state)

    def restore(self, checkpoint_path: str) -> None:
        state = read_json(Path(checkpoint_path), "restore the experiment's folder from a copy")
        if state.get("format") != FORMAT:
            raise InputError(f"{checkpoint_path} has format {state.get('format')!r}: it was written by another isotune")
        self._asked = dict(state["asked"])
        self._told = {trial: math.nan if loss is None else float(loss) for trial, loss in state["told"].items()}
        self._seed = state["seed"]

    def _tried(self) -> list[Tried]:
        tried = []
        for trial, configuration in self._asked.items():
            lr, wd = (configuration.get(name) for name in self._names)
            if lr is not None and wd is not None:
                tried.append(Tried(float(lr), float(wd), self._told.get(trial)))
        return tried

    def _range(self, name: str) -> tuple[float, float]:
        domain = self._space.get(name)
        if not isinstance(domain, Float):
            raise InputError(
                f"the space has no range for {name!r}: give tune.loguniform(low, high), or say its name with "
                "learning_rate= and weight_decay="
            )
        return float(domain.lower), float(domain.upper)


def _drawn(value: Any, rng: np.random.Generator) -> Any:
    """A value of a domain; what is no domain stays as it is."""
    return value.sample(random_state=rng) if isinstance(value, Domain) else value
