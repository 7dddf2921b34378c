"""MLflow: a tracking store (sqlite:///mlflow.db, a file store's folder, a server's address).

The column `step` is the step that metrics were logged with: `mapping={"tokens": "step"}` says that it counts tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun, columns_of_series, need, reason_of, shorten
from isotune.integrations.importers.databases import copied, is_database_of, local_file, require_database
from isotune.integrations.importers.options import Options
from isotune.runs.trajectory import Status

NAME = "mlflow"
NAMES: Mapping[str, str] = {}

RUNS_AT_ONCE = 1000
LARGEST = 1.79e308  # MLflow's databases have no infinity and write the largest number instead
STATUS: dict[str, Status] = {"FINISHED": "finished", "RUNNING": "running", "SCHEDULED": "running"}


def recognizes(source: Any) -> bool:
    if not isinstance(source, str):
        return False
    return is_database_of(NAME, source) or _is_store(Path(source))


def read(source: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    """The runs of one experiment, or of all."""
    require_database(source, NAME)
    folder = _folder(source)
    if folder is not None and not _is_store(folder):
        raise InputError(f"{source} is no folder of an MLflow store (no experiment in it has a meta.yaml): check it")
    mlflow = need("mlflow", "MLflow runs", "mlflow")
    try:
        with copied(source) as address:
            client = mlflow.MlflowClient(address if folder is None else folder.resolve().as_uri())
            for run in _runs(client, source, options):
                yield _raw(client, run, options, notes)
    except ImportError as error:
        raise InputError(f"reading {source} needs {error.name}: pip install {error.name}") from None
    except InputError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, the network's: they share no base
        raise InputError(f"MLflow cannot read {source} ({reason_of(error)}): check the address") from None


def _folder(source: str) -> Path | None:
    """The folder of a file store, which MLflow would make if it is not there; None for databases and servers."""
    if source.startswith("file:"):
        return Path(url2pathname(urlsplit(source).path))
    is_elsewhere = "://" in source or source.partition("-")[0] in ("databricks", "uc") or local_file(source)
    return None if is_elsewhere else Path(source)


def _is_store(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*/meta.yaml"))


def _runs(client: Any, source: str, options: Options) -> Iterator[Any]:
    experiments = list(client.search_experiments())
    if options.experiment is not None:
        names = [experiment.name for experiment in experiments]
        experiments = [experiment for experiment in experiments if experiment.name == options.experiment]
        if not experiments:
            raise InputError(f"{source} has no experiment {options.experiment!r}: give one of {shorten(names)}")
    token = None
    while experiments:
        page = client.search_runs(
            [experiment.experiment_id for experiment in experiments], max_results=RUNS_AT_ONCE, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def _raw(client: Any, run: Any, options: Options, notes: Notes) -> RawRun:
    name = run.info.run_name or run.info.run_id
    series = {}
    for metric in run.data.metrics:
        if not options.wants(metric):
            notes.unused[metric] = None
            continue
        history = sorted(client.get_metric_history(run.info.run_id, metric), key=lambda value: value.timestamp)
        values = np.array([m.value for m in history])
        values = np.where(np.abs(values) >= LARGEST, np.inf, values)
        series[metric] = (np.array([m.step for m in history]), values)
    return RawRun(
        name=name,
        source=f"mlflow:{run.info.run_id}",
        columns=columns_of_series(series, notes, name),
        settings=dict(run.data.params),
        status=STATUS.get(run.info.status, "failed"),
    )
