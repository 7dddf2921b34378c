"""The live line on a real terminal, and the pieces of text."""

import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from isotune.cli.terminal import draw_curve, format_seconds
from isotune.runs import RunInfo, Trajectory

INFO = RunInfo(
    learning_rate=0.001,
    weight_decay=0.1,
    batch_size=4,
    sequence_length=64,
    weight_decay_convention="coupled",
    schedule="",
    seed=0,
    status="finished",
    source="",
)


def test_a_terminal_sees_loss_speed_and_remaining_time(tiny_recipe, tmp_path):
    terminal, child = pty.openpty()
    command = [sys.executable, "-m", "isotune", "train", str(tiny_recipe), "--tokens", "64K", "--study", "study"]
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=child, stderr=child, env=environment)
    os.close(child)
    seen = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    assert process.wait() == 0, seen.decode()
    text = seen.decode()
    for word in ("loss", "tokens/s", "left", "of 64K tokens"):
        assert word in text


def test_a_curve_is_drawn_within_its_width():
    tokens = np.arange(0, 10_000, 10)
    columns = {"tokens": tokens, "train_loss": 5 * np.exp(-tokens / 3000), "val_loss": np.full(len(tokens), np.nan)}
    columns["val_loss"][::100] = columns["train_loss"][::100]
    lines = draw_curve(Trajectory(columns, INFO), width=60).splitlines()
    assert 10 < len(lines) < 25
    assert "●" in "".join(lines)


def test_nothing_is_drawn_of_nothing():
    assert draw_curve(Trajectory({"tokens": np.zeros(0, dtype=int)}, INFO)) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99, "99 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (12 * 86400, "12 days")],
)
def test_durations_are_written_for_people(seconds, text):
    assert format_seconds(seconds) == text
