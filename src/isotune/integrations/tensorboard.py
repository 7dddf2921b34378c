"""Rows to TensorBoard, under the study's folder `logs/tensorboard`; the horizontal axis is tokens."""

from __future__ import annotations

from torch.utils.tensorboard import SummaryWriter

from isotune.integrations import settings, values
from isotune.recipe import Recipe, Step
from isotune.runs import Row, Study


class TensorBoardLogger:
    def __init__(self, study: Study, recipe: Recipe):
        self._writer = SummaryWriter(str(study.folder / "logs" / "tensorboard" / study.run_id(recipe)))
        self._writer.add_text("settings", ", ".join(f"{name} = {value}" for name, value in settings(recipe).items()))

    def __enter__(self) -> TensorBoardLogger:
        return self

    def __call__(self, step: Step, row: Row) -> None:
        for name, value in values(step, row).items():
            self._writer.add_scalar(name, value, global_step=step.tokens)

    def __exit__(self, *exception: object) -> None:
        self._writer.close()
