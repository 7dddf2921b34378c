"""The live line on a real terminal, and the pieces of text."""

import numpy as np
import pytest
from made import made_info

from isotune.cli.terminal import draw_curve, format_seconds
from isotune.runs import Trajectory


def test_a_terminal_sees_loss_speed_and_remaining_time(isotune_on_terminal, tiny_recipe):
    text = isotune_on_terminal("train", tiny_recipe, "--tokens", "64K", "--study", "study")
    for word in ("loss", "tokens/s", "left", "of 64K tokens"):
        assert word in text


def test_a_curve_is_drawn_within_its_width():
    tokens = np.arange(0, 10_000, 10)
    columns = {"tokens": tokens, "train_loss": 5 * np.exp(-tokens / 3000), "val_loss": np.full(len(tokens), np.nan)}
    columns["val_loss"][::100] = columns["train_loss"][::100]
    lines = draw_curve(Trajectory(columns, made_info()), width=60).splitlines()
    assert 10 < len(lines) < 25
    assert "●" in "".join(lines)


def test_nothing_is_drawn_of_nothing():
    assert draw_curve(Trajectory({"tokens": np.zeros(0, dtype=int)}, made_info())) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99, "99 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (12 * 86400, "12 days")],
)
def test_durations_are_written_for_people(seconds, text):
    assert format_seconds(seconds) == text
