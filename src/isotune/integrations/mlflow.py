"""Rows to MLflow, wherever MLFLOW_TRACKING_URI points; continuing a run continues its page."""

from __future__ import annotations

import time

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from isotune.integrations import settings, values
from isotune.recipe import Recipe, Step
from isotune.runs import Row, Study

METRICS_AT_ONCE = 1000  # MLflow takes no more in one call


class MlflowLogger:
    def __init__(self, study: Study, recipe: Recipe):
        self._client = MlflowClient()
        name = study.run_id(recipe)
        experiment = self._client.get_experiment_by_name("isotune")
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment("isotune")
        found = self._client.search_runs([experiment_id], f"attributes.run_name = '{name}'", max_results=1)
        if found:
            self._run_id = found[0].info.run_id
        else:
            self._run_id = self._client.create_run(experiment_id, run_name=name).info.run_id
            params = [Param(key, str(value)) for key, value in settings(recipe).items()]
            self._client.log_batch(self._run_id, params=params)
        self._client.set_tag(self._run_id, "study", study.folder.name)
        self._pending: list[Metric] = []

    def __enter__(self) -> MlflowLogger:
        return self

    def __call__(self, step: Step, row: Row) -> None:
        now = int(time.time() * 1000)
        self._pending += [Metric(name, value, now, step.tokens) for name, value in values(step, row).items()]
        if len(self._pending) >= METRICS_AT_ONCE:
            self._flush()

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._flush()
        self._client.set_terminated(self._run_id, "FINISHED" if kind is None else "KILLED")

    def _flush(self) -> None:
        while self._pending:
            self._client.log_batch(self._run_id, metrics=self._pending[:METRICS_AT_ONCE])
            del self._pending[:METRICS_AT_ONCE]
