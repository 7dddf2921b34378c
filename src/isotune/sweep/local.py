"""Segments on this machine: persistent processes, one per core or per GPU."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from isotune.sweep.outcomes import Outcome, from_exit
from isotune.sweep.training import Job

MOST_FAILED_STARTS = 3
SECONDS_TO_SAVE = 60.0  # at the end, before a worker is killed


class LocalExecutor:
    """Workers that are started again when they die; one that cannot start three times in a row is given up."""

    def __init__(
        self,
        num_workers: int,
        log_folder: Path,
        *,
        log_name: str = "worker",
        threads: int = 1,
        gpus: Sequence[int] = (),
        command: Sequence[str] = (sys.executable, "-m", "isotune.sweep.worker"),
    ):
        self._selector = selectors.DefaultSelector()
        self._outcomes: list[tuple[str, Outcome]] = []
        self._workers = []
        for number in range(num_workers):
            environment = _environment(threads, gpus[number % len(gpus)] if gpus else None)
            log = log_folder / f"{log_name}.worker-{number}.log"
            self._workers.append(_Worker(command, environment, log, self._selector))

    def num_free(self) -> int:
        return sum(worker.is_free for worker in self._workers)

    def submit(self, key: str, job: Job) -> None:
        next(worker for worker in self._workers if worker.is_free).begin(key, job)

    def poll(self, seconds: float) -> list[tuple[str, Outcome]]:
        for worker in self._workers:
            worker.start_if_dead()
        for selected, _ in self._selector.select(seconds):
            worker = selected.data
            key, outcome = worker.key, worker.receive()
            if key is not None and outcome is not None:
                self._outcomes.append((key, outcome))
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def kill(self, key: str) -> None:
        for worker in self._workers:
            if worker.key == key:
                worker.kill()

    def problem(self) -> str:
        if all(worker.is_given_up for worker in self._workers):
            return f"no worker can start: {self._workers[0].last_words()} (see {self._workers[0].log})"
        return ""

    def close(self) -> None:
        for worker in self._workers:
            worker.dismiss()
        give_up_at = time.monotonic() + SECONDS_TO_SAVE
        for worker in self._workers:
            worker.end(max(0.0, give_up_at - time.monotonic()))
        self._selector.close()


class _Worker:
    """A slot: its process, which changes when one dies, and the job that it works on."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, selector: selectors.BaseSelector
    ):
        self.log = log
        self.key: str | None = None  # of the job that it works on
        self._command, self._environment, self._selector = command, environment, selector
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = False
        self._num_failed_starts = 0
        self.start_if_dead()

    @property
    def is_free(self) -> bool:
        return self._is_ready and self.key is None

    @property
    def is_given_up(self) -> bool:
        return self._num_failed_starts >= MOST_FAILED_STARTS

    def start_if_dead(self) -> None:
        if self._process is not None or self.is_given_up:
            return
        with open(self.log, "a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal is the driver's
            )
        self._selector.register(_stdout(self._process), selectors.EVENT_READ, self)

    def begin(self, key: str, job: Job) -> None:
        self.key = key
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # if it has just died, its end of file says so
            self._process.stdin.write(json.dumps(job.to_json()) + "\n")
            self._process.stdin.flush()

    def receive(self) -> Outcome | None:
        """What the process says: an outcome, that it is ready, or by its end that it died."""
        assert self._process is not None
        line = _stdout(self._process).readline()
        if not line.endswith("\n"):
            return self._bury()
        value = json.loads(line)
        if value.get("ready"):
            self._is_ready, self._num_failed_starts = True, 0
            return None
        self.key = None
        return Outcome(**value)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def dismiss(self) -> None:
        """Ends its stdin, which asks it to save and go."""
        if self._process is not None and self._process.stdin is not None:
            _close(self._process.stdin)
        self._num_failed_starts = MOST_FAILED_STARTS  # not to be started again

    def end(self, seconds: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def last_words(self) -> str:
        """The last line that the process wrote."""
        try:
            lines = self.log.read_bytes()[-4096:].decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _bury(self) -> Outcome | None:
        assert self._process is not None
        _close(self._process.stdin)
        return_code = self._process.wait()
        if not self._is_ready:
            self._num_failed_starts += 1
        had_job, self.key = self.key is not None, None
        self._forget()
        return from_exit(return_code, self.last_words()) if had_job else None

    def _forget(self) -> None:
        assert self._process is not None
        self._selector.unregister(_stdout(self._process))
        _close(self._process.stdin)
        _close(self._process.stdout)
        self._process, self._is_ready = None, False


def _environment(threads: int, gpu: int | None) -> dict[str, str]:
    environment = dict(os.environ)
    environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(threads)
    environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of its own would outlive a killed worker
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
    return environment


def _stdout(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _close(stream: IO[str] | None) -> None:
    with contextlib.suppress(BrokenPipeError):
        if stream is not None:
            stream.close()
