"""Two gloo ranks against one process with the same samples."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from parallel_worker import all_micro_batches
from test_meter import by_copies, make_network

from isotune.measure import NoiseMeter, free_noise


@pytest.fixture(scope="module")
def on_two_ranks():
    """The readings under DDP and under FSDP2, of the same processes: starting them takes long."""
    worker = Path(__file__).with_name("parallel_worker.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", worker]
    done = subprocess.run(command, capture_output=True, text=True, cwd=worker.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("RESULT ")[1])


def test_ddp_on_two_ranks_equals_one_process_with_the_same_samples(on_two_ranks):
    model, optimizer = make_network()
    meter = NoiseMeter(model, optimizer, micro_batch_size=3)
    for micro_batch in all_micro_batches():
        (model(micro_batch) / 4).backward()
    expected = meter.measure()
    found = on_two_ranks["ddp"]
    assert (found["num_samples"], found["batch_size"]) == (4, 12) == (expected.num_samples, expected.batch_size)
    assert found["columns"] == pytest.approx(expected.columns, rel=1e-5)


def test_fsdp2_on_two_ranks_equals_the_same_samples_pooled(on_two_ranks):
    model, optimizer = make_network()
    micro_batches = all_micro_batches()
    pooled = [torch.cat(micro_batches[:2]), torch.cat(micro_batches[2:])]
    found = on_two_ranks["fsdp"]
    assert (found["num_samples"], found["batch_size"]) == (2, 12)
    hidden = {"first.weight", "second.weight"}
    for name, expected in by_copies(model, optimizer, pooled, hidden).items():
        assert found["columns"][name] == pytest.approx(expected, rel=1e-5), name
    assert found["free"] == pytest.approx(free_noise(optimizer, [model.first.weight, model.second.weight]), rel=1e-5)
