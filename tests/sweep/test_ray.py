"""Segments on a Ray cluster of two nodes on this machine: the bytes of a local sweep, whatever dies on the way."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import EVALUATION, contents, small_wsd

from isotune.errors import InputError
from isotune.recipe import Recipe
from isotune.runs import Segment, Study
from isotune.sweep import on_ray
from isotune.sweep.driver import Limits
from isotune.sweep.on_ray import ray_tasks
from isotune.sweep.run import local_workers, run_sweep
from isotune.sweep.training import Job
from isotune.train import Execution, train

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
HEAD = {
    "include_dashboard": False,
    # Processes in reserve would only cost time here, and nice ones would wait for other tests.
    "_system_config": {"enable_worker_prestart": False, "prestart_worker_first_driver": False, "worker_niceness": 0},
}
QUICK = Limits(retries=2, hang_seconds=60, patience_seconds=2, save_seconds=0.2)


def recipes_of(corpus):
    return [small_wsd(corpus, steps, learning_rate=lr) for lr in (2**-6, 2**-7) for steps in (120, 400)]


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """What a sweep on this machine leaves."""
    folder = tmp_path_factory.mktemp("alone") / "study"
    result = run_sweep(recipes_of(corpus), folder, evaluation=EVALUATION, make_executor=local_workers(2))
    assert result.is_complete
    return everything(folder)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes; this process is connected to the first one."""
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=NODE | HEAD)
    processes = set()
    try:
        made.add_node(**NODE)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        processes |= ray_processes()
        ray.shutdown()
        made.shutdown()
        assert not survivors(processes), "no process of Ray's is left"


def ray_processes():
    """The processes that descend from this one."""
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, stack = set(), [os.getpid()]
    while stack:
        for child in children.get(stack.pop(), []):
            found.add(child)
            stack.append(child)
    return found


def survivors(processes, seconds=15.0):
    """Those that do not end in time; they are killed then."""
    give_up_at = time.monotonic() + seconds
    while (left := {pid for pid in processes if is_alive(pid)}) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def training_processes():
    """The processes that train a segment now."""
    return [pid for pid in ray_processes() if b"ray::_train" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def sweep(corpus, folder, num_recipes=4, **options):
    return run_sweep(
        recipes_of(corpus)[:num_recipes],
        folder,
        evaluation=EVALUATION,
        **{"make_executor": ray_tasks(cpus_per_segment=1), "limits": QUICK} | options,
    )


def everything(folder):
    """All that a sweep leaves, but for the timing."""
    records = folder.glob("segments/*/segment.json")
    return contents(folder) | {str(path.relative_to(folder)): path.read_bytes() for path in records}


def journal(folder):
    return "".join(path.read_text() for path in (folder / "drivers").glob("*.jsonl"))


def job_of(corpus, folder, num_steps=100_000):
    """A job that takes as long as it is let."""
    recipe = small_wsd(corpus, num_steps, max_epochs=1000)
    if not folder.exists():
        train(small_wsd(corpus, 60), folder, evaluation=EVALUATION)
    study = Study.open(folder)
    segment = Segment(Recipe(recipe.setup, recipe.phases[:2]), 0, study.corpus_fingerprint)
    return study, Job(str(folder), segment, Execution(), str(folder / "claims" / "segment.1.stop"), save_seconds=0.2)


def wait_for(found, seconds=60.0):
    give_up_at = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    return value


def test_without_ray_it_says_how_to_get_it(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"--on ray needs ray: pip install 'isotune\[ray\]'"):
        sweep(corpus, tmp_path / "study")


def test_an_address_where_nobody_listens_is_refused_at_once(corpus, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address}: start one with `ray start --head`"):
            sweep(corpus, tmp_path / "study", make_executor=ray_tasks(address))
    with pytest.raises(InputError, match="'ray://head:10001' is no address .* give auto or HOST:PORT"):
        sweep(corpus, tmp_path / "study", make_executor=ray_tasks("ray://head:10001"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus_per_segment": 0}, "cpus_per_segment=0 must be more than 0"),
        ({"gpus_per_segment": 1.5}, "--gpus-per-segment 1.5 must be a whole number or a part of one"),
        ({"gpus_per_segment": 1}, "device cpu does not fit --gpus-per-segment 1: add --device cuda"),
    ],
)
def test_resources_that_make_no_sense_are_refused(corpus, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        sweep(corpus, tmp_path / "study", make_executor=ray_tasks(**options))


def test_room_is_counted_in_whole_segments():
    assert on_ray._room({"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}) == 2
    assert on_ray._room({"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}) == 0
    assert on_ray._room({"CPU": 0.3}, {"CPU": 0.1}) == 3


def test_a_sweep_on_two_nodes_has_the_bytes_of_a_local_one(corpus, cluster, alone, tmp_path):
    seen = set()
    result = sweep(corpus, tmp_path / "study", on_progress=lambda progress: seen.update(training_processes()))
    assert result.is_complete and result.problems == ()
    assert everything(tmp_path / "study") == alone
    assert len(seen) == 2, "a node keeps its process from segment to segment"
    assert not list((tmp_path / "study").glob("drivers/*.nodes")), "the check of the nodes leaves nothing behind"
    assert ray.is_initialized(), "a connection that was there before stays"


def test_a_killed_process_is_retried(corpus, cluster, alone, tmp_path):
    killed = []

    def kill_one(progress):
        if not killed and (found := training_processes()):
            os.kill(found[0], signal.SIGKILL)
            killed.append(found[0])

    result = sweep(corpus, tmp_path / "study", num_recipes=2, on_progress=kill_one)
    assert killed and result.is_complete
    assert "was killed, often for lack of memory" in journal(tmp_path / "study")
    assert everything(tmp_path / "study").items() <= alone.items()


def test_a_kill_ends_in_an_outcome_and_a_close_saves_the_state(corpus, cluster, tmp_path):
    study, job = job_of(corpus, tmp_path / "study")
    (study.folder / "claims").mkdir()
    executor = ray_tasks()(study, Execution(), "driver")
    assert executor.num_free() == 2
    executor.submit("key", job)
    assert executor.num_free() == 1
    wait_for(lambda: study.interrupted(job.segment))
    executor.kill("key")
    (outcome,) = wait_for(lambda: executor.poll(1.0))
    assert outcome[0] == "key" and outcome[1].kind == "crashed"
    wait_for(lambda: executor.num_free() == 2)
    executor.submit("key", job)
    wait_for(training_processes)
    executor.close()
    assert not training_processes() and not Path(job.stop_file).exists()
    (attempt,) = study.interrupted(job.segment)
    assert (attempt / "state.safetensors").exists()


def test_a_node_that_does_not_see_the_folder_is_refused_in_words(corpus, cluster, tmp_path, monkeypatch):
    blind_node = next(node["NodeID"] for node in ray.nodes() if node["NodeID"] != cluster.head_node.node_id)
    monkeypatch.setattr(on_ray, "_look", look_of_a_blind_node(blind_node))
    with pytest.raises(InputError, match=f"node .*{blind_node[:8]}.* does not see .* storage that all nodes share"):
        sweep(corpus, tmp_path / "study")
    assert not training_processes()


def test_a_folder_of_the_same_name_is_not_taken_for_the_study(corpus, cluster, tmp_path, monkeypatch):
    def look(study_folder, checks_folder, node_id, numerics):
        return ""  # a node that found a study, but not this one: its answer lies elsewhere

    monkeypatch.setattr(on_ray, "_look", look)
    with pytest.raises(InputError, match="does not see .* storage that all nodes share"):
        sweep(corpus, tmp_path / "study")


def test_a_lost_node_costs_its_segment_one_failure(corpus, cluster, alone, tmp_path):
    lost = []

    def lose_one(progress):
        if not lost and len(training_processes()) == 2:
            lost.append(next(node for node in cluster.list_all_nodes() if not node.is_head()))
            cluster.remove_node(lost[0], allow_graceful=False)

    result = sweep(corpus, tmp_path / "study", on_progress=lose_one)
    assert lost and result.is_complete
    assert journal(tmp_path / "study").count("crashed") == 1
    assert everything(tmp_path / "study") == alone


def test_a_node_that_joins_is_used(corpus, cluster, tmp_path):
    study, _ = job_of(corpus, tmp_path / "study")
    with contextlib.closing(ray_tasks()(study, Execution(), "driver")) as executor:
        assert executor.num_free() == 1
        cluster.add_node(**NODE)
        wait_for(lambda: executor.num_free() == 2)


def test_a_node_that_joins_and_does_not_see_the_folder_gets_no_segments(corpus, cluster, tmp_path, monkeypatch):
    study, _ = job_of(corpus, tmp_path / "study")
    joins = next(node for node in cluster.list_all_nodes() if not node.is_head())
    monkeypatch.setattr(on_ray.RayExecutor, "require_nodes", lambda self: setattr(self, "_has_begun", True))
    monkeypatch.setattr(on_ray, "_look", look_of_a_blind_node(joins.node_id))
    with contextlib.closing(ray_tasks()(study, Execution(), "driver")) as executor:
        with pytest.warns(UserWarning, match="a node of the Ray cluster is not used: .* does not see"):
            wait_for(lambda: executor.num_free() and all(node.check is None for node in executor._nodes.values()))
        assert executor.num_free() == 1 and executor.problem() == ""


def look_of_a_blind_node(blind_node):
    honest = on_ray._look

    def look(study_folder, checks_folder, node_id, numerics):
        return honest("/nowhere" if node_id == blind_node else study_folder, checks_folder, node_id, numerics)

    return look


def test_without_an_address_a_cluster_of_its_own_comes_and_goes_in_silence(corpus, tmp_path):
    """In a process of its own, whose words and whose signals are looked at."""
    code = """
import signal, sys
from small import EVALUATION, small_wsd
from isotune.sweep.on_ray import ray_tasks
from isotune.sweep.run import run_sweep
import ray
mine = lambda *_: None
signal.signal(signal.SIGTERM, mine)
def look(progress):
    assert signal.getsignal(signal.SIGTERM) is mine
result = run_sweep([small_wsd(sys.argv[1], 60)], sys.argv[2], evaluation=EVALUATION, make_executor=ray_tasks(),
                   on_progress=look)
assert result.is_complete and not ray.is_initialized()
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "train")}
    command = [sys.executable, "-c", code, corpus, str(tmp_path / "study")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
