"""An Optuna sampler: LR and WD come from isotune's tuner, everything else from an inner sampler.

    sampler = IsotuneSampler(weight_decay_convention="coupled", tokens=100_000_000, tokens_per_step=64 * 1024)
    study = optuna.create_study(sampler=sampler)

The objective is a loss to be minimized, with parameters called learning_rate and weight_decay (or as the sampler is
told). Trials that fail, or whose value is NaN, count as diverged. Use it with Hugging Face as
`trainer.hyperparameter_search(backend="optuna", sampler=sampler)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from isotune.integrations.proposals import Proposals, Tried
from isotune.runs.trajectory import WeightDecayConvention

_FINISHED = (TrialState.COMPLETE, TrialState.FAIL)


class IsotuneSampler(BaseSampler):
    """Suggests learning rate and weight decay together; other parameters are the inner sampler's."""

    def __init__(
        self,
        *,
        weight_decay_convention: WeightDecayConvention,
        tokens: int | None = None,
        tokens_per_step: int | None = None,
        learning_rate: str = "learning_rate",
        weight_decay: str = "weight_decay",
        inner: BaseSampler | None = None,
        octaves: float = 0.5,
        seed: int | None = None,
    ):
        self._proposals = Proposals(
            weight_decay_convention=weight_decay_convention,
            tokens=tokens,
            tokens_per_step=tokens_per_step,
            octaves=octaves,
        )
        self._names = (learning_rate, weight_decay)
        self._inner = inner or TPESampler(seed=seed)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        theirs = self._inner.infer_relative_search_space(study, trial)
        return self._ranges(study) | {
            name: distribution for name, distribution in theirs.items() if name not in self._names
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        _require_one_loss(study)
        rest = {name: distribution for name, distribution in search_space.items() if name not in self._names}
        values = self._inner.sample_relative(study, trial, rest) if rest else {}
        for name, distribution in rest.items():
            if name not in values:
                values[name] = self._inner.sample_independent(study, trial, name, distribution)
        if len(rest) == len(search_space):
            return values
        rate, decay = (search_space[name] for name in self._names)
        assert isinstance(rate, FloatDistribution) and isinstance(decay, FloatDistribution)
        lr, wd = self._proposals.next((rate.low, rate.high), (decay.low, decay.high), self._tried(study, trial))
        return values | {self._names[0]: _inside(rate, lr), self._names[1]: _inside(decay, wd)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        _require_one_loss(study)
        if param_name not in self._names or not _is_usable(param_distribution):
            return self._inner.sample_independent(study, trial, param_name, param_distribution)
        assert isinstance(param_distribution, FloatDistribution)
        ends = param_distribution.low, param_distribution.high
        if param_name == self._names[0]:
            return _inside(param_distribution, self._proposals.first_learning_rate(ends))
        first = self._proposals.first_weight_decay(trial.params.get(self._names[0]), ends)
        return _inside(param_distribution, first)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)

    def _ranges(self, study: Study) -> dict[str, BaseDistribution]:
        """Those of LR and WD in the latest trial that had both: one that failed, too, which Optuna would pass over."""
        for trial in reversed(study.get_trials(deepcopy=False)):
            ranges = {name: trial.distributions[name] for name in self._names if name in trial.distributions}
            if len(ranges) == 2:
                return ranges if all(_is_usable(distribution) for distribution in ranges.values()) else {}
        return {}

    def _tried(self, study: Study, trial: FrozenTrial) -> list[Tried]:
        tried = []
        for other in study.get_trials(deepcopy=False):
            settings = [other.params.get(name) for name in self._names]
            if other.number == trial.number or any(value is None for value in settings):
                continue
            lr, wd = (float(value) for value in settings)  # type: ignore[arg-type]
            if other.state == TrialState.RUNNING:
                tried.append(Tried(lr, wd, None))
            elif other.state in _FINISHED:
                value = other.values[0] if other.state == TrialState.COMPLETE and other.values else math.nan
                tried.append(Tried(lr, wd, float(value)))
        return tried


def _require_one_loss(study: Study) -> None:
    if len(study.directions) > 1:
        raise ValueError("IsotuneSampler tunes one loss: create the study with one direction")
    if study.direction == StudyDirection.MAXIMIZE:
        raise ValueError("IsotuneSampler minimizes a loss: create_study(direction='minimize')")


def _is_usable(distribution: BaseDistribution) -> bool:
    return isinstance(distribution, FloatDistribution) and distribution.high > 0 and not distribution.single()


def _inside(distribution: FloatDistribution, value: float) -> float:
    """The nearest value that the distribution can have."""
    value = min(max(value, distribution.low), distribution.high)
    if distribution.step is not None:
        value = distribution.low + round((value - distribution.low) / distribution.step) * distribution.step
        value = min(value, distribution.high)
    return float(value)
