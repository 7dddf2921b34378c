"""Run by torchrun: measures on two ranks under DDP, then under FSDP2, and prints the first rank's readings."""

import json
import os

import torch
import torch.distributed as dist
from test_meter import Network, make_network
from torch.nn.parallel import DistributedDataParallel

from isotune.measure import NoiseMeter, free_noise


def all_micro_batches():
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 20, (3, 6), generator=generator) for _ in range(4)]


def ddp(rank):
    model, optimizer = make_network()
    wrapped = DistributedDataParallel(model)
    meter = NoiseMeter(model, optimizer, micro_batch_size=3)
    mine = all_micro_batches()[2 * rank : 2 * rank + 2]
    with wrapped.no_sync():
        (wrapped(mine[0]) / 2).backward()
    (wrapped(mine[1]) / 2).backward()
    reading = meter.measure()
    return {"columns": reading.columns, "num_samples": reading.num_samples, "batch_size": reading.batch_size}


def fsdp(rank):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Network()
    fully_shard(model.first)
    fully_shard(model.second)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    torch.manual_seed(0)
    Network()  # the same random numbers as in make_network
    for _ in range(3):
        model(torch.randint(0, 20, (8, 6))).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    meter = NoiseMeter(model, optimizer, micro_batch_size=3)
    micro_batches = all_micro_batches()
    for k in range(2):  # a sample pools what the ranks see at the same time
        (model(micro_batches[2 * k + rank]) / 2).backward()
    reading = meter.measure()
    result = {"columns": reading.columns, "num_samples": reading.num_samples, "batch_size": reading.batch_size}
    hidden = [p for name, p in model.named_parameters() if name in ("first.weight", "second.weight")]
    return result | {"free": free_noise(optimizer, hidden)}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    results = {"ddp": ddp(dist.get_rank()), "fsdp": fsdp(dist.get_rank())}
    if dist.get_rank() == 0:
        print("RESULT", json.dumps(results), flush=True)
    dist.barrier()  # both have said what they had to say
    os._exit(0)  # gloo's threads abort now and then while the interpreter takes itself down
