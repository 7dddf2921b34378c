"""What others would do who stop early: Hyperband, ASHA, BOHB. Rungs are the table's budgets up to the target.

A rung is read as the trunk's loss at constant LR there (`..._decayed`: as the loss after a decay that ends there, which
costs the decay's tokens); the last rung is always a decay to the target budget. Trunks go on from their checkpoints.
The best at the highest rung that any cell has reached is recommended. Where nothing is left to promote, or `PATIENCE`
trials in a row trained nothing new, the tuner counts as done; its path goes on with the cells that it knows best, so
that none fails for having stopped early.

`asha` is the promotion rule of Li et al. (arXiv 1810.05934), pausing and resuming, one worker; `bohb` is the same with
Syne Tune's density estimator as its searcher. Syne Tune's own schedulers only stop (its promotion type is gone since
0.14): they are driven here by suggest and on_trial_result, without a backend.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import optuna
from baselines import PATIENCE, plain_axes, quiet_ask, seed_from, told_loss, tpe_sampler
from optuna.pruners import HyperbandPruner
from replay import Question, Replay, Spent, best_of

REDUCTION = 2  # the budgets are octaves apart


@dataclass
class Rungs:
    """What is known of the cells at each rung, and questions about them."""

    replay: Replay
    decayed: bool
    losses: list[dict[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.losses = [{} for _ in self.replay.budgets]

    @property
    def top(self) -> int:
        return len(self.replay.budgets) - 1

    def read(self, cell: int, rung: int) -> float:
        """The cell's loss at a rung, as its users would tell it; trained if it was not."""
        is_decay = self.decayed or rung == self.top
        loss = self.replay.answer(Question(cell, self.replay.budgets[rung], is_decay))
        self.losses[rung][cell] = loss
        return told_loss(loss, self.losses[rung])

    def spent(self, is_done: bool = False) -> Spent:
        """Where the path stands: the best at the highest rung that has one."""
        best = [cell for losses in self.losses if (cell := best_of(losses)) is not None]
        return Spent(self.replay.spent, best[-1] if best else None, is_done)

    def rest(self, rng: np.random.Generator) -> Iterator[Spent]:
        """Done; then whole runs in all other cells: those of the highest rungs first, the best of a rung first."""
        yield self.spent(is_done=True)
        unseen = [int(cell) for cell in rng.permutation(self.replay.num_cells)]
        known = [sorted(losses, key=lambda cell: (np.isnan(losses[cell]), losses[cell])) for losses in self.losses]
        for cell in dict.fromkeys([cell for cells in reversed(known[:-1]) for cell in cells] + unseen):
            if cell not in self.losses[self.top] and not self.replay.is_exhausted:
                self.read(cell, self.top)
                yield self.spent(is_done=True)


# TPE + Hyperband


def tpe_hyperband(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Optuna's TPE and Hyperband on losses at constant LR."""
    yield from _hyperband(replay, rng, decayed=False)


def tpe_hyperband_decayed(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Optuna's TPE and Hyperband on decayed losses."""
    yield from _hyperband(replay, rng, decayed=True)


def _hyperband(replay: Replay, rng: np.random.Generator, *, decayed: bool) -> Iterator[Spent]:
    resources = [round(budget / replay.budgets[0]) for budget in replay.budgets]
    pruner = HyperbandPruner(min_resource=1, max_resource=resources[-1], reduction_factor=REDUCTION)
    # Optuna deals trials to brackets by the study's name.
    study = optuna.create_study(sampler=tpe_sampler(rng), pruner=pruner, study_name=str(seed_from(rng)))
    rungs, axes, repeated = Rungs(replay, decayed), plain_axes(replay), 0
    while not replay.is_exhausted and repeated < PATIENCE:
        before = replay.spent
        trial = quiet_ask(study)
        cell = axes.suggest(trial)
        for rung, resource in enumerate(resources):
            loss = rungs.read(cell, rung)
            yield rungs.spent()
            trial.report(loss, resource)
            if rung < rungs.top and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, loss)
        repeated = repeated + 1 if replay.spent == before else 0
    yield from rungs.rest(rng)


# ASHA and BOHB, promotion


def asha(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """ASHA by its paper on losses at constant LR, random cells."""
    yield from _promotion(replay, rng, _random_search(replay, rng), decayed=False)


def asha_decayed(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """ASHA by its paper on decayed losses, random cells."""
    yield from _promotion(replay, rng, _random_search(replay, rng), decayed=True)


def bohb(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """ASHA by its paper on losses at constant LR, cells from Syne Tune's density estimator."""
    yield from _promotion(replay, rng, _density_search(replay, rng), decayed=False)


def bohb_decayed(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """ASHA by its paper on decayed losses, cells from Syne Tune's density estimator."""
    yield from _promotion(replay, rng, _density_search(replay, rng), decayed=True)


@dataclass(frozen=True)
class Search:
    """Where new cells come from (None: there are no more), and who is told of losses."""

    suggest: Callable[[], int | None]
    tell: Callable[[int, int, float], None]  # cell, rung, loss


def _promotion(replay: Replay, rng: np.random.Generator, search: Search, *, decayed: bool) -> Iterator[Spent]:
    rungs, repeated = Rungs(replay, decayed), 0
    promoted: list[set[int]] = [set() for _ in replay.budgets]
    while not replay.is_exhausted and repeated < PATIENCE:
        cell, rung = _next_job(rungs.losses, promoted) or (search.suggest(), 0)
        if cell is None:
            break
        if cell in rungs.losses[rung]:
            repeated += 1
            continue
        repeated = 0
        search.tell(cell, rung, rungs.read(cell, rung))
        yield rungs.spent()
    yield from rungs.rest(rng)


def _next_job(losses: list[dict[int, float]], promoted: list[set[int]]) -> tuple[int, int] | None:
    """The best cell among the first 1/REDUCTION of a rung that was not promoted yet, highest rungs first."""
    for rung in reversed(range(len(losses) - 1)):
        ranked = sorted((loss, cell) for cell, loss in losses[rung].items() if np.isfinite(loss))
        for _, cell in ranked[: len(losses[rung]) // REDUCTION]:
            if cell not in promoted[rung]:
                promoted[rung].add(cell)
                return cell, rung + 1
    return None


def _random_search(replay: Replay, rng: np.random.Generator) -> Search:
    cells = iter([int(cell) for cell in rng.permutation(replay.num_cells)])
    return Search(lambda: next(cells, None), lambda cell, rung, loss: None)


def _density_search(replay: Replay, rng: np.random.Generator) -> Search:
    from syne_tune.optimizer.schedulers.searchers.last_value_multi_fidelity_searcher import (
        LastValueMultiFidelitySearcher,
    )

    axes = plain_axes(replay)
    searcher = LastValueMultiFidelitySearcher(_config_space(replay), random_seed=_seed_all(rng), searcher="kde")
    points: dict[int, dict[str, float]] = {}  # what stands for a cell: the first suggestion that led there

    def suggest() -> int:
        point = _quiet(searcher.suggest)
        cell = axes.to_cell(point)
        points.setdefault(cell, point)
        return cell

    def tell(cell: int, rung: int, loss: float) -> None:
        searcher.on_trial_result(cell, points[cell], loss, resource_level=rung)

    return Search(suggest, tell)


# Syne Tune, stopping


def asha_syne_tune(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Syne Tune's ASHA, which stops, on losses at constant LR."""
    from syne_tune.optimizer.baselines import ASHA

    yield from _stopping(replay, rng, ASHA)


def bohb_syne_tune(replay: Replay, rng: np.random.Generator) -> Iterator[Spent]:
    """Syne Tune's BOHB, which stops, on losses at constant LR."""
    from syne_tune.optimizer.baselines import BOHB

    yield from _stopping(replay, rng, BOHB)


def _stopping(replay: Replay, rng: np.random.Generator, make: Callable[..., Any]) -> Iterator[Spent]:
    from syne_tune.backend.trial_status import Trial
    from syne_tune.optimizer.scheduler import SchedulerDecision

    resources = [round(budget / replay.budgets[0]) for budget in replay.budgets]
    scheduler = make(
        _config_space(replay),
        metric="loss",
        time_attr="resource",
        max_t=resources[-1],
        grace_period=1,
        reduction_factor=REDUCTION,
        random_seed=_seed_all(rng),
    )
    rungs, axes, repeated, number = Rungs(replay, decayed=False), plain_axes(replay), 0, 0
    while not replay.is_exhausted and repeated < PATIENCE:
        before = replay.spent
        trial = Trial(number, _quiet(scheduler.suggest).config, datetime(2025, 1, 1, tzinfo=UTC))
        number += 1
        scheduler.on_trial_add(trial)
        cell = axes.to_cell(trial.config)
        for rung, resource in enumerate(resources):
            loss = rungs.read(cell, rung)
            yield rungs.spent()
            decision = scheduler.on_trial_result(trial, {"loss": loss, "resource": resource})
            if decision == SchedulerDecision.STOP:
                break
        repeated = repeated + 1 if replay.spent == before else 0
    yield from rungs.rest(rng)


def _config_space(replay: Replay) -> dict[str, Any]:
    from syne_tune.config_space import uniform

    return {name: uniform(*ends) for name, ends in plain_axes(replay).ranges.items()}


def _seed_all(rng: np.random.Generator) -> int:
    """A seed, also for numpy's global generator, from which Syne Tune draws some of its points."""
    logging.getLogger("syne_tune").setLevel(logging.ERROR)
    seed = seed_from(rng)
    np.random.seed(seed)
    return seed


def _quiet(suggest: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return suggest()
