"""A run as everything above training sees it: columns on a token axis, and what is known about the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Status = Literal["finished", "diverged", "failed", "running"]
WeightDecayConvention = Literal["coupled", "independent", "unknown"]
Unknown = Literal["unknown"]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The settings of the last phase before a decay, and where the run comes from."""

    learning_rate: float | Unknown
    weight_decay: float | Unknown
    batch_size: int | Unknown  # sequences
    sequence_length: int | Unknown
    weight_decay_convention: WeightDecayConvention  # coupled: w *= 1 - lr*wd (PyTorch); independent: w *= 1 - wd
    schedule: str
    seed: int | Unknown
    status: Status
    source: str
    setup: str = ""  # what else sets runs apart (model, corpus, optimizer), in words; runs of one setup are compared
    history: str = ""  # what the run did before its main phase, warm-up aside: "batch 4 until 1.05M"
    decay_tokens: int | Unknown = "unknown"  # the length of the final fall of LR; 0: LR never fell
    has_plateau: bool | Unknown = "unknown"  # whether LR was constant for a while; not so in a cosine schedule
    num_parameters: int | Unknown = "unknown"
    perturbation: float = 0.0  # of the init: a run and its perturbed twin differ in nothing else


@dataclass(frozen=True)
class Trajectory:
    """Columns of equal length, `tokens` among them; NaN where a column was not measured."""

    columns: dict[str, np.ndarray]
    info: RunInfo

    @property
    def tokens(self) -> np.ndarray:
        return self.columns["tokens"]

    def measured(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, values) where this column was measured; empty if it never was."""
        values = self.columns.get(name, np.full(len(self.tokens), np.nan))
        there = ~np.isnan(values)
        return self.tokens[there], values[there]

    def last(self, name: str) -> float:
        """The column's last measured value, NaN if there is none."""
        values = self.measured(name)[1]
        return float(values[-1]) if len(values) else float("nan")
