"""A process that trains one segment after the other: jobs come in on stdin, outcomes go out on stdout, as JSON lines.

It stops, with its state saved, when its stdin ends: so no worker outlives its driver.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import IO, Any


def main() -> None:
    answers = _take_stdout()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which asks us to stop
    jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
    driver_is_gone = threading.Event()
    threading.Thread(target=_listen, args=(jobs, driver_is_gone), daemon=True).start()

    from isotune.sweep.training import Job, Workbench  # after stdout is ours: imports may print

    workbench = Workbench()
    _say(answers, {"ready": True})
    while (value := jobs.get()) is not None:
        outcome = workbench.train(Job.from_json(value), driver_is_gone.is_set)
        _say(answers, outcome.to_json())


def _take_stdout() -> IO[str]:
    """The real stdout for our answers; whatever else prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _listen(jobs: queue.Queue[dict[str, Any] | None], driver_is_gone: threading.Event) -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    driver_is_gone.set()
    jobs.put(None)


def _say(answers: IO[str], value: dict[str, Any]) -> None:
    try:
        print(json.dumps(value), file=answers, flush=True)
    except BrokenPipeError:  # the driver died
        os._exit(0)


if __name__ == "__main__":
    main()
