"""A process that trains one segment after the other: jobs come in on stdin, outcomes go out on stdout, as JSON lines.

It stops, with its state saved, when its stdin ends, so that no worker outlives its driver, and when it gets SIGTERM,
which a scheduler sends to all processes of a job.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO, Any


def main() -> None:
    answers = _take_stdout()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which asks us to stop
    jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
    must_stop = threading.Event()

    def stop(*_: object) -> None:
        must_stop.set()
        jobs.put(None)

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=_listen, args=(jobs, stop), daemon=True).start()

    from isotune.sweep.training import Job, Workbench  # after stdout is ours: imports may print

    workbench = Workbench()
    _say(answers, {"ready": True})
    while (value := jobs.get()) is not None:
        outcome = workbench.train(Job.from_json(value), must_stop.is_set)
        _say(answers, outcome.to_json())


def _take_stdout() -> IO[str]:
    """The real stdout for our answers; whatever else prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _listen(jobs: queue.Queue[dict[str, Any] | None], stop: Callable[[], None]) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    stop()


def _say(answers: IO[str], value: dict[str, Any]) -> None:
    try:
        print(json.dumps(value), file=answers, flush=True)
    except BrokenPipeError:  # the driver died
        os._exit(0)


if __name__ == "__main__":
    main()
