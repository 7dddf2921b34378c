"""What a sweep costs beside its steps: two workers against two bare loops, and the driver's own work.

    python benchmarks/sweep_throughput.py [--quick]

A round lengthens two trunks of the nano model by a segment of about ten seconds each: once as a sweep with two workers,
once in two processes that do nothing but draw the same batches and step. All four processes live through all rounds, so
no round pays for starting them. Nothing is evaluated and no noise is measured; rows, states, publication, claims and
the driver are the sweep's, whose time runs from the driver's first round to its last.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from harness import circumstances, ratio, round_to, summary, table, write_results

from isotune.corpus import open_corpus
from isotune.recipe import PRESETS, Recipe, Setup, constant
from isotune.runs import Evaluation
from isotune.sweep.driver import SweepResult
from isotune.sweep.local import LocalExecutor
from isotune.sweep.run import run_sweep
from isotune.train import Execution, Trainer, World

SETUP = Setup(model=PRESETS["nano"])
LEARNING_RATES = (2.0**-10, 2.0**-9)  # a trunk for each worker
NO_MEASUREMENTS = Evaluation(every_tokens=0, noise_every_tokens=0)
THROUGHPUT_GOAL = 0.95
DRIVER_GOAL = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="few short rounds: shows that it runs, measures little, writes nothing"
    )
    quick = parser.parse_args().quick
    beginning = circumstances()
    results = compare(num_rounds=2 if quick else 8, segment_tokens=12_800 if quick else 192_000)
    show(results)
    if not quick:
        print(f"\nwritten to {write_results('sweep_throughput', beginning, results)}")


def compare(num_rounds: int, segment_tokens: int) -> dict[str, Any]:
    """Tokens per second of both, round by round; who begins a round changes. The first round only warms up."""
    sweep_seconds, bare_seconds, driver_shares = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        sweeps, loops = Sweeps(Path(folder) / "study"), BareLoops()
        for number in range(num_rounds + 1):
            start, end = number * segment_tokens, (number + 1) * segment_tokens
            if number % 2:
                bare = loops.step(start, end)
            result = sweeps.lengthen(end)
            if not number % 2:
                bare = loops.step(start, end)
            assert result.is_complete and result.trained_tokens == len(LEARNING_RATES) * segment_tokens
            if number:
                sweep_seconds.append(result.seconds)
                bare_seconds.append(bare)
                driver_shares.append(result.driver_seconds / result.seconds)
        sweeps.end()
        loops.end()
    tokens = len(LEARNING_RATES) * segment_tokens
    sweep, bare_loops = np.array(sweep_seconds), np.array(bare_seconds)
    share = summary(driver_shares)
    return {
        "tokens_per_segment": segment_tokens,
        "segment_seconds": summary(sweep),
        "sweep_tokens_per_second": summary(tokens / sweep),
        "bare_tokens_per_second": summary(tokens / bare_loops),
        "sweep / bare": ratio(bare_loops, sweep, THROUGHPUT_GOAL),
        "sweep / bare, of total times": round_to(bare_loops.sum() / sweep.sum()),
        "driver_share_of_a_core": share | {"goal": DRIVER_GOAL, "met": bool(share["median"] < DRIVER_GOAL)},
    }


def trunk(learning_rate: float, tokens: int) -> Recipe:
    return constant(SETUP, tokens=tokens, learning_rate=learning_rate, weight_decay=0.125, batch_size=4)


class Sweeps:
    """One sweep after the other in one study, with the same two workers."""

    def __init__(self, study: Path):
        self.study = study
        study.mkdir()
        (study / "drivers").mkdir()
        self._workers = LastingWorkers(len(LEARNING_RATES), study / "drivers")

    def lengthen(self, tokens: int) -> SweepResult:
        """Trains all trunks up to here."""
        recipes = [trunk(learning_rate, tokens) for learning_rate in LEARNING_RATES]
        return run_sweep(
            recipes, self.study, evaluation=NO_MEASUREMENTS, make_executor=lambda study, execution, name: self._workers
        )

    def end(self) -> None:
        self._workers.end()


class LastingWorkers(LocalExecutor):
    """Workers that stay when a sweep ends."""

    def close(self) -> None:
        pass

    def end(self) -> None:
        super().close()


class BareLoops:
    """A process for each trunk that steps when it is told to."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connections, self._processes = [], []
        for learning_rate in LEARNING_RATES:
            ours, theirs = context.Pipe()
            process = context.Process(target=bare_loop, args=(theirs, learning_rate), daemon=True)
            process.start()
            self._connections.append(ours)
            self._processes.append(process)
        for connection in self._connections:
            connection.recv()

    def step(self, start_tokens: int, end_tokens: int) -> float:
        """The seconds until all of them have gone from here to there."""
        began = time.perf_counter()
        for connection in self._connections:
            connection.send((start_tokens, end_tokens))
        for connection in self._connections:
            connection.recv()
        return time.perf_counter() - began

    def end(self) -> None:
        for connection, process in zip(self._connections, self._processes, strict=True):
            connection.send(None)
            process.join()


def bare_loop(connection: Connection, learning_rate: float) -> None:
    """Batches and steps, nothing else."""
    os.setsid()  # as the workers: Linux shares a busy machine among sessions, not processes
    trainer, corpus = Trainer(SETUP, Execution(), World()), open_corpus(SETUP.corpus)
    trainer.start(SETUP.seed)
    connection.send("ready")
    length, seed = SETUP.sequence_length, SETUP.seed
    while (stretch := connection.recv()) is not None:
        start_tokens, end_tokens = stretch
        for step in trunk(learning_rate, end_tokens).steps(start_tokens, end_tokens):
            windows = corpus.sequences(step.tokens_before // length, step.batch_size, sequence_length=length, seed=seed)
            trainer.step(windows, step)
        connection.send("done")


def show(results: dict[str, Any]) -> None:
    compared, share = results["sweep / bare"], results["driver_share_of_a_core"]
    low, high = compared["quartiles"]
    rows = [
        ("bare loops", f"{results['bare_tokens_per_second']['median']:.0f}", "", ""),
        (
            "sweep",
            f"{results['sweep_tokens_per_second']['median']:.0f}",
            f"{compared['median']:.3f} ({low:.3f} to {high:.3f})",
            f"{compared['goal']} {'met' if compared['met'] else 'MISSED'}",
        ),
    ]
    print(f"two processes, segments of {results['tokens_per_segment']} tokens")
    print(table(("", "tokens/s", "sweep / bare", "goal"), rows))
    print(
        f"the driver takes {share['median']:.2%} of a core: {'met' if share['met'] else 'MISSED'} ({DRIVER_GOAL:.0%})"
    )


if __name__ == "__main__":
    main()
