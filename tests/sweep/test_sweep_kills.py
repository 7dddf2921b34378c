"""Sweeps whose workers and driver are killed with SIGKILL, and continued, end with the bytes of one that was not."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from in_this_process import InThisProcess
from small import EVALUATION, MODEL, STEP

from isotune.runs import Study
from isotune.sweep.grids import read_sweep
from isotune.sweep.plan import make_plan
from isotune.sweep.run import open_for_sweep, run_sweep
from isotune.sweep.training import Job, Workbench
from isotune.train import Execution, attempt
from isotune.train.hold import publish, take

MEASUREMENTS = {
    "--eval-every": EVALUATION.every_tokens,
    "--eval-windows": EVALUATION.windows,
    "--final-windows": EVALUATION.final_windows,
    "--noise-every": EVALUATION.noise_every_tokens,
}


@pytest.fixture(scope="module")
def sweep_file(corpus, tmp_path_factory):
    """A trunk of 500 steps with two decays of 200."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.toml"
    model = {name: value for name, value in vars(MODEL).items() if isinstance(value, int)}
    path.write_text(
        f"""corpus = "{corpus}"
sequence_length = 16
model = {{ {", ".join(f"{name} = {value}" for name, value in model.items())} }}

[schedule]
kind = "wsd"
tokens = {700 * STEP}
learning_rate = "2^-6"
weight_decay = 0.5
batch_size = 4
warmup_tokens = {16 * STEP}
decay_tokens = {200 * STEP}

[[grid]]
budgets = [{500 * STEP}, {700 * STEP}]
"""
    )
    return path


@pytest.fixture(scope="module")
def recipes(sweep_file):
    return read_sweep(sweep_file).recipes


@pytest.fixture
def first_job(recipes, tmp_path):
    """The first segment of a sweep that nobody has begun."""
    study = open_for_sweep(recipes, tmp_path / "study", Execution(), EVALUATION)
    segment = make_plan(recipes, study).missing[0].segment
    return Job(str(study.folder), segment, Execution(), str(tmp_path / "stop"), patience_seconds=30.0)


def test_kills_of_workers_and_the_driver_change_no_byte(sweep_file, recipes, tmp_path):
    straight, study = tmp_path / "straight", tmp_path / "study"
    planned = run_sweep(recipes, straight, evaluation=EVALUATION, make_executor=lambda *_: InThisProcess())
    options = {"--study": study, "--workers": 1, "--retries": 100, "--save-seconds": 0.1} | MEASUREMENTS
    flat = [str(part) for option in options.items() for part in option]
    command = [sys.executable, "-m", "isotune", "sweep", "run", str(sweep_file), "--quiet", *flat]
    driver = subprocess.Popen(command)
    killed = []
    for share, victim in ((0.1, "worker"), (0.3, "driver"), (0.5, "worker"), (0.7, "driver")):
        while driver.poll() is None and tokens_there(study) < share * planned.trained_tokens:
            time.sleep(0.01)
        if driver.poll() is not None:
            break
        for pid in workers(driver.pid) if victim == "worker" else [driver.pid]:
            os.kill(pid, signal.SIGKILL)
            killed.append(victim)
        if victim == "driver":
            driver.wait()
            driver = subprocess.Popen(command)
    assert driver.wait() == 0
    assert {"worker", "driver"} <= set(killed)
    assert everything(study) == everything(straight)
    assert list(study.glob("attempts/?*.*")) == []


def test_a_worker_that_dies_between_state_and_publication_costs_no_token(first_job, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(attempt, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            Workbench().train(first_job)
    outcome = Workbench().train(first_job)
    assert Study.open(Path(first_job.study_folder)).has(first_job.segment.id)
    assert outcome.trained_tokens == 0


def test_a_segment_that_is_published_while_a_worker_waits_for_it_is_not_trained_again(first_job):
    study, segment = Study.open(Path(first_job.study_folder)), first_job.segment
    hold = take(study, segment, study.numerics)

    def publish_soon():
        time.sleep(1.0)
        (hold.folder / "curve.jsonl").touch()
        study.describe(hold.folder, segment, study.numerics, "finished")
        publish(study, segment, hold)

    other = threading.Thread(target=publish_soon)
    other.start()
    outcome = Workbench().train(first_job)
    other.join()
    assert outcome.kind == "lost"
    assert outcome.trained_tokens == 0


def tokens_there(study):
    """The tokens that have rows, published or not."""
    total = 0
    for curve in [*study.glob("segments/*/curve.jsonl"), *study.glob("attempts/*/curve.jsonl")]:
        with contextlib.suppress(FileNotFoundError):  # published meanwhile
            total += STEP * curve.read_bytes().count(b"\n")
    return total


def workers(driver):
    return [int(pid) for pid in Path(f"/proc/{driver}/task/{driver}/children").read_text().split()]


def everything(study):
    """All that must not depend on how a study came about, descriptions of segments included."""
    files = [*study.glob("states/*"), *study.glob("segments/*/*")]
    chosen = [path for path in files if path.name != "timing.jsonl" and not path.name.startswith(".")]
    return {str(path.relative_to(study)): path.read_bytes() for path in chosen}
