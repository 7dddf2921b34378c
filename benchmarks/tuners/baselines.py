"""What others would do: tuners that train whole runs to the target budget and recommend the best that they saw.

Each is a function (replay, rng) -> path. All search log2 LR and log2 WD over the grid and half a step beyond, so that
every cell is equally likely; a suggestion stands for the cell nearest to it. A cell that was seen costs nothing and has
the same loss again. After `PATIENCE` suggestions in a row of cells that were seen the tuner counts as done; its path
goes on with the other cells in random order, so that no sampler fails for having stopped early.

Optuna's samplers have their defaults, but for TPE's `multivariate`. A run that diverged is told to them as the highest
loss seen so far.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, QMCSampler, TPESampler
from replay import Question, Replay, Spent, best_of

from isotune.analyze.surface import fit_surface
from isotune.errors import InputError

PATIENCE = 20
USUAL_WEIGHT_DECAY = 0.1
UNKNOWN_LOSS = 10.0  # told for a run that diverged before any other was seen

optuna.logging.set_verbosity(optuna.logging.ERROR)

Tuner = Callable[[Replay, np.random.Generator], Iterator[Spent]]


# Without a model


def grid(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Every cell once, in random order."""
    yield from _whole_runs(replay, [int(cell) for cell in rng.permutation(replay.num_cells)])


def random(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Cells drawn with replacement: on a table, where repetition is free, it costs what the grid costs."""
    seen: dict[int, float] = {}
    while not replay.is_exhausted:
        cell = int(rng.integers(replay.num_cells))
        if cell not in seen:
            seen[cell] = replay.answer(Question(cell, replay.budget))
            yield Spent(replay.spent, best_of(seen), is_done=replay.is_exhausted)


def sobol(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """A scrambled Sobol sequence."""
    yield from _with_sampler(replay, _sobol_sampler(rng), rng)


def lr_only(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """All LRs at the WD nearest to 0.1, then done."""
    yield from _whole_runs(replay, shuffled(usual_row(replay), rng))


def lr_then_wd(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """All LRs at the WD nearest to 0.1, then all WDs at the best of them, then done."""
    last = None
    for last in _whole_runs(replay, shuffled(usual_row(replay), rng)):
        yield Spent(last.tokens, last.cell)
    if last is None or last.cell is None:
        return
    column = np.flatnonzero(np.isclose(replay.log2_lr, replay.log2_lr[last.cell]))
    # What was seen of the row is free: with the best of it first, the recommendation never falls behind.
    rest = [cell for cell in shuffled(column, rng) if cell != last.cell]
    yield from _whole_runs(replay, [last.cell, *rest])


def sobol_quadratic(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Sobol points; the cell where the paraboloid through them is lowest is recommended, trained or not."""
    seen: dict[int, float] = {}
    for point in _with_sampler(replay, _sobol_sampler(rng), rng, seen=seen):
        yield Spent(point.tokens, lowest_fitted(replay, seen), point.is_done)


def sobol_cells(replay: Replay, rng: np.random.Generator) -> list[int]:
    """All cells, in the order in which a scrambled Sobol sequence comes to them; those that it does not, at the end."""
    study, axes = optuna.create_study(sampler=_sobol_sampler(rng)), plain_axes(replay)
    met = [axes.suggest(quiet_ask(study)) for _ in range(4 * replay.num_cells)]
    return list(dict.fromkeys([*met, *shuffled(np.arange(replay.num_cells), rng)]))


# Optuna


def tpe(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    yield from _with_sampler(replay, tpe_sampler(rng), rng)


def gp(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    yield from _with_sampler(replay, _gp_sampler(rng), rng)


def cma_es(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    yield from _with_sampler(replay, _quietly(CmaEsSampler, seed=seed_from(rng)), rng)


def tpe_elr(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """TPE that is given (log2 ELR, log2 LR) as coordinates."""
    yield from _with_sampler(replay, tpe_sampler(rng), rng, axes=elr_axes(replay))


def gp_elr(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """GP that is given (log2 ELR, log2 LR) as coordinates."""
    yield from _with_sampler(replay, _gp_sampler(rng), rng, axes=elr_axes(replay))


# Coordinates


@dataclass(frozen=True)
class Axes:
    """Two named ranges, and the cell for a point in them."""

    ranges: dict[str, tuple[float, float]]
    to_cell: Callable[[dict[str, float]], int]

    def suggest(self, trial: optuna.Trial) -> int:
        return self.to_cell({name: trial.suggest_float(name, *ends) for name, ends in self.ranges.items()})


def plain_axes(replay: Replay) -> Axes:
    """log2 LR and log2 WD."""
    ranges = {"log2_lr": half_a_step_beyond(replay.log2_lr), "log2_wd": half_a_step_beyond(replay.log2_wd)}
    return Axes(ranges, lambda point: replay.nearest(point["log2_lr"], point["log2_wd"]))


def elr_axes(replay: Replay) -> Axes:
    """log2 ELR and log2 LR; a WD beyond the grid is the outermost."""
    log2_elr = replay.log2_lr + replay.log2_wd
    ranges = {"log2_elr": half_a_step_beyond(log2_elr), "log2_lr": half_a_step_beyond(replay.log2_lr)}
    return Axes(ranges, lambda point: replay.nearest(point["log2_lr"], point["log2_elr"] - point["log2_lr"]))


def half_a_step_beyond(values: np.ndarray) -> tuple[float, float]:
    """The range of an axis' levels, and half their distance more at either end."""
    levels = np.unique(np.round(values, 6))
    half = float(np.diff(levels).min()) / 2 if len(levels) > 1 else 0.5
    return float(levels[0]) - half, float(levels[-1]) + half


# Helpers


def _whole_runs(replay: Replay, cells: list[int]) -> Iterator[Spent]:
    """A run in each of these cells; done after the last."""
    seen: dict[int, float] = {}
    for number, cell in enumerate(cells, 1):
        seen[cell] = replay.answer(Question(cell, replay.budget))
        yield Spent(replay.spent, best_of(seen), is_done=number == len(cells))


def _with_sampler(
    replay: Replay,
    sampler: BaseSampler,
    rng: np.random.Generator,
    *,
    seen: dict[int, float] | None = None,
    axes: Axes | None = None,
) -> Iterator[Spent]:
    """What a sampler suggests, one whole run after the other, then the rest; `seen` is filled with the losses."""
    study = optuna.create_study(sampler=sampler)
    seen, axes = {} if seen is None else seen, axes or plain_axes(replay)
    repeated = 0
    while not replay.is_exhausted and repeated < PATIENCE:
        trial = quiet_ask(study)
        cell = axes.suggest(trial)
        repeated = repeated + 1 if cell in seen else 0
        seen[cell] = replay.answer(Question(cell, replay.budget))
        study.tell(trial, told_loss(seen[cell], seen))
        if not repeated:
            yield Spent(replay.spent, best_of(seen))
    yield Spent(replay.spent, best_of(seen), is_done=True)
    for cell in shuffled(np.arange(replay.num_cells), rng):
        if cell not in seen:
            seen[cell] = replay.answer(Question(cell, replay.budget))
            yield Spent(replay.spent, best_of(seen), is_done=True)


def told_loss(loss: float, seen: dict[int, float]) -> float:
    """The loss, or for a run that diverged the highest seen."""
    finite = [other for other in seen.values() if np.isfinite(other)]
    return loss if np.isfinite(loss) else max(finite, default=UNKNOWN_LOSS)


def quiet_ask(study: optuna.Study) -> optuna.Trial:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return study.ask()


def lowest_fitted(replay: Replay, seen: dict[int, float]) -> int | None:
    cells = np.array(list(seen))
    try:
        surface = fit_surface(replay.log2_lr[cells], replay.log2_wd[cells], list(seen.values()), intervals=False)
    except InputError:  # too few cells
        return best_of(seen)
    inside = np.flatnonzero(surface.contains(replay.log2_lr, replay.log2_wd))
    if not len(inside):
        return best_of(seen)
    return int(inside[np.argmin(surface.loss_at(replay.log2_lr[inside], replay.log2_wd[inside]))])


def usual_row(replay: Replay) -> np.ndarray:
    nearest = replay.log2_wd[np.argmin(np.abs(replay.log2_wd - np.log2(USUAL_WEIGHT_DECAY)))]
    return np.flatnonzero(np.isclose(replay.log2_wd, nearest))


def shuffled(cells: np.ndarray, rng: np.random.Generator) -> list[int]:
    return [int(cell) for cell in rng.permutation(cells)]


def tpe_sampler(rng: np.random.Generator) -> BaseSampler:
    return _quietly(TPESampler, multivariate=True, seed=seed_from(rng))


def _gp_sampler(rng: np.random.Generator) -> BaseSampler:
    return _quietly(GPSampler, seed=seed_from(rng))


def _sobol_sampler(rng: np.random.Generator) -> BaseSampler:
    return _quietly(QMCSampler, scramble=True, seed=seed_from(rng))


def _quietly(make: Callable[..., BaseSampler], **options: object) -> BaseSampler:
    """A sampler, without the warning that it is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return make(**options)


def seed_from(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))
