"""What benchmarks share: interleaved timing, summaries that carry their spread, results with their circumstances."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).resolve().parent

Clock = Callable[[], float]


def interleaved(
    contenders: Mapping[str, Callable[[], object]], num_rounds: int, clock: Clock = time.perf_counter
) -> dict[str, np.ndarray]:
    """The seconds of each contender in each round.

    Every round runs all of them once, so that whatever else the machine does meets all alike; who begins rotates.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(num_rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            start = clock()
            contenders[name]()
            seconds[name].append(clock() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def summary(values: Iterable[float]) -> dict[str, Any]:
    """Median, quartiles, extremes and number of the values."""
    array = np.asarray(list(values), dtype=float)
    low, median, high = np.quantile(array, [0.25, 0.5, 0.75])
    return {
        "median": round_to(median),
        "quartiles": [round_to(low), round_to(high)],
        "range": [round_to(array.min()), round_to(array.max())],
        "rounds": len(array),
    }


def ratio(numerator: np.ndarray, denominator: np.ndarray, goal: float | None = None) -> dict[str, Any]:
    """The summary of round-by-round ratios, and whether their median reaches the goal."""
    result = summary(numerator / denominator)
    return result if goal is None else result | {"goal": goal, "met": bool(result["median"] >= goal)}


def write_results(name: str, circumstances: Mapping[str, Any], results: Mapping[str, Any]) -> Path:
    """Writes results/<name>.json, the results after their circumstances; returns its place in the project."""
    path = FOLDER / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    loads = {"load_average_at_end": _load_average()}
    path.write_text(json.dumps({**circumstances, **loads, **results}, indent=1, allow_nan=False) + "\n")
    return path.relative_to(FOLDER.parent)


def circumstances() -> dict[str, Any]:
    """Under which a benchmark runs, taken when it begins: enough to repeat it, and to doubt it."""
    script = Path(sys.argv[0]).resolve().relative_to(FOLDER.parent)
    return {
        "command": " ".join(["python", str(script), *sys.argv[1:]]),
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src", "benchmarks/*.py")),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "load_average": _load_average(),  # above 1: others were working
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    cells = [
        [line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)] for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def round_to(value: float, digits: int = 4) -> float:
    """The value with this many significant digits."""
    return float(f"{value:.{digits}g}")


def _load_average() -> list[float]:
    return [round(load, 2) for load in os.getloadavg()]


def _git(*arguments: str) -> str:
    """What git answers about this folder; nothing where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=FOLDER.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
