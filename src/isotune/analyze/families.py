"""Runs -> families: runs that differ in LR, WD, seed and length alone, so that they can be compared.

Of each cell and seed a family has the longest curve up to where LR begins to fall, so that ten decays off one trunk
are one curve. What the decays ended with are the family's budgets. Runs whose LR falls nearly all the way (cosine)
are a family of their own: their curves are compared as a whole, at one length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from isotune.analyze.curves import log2_settings
from isotune.analyze.distances import same_up_to
from isotune.errors import InputError
from isotune.recipe.quantities import format_tokens
from isotune.runs.trajectory import RunInfo, Trajectory, Unknown

FINAL = "final_val_loss"  # on many windows, where a decay ends
FALLING_SHARE = 0.95  # of the run after its warm-up: LR that falls for longer has no stretch of constant LR
SAME_LENGTH = 0.02  # relative: budgets this close are one

Shape = Literal["constant", "falling", "unknown"]


@dataclass(frozen=True)
class End:
    """The loss with which a run ended."""

    info: RunInfo
    tokens: int
    loss: float  # on the windows of the final evaluation, where there was one
    curve_loss: float  # on the windows of the curve: what can be compared with the trunk's


@dataclass(frozen=True)
class Budget:
    """Losses of all cells that ended after so many tokens."""

    tokens: int
    decay_tokens: int | Unknown  # 0: LR had not fallen
    ends: tuple[End, ...] = field(repr=False)

    def cells(self) -> Cells:
        """The mean over seeds of each cell."""
        return cells_of([end.info for end in self.ends], np.array([end.loss for end in self.ends]))


@dataclass(frozen=True)
class Cells:
    """One value for each (LR, WD): the mean over its runs."""

    log2_lr: np.ndarray
    log2_wd: np.ndarray  # as a coupled run would write it, ELR / LR
    value: np.ndarray
    num_runs: np.ndarray

    @property
    def log2_elr(self) -> np.ndarray:
        return self.log2_lr + self.log2_wd


@dataclass(frozen=True)
class Family:
    """Runs that differ in LR, WD, seed and length alone."""

    name: str
    setup: str
    history: str
    batch_size: int | Unknown
    sequence_length: int | Unknown
    shape: Shape
    curves: tuple[Trajectory, ...] = field(repr=False)
    twins: tuple[Trajectory, ...] = field(repr=False)  # with a perturbed init
    budgets: tuple[Budget, ...]  # small ones first
    diverged: tuple[RunInfo, ...] = field(repr=False)
    loss: str
    warnings: tuple[str, ...] = ()

    @property
    def num_cells(self) -> int:
        return len({(t.info.learning_rate, t.info.weight_decay) for t in self.curves})


def make_families(trajectories: Sequence[Trajectory], loss: str = "val_loss") -> tuple[Family, ...]:
    """The families of these runs, those with most cells first."""
    if not trajectories:
        raise InputError("there are no runs: nothing can be said")
    usable, warnings = _with_a_place(trajectories)
    members: dict[_Key, list[Trajectory]] = {}
    for trajectory in usable:
        members.setdefault(_key(trajectory), []).append(trajectory)
    names = _names(list(members))
    families = [_family(names[key], key, runs, loss, warnings) for key, runs in members.items()]
    if not families:
        raise InputError("no run can be placed by its LR and WD: " + "; ".join(warnings))
    return tuple(sorted(families, key=lambda family: (-family.num_cells, family.name)))


def cells_of(infos: Sequence[RunInfo], values: np.ndarray) -> Cells:
    """The mean over the runs of each cell; settings that agree up to rounding are one."""
    if not infos:
        return Cells(*(np.zeros(0) for _ in range(4)))
    x, y = (same_up_to(column) for column in log2_settings(infos))
    settings, cell = np.unique(np.column_stack([x, y]), axis=0, return_inverse=True)
    counts = np.bincount(cell.ravel(), minlength=len(settings))
    means = np.bincount(cell.ravel(), weights=values, minlength=len(settings)) / counts
    return Cells(settings[:, 0], settings[:, 1], means, counts.astype(float))


# Which runs belong together


@dataclass(frozen=True)
class _Key:
    setup: str
    history: str
    batch_size: int | Unknown
    sequence_length: int | Unknown
    shape: Shape


def _key(trajectory: Trajectory) -> _Key:
    info = trajectory.info
    return _Key(info.setup, info.history, info.batch_size, info.sequence_length, _shape(trajectory))


def _shape(trajectory: Trajectory) -> Shape:
    decay = trajectory.info.decay_tokens
    if isinstance(decay, str):
        return "unknown"
    if not decay or not len(trajectory.tokens):
        return "constant"
    return "falling" if decay >= FALLING_SHARE * (trajectory.tokens[-1] - _peak_reached(trajectory)) else "constant"


def _peak_reached(trajectory: Trajectory) -> float:
    """The tokens of the first row whose LR is all but the highest; 0 without a column."""
    rate = trajectory.columns.get("learning_rate")
    if rate is None or np.isnan(rate).all():
        return 0.0
    with np.errstate(invalid="ignore"):
        return float(trajectory.tokens[np.argmax(rate >= 0.98 * np.nanmax(rate))])


def _with_a_place(trajectories: Sequence[Trajectory]) -> tuple[list[Trajectory], tuple[str, ...]]:
    """The runs that have a place on the axes log LR and log WD, and how many have none, with the remedy."""
    reasons: Counter[str] = Counter()
    usable = []
    for trajectory in trajectories:
        reason = _no_place(trajectory.info)
        if reason:
            reasons[reason] += 1
        else:
            usable.append(trajectory)
    return usable, tuple(f"{count} runs left out: {reason}" for reason, count in reasons.items())


def _no_place(info: RunInfo) -> str:
    for name, value in (("learning_rate", info.learning_rate), ("weight_decay", info.weight_decay)):
        if isinstance(value, str):
            return f"their {name} is unknown (map a column or setting to it, or give it)"
        if not value > 0:
            return f"their {name} is {value:g}, which has no place on a logarithmic axis"
    if info.weight_decay_convention == "unknown":
        return (
            "their weight decay convention is unknown (say coupled: w *= 1 - LR*WD, as PyTorch does; "
            "or independent: w *= 1 - WD)"
        )
    return ""


def _names(keys: Sequence[_Key]) -> dict[_Key, str]:
    """What sets each family apart from the others."""
    many_setups = len({key.setup for key in keys}) > 1
    many_lengths = len({key.sequence_length for key in keys}) > 1
    many_shapes = len({key.shape for key in keys}) > 1
    names = {}
    for key in keys:
        words = [f"batch {key.batch_size}" + (f" after {key.history}" if key.history else "")]
        words += [f"sequences of {key.sequence_length}"] if many_lengths else []
        words += [_SHAPE_WORDS[key.shape]] if many_shapes else []
        words += [key.setup or "no setup given"] if many_setups else []
        names[key] = ", ".join(words)
    return names


_SHAPE_WORDS: dict[Shape, str] = {
    "constant": "constant LR",
    "falling": "LR falling all the way",
    "unknown": "schedule unknown",
}


# One family


def _family(name: str, key: _Key, runs: Sequence[Trajectory], loss: str, warnings: tuple[str, ...]) -> Family:
    diverged = tuple(run.info for run in runs if run.info.status == "diverged")
    sound = [run for run in runs if run.info.status != "diverged" and len(run.measured(loss)[0])]
    words = list(warnings)
    if key.shape == "unknown":
        words.append(
            "the schedule is unknown: curves are taken as if LR stayed constant; give a learning_rate column or "
            "decay_tokens"
        )
    curves = [_before_decay(run) for run in sound if not run.info.perturbation]
    twins = [_before_decay(run) for run in sound if run.info.perturbation]
    if key.shape == "falling":
        curves, twins = _of_one_length(curves, words), _of_one_length(twins, [])
    curves, twins = _longest(curves), _longest(twins)
    ends = [_end(run, loss) for run in sound if _has_ended(run) and not run.info.perturbation]
    return Family(
        name,
        key.setup,
        key.history,
        key.batch_size,
        key.sequence_length,
        key.shape,
        tuple(curves),
        tuple(twins),
        _budgets(ends),
        diverged,
        loss,
        tuple(words),
    )


def _before_decay(run: Trajectory) -> Trajectory:
    """The run up to where its LR begins to fall; all of it where it falls nearly all the way."""
    decay = run.info.decay_tokens
    if isinstance(decay, str) or decay == 0 or _shape(run) == "falling":
        return run
    kept = run.tokens <= run.tokens[-1] - decay
    return Trajectory({name: values[kept] for name, values in run.columns.items()}, run.info)


def _of_one_length(runs: list[Trajectory], warnings: list[str]) -> list[Trajectory]:
    """Of runs that fall over different lengths those of the commonest one, the longest of these."""
    if not runs:
        return runs
    lengths = same_up_to(np.log2([float(run.tokens[-1]) for run in runs]), SAME_LENGTH)
    values, counts = np.unique(lengths, return_counts=True)
    length = values[counts == counts.max()][-1]
    if len(values) > 1:
        warnings.append(f"LR falls over {len(values)} lengths: curves are those of {format_tokens(2.0**length)} tokens")
    return [run for run, one in zip(runs, lengths, strict=True) if one == length]


def _longest(runs: Iterable[Trajectory]) -> list[Trajectory]:
    """One run for each cell and seed."""
    best: dict[tuple[object, ...], Trajectory] = {}
    for index, run in enumerate(runs):
        info = run.info
        seed = info.seed if info.seed != "unknown" else f"run {index}"
        key = (info.learning_rate, info.weight_decay, seed, info.perturbation)
        if len(run.tokens) and (key not in best or best[key].tokens[-1] < run.tokens[-1]):
            best[key] = run
    return list(best.values())


def _has_ended(run: Trajectory) -> bool:
    return run.info.status == "finished"


def _end(run: Trajectory, loss: str) -> End:
    curve_loss, final = run.last(loss), run.last(FINAL)
    # A final evaluation counts only where the run ended with it: a trunk may have passed one.
    at = run.measured(FINAL)[0]
    is_final = loss == "val_loss" and len(at) and at[-1] == run.tokens[-1]
    return End(run.info, int(run.tokens[-1]), final if is_final else curve_loss, curve_loss)


def _budgets(ends: Sequence[End]) -> tuple[Budget, ...]:
    """Ends of one length together; where LR fell in some runs of that length, those alone."""
    if not ends:
        return ()
    decayed = [end for end in ends if end.info.decay_tokens not in (0, "unknown")] or list(ends)
    lengths = same_up_to(np.log2([max(end.tokens, 1) for end in decayed]), SAME_LENGTH)
    budgets = []
    for length in np.unique(lengths):
        here = [end for end, one in zip(decayed, lengths, strict=True) if one == length]
        falls = [end.info.decay_tokens for end in here]
        decay, _ = Counter(falls).most_common(1)[0]
        same = [end for end in here if _is_like(end.info.decay_tokens, decay)]
        budgets.append(Budget(max(end.tokens for end in same), decay, tuple(same)))
    return tuple(budgets)


def _is_like(decay: int | Unknown, other: int | Unknown) -> bool:
    if isinstance(decay, str) or isinstance(other, str):
        return decay == other
    return abs(decay - other) <= 0.1 * max(decay, other)
