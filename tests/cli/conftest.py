"""The command line as a user runs it: a process of its own."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest

TINY_RECIPE = """
sequence_length = 16
corpus = "python-sources"
[model]
width = 16
num_layers = 1
num_heads = 2
ffn_width = 32
vocabulary_size = 256
[schedule]
kind = "wsd"
tokens = "12800"
learning_rate = "2^-8"
weight_decay = 0.1
batch_size = 4
warmup_tokens = "1280"
decay_tokens = "2560"
"""


@pytest.fixture
def isotune(tmp_path):
    """Runs a command in an empty folder; returns what it printed and its exit code."""

    def run(*arguments, environment=None, preexec_fn=None):
        return subprocess.run(
            [sys.executable, "-m", "isotune", *map(str, arguments)],
            cwd=tmp_path,
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            preexec_fn=preexec_fn,
        )

    return run


@pytest.fixture
def isotune_on_terminal(tmp_path):
    """Runs a command that shall succeed on a terminal of 120 columns with all colours; returns what it showed."""

    def run(*arguments):
        terminal, child = pty.openpty()
        environment = os.environ | {"COLUMNS": "120", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        command = [sys.executable, "-m", "isotune", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=child, stderr=child, env=environment)
        os.close(child)
        seen = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(terminal, 4096):
                seen += piece
        os.close(terminal)
        assert process.wait() == 0, seen.decode()
        return seen.decode()

    return run


@pytest.fixture
def tiny_recipe(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_RECIPE)
    return path


@pytest.fixture
def trained(isotune, tiny_recipe, tmp_path):
    """A study with one finished run."""
    done = isotune("train", tiny_recipe, "--study", "study", "--eval-every", "3200", "--eval-windows", 16, "--quiet")
    assert done.returncode == 0, done.stderr
    return tmp_path / "study"
