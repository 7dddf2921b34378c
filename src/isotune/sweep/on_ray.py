"""Segments on a Ray cluster: a task each, on a node that has shown that it sees the study's folder.

The driver's machine writes a random token into the folder; a task on each node reads it and writes it back. A node that
joins later is shown the token too, and so is one on which a process died: until it answers it gets no segments, so a
lost node costs each segment that ran on it one failure and no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import shutil
import signal
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotune.errors import InputError
from isotune.runs import Numerics, Study
from isotune.sweep.executors import Executor
from isotune.sweep.outcomes import Outcome, from_error
from isotune.sweep.run import MakeExecutor
from isotune.sweep.training import Job, Workbench
from isotune.train import Execution, World

SECONDS_TO_CONNECT = 5.0
SECONDS_TO_ANSWER = 120.0  # for a node's first answer: Python and torch are imported there
SECONDS_TO_SAVE = 60.0  # at the end, before a task is cancelled
SECONDS_UNTIL_LOST = 5.0  # after Ray calls a node dead: mostly it fails the node's tasks by itself
SECONDS_BETWEEN_CHECKS = 30.0  # of a node that is not fit
SECONDS_WITHOUT_NODES = 120.0  # then the sweep ends
SECONDS_TO_SETTLE = 2.0  # Ray's view of what is free lags behind
OBJECT_STORE_BYTES = 100_000_000  # of a cluster on this machine: outcomes are small, and Ray's default takes memory


def ray_tasks(
    address: str | None = None, *, cpus_per_segment: float | None = None, gpus_per_segment: float = 0
) -> MakeExecutor:
    """Tasks on the Ray cluster at this address; without one, on a cluster on this machine that ends with the sweep.

    A segment takes `cpus_per_segment` of a node, by default as many as it has threads. A process that Ray has connected
    already stays connected to its cluster.
    """

    def make(study: Study, execution: Execution, driver: str) -> Executor:
        needs = _needs(execution, cpus_per_segment, gpus_per_segment)
        started = _connect(address)
        executor = RayExecutor(study, execution, needs, driver, is_connection_ours=started)
        try:
            executor.require_nodes()
        except BaseException:
            executor.close()
            raise
        return executor

    return make


@dataclass
class _Node:
    """A machine of the cluster as the driver knows it."""

    id: str
    name: str
    num_slots: int = 0  # segments that fit on it, whoever uses it now
    num_running: int = 0
    num_taken: int = 0  # slots that others' work takes
    changed_at: float = 0.0  # when the number running last changed
    check: Any = None  # the reference of a check under way
    check_again_at: float = 0.0
    is_fit: bool = False
    complaint: str = ""  # why it is not
    died_at: float | None = None

    @property
    def num_free(self) -> int:
        is_usable = self.is_fit and self.died_at is None
        return max(0, self.num_slots - self.num_running - self.num_taken) if is_usable else 0


@dataclass
class _Running:
    job: Job
    reference: Any
    node: _Node


class RayExecutor:
    """Pins each segment to the fit node with the most room; a process that died is never repeated by Ray itself."""

    def __init__(
        self,
        study: Study,
        execution: Execution,
        needs: Mapping[str, float],
        driver: str,
        *,
        is_connection_ours: bool,
    ):
        self._ray, self._study, self._needs = _import_ray(), study, needs
        self._is_connection_ours = is_connection_ours
        numerics = execution.numerics(World(execution.device))
        environment = _environment(execution.threads)
        self._train = self._remote(_train, environment, num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0))
        self._look = self._remote(_look, environment, num_cpus=0, num_gpus=0)
        self._numerics = numerics
        self._checks = _Checks(study.folder.absolute() / "drivers" / f"{driver}.nodes")
        self._nodes: dict[str, _Node] = {}
        self._running: dict[str, _Running] = {}
        self._fit_at = time.monotonic()  # when a node could last train
        self._has_begun = False

    def require_nodes(self) -> None:
        """Refuses a cluster that has no room for a segment, or a node that could not train one."""
        self._look_at_nodes()
        nodes = [node for node in self._nodes.values() if node.num_slots]
        if not nodes:
            wanted = " and ".join(f"{amount:g} {name}" for name, amount in self._needs.items())
            raise InputError(
                f"no node of the Ray cluster has {wanted} for a segment: use fewer --threads or --gpus-per-segment, "
                f"or a cluster with larger nodes"
            )
        self._ray.wait([node.check for node in nodes], num_returns=len(nodes), timeout=SECONDS_TO_ANSWER)
        self._look_at_nodes()
        for node in nodes:
            if node.died_at is not None:  # Ray takes a while to notice that one is gone
                continue
            if node.check is not None:
                raise InputError(
                    f"node {node.name} of the Ray cluster did not answer within {SECONDS_TO_ANSWER:g} seconds: see "
                    f"`ray status`, and repeat the command"
                )
            if not node.is_fit:
                raise InputError(f"node {node.name} of the Ray cluster {node.complaint}")
        self._has_begun = True

    def num_free(self) -> int:
        self._look_at_nodes()
        return sum(node.num_free for node in self._nodes.values())

    def submit(self, key: str, job: Job) -> None:
        node = max(self._nodes.values(), key=lambda node: node.num_free)
        reference = self._on(node, self._train).remote(job.to_json(), dataclasses.asdict(self._numerics), os.getcwd())
        self._running[key] = _Running(job, reference, node)
        node.num_running, node.changed_at = node.num_running + 1, time.monotonic()

    def poll(self, seconds: float) -> list[tuple[str, Outcome]]:
        keys = {running.reference: key for key, running in self._running.items()}
        if not keys:
            time.sleep(seconds)
            return []
        references = list(keys)
        if self._ray.wait(references, num_returns=1, timeout=seconds)[0]:
            ended = self._ray.wait(references, num_returns=len(references), timeout=0)[0]
        else:
            ended = []
        outcomes = [(keys[reference], self._end(keys[reference])) for reference in ended]
        return outcomes + self._give_up_lost()

    def kill(self, key: str) -> None:
        if key in self._running:
            self._ray.cancel(self._running[key].reference, force=True)

    def problem(self) -> str:
        if not self._ray.is_initialized():
            return "the connection to the Ray cluster is lost: see `ray status`, and repeat the command"
        if any(node.is_fit and node.died_at is None for node in self._nodes.values()):
            self._fit_at = time.monotonic()
        if time.monotonic() - self._fit_at < SECONDS_WITHOUT_NODES:
            return ""
        unfit = [f"node {node.name} {node.complaint}" for node in self._nodes.values() if node.complaint]
        why = unfit[-1] if unfit else "start nodes that have, and repeat the command"
        return f"no node of the Ray cluster has been able to train for {SECONDS_WITHOUT_NODES:g} seconds: {why}"

    def close(self) -> None:
        if self._ray.is_initialized():
            self._stop_running()
        self._checks.remove()
        if self._is_connection_ours:
            self._ray.shutdown()
            _show_reports(True)

    # Tasks

    def _remote(self, function: Any, environment: dict[str, str], **resources: float) -> Any:
        # Ray keeps a process for further tasks with the same environment: what it imported and compiled stays. Not so
        # with GPUs: a process that has opened one cannot be moved to another, so there Ray starts one for each task.
        options = {**resources, "max_retries": 0, "runtime_env": {"env_vars": environment}}
        return self._ray.remote(**options)(function)

    def _on(self, node: _Node, function: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return function.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False))

    def _end(self, key: str) -> Outcome:
        """The outcome of a task that has ended."""
        running = self._forget(key)
        try:
            answer = self._ray.get(running.reference)
        except self._ray.exceptions.RayError as error:
            if running.node.died_at is None:
                self._begin_check(running.node)
            return _from_ray_error(error, running.node.name)
        if answer["complaint"]:  # another node can do it, so it is worth a repetition
            self._refuse(running.node, answer["complaint"])
            return Outcome("crashed", f"node {running.node.name} {answer['complaint']}")
        return Outcome(**answer["outcome"])

    def _give_up_lost(self) -> list[tuple[str, Outcome]]:
        """Ends what ran on dead nodes: Ray does not always notice, above all if only its own process there died."""
        lost = []
        for key, running in list(self._running.items()):
            died_at = running.node.died_at
            if died_at is not None and time.monotonic() - died_at > SECONDS_UNTIL_LOST:
                self._forget(key)
                self._ray.cancel(running.reference, force=True)
                lost.append((key, _lost(running.node.name)))
        return lost

    def _forget(self, key: str) -> _Running:
        running = self._running.pop(key)
        running.node.num_running -= 1
        running.node.changed_at = time.monotonic()
        return running

    def _stop_running(self) -> None:
        """Asks what still runs to save its state; cancels what does not end."""
        references = [running.reference for running in self._running.values()]
        stop_files = [Path(running.job.stop_file) for running in self._running.values()]
        try:
            with contextlib.suppress(OSError):
                for stop_file in stop_files:
                    stop_file.touch()
            if references:
                left = self._ray.wait(references, num_returns=len(references), timeout=SECONDS_TO_SAVE)[1]
                for reference in left:
                    self._ray.cancel(reference, force=True)
        finally:
            for stop_file in stop_files:
                stop_file.unlink(missing_ok=True)
        self._running.clear()

    # Nodes

    def _look_at_nodes(self) -> None:
        """Takes note of nodes that came and went, and of what others left free on them."""
        now, available = time.monotonic(), _available_by_node()
        for about in self._ray.nodes():
            node = self._nodes.get(about["NodeID"])
            if node is None:
                if not about["Alive"]:
                    continue
                node = self._nodes[about["NodeID"]] = _Node(about["NodeID"], _name(about), changed_at=now)
            if not about["Alive"]:
                node.died_at = node.died_at or now
                continue
            node.num_slots = _room(about["Resources"], self._needs)
            if now - node.changed_at > SECONDS_TO_SETTLE and node.id in available:
                num_used = node.num_slots - _room(available[node.id], self._needs)
                node.num_taken = max(0, num_used - node.num_running)
            self._receive_check(node)
            if node.num_slots and not node.is_fit and node.check is None and now >= node.check_again_at:
                self._begin_check(node)

    def _begin_check(self, node: _Node) -> None:
        node.is_fit = False
        # What a task without a GPU cannot know, the segment's task looks at.
        numerics = dataclasses.asdict(self._numerics) if "GPU" not in self._needs else None
        look = self._on(node, self._look)
        node.check = look.remote(str(self._study.folder.absolute()), str(self._checks.folder), node.id, numerics)

    def _receive_check(self, node: _Node) -> None:
        """Reads a node's answer, if there is one."""
        if node.check is None or not self._ray.wait([node.check], timeout=0)[0]:
            return
        try:
            complaint = self._ray.get(node.check) or self._checks.complaint(node.id)
        except self._ray.exceptions.RayTaskError as error:
            complaint = f"cannot run isotune ({_gist(error)}): install the same versions on all nodes"
        except self._ray.exceptions.RayError as error:
            complaint = f"does not answer ({_gist(error)}): see `ray status`"
        node.check = None
        if complaint:
            self._refuse(node, complaint)
        else:
            node.is_fit, node.complaint = True, ""

    def _refuse(self, node: _Node, complaint: str) -> None:
        is_news = complaint != node.complaint
        node.is_fit, node.complaint = False, complaint
        node.check_again_at = time.monotonic() + SECONDS_BETWEEN_CHECKS
        if is_news and self._has_begun:
            warnings.warn(f"a node of the Ray cluster is not used: {node.name} {complaint}", stacklevel=2)


class _Checks:
    """The token that a node must find in the study's folder, and the nodes' answers."""

    def __init__(self, folder: Path):
        self.folder, self._token = folder, uuid.uuid4().hex
        folder.mkdir(parents=True)
        (folder / "token").write_text(self._token)

    def complaint(self, node_id: str) -> str:
        """What is wrong with what came back from a node that had no complaint of its own."""
        try:
            is_same = (self.folder / node_id).read_text() == self._token
        except OSError:
            is_same = False
        return "" if is_same else _no_folder(str(self.folder))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


# On the nodes

_workbench = Workbench()


def _train(job: dict[str, Any], numerics: dict[str, Any], working_folder: str) -> dict[str, Any]:
    """Trains a segment in this process; `complaint` says why this node must not."""
    with contextlib.suppress(OSError):  # where a corpus may be given by a relative path
        os.chdir(working_folder)
    complaint, outcome = _complaint(job["study_folder"], None), Outcome("failed")
    if not complaint:
        try:
            rebuilt = Job.from_json(job)
            complaint = _other_numerics(rebuilt.execution.numerics(World(rebuilt.execution.device)), numerics)
            outcome = outcome if complaint else _workbench.train(rebuilt)
        except Exception as error:
            outcome = from_error(error)
    return {"complaint": complaint, "outcome": outcome.to_json()}


def _look(study_folder: str, checks_folder: str, node_id: str, numerics: dict[str, Any] | None) -> str:
    """Answers the token that lies in the study's folder; returns what is wrong here, empty if nothing is."""
    complaint = _complaint(study_folder, numerics)
    if complaint:
        return complaint
    try:
        token = (Path(checks_folder) / "token").read_text()
        (Path(checks_folder) / node_id).write_text(token)
    except FileNotFoundError:
        return _no_folder(study_folder)
    except OSError as error:
        return f"cannot write to the study {study_folder} ({error.strerror}): change its permissions"
    return ""


def _complaint(study_folder: str, numerics: dict[str, Any] | None) -> str:
    if not (Path(study_folder) / "study.json").exists():
        return _no_folder(study_folder)
    if numerics is None:
        return ""
    execution = Execution(compiled=numerics["compiled"], threads=numerics["threads"])
    here = dataclasses.replace(execution.numerics(World()), micro_batch_size=numerics["micro_batch_size"])
    return _other_numerics(here, numerics)


def _no_folder(study_folder: str) -> str:
    return f"does not see the folder {study_folder} of the driver: put the study on storage that all nodes share"


def _other_numerics(here: Numerics, wanted: dict[str, Any]) -> str:
    names = [name for name, value in dataclasses.asdict(here).items() if value != wanted[name]]
    if not names:
        return ""
    there = ", ".join(f"{name}={wanted[name]}" for name in names)
    ours = ", ".join(f"{name}={getattr(here, name)}" for name in names)
    return f"has {ours}, the driver has {there}, and their bytes may differ: use nodes of one kind, one torch on all"


# Connecting


def _connect(address: str | None) -> bool:
    """Connects this process to a cluster; False if it was connected before."""
    ray = _import_ray()
    if ray.is_initialized():
        return False
    if address is not None:
        _require_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    if address is None:
        options["object_store_memory"] = OBJECT_STORE_BYTES
    try:
        with _kept_signal_handlers():
            ray.init(address=address or "local", **options)
    except (Exception, SystemExit) as error:
        where = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
        raise InputError(f"cannot {where} ({_gist(error)}): see `ray status` on this machine") from None
    _show_reports(False)
    return True


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("--on ray needs ray: pip install 'isotune[ray]'") from None
    return ray


def _require_reachable(address: str) -> None:
    """Refuses an address at which nobody listens: Ray itself would try for two minutes."""
    remedy = "start one with `ray start --head`, or leave out --ray-address for one on this machine"
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
        if address == "auto":  # Ray finds those of this machine, or says at once that there is none
            return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise InputError(f"{address!r} is no address of a Ray cluster: give auto or HOST:PORT, mostly HOST:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except OSError:
        raise InputError(f"no Ray cluster answers at {address}: {remedy}") from None


@contextlib.contextmanager
def _kept_signal_handlers() -> Iterator[None]:
    """Ray replaces what this process does when it is asked to end; whoever runs a sweep may have saving to do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _show_reports(shown: bool) -> None:
    """Keeps Ray's reports on dead processes out of the terminal: an outcome says the same in a sentence."""
    from ray._private import worker

    if hasattr(worker, "_worker_logs_enabled"):  # there is no public way
        worker._worker_logs_enabled = shown


# Resources


def _needs(execution: Execution, cpus: float | None, gpus: float) -> dict[str, float]:
    cpus = execution.threads if cpus is None else cpus
    if cpus <= 0:
        raise InputError(f"cpus_per_segment={cpus:g} must be more than 0")
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise InputError(f"--gpus-per-segment {gpus:g} must be a whole number or a part of one, as 0.5")
    if (execution.device == "cuda") != (gpus > 0):
        remedy = "add --gpus-per-segment 1" if execution.device == "cuda" else "add --device cuda"
        raise InputError(f"device {execution.device} does not fit --gpus-per-segment {gpus:g}: {remedy}")
    return {"CPU": float(cpus)} | ({"GPU": float(gpus)} if gpus else {})


def _room(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many segments fit into these resources."""
    return min(math.floor(resources.get(name, 0.0) / amount + 1e-6) for name, amount in needs.items())


def _available_by_node() -> dict[str, dict[str, float]]:
    """What is free on each node now; empty if this Ray cannot say: then others' work is not seen."""
    from ray._private import state

    by_node = getattr(state, "available_resources_per_node", dict)  # the public one adds all nodes up
    return dict(by_node())


def _environment(threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of its own would outlive a killed task
    }


def _name(about: Mapping[str, Any]) -> str:
    return f"{about['NodeManagerHostname']} ({about['NodeManagerAddress']}, {about['NodeID'][:8]})"


# Errors


def _from_ray_error(error: Exception, node: str) -> Outcome:
    """Whatever became of the task, its state is as it was last saved: a repetition continues there."""
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return Outcome("crashed", f"Ray ended its process, because node {node} ran out of memory")
    if kind in ("NodeDiedError", "TaskUnschedulableError", "LocalRayletDiedError", "ObjectLostError", "OwnerDiedError"):
        return _lost(node)
    if kind in ("WorkerCrashedError", "TaskCancelledError"):
        return Outcome("crashed", f"its process on node {node} was killed, often for lack of memory")
    return Outcome("crashed", f"{kind} on node {node}: {_gist(error)}")


def _lost(node: str) -> Outcome:
    return Outcome("crashed", f"its node {node} was lost")


def _gist(error: BaseException) -> str:
    """The line of an error that says what happened: the last of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if type(error).__name__.startswith("RayTaskError") else lines[0]
