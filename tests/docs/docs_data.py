"""Runs that pages speak of, under foreign names and with a known truth: small files, written in a moment."""

import csv
import math
from pathlib import Path

LEARNING_RATES = [2.0**k for k in range(-12, -7)]
WEIGHT_DECAYS = [2.0**k for k in range(-7, -2)]
STEPS = range(100, 2001, 100)


def loss_at(lr, wd, step):
    """A bowl in LR early, in LR x WD later, that falls with the steps."""
    n = lr * wd * step
    bowl = 0.02 * math.log2(lr / 2**-10) ** 2 + 0.05 * math.log2(1 + 100 * n)
    return 2 + 10 * step**-0.4 + bowl


def cells():
    """(name, LR, WD) of every run."""
    pairs = [(lr, wd) for lr in LEARNING_RATES for wd in WEIGHT_DECAYS]
    return [(f"run-{number}", lr, wd) for number, (lr, wd) in enumerate(pairs)]


def write_runs_csv(path):
    """One file with all runs."""
    rows = [[name, at, lr, wd, loss_at(lr, wd, at)] for name, lr, wd in cells() for at in STEPS]
    write(path, ["run", "step", "learning_rate", "weight_decay", "eval/loss"], rows)


def write_curves(folder):
    """A file per run, whose name is the run."""
    Path(folder).mkdir()
    for name, lr, wd in cells():
        rows = [[at, loss_at(lr, wd, at)] for at in STEPS]
        write(Path(folder) / f"{name}.csv", ["step", "val_loss"], rows)


def write_settings_csv(path):
    """A row of settings for each run."""
    write(path, ["run", "learning_rate", "weight_decay"], cells())


def write(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_runs_parquet(path):
    """The same runs under yet other names, on an axis of tokens."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(name, at * 64 * 1024, lr, wd, loss_at(lr, wd, at)) for name, lr, wd in cells() for at in STEPS]
    names = ["run_id", "num_tokens", "learning_rate", "weight_decay", "eval/loss"]
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)


def write_tensorboard(folder):
    """A folder with event files for each run."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for name, lr, wd in cells():
        writer = EventFileWriter(str(Path(folder) / name))
        for at in STEPS:
            scalars = {"eval/loss": loss_at(lr, wd, at), "lr": lr, "wd": wd}
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
            writer.add_event(Event(step=at, wall_time=at, summary=Summary(value=values)))
        writer.close()


def model_in_a_loop(monkeypatch):
    """A model and its optimizer; before each measurement come the backwards of the loop that a page does not show."""
    import torch

    import isotune.measure
    from isotune.measure.meter import NoiseMeter

    model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 16))

    class MeterInALoop(NoiseMeter):
        def measure(self):
            for _ in range(2):
                tokens = torch.randint(16, (self.micro_batch_size, 5))
                torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            return super().measure()

    monkeypatch.setattr(isotune.measure, "NoiseMeter", MeterInALoop, raising=False)
    return model, torch.optim.AdamW(model.parameters())


def small_sources(monkeypatch):
    """Whatever a page opens in Python is runs.csv: drawing a whole table takes too long."""
    from isotune.integrations import importers

    def open_small(source, real=importers.open_source):
        known = {"batch_size": 64, "sequence_length": 1024}
        return real("runs.csv", mapping={"val_loss": "eval/loss"}, settings=known, weight_decay_convention="coupled")

    monkeypatch.setattr(importers, "open_source", open_small)
