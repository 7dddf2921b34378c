"""Gradient noise in a plain PyTorch loop: the lines with `meter` are all it takes."""

import torch
from tiny_model import MICRO_BATCH_SIZE, TinyModel, make_optimizer, sequences
from torch import nn

from isotune.measure import NoiseMeter

ACCUMULATION = 2


def main():
    model = TinyModel()
    optimizer = make_optimizer(model)
    meter = NoiseMeter(model, optimizer, micro_batch_size=MICRO_BATCH_SIZE, every_steps=5)
    readings = []
    micro_batches = sequences().split(MICRO_BATCH_SIZE)
    for step in range(len(micro_batches) // ACCUMULATION):
        for micro_batch in micro_batches[step * ACCUMULATION : (step + 1) * ACCUMULATION]:
            (model(micro_batch)["loss"] / ACCUMULATION).backward()
        reading = meter.measure()  # before clipping
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if reading is not None:
            readings.append(reading.columns)
            print(f"step {step}: noise_trace {reading.columns['noise_trace']:.4f}")
    meter.close()
    return readings


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
