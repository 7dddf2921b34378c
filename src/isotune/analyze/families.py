"""Runs -> families: runs that differ in LR, WD, seed and length alone, so that they can be compared.

Of each cell and seed a family has the longest curve up to where LR begins to fall, so that ten decays off one trunk
are one curve. What the decays ended with are the family's budgets; without decays, what the runs themselves ended
with. Runs whose LR falls nearly all the way (cosine) are a family of their own: their curves are compared as a whole,
at one length. Where seeds are unknown, curves that begin with the same values are one run. Runs that leave one
checkpoint with a grid of LR and WD are one family, whichever of its settings they keep (checkpoints.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from isotune.analyze.checkpoints import compared_histories
from isotune.analyze.curves import effective_learning_rate, log2_settings
from isotune.analyze.distances import OVERLAP_THRESHOLD, same_up_to
from isotune.analyze.seed_noise import cell_means
from isotune.errors import InputError
from isotune.recipe.quantities import format_tokens
from isotune.runs.trajectory import RunInfo, Trajectory, Unknown, WeightDecayConvention

FINAL = "final_val_loss"  # on many windows, where a decay ends
FALLING_SHARE = 0.95  # of the run after its warm-up: LR that falls for longer has no stretch of constant LR
LEVEL_ROUNDS = 50
SAME_LENGTH = 0.02  # octaves: budgets this close are one
SAME_DECAY = 0.1  # relative: decays this close are of one length, and an evaluation this near is one at the end
SAME_CELL = 1e-3  # octaves: settings closer than this were rounded when they were written
SAME_BEGINNING = 2  # evaluations that runs of unknown seed must share to be one: the first may be that of the init

Shape = Literal["constant", "falling", "unknown"]


@dataclass(frozen=True)
class End:
    """The loss with which a run ended."""

    info: RunInfo
    tokens: int
    loss: float  # on the windows of the final evaluation, where there was one
    curve_loss: float  # on the windows of the curve: what can be compared with the trunk's
    run: Trajectory = field(repr=False)


@dataclass(frozen=True)
class Budget:
    """Losses of all cells that ended after so many tokens."""

    tokens: int
    decay_tokens: int | Unknown  # 0: LR had not fallen
    ends: tuple[End, ...] = field(repr=False)

    def cells(self) -> Cells:
        """The loss of each cell over its seeds."""
        return cells_of([end.info for end in self.ends], np.array([end.loss for end in self.ends]), self.tokens)


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
    history: str  # what its runs come from; that of a run may name less of a checkpoint
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
        return len({cell_of(run.info) for run in self.curves})

    @property
    def weight_decay_convention(self) -> WeightDecayConvention:
        """What these runs' users call weight decay: coupled, unless all of them are independent."""
        all_independent = {run.info.weight_decay_convention for run in self.curves} == {"independent"}
        return "independent" if all_independent else "coupled"


def make_families(trajectories: Sequence[Trajectory], loss: str = "val_loss") -> tuple[Family, ...]:
    """The families of these runs, those with most curves first."""
    if not trajectories:
        raise InputError("there are no runs: nothing can be said")
    usable, warnings = _with_a_place(trajectories)
    if not usable:
        raise InputError("no run can be placed by its LR and WD: " + "; ".join(warnings))
    members: dict[_Key, list[Trajectory]] = {}
    runs = _with_equal_settings(usable)
    for run, histories in zip(runs, compared_histories(runs), strict=True):
        for history in histories:
            members.setdefault(_key(run, history), []).append(run)
    names = _names(list(members))
    families = [
        _family(names[key], key, _in_one_convention(together), loss, warnings) for key, together in members.items()
    ]
    return tuple(sorted(families, key=lambda family: (-len(family.curves), -family.num_cells, family.name)))


def cells_of(infos: Sequence[RunInfo], values: np.ndarray, tokens: int | None = None) -> Cells:
    """The loss of each cell over its runs, at the level of the average seed; settings that agree up to rounding are one
    cell. Without `tokens` nothing is known of n, by which seeds' noise is shared: means."""
    if not infos:
        return Cells(*(np.zeros(0) for _ in range(4)))
    settings, cell = _grouped_by_cell(infos)
    counts = np.bincount(cell, minlength=len(settings)).astype(float)
    names, seed = np.unique([str(info.seed) for info in infos], return_inverse=True)
    if tokens is None or len(names) == 1 or "unknown" in names or not np.isfinite(values).all():
        means = np.bincount(cell, weights=values, minlength=len(settings)) / counts
    else:
        means = cell_means(settings[:, 0], _memory(settings, infos[0], tokens), cell, seed, values)
    return Cells(settings[:, 0], settings[:, 1], means, counts)


def _memory(settings: np.ndarray, info: RunInfo, tokens: int) -> np.ndarray:
    """log2(1 + n) of cells; where the length of a step is unknown, as if n were small everywhere."""
    if info.batch_size == "unknown" or info.sequence_length == "unknown":
        return np.zeros(len(settings))
    steps = tokens / (info.batch_size * info.sequence_length)
    return np.asarray(np.log2(1 + np.exp2(settings.sum(axis=1)) * steps))


def seed_levels(infos: Sequence[RunInfo], values: np.ndarray) -> np.ndarray:
    """Of each run how much its seed lies above the average one: to be taken out where cells have different seeds."""
    return _seed_levels(_grouped_by_cell(infos)[1], infos, values)


def _grouped_by_cell(infos: Sequence[RunInfo]) -> tuple[np.ndarray, np.ndarray]:
    """([cells x 2]: log2 LR, log2 WD; the cell of each run)."""
    x, y = (same_up_to(column, SAME_CELL) for column in log2_settings(infos))
    settings, cell = np.unique(np.column_stack([x, y]), axis=0, return_inverse=True)
    return settings, cell.ravel()


def _seed_levels(cell: np.ndarray, infos: Sequence[RunInfo], values: np.ndarray) -> np.ndarray:
    """Of each run the level of its seed, above that of the average one, by least squares of cell + seed.

    Seeds that share no cell with the others cannot be levelled; they stay as they are, as do runs without a seed.
    """
    names, seed = np.unique([str(info.seed) for info in infos], return_inverse=True)
    if len(names) < 2 or "unknown" in names or not np.isfinite(values).all():
        return np.zeros(len(values))
    num_cells = int(cell.max()) + 1
    if len(values) == num_cells * len(names):  # every cell has every seed: their means agree in that already
        return np.zeros(len(values))
    in_cell, of_seed = np.bincount(cell, minlength=num_cells), np.bincount(seed)
    levels = np.zeros(len(names))
    for _ in range(LEVEL_ROUNDS):  # alternating means: the least-squares fit of a two-way table
        means = np.bincount(cell, weights=values - levels[seed], minlength=num_cells) / in_cell
        levels = np.bincount(seed, weights=values - means[cell]) / of_seed
    return (levels - levels.mean())[seed]


def cell_of(info: RunInfo) -> tuple[object, ...]:
    """What runs of one cell have in common, in a family."""
    return info.learning_rate, info.weight_decay, info.weight_decay_convention


def place_of(info: RunInfo) -> tuple[object, ...]:
    """What tells a run from those of other cells and families, settings up to how they were written."""
    settings = (info.learning_rate, info.weight_decay)
    cell = (value if isinstance(value, str) or value <= 0 else round(math.log2(value), 2) for value in settings)
    return info.setup, info.history, info.batch_size, info.sequence_length, *cell


def lineage_of(run: Trajectory, loss: str) -> tuple[object, ...]:
    """What a trunk, its decays and its perturbed twins have in common: cell and seed; unknown seeds go by the curve."""
    if run.info.seed != "unknown":
        return *cell_of(run.info), run.info.seed
    tokens, values = run.measured(loss)
    first = slice(0, SAME_BEGINNING)
    return *cell_of(run.info), tuple(tokens[first].tolist()), tuple(values[first].tolist())


# Which runs belong together


@dataclass(frozen=True)
class _Key:
    setup: str
    history: str
    batch_size: int | Unknown
    sequence_length: int | Unknown
    num_parameters: int | Unknown
    shape: Shape


def _key(run: Trajectory, history: str) -> _Key:
    info = run.info
    return _Key(info.setup, history, info.batch_size, info.sequence_length, info.num_parameters, _shape(run))


def _shape(trajectory: Trajectory) -> Shape:
    decay = trajectory.info.decay_tokens
    if isinstance(decay, str):
        return "unknown"
    if not decay or not len(trajectory.tokens) or trajectory.info.has_plateau is True:
        return "constant"
    return "falling" if decay >= FALLING_SHARE * (trajectory.tokens[-1] - _peak_reached(trajectory)) else "constant"


def _peak_reached(trajectory: Trajectory) -> float:
    """The tokens of the first row whose LR is all but the highest; 0 without a column."""
    rate = trajectory.columns.get("learning_rate")
    if rate is None or np.isnan(rate).all():
        return 0.0
    with np.errstate(invalid="ignore"):
        return float(trajectory.tokens[np.argmax(rate >= 0.98 * np.nanmax(rate))])


def _with_equal_settings(runs: Sequence[Trajectory]) -> list[Trajectory]:
    """The runs with LR and WD exactly equal where they agree up to how they were written."""
    columns = []
    for name in ("learning_rate", "weight_decay"):
        values = np.array([getattr(run.info, name) for run in runs], dtype=float)
        labels, group = np.unique(same_up_to(np.log2(values), SAME_CELL), return_inverse=True)
        smallest = np.full(len(labels), math.inf)
        np.minimum.at(smallest, group.ravel(), values)
        columns.append(smallest[group.ravel()].tolist())
    return [
        run
        if (run.info.learning_rate, run.info.weight_decay) == (rate, decay)
        else Trajectory(run.columns, replace(run.info, learning_rate=rate, weight_decay=decay))
        for run, rate, decay in zip(runs, *columns, strict=True)
    ]


def _in_one_convention(runs: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """The runs, all of them coupled where some are, so that a cell that was written in two ways is one."""
    if len({run.info.weight_decay_convention for run in runs}) < 2:
        return runs
    return _with_equal_settings([_coupled(run) for run in runs])


def _coupled(run: Trajectory) -> Trajectory:
    if run.info.weight_decay_convention == "coupled":
        return run
    decay = effective_learning_rate(run.info) / float(run.info.learning_rate)
    return Trajectory(run.columns, replace(run.info, weight_decay=decay, weight_decay_convention="coupled"))


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
    words = ("1 run" if count == 1 else f"{count} runs" for count in reasons.values())
    return usable, tuple(f"{number} left out: {reason}" for number, reason in zip(words, reasons, strict=True))


def _no_place(info: RunInfo) -> str:
    for name, value in (("learning_rate", info.learning_rate), ("weight_decay", info.weight_decay)):
        if isinstance(value, str):
            option = f"--map {name}=THEIR_NAME or --set {name}=VALUE"
            return f"{name} is unknown: map one of the source's names to it or give it ({option}; mapping or settings)"
        if not value > 0:
            return f"{name} is {value:g}, which has no place on a logarithmic axis: nothing here can be said of them"
    if info.weight_decay_convention == "unknown":
        return (
            "what weight decay means is unknown: say coupled (w *= 1 - LR*WD, as PyTorch does) or independent "
            "(w *= 1 - WD), with --wd-convention or weight_decay_convention="
        )
    return ""


def _names(keys: Sequence[_Key]) -> dict[_Key, str]:
    """What sets each family apart from the others."""
    many_setups = len({key.setup for key in keys}) > 1
    many_lengths = len({key.sequence_length for key in keys}) > 1
    many_sizes = len({key.num_parameters for key in keys}) > 1
    many_shapes = len({key.shape for key in keys}) > 1
    names = {}
    for key in keys:
        words = [f"batch {key.batch_size}" + (f" after {key.history}" if key.history else "")]
        words += [f"sequences of {key.sequence_length}"] if many_lengths else []
        words += [_size_words(key.num_parameters)] if many_sizes else []
        words += [_SHAPE_WORDS[key.shape]] if many_shapes else []
        words += [key.setup or "no setup given"] if many_setups else []
        names[key] = ", ".join(words)
    return names


def _size_words(num_parameters: int | Unknown) -> str:
    if isinstance(num_parameters, str):
        return "size unknown"
    return f"{format_tokens(num_parameters)} parameters"


_SHAPE_WORDS: dict[Shape, str] = {
    "constant": "constant LR",
    "falling": "LR falling all the way",
    "unknown": "schedule unknown",
}


# One family


def _family(name: str, key: _Key, runs: Sequence[Trajectory], loss: str, warnings: tuple[str, ...]) -> Family:
    words = list(warnings)
    runs = _once(runs, loss, words)
    diverged = tuple(run.info for run in runs if run.info.status == "diverged")
    sound = [run for run in runs if run.info.status != "diverged" and len(run.measured(loss)[0])]
    if key.shape == "unknown":
        words.append(
            "the schedule is unknown: curves are taken as if LR stayed constant; give a learning_rate column, or "
            "decay_tokens (0 if LR never falls)"
        )
    curves = [_before_decay(run) for run in sound if not run.info.perturbation]
    twins = [_before_decay(run) for run in sound if run.info.perturbation]
    if key.shape == "falling":
        curves, twins = _of_one_length(curves, words), _of_one_length(twins, [])
    finished = [run for run in sound if run.info.status == "finished" and not run.info.perturbation]
    return Family(
        name,
        key.setup,
        key.history,
        key.batch_size,
        key.sequence_length,
        key.shape,
        tuple(_longest(curves, loss, words)),
        tuple(_longest(twins, loss, [])),
        _budgets(_ends(finished, loss, words), loss, words),
        diverged,
        loss,
        tuple(words),
    )


def _once(runs: Sequence[Trajectory], loss: str, warnings: list[str]) -> list[Trajectory]:
    """The runs without copies, as a folder has them that holds a file twice."""
    first: dict[tuple[object, ...], Trajectory] = {}
    copies: Counter[tuple[object, ...]] = Counter()
    for number, run in enumerate(runs):
        info, curve = run.info, [column.tobytes() for name in (loss, FINAL) for column in run.measured(name)]
        key = (*lineage_of(run, loss), info.perturbation, info.decay_tokens, info.status, *curve)
        key = key if len(run.measured(loss)[0]) else (number,)  # runs without a curve cannot be told to be one
        copies[key] += key in first
        first.setdefault(key, run)
    again = [number for number in copies.values() if number]
    if again:
        are = "1 run is" if len(again) == 1 else f"{len(again)} runs are"
        often = "twice" if max(again) == 1 else "more than once"
        warnings.append(f"{are} there {often}, with the same values: counted once")
    return list(first.values())


def _before_decay(run: Trajectory) -> Trajectory:
    """The run up to where its LR begins to fall; all of it where it falls nearly all the way."""
    if not _decays(run.info) or _shape(run) == "falling":
        return run
    kept = run.tokens <= _branch_tokens(run)
    return Trajectory({name: values[kept] for name, values in run.columns.items()}, run.info)


def _branch_tokens(run: Trajectory) -> float:
    """Where the final fall of LR begins; in a run that has not ended, the last row that has not fallen."""
    decay = run.info.decay_tokens
    assert isinstance(decay, int)
    rate = run.columns.get("learning_rate")
    if run.info.status == "finished" or rate is None:
        return float(run.tokens[-1] - decay)
    with np.errstate(invalid="ignore"):
        high = np.flatnonzero(rate >= (1 - 1e-6) * np.nanmax(rate))
    return float(run.tokens[high[-1]]) if len(high) else 0.0


def _decays(info: RunInfo) -> bool:
    return not isinstance(info.decay_tokens, str) and info.decay_tokens > 0


def _of_one_length(runs: list[Trajectory], warnings: list[str]) -> list[Trajectory]:
    """Of runs that fall over different lengths those of the commonest one, the longest of these."""
    if not runs:
        return runs
    lengths = same_up_to(np.log2([float(run.tokens[-1]) for run in runs]), SAME_LENGTH)
    values, counts = np.unique(lengths, return_counts=True)
    length = values[counts == counts.max()][-1]
    if len(values) > 1:
        others = int((lengths != length).sum())
        warnings.append(
            f"runs whose LR falls all the way are compared at one length, {format_tokens(2.0**length)} tokens: "
            f"the curves of {others} other{'' if others == 1 else 's'} are left out"
        )
    return [run for run, one in zip(runs, lengths, strict=True) if one == length]


def _longest(runs: Iterable[Trajectory], loss: str, warnings: list[str]) -> list[Trajectory]:
    """One run for each cell and seed; what shares them without being the same run is told."""
    best: dict[tuple[object, ...], Trajectory] = {}
    num_others = 0
    for run in runs:
        if len(run.measured(loss)[0]):
            key = (*lineage_of(run, loss), run.info.perturbation)
            num_others += key in best and not _is_one_run(best[key], run, loss)
            if key not in best or best[key].tokens[-1] < run.tokens[-1]:
                best[key] = run
    if num_others:
        have = "1 curve has" if num_others == 1 else f"{num_others} curves have"
        warnings.append(
            f"{have} the LR, WD and seed of another one and other losses: one of each is compared, and final losses "
            "are averaged; tell such runs apart by seed, setup or num_parameters (--map, --set)"
        )
    return list(best.values())


def _is_one_run(one: Trajectory, other: Trajectory, loss: str) -> bool:
    """Whether their losses agree at the positions that both have, as those of a trunk and its decays do."""
    (first, a), (second, b) = one.measured(loss), other.measured(loss)
    _, i, j = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    return bool(np.linalg.norm(a[i] - b[j]) <= OVERLAP_THRESHOLD * np.linalg.norm(a[i]))


# What runs ended with


def _ends(runs: Sequence[Trajectory], loss: str, warnings: list[str]) -> list[End]:
    """The last loss of each run; one that was not evaluated near its end has none."""
    ends, num_missing = [], 0
    for run in runs:
        at, values = run.measured(loss)
        tokens, final_loss = int(at[-1]), float(values[-1])
        # A final evaluation counts only where the run ended with it: a trunk may have passed one.
        final_at, final = run.measured(FINAL) if loss == "val_loss" else (at[:0], values[:0])
        if len(final_at) and final_at[-1] == run.tokens[-1]:
            tokens, final_loss = int(final_at[-1]), float(final[-1])
        decay = run.info.decay_tokens
        near = SAME_DECAY * (int(run.tokens[-1]) if isinstance(decay, str) or not decay else decay)
        if run.tokens[-1] - tokens > near:
            num_missing += 1
        else:
            curve_loss = float(values[-1]) if tokens - at[-1] <= near else math.nan
            ends.append(End(run.info, tokens, final_loss, curve_loss, run))
    if num_missing:
        names = "1 run has" if num_missing == 1 else f"{num_missing} runs have"
        warnings.append(f"{names} no {loss} near the end: evaluate there")
    return ends


def _budgets(ends: Sequence[End], loss: str, warnings: list[str]) -> tuple[Budget, ...]:
    """Ends of one length together. Decayed and constant runs have different optima: one kind is taken for all lengths.

    Decays, unless they are so few that runs at constant LR say more.
    """
    decayed, constant = ([end for end in ends if _decays(end.info) is kind] for kind in (True, False))
    budgets, others = _grouped(decayed, loss, warnings), _grouped(constant, loss, [])
    most, most_others = (max((len(one.ends) for one in group), default=0) for group in (budgets, others))
    return budgets if 2 * most >= most_others and budgets else others


def _grouped(ends: Sequence[End], loss: str, warnings: list[str]) -> tuple[Budget, ...]:
    """Of each length the ends of the commonest decay; a run that is there twice counts once."""
    if not ends:
        return ()
    lengths = same_up_to(np.log2([max(end.tokens, 1) for end in ends]), SAME_LENGTH)
    groups: dict[float, list[End]] = {}
    for end, length in zip(ends, lengths.tolist(), strict=True):
        groups.setdefault(length, []).append(end)
    budgets, num_left_out = [], 0
    for _, here in sorted(groups.items()):
        decay, _ = Counter(end.info.decay_tokens for end in here).most_common(1)[0]
        same = [end for end in here if _is_like(end.info.decay_tokens, decay)]
        num_left_out += len(here) - len(same)
        distinct = {(*lineage_of(end.run, loss), end.tokens, end.loss): end for end in same}
        budgets.append(Budget(max(end.tokens for end in same), decay, tuple(distinct.values())))
    if num_left_out:
        warnings.append(
            f"{num_left_out} decays left out: their lengths are not the commonest one of their budget, and losses "
            "after decays of different lengths are not compared"
        )
    return tuple(budgets)


def _is_like(decay: int | Unknown, other: int | Unknown) -> bool:
    if isinstance(decay, str) or isinstance(other, str):
        return decay == other
    return abs(decay - other) <= SAME_DECAY * max(decay, other)
