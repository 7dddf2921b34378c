"""README.md speaks of a file of runs, a model in training, and a run of two minutes, which is made a short one here."""

import dataclasses

from docs_data import model_in_a_loop, write_runs_csv

import isotune
from isotune.train import train

write_runs_csv("runs.csv")
model, optimizer = model_in_a_loop(monkeypatch)  # noqa: F821


def train_shortly(recipe, study):
    first = dataclasses.replace(recipe.phases[0], tokens=2048)
    return train(dataclasses.replace(recipe, phases=(first,)), study, evaluation={"every_tokens": 2048, "windows": 8})


monkeypatch.setattr(isotune, "train_recipe", train_shortly)  # noqa: F821
