"""The loop of a sweep: claim what is missing, hand it to an executor, settle what comes back."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from isotune.errors import InputError
from isotune.runs import Study
from isotune.runs.curve import last_tokens
from isotune.sweep.claims import Claim, Claims
from isotune.sweep.executors import Executor
from isotune.sweep.outcomes import SETTLED, WASTED, WORTH_RETRYING, Outcome
from isotune.sweep.plan import Plan, Task
from isotune.sweep.training import Job, is_there
from isotune.train import Execution

State = Literal["done", "diverged", "failed", "blocked", "running", "elsewhere", "waiting"]
SECONDS_BETWEEN_ROUNDS = 1.0  # at most: an outcome begins one at once
RATE_WINDOW_SECONDS = 120.0


@dataclass(frozen=True)
class Limits:
    """When a driver loses patience."""

    retries: int = 2  # of a segment whose process died
    hang_seconds: float = 600.0  # without a new row
    patience_seconds: float = 10.0  # for a process that should let go of an attempt
    save_seconds: float = 60.0


@dataclass(frozen=True)
class Progress:
    """A sweep at one moment, whoever works on it."""

    states: dict[State, int]
    tokens_done: int  # of `tokens_total`, the running segments' so far included
    tokens_total: int
    tokens_per_second: float  # 0 while nothing is known
    running: tuple[tuple[str, float], ...]  # in words, and its share done

    @property
    def seconds_left(self) -> float | None:
        left = self.tokens_total - self.tokens_done
        return left / self.tokens_per_second if self.tokens_per_second > 0 else None


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended for this driver."""

    states: dict[State, int]
    problems: tuple[tuple[str, str], ...]  # (segment in words, reason): failed segments, damaged ones
    trained_tokens: int
    repeated_tokens: int  # of these, lost by kills after the last state
    wasted_tokens: int  # trained here, but another driver published first
    seconds: float
    driver_seconds: float  # of the driver's own work
    stopped: str = ""  # why it ended before everything was settled

    @property
    def is_complete(self) -> bool:
        return not self.stopped and not any(self.states.get(name, 0) for name in ("failed", "blocked", "waiting"))


@dataclass
class _Running:
    task: Task
    claim: Claim
    rows_at: float  # when the last new row was seen
    tokens: int
    was_killed: bool = False
    is_redundant: bool = False  # another driver has taken it over, or published it


@dataclass
class _Totals:
    trained: int = 0
    repeated: int = 0
    wasted: int = 0
    failures: Counter[int] = field(default_factory=Counter)


class Driver:
    """Works on a plan until everything is settled: trained here or elsewhere, diverged, or failed."""

    def __init__(
        self,
        study: Study,
        plan: Plan,
        executor: Executor,
        claims: Claims,
        execution: Execution,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.study, self.plan, self.executor, self.claims = study, plan, executor, claims
        self.execution, self.limits, self.clock = execution, limits, clock
        self._states: dict[int, State] = {id(task): _initial_state(task) for task in plan.tasks}
        self._reasons = {id(task): task.reason for task in plan.tasks if task.reason}
        self._open = plan.missing
        self._running: dict[str, _Running] = {}
        self._totals = _Totals()
        self._journal = study.folder / "drivers" / f"{claims.driver}.jsonl"
        self._rates: list[tuple[float, int]] = []

    def run(
        self,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> SweepResult:
        """Goes on until all is settled, or it is asked to stop."""
        began, worked = self.clock(), time.process_time()
        stopped = ""
        while self._open or self._running:
            stopped = "it was asked to stop" if should_stop() else self.executor.problem()
            if stopped:
                break
            self.claims.beat()
            self._settle_others()
            self._begin_what_can()
            self._watch()
            on_progress(self.progress())
            for key, outcome in self.executor.poll(SECONDS_BETWEEN_ROUNDS):
                self._settle(self._running.pop(key), outcome)
        if stopped:
            self._stop_running()
        on_progress(self.progress())
        return SweepResult(
            states=self._count(),
            problems=self._problems(),
            trained_tokens=self._totals.trained,
            repeated_tokens=self._totals.repeated,
            wasted_tokens=self._totals.wasted,
            seconds=self.clock() - began,
            driver_seconds=time.process_time() - worked,
            stopped=stopped,
        )

    def progress(self) -> Progress:
        """Where the sweep stands."""
        total = done = 0
        for task in self.plan.tasks:
            total += task.tokens
            done += task.tokens if self._states[id(task)] in ("done", "diverged") else 0
        running = []
        for task in self._open:
            if self._states[id(task)] in ("running", "elsewhere") and task.segment is not None:
                progressed = max(0, self._tokens_on_disk(task) - task.segment.start_tokens)
                done += progressed
                running.append((task.node.words(), progressed / task.segment.tokens))
        return Progress(self._count(), done, total, self._rate(done), tuple(running))

    # Beginning

    def _begin_what_can(self) -> None:
        num_free = self.executor.num_free()
        for task in self._open:
            if num_free == 0:
                return
            if self._can_begin(task) and self._begin(task):
                num_free -= 1

    def _can_begin(self, task: Task) -> bool:
        waits = task.parent is not None and self._states[id(task.parent)] != "done"
        return self._states[id(task)] in ("waiting", "elsewhere") and not waits

    def _begin(self, task: Task) -> bool:
        assert task.segment is not None
        claim = self.claims.take(task.segment.id)
        if claim is None:
            self._states[id(task)] = "elsewhere"
            return False
        if is_there(self.study, task.segment, task.is_repeated):  # published between our last look and our claim
            self.claims.release(claim)
            return False
        job = Job(
            study_folder=str(self.study.folder.absolute()),
            segment=task.segment,
            execution=self.execution,
            stop_file=str(claim.stop_file.absolute()),
            is_repeated=task.is_repeated,
            save_seconds=self.limits.save_seconds,
            patience_seconds=self.limits.patience_seconds,
        )
        self.executor.submit(task.segment.id, job)
        self._states[id(task)] = "running"
        self._running[task.segment.id] = _Running(task, claim, self.clock(), -1)
        return True

    # Watching

    def _watch(self) -> None:
        """Stops what another driver has taken over, kills what hangs."""
        for key, running in self._running.items():
            segment = running.task.segment
            assert segment is not None
            if self.claims.is_taken_over(running.claim) or is_there(self.study, segment, running.task.is_repeated):
                running.is_redundant = True
                running.claim.stop_file.touch()
            tokens = self._tokens_on_disk(running.task)
            if tokens != running.tokens:
                running.tokens, running.rows_at = tokens, self.clock()
            elif self.clock() - running.rows_at > self.limits.hang_seconds and not running.was_killed:
                running.was_killed = True
                self.executor.kill(key)

    def _tokens_on_disk(self, task: Task) -> int:
        """How far the furthest attempt at a segment has come."""
        assert task.segment is not None
        folders = self.study.interrupted(task.segment)
        return max((last_tokens(folder / "curve.jsonl") for folder in folders), default=-1)

    def _stop_running(self) -> None:
        for running in self._running.values():
            running.claim.stop_file.touch()
        give_up_at = self.clock() + self.limits.save_seconds
        while self._running and self.clock() < give_up_at and not self.executor.problem():
            for key, outcome in self.executor.poll(SECONDS_BETWEEN_ROUNDS):
                self._settle(self._running.pop(key), outcome)
        for running in self._running.values():  # claims stay ours until the executor is closed
            self._states[id(running.task)] = "waiting"

    # Settling

    def _settle(self, running: _Running, outcome: Outcome) -> None:
        task = running.task
        if running.was_killed and outcome.kind == "crashed":
            seconds = self.limits.hang_seconds
            outcome = Outcome("hung", f"it wrote no row for {seconds:g} seconds and was killed: see --hang-seconds")
        if running.is_redundant and outcome.kind == "stopped":
            outcome = dataclasses.replace(outcome, kind="given_up", reason="another driver took it over")
        self._totals.wasted += outcome.trained_tokens if outcome.kind in WASTED else 0
        self.claims.release(running.claim)
        self._note(task, outcome)
        self._totals.trained += outcome.trained_tokens
        self._totals.repeated += outcome.repeated_tokens
        if outcome.kind in SETTLED:
            self._take_over_published(task)
        elif outcome.kind in ("stopped", "given_up") or self._may_retry(task, outcome):
            self._states[id(task)] = "waiting"
        else:
            self._finish(task, "failed", outcome.reason)

    def _may_retry(self, task: Task, outcome: Outcome) -> bool:
        if outcome.kind not in WORTH_RETRYING:
            return False
        self._totals.failures[id(task)] += 1
        return self._totals.failures[id(task)] <= self.limits.retries

    def _settle_others(self) -> None:
        """Takes note of what other drivers have published."""
        for task in list(self._open):
            assert task.segment is not None
            if task.segment.id not in self._running and is_there(self.study, task.segment, task.is_repeated):
                self._take_over_published(task)

    def _take_over_published(self, task: Task) -> None:
        assert task.segment is not None
        try:
            record = self.study.read_record(self.study.folder / "segments" / task.segment.id)
        except InputError as error:  # published, and damaged since
            self._finish(task, "failed", str(error))
            return
        self._finish(task, "diverged" if record.status == "diverged" else "done")

    def _finish(self, task: Task, state: State, reason: str = "") -> None:
        """Settles a task, and with it those that can no longer begin."""
        self._states[id(task)] = state
        if reason:
            self._reasons[id(task)] = reason
        self._open.remove(task)
        if state == "done":
            return
        for other in list(self._open):
            if other.parent is task:
                self._finish(other, "diverged" if state == "diverged" else "blocked")

    def _note(self, task: Task, outcome: Outcome) -> None:
        assert task.segment is not None
        note = {"segment": task.segment.id, "what": task.node.words(), "time": round(time.time(), 3)}
        with open(self._journal, "a") as file:
            file.write(json.dumps(note | outcome.to_json()) + "\n")

    # Counting

    def _count(self) -> dict[State, int]:
        return dict(Counter(self._states.values()))

    def _problems(self) -> tuple[tuple[str, str], ...]:
        bad = [task for task in self.plan.tasks if self._states[id(task)] == "failed"]
        return tuple((task.node.words(), self._reasons.get(id(task), "")) for task in bad)

    def _rate(self, done: int) -> float:
        """Tokens per second over the last two minutes."""
        now = self.clock()
        self._rates.append((now, done))
        self._rates = [(at, tokens) for at, tokens in self._rates if now - at <= RATE_WINDOW_SECONDS]
        first_at, first = self._rates[0]
        return (done - first) / (now - first_at) if now > first_at else 0.0


def _initial_state(task: Task) -> State:
    if task.status == "damaged":
        return "failed"
    return {"there": "done", "missing": "waiting", "diverged": "diverged"}[task.status]  # type: ignore[return-value]
