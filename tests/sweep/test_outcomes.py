"""What can go wrong with a segment, in real workers: a typed outcome, one sentence, and the rest of the sweep done."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import EVALUATION, STEP, contents, small_constant, small_wsd

from isotune.errors import InputError
from isotune.runs import Study
from isotune.sweep.driver import Limits
from isotune.sweep.local import LocalExecutor
from isotune.sweep.outcomes import from_error, from_exit
from isotune.sweep.run import local_workers, run_sweep
from isotune.train import Execution, World, train
from isotune.train.hold import take

QUICK = Limits(retries=2, hang_seconds=30, patience_seconds=2)


def recipes_of(corpus, *rates):
    return [small_wsd(corpus, steps, learning_rate=lr) for lr in rates for steps in (80, 120)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Runs a sweep with two workers, which all tests share that do them no harm: starting one takes long."""
    workers = LocalExecutor(2, tmp_path_factory.mktemp("logs"))
    close, workers.close = workers.close, lambda: None

    def run(folder, recipes):
        return run_sweep(recipes, folder, evaluation=EVALUATION, make_executor=lambda *_: workers, limits=QUICK)

    yield run
    close()


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """The same recipes, trained one after the other in this process."""
    folder = tmp_path_factory.mktemp("alone") / "study"
    for recipe in recipes_of(corpus, 2**-6, 2**-7):
        train(recipe, folder, evaluation=EVALUATION)
    return folder


def trajectories(folder, recipes):
    study = Study.open(folder)
    return [{name: column.tobytes() for name, column in study.trajectory(r).columns.items()} for r in recipes]


def test_a_sweep_trains_what_train_would(sweep, corpus, tmp_path, alone):
    recipes = recipes_of(corpus, 2**-6, 2**-7)
    result = sweep(tmp_path / "study", recipes)
    assert result.is_complete and result.problems == ()
    assert trajectories(tmp_path / "study", recipes) == trajectories(alone, recipes)
    states = {name for name in contents(tmp_path / "study") if name.startswith("states")}
    assert states == {name for name in contents(alone) if name.startswith("states")}
    again = sweep(tmp_path / "study", recipes)
    assert again.is_complete and again.trained_tokens == 0


def test_seeds_share_a_worker_and_stay_apart(corpus, tmp_path):
    recipes = [small_wsd(corpus, 80, seed=seed) for seed in (0, 1)]
    run_sweep(recipes, tmp_path / "both", evaluation=EVALUATION, make_executor=local_workers(1), limits=QUICK)
    for recipe in recipes:
        train(recipe, tmp_path / "alone", evaluation=EVALUATION)
    assert trajectories(tmp_path / "both", recipes) == trajectories(tmp_path / "alone", recipes)


def test_a_diverged_run_is_an_outcome_and_its_decays_are_not_run(sweep, corpus, tmp_path):
    recipes = recipes_of(corpus, 2**-6, 1e30)
    result = sweep(tmp_path / "study", recipes)
    assert result.is_complete and result.states["diverged"] >= 2
    study = Study.open(tmp_path / "study")
    assert [study.trajectory(recipe).info.status for recipe in recipes] == ["finished"] * 2 + ["diverged"] * 2


def test_an_unreadable_state(sweep, corpus, tmp_path):
    folder, recipe = tmp_path / "study", small_constant(corpus, 80)
    train(recipe, folder, evaluation=EVALUATION)
    study = Study.open(folder)
    study.state_path(recipe.state_id(study.corpus_fingerprint, 80 * STEP)).write_bytes(b"garbage")
    result = sweep(folder, recipes_of(corpus, 2**-6, 2**-7))
    assert [reason.split(" cannot be read")[0].startswith("the state ") for _, reason in result.problems] == [True]
    assert "delete that file and repeat" in result.problems[0][1]
    study = Study.open(folder)
    assert all(study.trajectory(r).info.status == "finished" for r in recipes_of(corpus, 2**-7))


def test_a_segment_whose_file_was_cut(sweep, corpus, tmp_path):
    folder = tmp_path / "study"
    recipes = recipes_of(corpus, 2**-6)
    sweep(folder, recipes)
    curve = max((path for path in folder.glob("segments/*/curve.jsonl")), key=lambda path: path.stat().st_size)
    curve.write_bytes(curve.read_bytes()[:100])
    result = sweep(folder, recipes_of(corpus, 2**-6, 2**-7))
    assert not result.is_complete and len(result.problems) >= 1
    assert all("curve.jsonl is damaged" in reason and "delete the folder" in reason for _, reason in result.problems)
    assert all(Study.open(folder).trajectory(r).info.status == "finished" for r in recipes_of(corpus, 2**-7))


def test_a_killed_worker_is_replaced_and_its_segment_continued(corpus, tmp_path, alone):
    recipes = recipes_of(corpus, 2**-6, 2**-7)
    executors = []

    def make(study, execution, driver):
        executors.append(LocalExecutor(2, study.folder / "drivers", log_name=driver))
        return executors[0]

    killed = []

    def kill_one(progress):
        busy = [w for w in executors[0]._workers if w.key is not None]
        if busy and len(killed) < 2:
            os.kill(busy[0]._process.pid, signal.SIGKILL)
            killed.append(busy[0].key)

    result = run_sweep(
        recipes,
        tmp_path / "study",
        evaluation=EVALUATION,
        make_executor=make,
        limits=Limits(retries=5),
        on_progress=kill_one,
    )
    assert result.is_complete and len(killed) == 2
    assert trajectories(tmp_path / "study", recipes) == trajectories(alone, recipes)


def test_workers_that_die_at_import_end_the_sweep_in_a_sentence(corpus, tmp_path):
    def make(study, execution, driver):
        command = [sys.executable, "-c", "raise ImportError('no module named luck')"]
        return LocalExecutor(2, study.folder / "drivers", log_name=driver, command=command)

    result = run_sweep(recipes_of(corpus, 2**-6), tmp_path / "study", evaluation=EVALUATION, make_executor=make)
    assert result.stopped.startswith("no worker can start: ImportError: no module named luck")


def test_a_worker_that_dies_at_import_once_is_started_again(corpus, tmp_path):
    mark = tmp_path / "died"
    code = (
        f"import os, runpy; from pathlib import Path; mark = Path({str(mark)!r})\n"
        "if not mark.exists(): mark.touch(); raise ImportError('once')\n"
        "runpy.run_module('isotune.sweep.worker', run_name='__main__')"
    )

    def make(study, execution, driver):
        return LocalExecutor(1, study.folder / "drivers", log_name=driver, command=[sys.executable, "-c", code])

    result = run_sweep(recipes_of(corpus, 2**-6), tmp_path / "study", evaluation=EVALUATION, make_executor=make)
    assert result.is_complete and mark.exists()


def test_a_hanging_worker_is_killed_and_the_rest_is_done(corpus, tmp_path):
    """The worker of the sweep sleeps instead of training the first segment that it gets."""
    mark = tmp_path / "slept"
    code = (
        f"import time; from pathlib import Path; mark = Path({str(mark)!r})\n"
        "from isotune.sweep import training, worker\n"
        "train = training.Workbench.train\n"
        "def once(self, job, should_stop):\n"
        "    if not mark.exists():\n"
        "        mark.touch(); time.sleep(600)\n"
        "    return train(self, job, should_stop)\n"
        "training.Workbench.train = once\n"
        "worker.main()"
    )

    def make(study, execution, driver):
        return LocalExecutor(1, study.folder / "drivers", log_name=driver, command=[sys.executable, "-c", code])

    limits = Limits(retries=5, hang_seconds=5)  # on a busy machine a worker that does not hang may seem to
    result = run_sweep(
        recipes_of(corpus, 2**-6), tmp_path / "study", evaluation=EVALUATION, make_executor=make, limits=limits
    )
    assert result.is_complete
    journal = "".join(path.read_text() for path in (tmp_path / "study" / "drivers").glob("*.jsonl"))
    assert '"kind": "hung"' in journal


def test_a_worker_stops_with_its_state_saved_when_its_driver_dies(corpus, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from small import small_constant, NO_EVALUATION\n"
        "from isotune.sweep.run import run_sweep, local_workers\n"
        "run_sweep([small_constant(sys.argv[2], 40_000, max_epochs=100)], sys.argv[3], evaluation=NO_EVALUATION,"
        " make_executor=local_workers(1))"
    )
    tests = str(Path(__file__).parents[1] / "train")
    driver = subprocess.Popen([sys.executable, "-c", code, tests, corpus, str(tmp_path / "study")])
    attempts = tmp_path / "study" / "attempts"
    wait_for(lambda: [p for p in attempts.glob("*/curve.jsonl") if p.stat().st_size > 10_000])
    driver.kill()
    driver.wait()
    wait_for(lambda: list(attempts.glob("*/state.safetensors")))
    study = Study.open(tmp_path / "study")
    hold = take(study, study.attempts()[-1].segment, Execution().numerics(World()), patience_seconds=30)
    assert (hold.folder / "state.safetensors").exists(), "the worker let go of its attempt"
    hold.release()


def wait_for(condition, seconds=240):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_sentences_of_outcomes():
    assert from_error(OSError(28, "No space left on device", "curve.jsonl")).reason.startswith(
        "the disk is full (curve"
    )
    assert from_error(InputError("do this: or that")).kind == "failed"
    assert from_error(MemoryError()).reason.startswith("out of memory: use a smaller")
    assert from_error(RuntimeError("a defect\nwith two lines")).reason == "RuntimeError: a defect"
    assert from_error(RuntimeError("a defect")).kind == "crashed"
    assert "signal 9" in from_exit(-9, "").reason and "lack of memory" in from_exit(-9, "").reason
    assert from_exit(3, "last words").reason == "its process ended with code 3 (last words)"


def test_a_full_disk_fails_the_segment_and_says_so(sweep, corpus, tmp_path):
    """Workers may write files of at most 30 KB: states do not fit."""
    code = (
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "runpy.run_module('isotune.sweep.worker', run_name='__main__')"
    )

    def make(study, execution, driver):
        return LocalExecutor(1, study.folder / "drivers", log_name=driver, command=[sys.executable, "-c", code])

    recipes = recipes_of(corpus, 2**-6, 2**-7)
    result = run_sweep(recipes, tmp_path / "study", evaluation=EVALUATION, make_executor=make)
    assert {reason.partition(" (")[0] for _, reason in result.problems} == {"the disk is full"}
    assert len(result.problems) == 2, "each trunk was tried"
    assert sweep(tmp_path / "study", recipes).is_complete
