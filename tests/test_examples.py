"""Every example runs, and the three noise examples find the same numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def returned_by(name):
    """What an example's main() returns, from a process of its own: the libraries' import warnings are not ours."""
    code = f"import json, {name}; print('RESULT', json.dumps({name}.main()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("RESULT ")[1])


@pytest.fixture(scope="module")
def plain_loop():
    readings = returned_by("noise_plain_loop")
    assert len(readings) == 4
    return readings


@pytest.mark.parametrize("name", ["noise_transformers", "noise_lightning"])
def test_callbacks_find_the_plain_loops_numbers(name, plain_loop):
    readings = returned_by(name)
    assert len(readings) == len(plain_loop)
    for found, expected in zip(readings, plain_loop, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_trainers_own_clipping_is_refused():
    code = """
import noise_transformers as example
from transformers import TrainingArguments
class Clipping(TrainingArguments):
    def __init__(self, **arguments):
        super().__init__(**arguments | {"max_grad_norm": 1.0})
example.TrainingArguments = Clipping
example.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True)
    assert done.returncode != 0
    assert "NoiseCallback(clip_norm=1.0)" in done.stderr
