"""Other people's tools. Each is optional and imported only when it is asked for.

A logger is a context manager that takes the rows of a run while it trains.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from isotune.errors import InputError
from isotune.recipe import Recipe, Step
from isotune.runs import Row, Study

Logger = Callable[[Step, Row], None]


def open_logger(name: str, study: Study, recipe: Recipe) -> AbstractContextManager[Logger]:
    """Logs one run of a study to this tool."""
    try:
        return LOGGERS[name](study, recipe)
    except ModuleNotFoundError as error:
        raise InputError(f"--log {name} needs {error.name}: pip install 'isotune[{name}]'") from None


def settings(recipe: Recipe) -> dict[str, float]:
    """What the tools file a run under."""
    return {
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "effective_learning_rate": recipe.effective_learning_rate,
        "batch_size": recipe.batch_size,
        "sequence_length": recipe.setup.sequence_length,
        "tokens": recipe.tokens,
        "seed": recipe.setup.seed,
        "num_parameters": recipe.setup.model.num_parameters,
    }


def values(step: Step, row: Row) -> dict[str, float]:
    """A row and its step's settings, under the names that we use everywhere."""
    columns = {name: float(value) for name, value in row.items() if name != "tokens"}
    return columns | {
        "learning_rate": step.learning_rate,
        "weight_decay": step.weight_decay,
        "batch_size": step.batch_size,
    }


def _tensorboard(study: Study, recipe: Recipe) -> Any:
    from isotune.integrations.tensorboard import TensorBoardLogger

    return TensorBoardLogger(study, recipe)


def _wandb(study: Study, recipe: Recipe) -> Any:
    from isotune.integrations.wandb import WandbLogger

    return WandbLogger(study, recipe)


def _mlflow(study: Study, recipe: Recipe) -> Any:
    from isotune.integrations.mlflow import MlflowLogger

    return MlflowLogger(study, recipe)


LOGGERS: dict[str, Callable[[Study, Recipe], Any]] = {
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
