"""Trains in forks of a process that has imported torch already, and kills them: importing takes longer than training.

A request is a line of JSON on standard input, the answer a line on standard output: {"status": ..., "events": ...}.
`kill_at_line` dies at the Nth line that isotune executes in the functions that put things on disk.
`ranks` processes train one run together, `rivals` train the same recipe each for itself; the status is the worst one's.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FILES = ("runs/files.py", "runs/study.py", "train/attempt.py", "train/hold.py", "train/state.py", "train/loop.py")
# They run at every row or only read, so that few of their lines would be worth a kill.
LEFT_OUT = ("add", "collect", "write", "is_due", "wants_rows", "has_diverged", "usable_end", "path", "_of_seed", "id")


class Forks:
    """A server of forks."""

    def __init__(self):
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def train(self, recipe, study, evaluation, **options):
        """The exit status (negative: killed) and how many lines were passed."""
        import dataclasses

        from isotune.recipe import recipe_to_table

        request = {"recipe": recipe_to_table(recipe), "study": str(study), "save_seconds": 0.0}
        request |= {"evaluation": dataclasses.asdict(evaluation)} | options
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def serve():
    import torch

    import isotune.train  # noqa: F401 (before forking)

    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True).zero_grad()  # what torch imports lazily
    for line in sys.stdin:
        request = json.loads(line)
        reading, writing = os.pipe()
        num_ranks = request.get("ranks", 1)
        port = _free_port() if num_ranks > 1 else 0
        children = []
        for number in range(max(num_ranks, request.get("rivals", 1))):
            child = os.fork()
            if child == 0:
                os.close(reading)
                if num_ranks > 1:
                    place = {"RANK": number, "WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                    os.environ.update({name: str(value) for name, value in place.items()})
                _train(request if number == 0 else request | {"kill_at_line": None}, writing if number == 0 else None)
            children.append(child)
        os.close(writing)
        if "kill_after_seconds" in request:
            time.sleep(request["kill_after_seconds"])
            os.kill(children[0], signal.SIGKILL)
        with os.fdopen(reading) as pipe:
            events = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])
        for child in children[1:]:
            if status and num_ranks > 1:  # as torchrun does when a rank dies
                os.kill(child, signal.SIGKILL)
            status = status or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"status": status, "events": json.loads(events or "[]")}), flush=True)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _train(request, writing):
    import resource

    from isotune.recipe import recipe_from_table
    from isotune.runs import Evaluation
    from isotune.train import train

    events = []
    kill_at_line = request.get("kill_at_line")

    def trace(frame, event, argument):
        code = frame.f_code
        if not code.co_filename.endswith(FILES) or code.co_name in LEFT_OUT or code.co_name.startswith("<"):
            return None
        if event == "line":
            events.append(f"{code.co_name}:{frame.f_lineno}")
            if len(events) == kill_at_line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    if kill_at_line is not None:
        sys.settrace(trace)
    if "largest_file_bytes" in request:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file_bytes"], resource.RLIM_INFINITY))
    status = 1
    try:
        recipe = recipe_from_table(request["recipe"], "the recipe")
        evaluation = Evaluation(**request["evaluation"])
        train(recipe, request["study"], evaluation=evaluation, save_seconds=request["save_seconds"])
        status = 0
    except OSError:
        status = 28
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.settrace(None)
        if status == 0 and writing is not None:
            os.write(writing, json.dumps(events[:60_000]).encode())
        os._exit(status)


if __name__ == "__main__":
    serve()
