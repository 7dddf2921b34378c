"""What a decay to zero would give, read off a constant-LR run.

A linear decay over X tokens has the flow time (sum of LR) of X/2 tokens of trunk. At equal flow time the decayed run is
below the trunk by what its noise costs:

    gain = L_trunk(branch + X/2) - L_decayed        predicted as    k * scaled_noise

k (`decay_coefficient`) is 1/4 in theory and depends on the decay's length; it is calibrated on at least one real decay.
Four rivals are fitted to the same decays: no correction, a constant, a * ELR^q, and the free estimator in the place of
the metered noise. A predictor compares runs at the same budget, never across budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from isotune.analyze.curves import effective_learning_rate
from isotune.errors import InputError
from isotune.measure import windows
from isotune.runs.trajectory import Trajectory

THEORY = 0.25  # the paper's 1/4, for decays that are long against the noise's memory and short against training
LOSS_POINTS = 6  # evaluations of the local line from which a trunk's loss is read
NOISE_READINGS = 20  # before the position, over which noise is averaged

Kind = Literal["nothing", "constant", "power", "noise", "free"]
KINDS: tuple[Kind, ...] = ("nothing", "constant", "power", "noise", "free")


@dataclass(frozen=True)
class TrunkReading:
    """A constant-LR run at one position: its loss, and what its noise is there."""

    tokens: float
    loss: float
    scaled_noise: float  # NaN where noise was not measured
    free_noise: float  # noise and signal from the optimizer's state; NaN likewise
    effective_learning_rate: float


@dataclass(frozen=True)
class Decay:
    """A real decay beside its trunk at equal flow time."""

    trunk: TrunkReading
    decayed_loss: float
    group: object = None  # decays of one group are left out together

    @property
    def gain(self) -> float:
        return self.trunk.loss - self.decayed_loss


@dataclass(frozen=True)
class DecayPredictor:
    """trunk -> decayed loss; `coefficient` is k for noise, the gain itself for a constant."""

    kind: Kind
    coefficient: float
    exponent: float = math.nan  # q of a * ELR^q
    num_decays: int = 0

    def gain(self, trunk: TrunkReading) -> float:
        """What a decay would gain; NaN where the trunk lacks what this needs."""
        if self.kind == "nothing":
            return 0.0
        if self.kind == "constant":
            return self.coefficient
        if self.kind == "power":
            return self.coefficient * trunk.effective_learning_rate**self.exponent
        return self.coefficient * (trunk.scaled_noise if self.kind == "noise" else trunk.free_noise)

    def __call__(self, trunk: TrunkReading) -> float:
        return trunk.loss - self.gain(trunk)


@dataclass(frozen=True)
class PredictorScore:
    """How well a kind of predictor did on decays whose whole group was left out of its calibration."""

    kind: Kind
    rmse: float
    median_relative_error: float  # |predicted - decayed| / decayed, the paper's
    kendall_tau: float  # of predicted with decayed losses, averaged over budgets
    predicted: np.ndarray  # in the order of the decays


@dataclass(frozen=True)
class PredictorComparison:
    """All kinds on the same decays, and whether each is better than `against`, by a paired bootstrap over groups."""

    scores: dict[Kind, PredictorScore]
    best: Kind
    rmse_ratio_intervals: dict[Kind, tuple[float, float]]  # of each kind's RMSE to that of `against`
    against: Kind
    level: float
    warnings: tuple[str, ...] = ()


def read_trunk(
    trajectory: Trajectory, tokens: float, *, column: str = "val_loss", min_readings: int = windows.MIN_VALUES
) -> TrunkReading:
    """The run at this position: loss from a line through the nearest evaluations, noise from the last readings."""
    at, losses = trajectory.measured(column)
    if len(at) < 2 or tokens > at[-1] + (at[-1] - at[-2]) or tokens < at[0]:
        raise InputError(
            f"the run has no {column} around {tokens:g} tokens: train it further, or evaluate it more often there"
        )
    # Early losses fall like a power of time: a line in log tokens follows them; the loss before training is no part.
    at, losses = at[at > 0], losses[at > 0]
    nearest = np.sort(np.argsort(np.abs(at - tokens), kind="stable")[:LOSS_POINTS])
    x = np.log(at[nearest] / tokens)
    loss = (
        float(np.polynomial.polynomial.polyfit(x, losses[nearest], 1)[0])
        if len(nearest) > 2
        else float(np.interp(math.log(tokens), np.log(at), losses))
    )
    return TrunkReading(
        tokens=tokens,
        loss=loss,
        scaled_noise=_noise_at(trajectory, tokens, min_readings),
        free_noise=_free_at(trajectory, tokens, min_readings),
        effective_learning_rate=_known_elr(trajectory),
    )


def read_decay(
    trunk: Trajectory,
    *,
    branch_tokens: float,
    decay_tokens: float,
    decayed_loss: float,
    group: object = None,
    column: str = "val_loss",
) -> Decay:
    """A linear decay beside its trunk half a decay past the branch, where both have the same flow time."""
    return Decay(read_trunk(trunk, branch_tokens + decay_tokens / 2, column=column), decayed_loss, group)


def calibrate(decays: Sequence[Decay], kind: Kind = "free") -> DecayPredictor:
    """The predictor of this kind with the least squared error on these decays; at least one, two for a power of ELR."""
    needed = {"nothing": 0, "power": 2}.get(kind, 1)
    usable = [decay for decay in decays if math.isfinite(decay.gain) and math.isfinite(_feature(kind, decay.trunk))]
    if len(usable) < needed:
        raise InputError(
            f"calibrating {kind!r} needs {needed} decays with what it reads, and there are {len(usable)}: "
            f"branch a decay off one of the runs"
        )
    gains = np.array([decay.gain for decay in usable])
    if kind == "nothing":
        return DecayPredictor(kind, 0.0)
    if kind == "power":
        return _calibrate_power(usable, gains)
    x = np.array([_feature(kind, decay.trunk) for decay in usable])
    return DecayPredictor(kind, float(x @ gains / (x @ x)), num_decays=len(usable))


def compare_predictors(
    decays: Sequence[Decay],
    *,
    kinds: Sequence[Kind] = KINDS,
    against: Kind = "nothing",
    level: float = 0.9,
    draws: int = 2000,
    random_seed: int = 0,
) -> PredictorComparison:
    """Each kind calibrated with whole groups left out, scored on the decays of the group left out.

    Decays at different budgets may be mixed: a budget is one value of trunk.tokens, and ranks are compared within it.
    """
    groups = [decay.group for decay in decays]
    if len(set(groups)) < 3:
        raise InputError(f"{len(set(groups))} groups of decays cannot be left out in turn: give at least 3")
    usable = [kind for kind in kinds if all(math.isfinite(_feature(kind, decay.trunk)) for decay in decays)]
    warnings = tuple(f"{kind!r} left out: some runs lack what it reads" for kind in kinds if kind not in usable)
    scores = {kind: _score(kind, decays, groups) for kind in usable}
    best = min(scores.values(), key=lambda score: score.rmse).kind
    truth = np.array([decay.decayed_loss for decay in decays])
    errors = {kind: (score.predicted - truth) ** 2 for kind, score in scores.items()}
    intervals = {
        kind: _ratio_interval(errors[kind], errors[against], groups, level, draws, random_seed)
        for kind in usable
        if kind != against
    }
    return PredictorComparison(scores, best, intervals, against, level, warnings)


def _noise_at(trajectory: Trajectory, tokens: float, min_readings: int) -> float:
    rows = _last_readings(trajectory, "precond_noise_trace", tokens)
    if len(rows) < min_readings:
        return math.nan
    columns = trajectory.columns
    lr, batch = _column(trajectory, "learning_rate", rows), _column(trajectory, "batch_size", rows)
    clip = next((columns[name][rows] for name in ("noise_clip_factor", "clip_factor") if name in columns), None)
    return windows.scaled_noise_value(columns["precond_noise_trace"][rows], lr, batch, clip)


def _free_at(trajectory: Trajectory, tokens: float, min_readings: int) -> float:
    rows = _last_readings(trajectory, "root_moment_sum", tokens)
    if len(rows) < min_readings:
        return math.nan
    columns = trajectory.columns
    clip = columns["clip_factor"][rows] if "clip_factor" in columns else np.ones(len(rows))
    return float(np.mean(_column(trajectory, "learning_rate", rows) * columns["root_moment_sum"][rows]) / np.mean(clip))


def _last_readings(trajectory: Trajectory, name: str, tokens: float) -> np.ndarray:
    values = trajectory.columns.get(name)
    if values is None:
        return np.zeros(0, dtype=int)
    return np.flatnonzero(~np.isnan(values) & (trajectory.tokens <= tokens))[-NOISE_READINGS:]


def _column(trajectory: Trajectory, name: str, rows: np.ndarray) -> np.ndarray:
    """The column, or the run's setting where it has none."""
    values = trajectory.columns.get(name)
    known = getattr(trajectory.info, name)
    return values[rows] if values is not None else np.full(len(rows), math.nan if known == "unknown" else known)


def _known_elr(trajectory: Trajectory) -> float:
    try:
        return effective_learning_rate(trajectory.info)
    except InputError:
        return math.nan


def _feature(kind: Kind, trunk: TrunkReading) -> float:
    """What a predictor of this kind reads of a trunk."""
    readings = {"power": trunk.effective_learning_rate, "noise": trunk.scaled_noise, "free": trunk.free_noise}
    return readings.get(kind, 1.0)


def _calibrate_power(decays: Sequence[Decay], gains: np.ndarray) -> DecayPredictor:
    """Least squares of the gains on a * ELR^q, by a fine search over q: for a given q it is linear in a."""
    log_elr = np.log([decay.trunk.effective_learning_rate for decay in decays])
    centre = log_elr.mean()
    exponents = np.linspace(-2.0, 3.0, 1001)
    features = np.exp(exponents[:, None] * (log_elr - centre))
    scales = features @ gains / np.sum(features**2, axis=1)
    errors = np.sum((gains - scales[:, None] * features) ** 2, axis=1)
    best = int(np.argmin(errors))
    exponent = float(exponents[best])
    return DecayPredictor("power", float(scales[best] * math.exp(-exponent * centre)), exponent, len(decays))


def _score(kind: Kind, decays: Sequence[Decay], groups: Sequence[object]) -> PredictorScore:
    predicted = np.full(len(decays), math.nan)
    for group in dict.fromkeys(groups):
        rest = [decay for decay, other in zip(decays, groups, strict=True) if other != group]
        predictor = calibrate(rest, kind)
        for index, (decay, other) in enumerate(zip(decays, groups, strict=True)):
            if other == group:
                predicted[index] = predictor(decay.trunk)
    truth = np.array([decay.decayed_loss for decay in decays])
    errors = predicted - truth
    return PredictorScore(
        kind=kind,
        rmse=float(np.sqrt(np.mean(errors**2))),
        median_relative_error=float(np.median(np.abs(errors) / truth)),
        kendall_tau=_tau_within_budgets(predicted, truth, [decay.trunk.tokens for decay in decays]),
        predicted=predicted,
    )


def _tau_within_budgets(predicted: np.ndarray, truth: np.ndarray, budgets: Sequence[float]) -> float:
    from scipy.stats import kendalltau

    taus = []
    for budget in dict.fromkeys(budgets):
        inside = np.array([other == budget for other in budgets])
        if inside.sum() > 2:
            taus.append(float(kendalltau(predicted[inside], truth[inside]).statistic))
    return float(np.mean(taus)) if taus else math.nan


def _ratio_interval(
    errors: np.ndarray, others: np.ndarray, groups: Sequence[object], level: float, draws: int, random_seed: int
) -> tuple[float, float]:
    """Percentile interval of the ratio of RMSEs; groups are drawn, since decays of one group are alike."""
    names = list(dict.fromkeys(groups))
    sums = np.array([[e[[g == name for g in groups]].sum() for name in names] for e in (errors, others)])
    rng = np.random.default_rng(random_seed)
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    drawn = counts @ sums.T
    ratios = np.sqrt(drawn[:, 0] / drawn[:, 1])
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
