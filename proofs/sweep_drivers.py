"""Several drivers on one study share its work: every segment is published once, with the bytes of a single driver.

Two and four drivers of one worker each, started together, waste under 1 % of the tokens that they train. A driver that
is suspended for longer than its claims hold, with its worker or alone, is taken over, and does no harm when it goes on:
after everything is done, or while the other one still trains the same segment.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from proof import ENVIRONMENT, Proof, write_recipe
from sweep_kills import (
    SECONDS_BETWEEN_LOOKS,
    children,
    differences,
    everything,
    is_locked,
    read_journals,
    read_segments,
    sweep_command,
)

from isotune.sweep.outcomes import WASTED
from isotune.train.state import state_tokens

STALE_SECONDS = 12  # more than two heartbeats of a driver
MOST_WASTED = 0.01
TOKENS_AHEAD = 10_000  # of a worker that is suspended, so that it is in the midst of a segment


def main() -> None:
    proof = Proof("sweep_drivers")
    cases = {
        "two drivers": partial(together, 2),
        "four drivers": partial(together, 4),
        "suspended with its worker until all is done": partial(suspended, with_workers=True, until_all_is_done=True),
        "suspended with its worker until both train": partial(suspended, with_workers=True, until_all_is_done=False),
        "suspended alone until all is done": partial(suspended, with_workers=False, until_all_is_done=True),
    }
    if proof.needs(list(cases)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            recipe = write_recipe(folder / "recipe.toml", "60K")
            options = ["--workers", "1", "--stale-seconds", str(STALE_SECONDS)]
            command = sweep_command(recipe, "2^-10..2^-8", *options, "--study")
            subprocess.run([*command, str(folder / "one")], env=ENVIRONMENT, check=True)
            print("one driver has trained the sweep", flush=True)
            for case, run in cases.items():
                study = folder / case.replace(" ", "-")
                proof.case(case, partial(run, [*command, str(study)], folder / "one", study))
    proof.finish()


def together(num_drivers: int, command: list[str], expected: Path, study: Path) -> dict[str, Any]:
    """Starts so many drivers at once."""
    drivers = [subprocess.Popen(command, env=ENVIRONMENT) for _ in range(num_drivers)]
    result = judged(expected, study, [driver.wait() for driver in drivers])
    shares = Counter(path.stem for path in study.glob("drivers/*.jsonl") for _ in path.open())
    is_economical = result["wasted_tokens"] < MOST_WASTED * result["trained_tokens"]
    return result | {
        "passed": result["passed"] and is_economical,
        "segments_of_each_driver": sorted(shares.values()),
    }


def suspended(
    command: list[str], expected: Path, study: Path, *, with_workers: bool, until_all_is_done: bool
) -> dict[str, Any]:
    """Suspends a driver in the midst of a segment, lets another one take over, and lets the first go on."""
    first = subprocess.Popen(command, env=ENVIRONMENT)
    segment, processes = suspend_in_a_segment(first, study, read_segments(expected), with_workers)
    second = subprocess.Popen(command, env=ENVIRONMENT)
    num_attempts = watch(second, study, segment, until_all_is_done)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    result = judged(expected, study, [first.wait(), second.wait()])
    takes_part = num_attempts > 1 or not with_workers  # alone, it leaves a worker that publishes the segment
    return result | {"passed": result["passed"] and takes_part, "attempts_side_by_side": num_attempts}


def suspend_in_a_segment(
    driver: subprocess.Popen[bytes], study: Path, segments: dict[str, Any], with_workers: bool
) -> tuple[str, list[int]]:
    """The segment that its worker is training, and the processes that stand still."""
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        for path in study.glob("attempts/*/state.safetensors"):
            segment = path.parent.name.partition(".")[0]
            if segments[segment].end_tokens - state_tokens(path) < TOKENS_AHEAD:
                continue
            processes = [*(children(driver.pid) if with_workers else []), driver.pid]
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
            if path.exists() and not is_locked(study / "attempts" / ".lock"):
                return segment, processes
            for pid in processes:  # it was publishing
                os.kill(pid, signal.SIGCONT)


def watch(driver: subprocess.Popen[bytes], study: Path, segment: str, until_all_is_done: bool) -> int:
    """Waits until a driver is done, or trains this segment beside another; the most attempts at it seen at once."""
    most = 0
    while driver.poll() is None and (until_all_is_done or most < 2):
        time.sleep(SECONDS_BETWEEN_LOOKS)
        states = list(study.glob(f"attempts/{segment}.*/state.safetensors"))
        most = max(most, len(states))
    return most


def judged(expected: Path, study: Path, exit_codes: list[int]) -> dict[str, Any]:
    """What the drivers made, against what one makes, and what it cost."""
    segments, journal = read_segments(expected), read_journals(study)
    finished = Counter(note["segment"] for note in journal if note["kind"] == "finished")
    differing = differences(everything(expected), everything(study))
    trained = sum(note["trained_tokens"] for note in journal)
    wasted = sum(note["trained_tokens"] for note in journal if note["kind"] in WASTED)
    needed = sum(segment.end_tokens - segment.start_tokens for segment in segments.values())
    leftovers = [*study.glob("attempts/?*.*"), *study.glob("claims/*"), *study.glob("drivers/*.json")]
    return {
        "passed": not any(exit_codes) and not differing and not leftovers and finished == Counter(segments.keys()),
        "exit_codes": exit_codes,
        "files_compared": len(everything(expected)),
        "differing_files": differing,
        "segments": len(segments),
        "segments_not_finished_exactly_once": sorted(s for s in segments if finished[s] != 1),
        "leftovers": [str(path.relative_to(study)) for path in leftovers],
        "needed_tokens": needed,
        "trained_tokens": trained,
        "trained_beyond_need_tokens": trained - needed,
        "wasted_tokens": wasted,
        "outcomes": dict(Counter(note["kind"] for note in journal)),
    }


if __name__ == "__main__":
    main()
