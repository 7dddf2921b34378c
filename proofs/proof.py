"""What all proofs share: cases that are kept once they are done, and a result that says where it comes from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ISOTUNE = str(Path(sys.executable).with_name("isotune"))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


TRAINING_ROOMS = ("recipe", "corpus", "model", "runs", "measure", "train")
# Beginning of a proof's name -> the rooms that it exercises, if not those of training.
ROOMS = {
    "prepare": ("corpus",),
    "noise_coverage": ("measure",),
    "sweep": (*TRAINING_ROOMS, "sweep"),
    "ray": (*TRAINING_ROOMS, "sweep"),
    "tune": (*TRAINING_ROOMS, "sweep", "analyze", "tune", "objectives"),
    "analysis": ("measure", "analyze"),
    "import": ("recipe", "runs", "integrations", "integrations/importers"),
}


class Proof:
    """Runs cases by name; a case that this code has passed before is not run again."""

    def __init__(self, name: str):
        self.path = ROOT / "proofs" / "results" / f"{name}.json"
        self.command = f"python proofs/{name}.py"
        self.code = code_digest(name)
        self.cases: dict[str, Any] = {}
        if self.path.exists():
            before = json.loads(self.path.read_text())
            if (before["command"], before["code"]) == (self.command, self.code):
                self.cases = {case: result for case, result in before["cases"].items() if result["passed"]}

    def case(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        """`run` returns what was measured, `passed` among it."""
        if name in self.cases:
            print(f"{name}: passed before")
            return
        began = time.monotonic()
        result = run()
        self.cases[name] = result | {"seconds": round(time.monotonic() - began, 1)}
        print(f"{name}: {json.dumps(self.cases[name])}", flush=True)
        self._write()

    def needs(self, names: list[str]) -> bool:
        """Whether one of these cases is still to be run."""
        return any(name not in self.cases for name in names)

    def finish(self) -> None:
        """Ends the process: successfully if all cases passed."""
        failed = [name for name, result in self.cases.items() if not result["passed"]]
        print(f"{len(self.cases) - len(failed)} of {len(self.cases)} cases passed: {self.path.relative_to(ROOT)}")
        sys.exit(1 if failed else 0)

    def _write(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        result = {
            "command": self.command,
            "commit": commit(),
            "code": self.code,
            "machine": machine(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "passed": all(case["passed"] for case in self.cases.values()),
            "cases": self.cases,
        }
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(result, indent=1) + "\n")
        temporary.replace(self.path)


def code_digest(name: str) -> str:
    """A digest of the rooms that a proof exercises, and of the proof: the version of the code that it proves."""
    rooms = next((rooms for start, rooms in ROOMS.items() if name.startswith(start)), TRAINING_ROOMS)
    sources = [path for room in rooms for path in sorted((ROOT / "src" / "isotune").glob(f"{room}/*.py"))]
    sha = hashlib.sha256()
    for path in [*sources, ROOT / "proofs" / "proof.py", ROOT / "proofs" / f"{name}.py"]:
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()[:16]


def commit() -> str:
    """The commit that is checked out, "+" if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changes = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


def machine() -> str:
    """Processor, cores, Python and torch."""
    import torch

    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def contents(study: Path) -> dict[str, bytes]:
    """Everything of a study that must not depend on how it came about: states, curves, windows' losses."""
    files = [*study.glob("states/*"), *study.glob("segments/*/*")]
    left_out = ("timing.jsonl", "segment.json")
    return {str(path.relative_to(study)): path.read_bytes() for path in files if path.name not in left_out}


def write_recipe(path: Path, tokens: str, decay_tokens: str = "20K") -> Path:
    """The nano model with a short schedule."""
    path.write_text(
        f"""model = "nano"
corpus = "python-sources"
sequence_length = 64

[schedule]
kind = "wsd"
tokens = "{tokens}"
learning_rate = "2^-9"
weight_decay = 0.125
batch_size = 4
warmup_tokens = "5K"
decay_tokens = "{decay_tokens}"
"""
    )
    return path


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
