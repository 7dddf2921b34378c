"""Runs `isotune` in forks of a process that has imported everything: importing torch takes longer than most commands.

A request is a line of JSON on standard input, the answer a line on standard output: the exit code, negative if killed.
"""

import atexit
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path


class Commands:
    """A server of forks; each command is a process of its own."""

    def __init__(self):
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *arguments, folder=".", environment=None, largest_file_bytes=None):
        """As subprocess.run of `python -m isotune`: what it printed, and its exit code."""
        with tempfile.TemporaryDirectory() as outputs:
            stdout, stderr = Path(outputs, "stdout"), Path(outputs, "stderr")
            request = {
                "arguments": [str(argument) for argument in arguments],
                "folder": str(Path(folder).absolute()),
                "environment": dict(os.environ) | (environment or {}),
                "largest_file_bytes": largest_file_bytes,
                "outputs": [str(stdout), str(stderr)],
            }
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            return subprocess.CompletedProcess(arguments, code, stdout.read_text(), stderr.read_text())

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def serve():
    import pandas  # noqa: F401 (what commands import when they need it: once for all, before forking)
    import torch

    import isotune.cli
    import isotune.sweep
    import isotune.train

    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True).zero_grad()  # what torch imports lazily
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(json.loads(line))
            exit_as(isotune.cli.main)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(request):
    """The process that was asked for, with its folder, variables, outputs and limits."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["isotune", *request["arguments"]]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(request["outputs"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    if (limit := request["largest_file_bytes"]) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def exit_as(main):
    """Ends the process as main() does; without taking torch down piece by piece, which takes a second."""
    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
