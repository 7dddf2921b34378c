"""A Ray Tune searcher: LR and WD come from isotune's tuner, other parameters from their own distributions.

    searcher = IsotuneSearch(weight_decay_convention="coupled", tokens=100_000_000, tokens_per_step=64 * 1024)
    tune.Tuner(trainable, tune_config=tune.TuneConfig(search_alg=searcher, metric="loss", mode="min", num_samples=12),
               param_space={"learning_rate": tune.loguniform(1e-4, 1e-2), "weight_decay": tune.loguniform(1e-3, 1)})

One of the two may be a number, which fixes it. Everything else in the space is drawn as Ray's own search draws it. What
was tried is saved with the experiment: a restored one asks no configuration twice. A loss that is not finite is a
divergence, and so are several errors above every LR that has a loss.

A trial that a scheduler stopped does not count as finished: one that came less than nine tenths as far (`time_attr`, as
in Ray's schedulers) as `max_t`, or, without it, as the trial that came farthest. It counts as about as much worse than
the best of the longest trials as it was where it was stopped; where there is none to compare it with, it says nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
from ray.tune.search import Searcher
from ray.tune.search.sample import Float, Quantized
from ray.tune.search.variant_generator import generate_variants, parse_spec_vars

from isotune.errors import InputError
from isotune.integrations.proposals import PRUNED_NOISE, Proposals, Tried, as_if_finished
from isotune.recipe.quantities import require_positive
from isotune.runs.files import FORMAT, read_json, write_json
from isotune.runs.trajectory import WeightDecayConvention

VERSION = 3  # of what is saved; 2 had no curves
FULL_SHARE = 0.9  # of the length of the longest trials: what ended before was stopped early
MAX_REPORTS = 256  # of a trial that are kept: of more, every second one
Outcome = float | Literal["diverged", "failed", "stopped"]
Curve = dict[float, float]  # how far a trial had come -> its loss there, in order


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
        time_attr: str | None = "training_iteration",  # None: all trials that end have finished
        max_t: float | None = None,
        octaves: float = 0.5,
        seed: int = 0,
    ):
        _require_min(mode)
        super().__init__(metric=metric, mode=mode)
        self._proposals = Proposals(
            weight_decay_convention=weight_decay_convention,
            tokens=tokens,
            tokens_per_step=tokens_per_step,
            octaves=octaves,
        )
        self._names = (learning_rate, weight_decay)
        self._space: dict[str, Any] = dict(space or {})
        self._time_attr = time_attr
        self._max_t = None if max_t is None else require_positive("max_t", max_t)
        self._seed = seed
        self._asked: dict[str, tuple[float, float]] = {}  # trial -> its LR and WD
        self._told: dict[str, Outcome] = {}
        self._curves: dict[str, Curve] = {}

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        if self._space and config:
            return False
        self._space = self._space or dict(config)
        self._metric, self._mode = metric or self._metric, mode or self._mode
        _require_min(self._mode)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        rate, decay = (self._range(name) for name in self._names)
        steps = self._step(self._names[0]), self._step(self._names[1])
        lr, wd = (float(value) for value in self._proposals.next(rate, decay, self._tried(), steps))
        configuration = self._drawn(dict(zip(self._names, (lr, wd), strict=True)))
        self._asked[trial_id] = lr, wd
        return configuration

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        length, loss = _as_number(result.get(self._time_attr or "")), _as_number(result.get(self._metric or ""))
        if trial_id not in self._asked or loss is None:
            return
        if not math.isfinite(loss):
            self._told[trial_id] = "diverged"  # until it reports something else
        else:
            self._told.pop(trial_id, None)
        if length is not None:
            self._curves[trial_id] = _with_report(self._curves.get(trial_id, {}), length, loss)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if result is None and not error:  # a scheduler ended it while it was paused, as HyperBand does
            curve = self._curves.get(trial_id)
            self._told.setdefault(trial_id, curve[_length(curve)] if curve else "stopped")
            return
        self.on_trial_result(trial_id, result or {})
        self._told[trial_id] = "failed" if error else _outcome((result or {}).get(self._metric or ""))

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        lr, wd = (_as_number(parameters.get(name, self._space.get(name))) for name in self._names)
        if lr is None or wd is None:
            return  # it says nothing of LR and WD
        trial_id = f"given {len(self._asked)}"
        self._asked[trial_id] = lr, wd
        outcome = "failed" if error else _outcome(value)
        self._told[trial_id] = "stopped" if pruned and isinstance(outcome, float) else outcome

    def save(self, checkpoint_path: str) -> None:
        state = {"format": FORMAT, "version": VERSION, "asked": self._asked, "told": self._told, "seed": self._seed}
        curves = {trial: list(curve.items()) for trial, curve in self._curves.items()}
        write_json(Path(checkpoint_path), state | {"curves": curves})

    def restore(self, checkpoint_path: str) -> None:
        state = read_json(Path(checkpoint_path), "restore the experiment's folder from a copy")
        if state.get("version") not in (2, VERSION):
            raise InputError(f"{checkpoint_path} was written by another version of isotune: use that one")
        self._asked = {trial: (lr, wd) for trial, (lr, wd) in state["asked"].items()}
        self._told = dict(state["told"])
        self._curves = {trial: dict(rows) for trial, rows in state.get("curves", {}).items()}
        self._seed = state["seed"]

    def _tried(self) -> list[Tried]:
        longest = max((_length(curve) for curve in self._curves.values()), default=0.0)
        return [self._outcome_of(trial, longest) for trial in self._asked]

    def _outcome_of(self, trial: str, longest: float) -> Tried:
        """What a trial says, by how far it and the longest one came."""
        lr, wd = self._asked[trial]
        outcome, curve = self._told.get(trial), self._curves.get(trial)
        if outcome == "failed":
            return Tried(lr, wd, None, has_failed=True)
        if outcome == "diverged":
            return Tried(lr, wd, math.nan)
        if isinstance(outcome, float) and curve and _length(curve) < FULL_SHARE * (self._max_t or longest):
            return Tried(lr, wd, self._as_if_finished(trial, longest), noise=PRUNED_NOISE)
        return Tried(lr, wd, outcome if isinstance(outcome, float) else None)

    def _as_if_finished(self, stopped: str, longest: float) -> float | None:
        """The loss that a stopped trial would have had, by the longest trials, also those that still run."""
        length, loss = next(reversed(self._curves[stopped].items()))
        others = [
            curve
            for trial, curve in self._curves.items()
            if trial != stopped and not isinstance(self._told.get(trial), str)
        ]
        beside = [curve for curve in others if _length(curve) >= FULL_SHARE * longest and min(curve) <= length]
        return as_if_finished(loss, [(_loss_at(curve, length), curve[_length(curve)]) for curve in beside])

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
        if isinstance(domain, Float) and math.isfinite(domain.lower) and math.isfinite(domain.upper):
            return float(domain.lower), float(domain.upper)
        value = _as_number(domain)
        if value is not None:
            return value, value
        outer = next((key for key, inner in self._space.items() if isinstance(inner, dict) and name in inner), None)
        if outer is not None:
            raise InputError(
                f"the space has {name!r} inside {outer!r}, where isotune cannot set it: move it to the top level, and "
                f"write {name!r}: tune.sample_from(lambda spec: spec.config[{name!r}]) in its old place"
            )
        raise InputError(
            f"the space has no range for {name!r}: give tune.loguniform(low, high) or a number that fixes it, or say "
            "its name with learning_rate= and weight_decay="
        )

    def _step(self, name: str) -> float | None:
        """The quantum of a range, such as tune.quniform's."""
        sampler = getattr(self._space[name], "sampler", None)
        return float(sampler.q) if isinstance(sampler, Quantized) else None


def _require_min(mode: str | None) -> None:
    if mode != "min":
        raise InputError(f"mode={mode!r}: isotune minimizes a loss; give mode='min'")


def _as_number(value: Any) -> float | None:
    """A number, whatever it is wrapped in (NumPy, a scalar tensor); None for anything else."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor of several
        return None


def _outcome(value: Any) -> Outcome:
    """What a result says; one without the metric says no more than a failure."""
    loss = _as_number(value)
    if loss is None:
        return "failed"
    return loss if math.isfinite(loss) else "diverged"


# Curves


def _with_report(curve: Curve, length: float, loss: float) -> Curve:
    """The curve with another report; one that begins again (a restored trial) replaces what came after it."""
    if not math.isfinite(length) or not math.isfinite(loss):
        return curve
    rows = [(before, its) for before, its in curve.items() if before < length]
    rows.append((length, loss))
    return dict(rows if len(rows) <= MAX_REPORTS else rows[::2])  # an odd number, so that the last one stays


def _length(curve: Curve) -> float:
    return next(reversed(curve), 0.0)


def _loss_at(curve: Curve, length: float) -> float:
    return float(np.interp(length, list(curve), list(curve.values())))
