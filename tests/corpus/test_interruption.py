"""Preparations killed with SIGKILL, in processes of their own, end with the bytes of one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isotune.corpus import prepare

SOURCE = Path(__file__).parents[2] / "src"

# Checkpoints are close together here, so that a small input has many; "fsync:7" dies at the seventh fsync.
SCRIPT = """
import os, signal, sys
from isotune.corpus import prepare, preparation
preparation.CHECKPOINT_CHARACTERS = 150_000
inputs, out, die_at = sys.argv[1], sys.argv[2], sys.argv[3]
name, _, count = die_at.partition(":")
if count:
    original, calls = getattr(os, name), [0]
    def dying(*args):
        calls[0] += 1
        if calls[0] == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)
    setattr(os, name, dying)
print("started", flush=True)
prepare([inputs], out, shard_tokens=120_000, validation_share=0.1)
"""


def start(inputs, out, die_at=""):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, inputs, out, die_at],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("interrupted") / "data"
    folder.mkdir()
    vocabulary = [f"word{i}" for i in range(5000)] + ["\n"] * 500
    text = " ".join(rng.choice(vocabulary) for _ in range(250_000))
    (folder / "a.txt").write_text(text[:1_000_000])
    records = [text[first : first + 20_000] for first in range(1_000_000, len(text), 20_000)]
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": record}) + "\n" for record in records))
    return folder


@pytest.fixture(scope="module")
def expected(inputs):
    repeat(inputs, inputs.parent / "straight")
    return contents(inputs.parent / "straight")


def repeat(inputs, out):
    prepare([inputs], out, shard_tokens=120_000, validation_share=0.1)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_killed_at_any_moment_and_repeated_it_ends_with_the_same_bytes(inputs, expected, tmp_path):
    rng = random.Random(0)
    kills = 0
    for seconds in [0.3, *(rng.uniform(0.1, 0.9) for _ in range(4))]:
        process = start(inputs, tmp_path / "out")
        with process:
            process.stdout.readline()
            time.sleep(seconds)
            process.kill()
            kills += process.wait() == -signal.SIGKILL
    assert kills >= 1
    repeat(inputs, tmp_path / "out")
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("die_at", ["fsync:1", "fsync:2", "fsync:9", "replace:1", "replace:3", "unlink:1"])
def test_killed_between_two_writes_and_repeated_it_ends_with_the_same_bytes(inputs, expected, tmp_path, die_at):
    with start(inputs, tmp_path / "out", die_at) as process:
        assert process.wait() == -signal.SIGKILL
    repeat(inputs, tmp_path / "out")
    assert contents(tmp_path / "out") == expected
