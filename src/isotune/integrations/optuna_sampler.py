"""An Optuna sampler: LR and WD come from isotune's tuner, everything else from an inner sampler.

    sampler = IsotuneSampler(weight_decay_convention="coupled", tokens=100_000_000, tokens_per_step=64 * 1024)
    study = optuna.create_study(sampler=sampler)

The objective is a loss to be minimized, with parameters called learning_rate and weight_decay (or as the sampler is
told), both by suggest_float without a step; one of them may be fixed, low and high being equal. In any other case the
inner sampler chooses them too. A value of infinity, or a last report that is not finite, is a divergence; several
failures above every LR that has a loss are taken for such, for a time. With Hugging Face's `Trainer` it is the
`sampler` of `hyperparameter_search`, beside an `hp_space` that suggests both: examples/tune_transformers.py.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeGuard

from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from isotune.errors import InputError
from isotune.integrations.proposals import PRUNED_NOISE, Proposals, Tried, as_if_finished
from isotune.runs.trajectory import WeightDecayConvention
from isotune.tune import Recommendation

# Of a trial: the LR and WD that it was given and whether it keeps them, None if it began before the ranges were known.
# Its parameters say so only when its objective has asked for both, and by then other threads and processes have asked
# as well.
GIVEN = "isotune:given"
PATIENCE_SECONDS = 2.0  # with another process that was given the same and has not said yet whether it keeps it
POLL_SECONDS = 0.01
# Of all samplers of the process: one lock each could not be pickled, which Optuna's users do with samplers.
_ONE_AT_A_TIME = threading.Lock()
_log = logging.getLogger(__name__)


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
        self._has_told = False  # that the inner sampler chooses LR and WD

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        theirs = self._inner.infer_relative_search_space(study, trial)
        ranges = self._ranges(study)
        if not ranges:
            return theirs
        return ranges | {name: distribution for name, distribution in theirs.items() if name not in self._names}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        _require_one_loss(study)
        ours = _tunable([search_space.get(name) for name in self._names])
        rest = {
            name: distribution for name, distribution in search_space.items() if not ours or name not in self._names
        }
        values = self._inner.sample_relative(study, trial, rest) if rest else {}
        for name, distribution in rest.items():
            if name not in values:
                values[name] = self._inner.sample_independent(study, trial, name, distribution)
        if not ours:
            if any(name in search_space for name in self._names):  # PartialFixedSampler hides what it fixes
                self._tell_who_chooses()
            return values
        rate, decay = ((distribution.low, distribution.high) for distribution in ours)
        with _ONE_AT_A_TIME:
            lr, wd = self._given(study, trial, rate, decay)
        return values | {self._names[0]: lr, self._names[1]: wd}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        _require_one_loss(study)
        if param_name in self._names and _is_range(param_distribution) and not self._has_seen(study, param_name):
            return self._first(study, trial, param_name, param_distribution)
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._inner.after_trial(study, trial, state, values)

    def recommendation(self, study: Study) -> Recommendation:
        """What all trials together lead to expect: the best LR and WD, tried or not, with the regret that is left.

        Where losses are not all above 0 its loss is on another scale."""
        _require_one_loss(study)
        ranges = _tunable([self._ranges(study).get(name) for name in self._names])
        if not ranges:
            raise InputError("there is no trial with an LR and a WD that isotune could choose: run some first")
        rate, decay = ((distribution.low, distribution.high) for distribution in ranges)
        trials = _trials(study)
        tried = [one for trial in trials if (one := self._outcome(trial, trials)) is not None]
        if not any(one.loss is not None and math.isfinite(one.loss) for one in tried):
            raise InputError("no trial has a loss that is a number, so that nothing can be recommended: run some first")
        return self._proposals.recommend(rate, decay, tried)

    def _ranges(self, study: Study) -> dict[str, BaseDistribution]:
        """Those of LR and WD in the latest trial that had both: one that failed, too, which Optuna would pass over."""
        trials = _trials(study)
        for trial in reversed(trials):
            if all(name in trial.distributions for name in self._names):
                if _tunable([trial.distributions[name] for name in self._names]):
                    return {name: trial.distributions[name] for name in self._names}
                break
        if any(trial.state.is_finished() and trial.distributions for trial in trials):
            self._tell_who_chooses()
        return {}

    def _tell_who_chooses(self) -> None:
        if not self._has_told:
            self._has_told = True
            _log.warning(
                f"{self._names[0]!r} and {self._names[1]!r} are not both a range without steps, or another "
                f"sampler fixes one, so {type(self._inner).__name__} chooses them: use suggest_float for both "
                "(low == high fixes one), or say what they are called with learning_rate= and weight_decay="
            )

    def _has_seen(self, study: Study, name: str) -> bool:
        """Whether a trial with this parameter has ended: what came with it is known, and nothing need be guessed."""
        return any(name in trial.params and trial.state.is_finished() for trial in _trials(study))

    def _first(self, study: Study, trial: FrozenTrial, name: str, distribution: FloatDistribution) -> float:
        """LR or WD of a trial that began before any other told both ranges; no two of them begin at one place."""
        ends = distribution.low, distribution.high
        with _ONE_AT_A_TIME:
            number = trial.number  # that no other trial has, in whatever process
            lr = trial.params.get(self._names[0])
            if name == self._names[0]:
                first = self._proposals.first_learning_rate(ends, number)
            elif _is_range(trial.distributions.get(self._names[0])):
                first = self._proposals.first_weight_decay(lr, ends)  # the LR differs already
            else:
                first = self._proposals.first_weight_decay(_as_number(lr), ends, number)
            study._storage.set_trial_system_attr(trial._trial_id, GIVEN, None)
        return min(max(first, distribution.low), distribution.high)

    def _given(
        self, study: Study, trial: FrozenTrial, rate: tuple[float, float], decay: tuple[float, float]
    ) -> tuple[float, float]:
        """LR and WD that no other trial was given, as long as there are such, also where other processes ask at the
        same time: each notes what it was given, and looks at the others before it keeps it."""
        given = None
        while True:
            before, given = given, self._proposals.next(rate, decay, self._tried(study, trial))
            study._storage.set_trial_system_attr(trial._trial_id, GIVEN, [*given, False])
            if given == before or not _is_taken(study, trial, given):  # the same again: nothing else is left
                study._storage.set_trial_system_attr(trial._trial_id, GIVEN, [*given, True])
                return given

    def _tried(self, study: Study, trial: FrozenTrial) -> list[Tried]:
        trials = _trials(study)
        tried = [self._outcome(other, trials) for other in trials if other.number != trial.number]
        return [one for one in tried if one is not None]

    def _outcome(self, trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> Tried | None:
        """What a trial says; None if it has no LR and WD."""
        lr, wd = (_as_number(trial.params.get(name)) for name in self._names)
        if lr is None or wd is None:
            given = trial.system_attrs.get(GIVEN)  # its objective has not asked for both yet, or never did
            return Tried(given[0], given[1], None, was_unused=trial.state.is_finished()) if given else None
        if trial.state == TrialState.COMPLETE:
            return Tried(lr, wd, trial.value)
        if trial.state in (TrialState.RUNNING, TrialState.WAITING):
            return Tried(lr, wd, None)
        if trial.last_step is not None and not math.isfinite(trial.intermediate_values[trial.last_step]):
            return Tried(lr, wd, math.nan)
        if trial.state == TrialState.PRUNED:
            return Tried(lr, wd, _as_if_finished(trial, trials), noise=PRUNED_NOISE)
        return Tried(lr, wd, None, has_failed=True)


def _trials(study: Study) -> list[FrozenTrial]:
    """All of them: with Optuna's HyperbandPruner a study shows a sampler those of one bracket alone."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False)


def _is_taken(study: Study, trial: FrozenTrial, given: tuple[float, float]) -> bool:
    """Whether another trial that still runs keeps the same LR and WD.

    Of two that see each other the later one gives way, so that the earlier one waits for it to say so. It has kept them
    if it looked before the earlier one had noted them.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        rivals = [
            other
            for other in _trials(study)
            if other.number != trial.number
            and not other.state.is_finished()
            and tuple((other.system_attrs.get(GIVEN) or ())[:2]) == given
        ]
        if any(other.number < trial.number or other.system_attrs[GIVEN][2:] != [False] for other in rivals):
            return True
        if not rivals or time.monotonic() > until:  # it may be dead
            return False
        time.sleep(POLL_SECONDS)


def _require_one_loss(study: Study) -> None:
    if len(study.directions) > 1:
        raise ValueError("IsotuneSampler tunes one loss: create the study with one direction")
    if study.direction == StudyDirection.MAXIMIZE:
        raise ValueError("IsotuneSampler minimizes a loss: create_study(direction='minimize')")


def _tunable(distributions: Sequence[BaseDistribution | None]) -> list[FloatDistribution]:
    """The two ranges if isotune can tune them, one of which may be a single value; else nothing."""
    found = [one for one in distributions if isinstance(one, FloatDistribution)]
    fit = len(found) == len(distributions) and all(_is_range(one) or (one.single() and one.low >= 0) for one in found)
    return found if fit and any(_is_range(one) for one in found) else []


def _is_range(distribution: BaseDistribution | None) -> TypeGuard[FloatDistribution]:
    if not isinstance(distribution, FloatDistribution) or distribution.single():
        return False
    return distribution.low >= 0 and distribution.step is None


def _as_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _as_if_finished(pruned: FrozenTrial, trials: Sequence[FrozenTrial]) -> float | None:
    """The loss that a pruned trial would have had: as much above the best one as it was where it was pruned."""
    step = pruned.last_step
    if step is None:
        return None
    completed = [other for other in trials if other.state == TrialState.COMPLETE and step in other.intermediate_values]
    beside = [(other.intermediate_values[step], other.value) for other in completed if other.value is not None]
    return as_if_finished(pruned.intermediate_values[step], beside)
