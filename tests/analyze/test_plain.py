"""Findings as plain data: JSON that any reader takes."""

import json
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from synthetic import grid, sweep

from isotune.analyze.diagnosis import diagnose
from isotune.analyze.plain import plain


@dataclass(frozen=True)
class Finding:
    value: float
    curve: np.ndarray = field(repr=False)
    names: tuple[str, ...] = ("a", "b")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Finding(math.nan, np.zeros(3)), {"value": None, "names": ["a", "b"]}),
        (np.array([1.0, math.inf]), [1.0, None]),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        ({1.5: (None, "x")}, {"1.5": [None, "x"]}),
        (Finding, str(Finding)),
    ],
)
def test_values_become_what_json_has(value, expected):
    assert plain(value) == expected


def test_a_whole_diagnosis_survives_a_strict_json_parser():
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    runs = sweep(np.random.default_rng(0), *grid(np.array([-9.0, -8.0]), np.array([-4.0, -3.0])))
    text = json.dumps(plain(diagnose(runs)), allow_nan=False)
    (read,) = json.loads(text, parse_constant=refuse)
    assert read["invariant"] == "undecided"
    assert "4 cells" in read["reason"]
    assert "curves" not in read["family"]
