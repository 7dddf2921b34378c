"""300 MB of text are prepared in less than 500 MB of memory; killed at random and repeated, the bytes are the same."""

import hashlib
import random
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from proof import ENVIRONMENT, Proof

TEXT_BYTES = 300_000_000
LARGEST_PEAK_MB = 500
NUM_KILLED = 3
# Linux's ru_maxrss remembers the process that started this one, its VmHWM does not.
SCRIPT = """
import re, sys, time
from isotune.corpus import prepare
began = time.monotonic()
prepare([sys.argv[1]], sys.argv[2], tokenizer=sys.argv[3])
status = open("/proc/self/status").read()
print(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1], time.monotonic() - began)
"""


def main() -> None:
    proof = Proof("prepare_memory")
    names = [f"{tokenizer}: memory" for tokenizer in ("bytes", "gpt2")]
    killed = [f"bytes: killed {number}" for number in range(NUM_KILLED)]
    if proof.needs([*names, *killed]):
        with tempfile.TemporaryDirectory() as folder:
            text = write_text(Path(folder) / "text.txt")
            print(f"{text.stat().st_size / 1e6:.0f} MB of text", flush=True)
            for tokenizer in ("gpt2", "bytes"):
                proof.case(f"{tokenizer}: memory", partial(peak, text, Path(folder) / tokenizer, tokenizer))
            if not (Path(folder) / "bytes").exists():
                peak(text, Path(folder) / "bytes", "bytes")
            straight = digests(Path(folder) / "bytes")
            seconds = float(proof.cases["bytes: memory"]["prepare_seconds"])
            for number, name in enumerate(killed):
                out = Path(folder) / f"killed{number}"
                proof.case(name, partial(killed_and_repeated, text, out, straight, seconds, number))
    proof.finish()


def write_text(path: Path) -> Path:
    """Words of a made-up language in lines and paragraphs; some lines are very long."""
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(20_000)] + ["日本", "naïve", "½"] * 50
    with open(path, "w", encoding="utf-8") as file:
        written = 0
        while written < TEXT_BYTES:
            block = " ".join(rng.choices(words, k=rng.choice([12, 12, 12, 100_000])))
            written += file.write(block + rng.choice(["\n", ". ", "\n\n"]))
    return path


def command(text: Path, out: Path, tokenizer: str) -> list[str]:
    return [sys.executable, "-c", SCRIPT, str(text), str(out), tokenizer]


def peak(text: Path, out: Path, tokenizer: str) -> dict[str, Any]:
    run = subprocess.run(command(text, out, tokenizer), env=ENVIRONMENT, capture_output=True, text=True, check=True)
    kib, seconds = run.stdout.split()[-2:]
    megabytes = round(int(kib) * 1024 / 1e6)
    return {
        "passed": megabytes < LARGEST_PEAK_MB,
        "peak_megabytes": megabytes,
        "text_megabytes": round(text.stat().st_size / 1e6),
        "prepare_seconds": round(float(seconds), 1),
    }


def killed_and_repeated(text: Path, out: Path, expected: dict[str, str], seconds: float, seed: int) -> dict[str, Any]:
    rng, kills = random.Random(seed), 0
    for _ in range(3):
        process = subprocess.Popen(command(text, out, "bytes"), env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        try:
            process.wait(timeout=1 + rng.random() * seconds / 2)
        except subprocess.TimeoutExpired:
            process.kill()
        kills += process.wait() == -signal.SIGKILL
    repeated = subprocess.run(command(text, out, "bytes"), env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=False)
    same = digests(out) == expected
    return {"passed": kills > 0 and repeated.returncode == 0 and same, "kills": kills, "equal_bytes": same}


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


if __name__ == "__main__":
    main()
