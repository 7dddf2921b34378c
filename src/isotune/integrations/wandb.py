"""Rows to Weights & Biases; continuing a run continues its page. Offline mode is W&B's own (WANDB_MODE=offline)."""

from __future__ import annotations

import wandb

from isotune.integrations import settings, values
from isotune.recipe import Recipe, Step
from isotune.runs import Row, Study


class WandbLogger:
    def __init__(self, study: Study, recipe: Recipe):
        folder = study.folder / "logs"
        folder.mkdir(exist_ok=True)
        self._run = wandb.init(
            project="isotune",
            group=study.folder.name,
            id=study.run_id(recipe),
            resume="allow",
            config=settings(recipe),
            dir=str(folder),
        )
        self._run.define_metric("*", step_metric="tokens")

    def __enter__(self) -> WandbLogger:
        return self

    def __call__(self, step: Step, row: Row) -> None:
        self._run.log(values(step, row) | {"tokens": step.tokens})

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._run.finish(exit_code=0 if kind is None else 1)
