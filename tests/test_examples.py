"""Every example runs; the three noise examples find the same numbers, and the tuning ones something good."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def ran(code):
    """A process of its own: the libraries' import warnings are not ours."""
    return subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True)


def result_of(done):
    return json.loads(done.stdout.split("RESULT ")[1])


def returned_by(name, arguments=""):
    """What an example's main() returns."""
    done = ran(f"import json, pathlib, {name}; print('RESULT', json.dumps({name}.main({arguments})))")
    assert done.returncode == 0, done.stderr
    return result_of(done)


@pytest.fixture(scope="module")
def plain_loop():
    readings = returned_by("noise_plain_loop")
    assert len(readings) == 4
    return readings


@pytest.fixture(scope="module")
def with_transformers():
    """The example, and the example again with the trainer's own clipping: one process, as the import takes longest."""
    return ran("""
import json
import noise_transformers as example
from transformers import TrainingArguments
print("RESULT", json.dumps(example.main()), flush=True)
class Clipping(TrainingArguments):
    def __init__(self, **arguments):
        super().__init__(**arguments | {"max_grad_norm": 1.0})
example.TrainingArguments = Clipping
example.main()
""")


def test_the_callback_of_transformers_finds_the_plain_loops_numbers(plain_loop, with_transformers):
    assert_alike(result_of(with_transformers), plain_loop)


def test_the_callback_of_lightning_finds_the_plain_loops_numbers(plain_loop):
    assert_alike(returned_by("noise_lightning"), plain_loop)


def assert_alike(readings, plain_loop):
    for found, expected in zip(readings, plain_loop, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_trainers_own_clipping_is_refused(with_transformers):
    assert with_transformers.returncode != 0
    assert "NoiseCallback(clip_norm=1.0)" in with_transformers.stderr


def test_optuna_is_given_better_settings_than_its_first():
    found = returned_by("tune_optuna")
    assert found["num_trials"] == 10 and found["best"] < found["first"]


def test_hugging_faces_search_takes_the_sampler():
    found = returned_by("tune_transformers")
    assert math.isfinite(found["loss"])
    assert 2**-10 <= found["settings"]["learning_rate"] <= 2**-3
    assert 2**-6 <= found["settings"]["weight_decay"] <= 1


def test_a_ray_experiment_that_lies_there_is_restored_and_asks_nothing_again(tmp_path):
    first, again = (returned_by("tune_ray", f"pathlib.Path({str(tmp_path)!r})") for _ in range(2))
    assert len(first["tried"]) == 4 and len({tuple(one) for one in first["tried"]}) == 4
    assert again == first


def test_a_command_is_tuned_whose_range_has_failures_hangs_and_divergence():
    found = returned_by("tune_command")
    assert found["stopped"] == "good enough" and "finished" in found["endings"]
    losses = {lr: foreign_loss(lr) for lr in (2**-8, 2**-5, 2**-2, 4)}
    assert min(losses, key=lambda lr: math.inf if math.isnan(losses[lr]) else losses[lr]) == 2**-5
    assert math.isnan(losses[4]), "the highest LR diverges"
    assert 2**-8 < found["learning_rate"] < 2**-2


def foreign_loss(learning_rate):
    with tempfile.TemporaryDirectory() as folder:
        options = ["--lr", learning_rate, "--wd", 0.01, "--samples", 6400, "--dir", folder]
        subprocess.run([sys.executable, EXAMPLES / "foreign_trainer.py", *map(str, options)], check=True)
        return json.loads((Path(folder) / "log.jsonl").read_text().splitlines()[-1])["val_loss"]
