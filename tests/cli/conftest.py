"""The command line as a user runs it: a process of its own, forked from one that has imported torch already."""

import contextlib
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

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
def isotune(commands, tmp_path):
    """Runs a command in an empty folder; returns what it printed and its exit code."""

    def run(*arguments, **options):
        return commands.run(*arguments, folder=tmp_path, **options)

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


@pytest.fixture(scope="session")
def trained_once(commands, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.toml").write_text(TINY_RECIPE)
    options = ["--study", "study", "--eval-every", "3200", "--eval-windows", 16, "--quiet"]
    done = commands.run("train", "tiny.toml", *options, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "study"


@pytest.fixture
def trained(trained_once, tiny_recipe, tmp_path):
    """A study with one finished run."""
    return Path(shutil.copytree(trained_once, tmp_path / "study"))
