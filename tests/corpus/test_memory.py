"""Peak memory of a preparation, in a process of its own."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

SOURCE = Path(__file__).parents[2] / "src"
# Linux's ru_maxrss remembers the process that started this one, its VmHWM does not.
SCRIPT = """
import re, sys
from isotune.corpus import load_tokenizer, prepare
peak_kib = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
load_tokenizer("gpt2")
before = peak_kib()
prepare([sys.argv[1]], sys.argv[2], tokenizer=sys.argv[3])
print(before, peak_kib())
"""


def peak_mib(path, out, tokenizer):
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", SCRIPT, path, out, tokenizer]
    before, peak = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.split()
    return int(before) / 2**10, int(peak) / 2**10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [("line.txt", "gpt2"), ("line.txt.zst", "bytes"), ("records.jsonl", "bytes"), ("endless.txt", "gpt2")],
)
def test_memory_does_not_grow_with_the_input(tmp_path, name, tokenizer):
    rng = random.Random(0)
    block = " ".join(rng.choice(["some", "words", "日本", "and", "x1"]) for _ in range(200_000))
    path = tmp_path / name
    if name == "line.txt":
        path.write_text(" ".join([block] * 8))
    elif name == "line.txt.zst":
        path.write_bytes(zstandard.compress(" ".join([block] * 60).encode()))
    elif name == "records.jsonl":
        line = json.dumps({"text": block}, ensure_ascii=False) + "\n"
        path.write_text(line * 40)
    else:
        path.write_text("abcdefghij" * 300_000)  # not a space to cut at
    before, peak = peak_mib(path, tmp_path / "out", tokenizer)
    # The text has 3 to 60 MB, and as Python integers its tokens would have ten times that.
    assert peak < 200
    assert peak - before < 100
