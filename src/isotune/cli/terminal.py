"""What a person sees while waiting, and the curve at the end."""

from __future__ import annotations

import shutil
import time
from collections import deque
from typing import Any, Self

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isotune.recipe import Step, format_tokens
from isotune.runs import Trajectory

REFRESH_SECONDS = 0.2
MIN_READINGS = 12  # of gradient noise, before its ratio means anything
LINE_SECONDS = 10.0  # between lines where the output is no terminal


class StatusLine:
    """A text that changes: in place on a terminal, as a new line every few seconds elsewhere, nothing if quiet."""

    live_seconds = 0.0  # between changes on a terminal

    def __init__(self, *, quiet: bool = False):
        self._quiet, self._shown = quiet, time.monotonic()
        self._console = Console(stderr=True)
        is_live = not quiet and self._console.is_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if is_live else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def is_due(self) -> bool:
        """Whether `show` would show anything now."""
        seconds = self.live_seconds if self._live else LINE_SECONDS
        return not self._quiet and time.monotonic() - self._shown >= seconds

    def show(self, text: str) -> None:
        if not self.is_due():
            return
        self._shown = time.monotonic()
        if self._live:
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._console.print(text.strip(), highlight=False, soft_wrap=True)


class ProgressLine(StatusLine):
    """How far a count has come, how fast it goes and how long it will take."""

    live_seconds = REFRESH_SECONDS

    def __init__(self, *, unit: str, quiet: bool = False):
        super().__init__(quiet=quiet)
        self.unit = unit
        self.done, self.total = 0, 1
        self.values: dict[str, str] = {}
        self._noise: deque[tuple[float, float]] = deque(maxlen=50)
        self._began = time.monotonic()

    def __call__(self, step: Step, row: dict[str, Any]) -> None:
        """Takes in a row of the curve."""
        self.advance(step.tokens - step.tokens_before)
        self.values |= {label: f"{row[name]:.3f}" for name, label in _SHOWN.items() if name in row}
        if all(name in row for name in _NOISE):  # either may be too large for its column
            self._noise.append((row[_NOISE[0]], row[_NOISE[1]]))
            noise, signal = np.sum(self._noise, axis=0)
            if len(self._noise) >= MIN_READINGS:
                self.values["noise scale"] = f"{noise / signal:.0f}" if signal > 0 else "large"

    def advance(self, amount: int) -> None:
        if not self.done:
            self._began = time.monotonic()  # compiling and reading the corpus say nothing of the speed
        self.done += amount
        if self.done and self.is_due():
            self.show(self._text())

    def _text(self) -> str:
        speed = self.done / max(time.monotonic() - self._began, 1e-9)
        left = (self.total - self.done) / speed
        values = "".join(f"  {label} {value}" for label, value in self.values.items())
        share = self.done / self.total
        bar = "━" * round(24 * share) + " " * (24 - round(24 * share))
        return (
            f"{bar} {format_tokens(self.done)} of {format_tokens(self.total)} {self.unit}"
            f"{values}  {format_tokens(speed)} {self.unit}/s  {format_seconds(left)} left"
        )


_SHOWN = {"train_loss": "loss", "val_loss": "val"}
_NOISE = ("precond_noise_trace", "precond_gradient_sq_norm")


def draw_curve(trajectory: Trajectory, *, width: int | None = None) -> str:
    """The loss against tokens as text; empty if there is nothing to draw."""
    import plotext

    val_tokens, val_loss = trajectory.measured("val_loss")
    train_tokens, train_loss = _smooth(*trajectory.measured("train_loss"))
    if len(train_tokens) + len(val_tokens) < 2:
        return ""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width or min(100, shutil.get_terminal_size().columns), 18)
    # The first tenth of the loss's fall would flatten the rest of the curve.
    ceiling = float(np.quantile(np.concatenate((train_loss, val_loss)), 0.9))
    for tokens, loss, label, marker in (
        (train_tokens, train_loss, "train", "braille"),
        (val_tokens, val_loss, "validation", "●"),
    ):
        kept = loss <= ceiling
        if kept.any():
            draw = plotext.plot if label == "train" else plotext.scatter
            draw(tokens[kept].tolist(), loss[kept].tolist(), label=label, marker=marker)
    ticks = np.linspace(0, trajectory.tokens[-1], 5)
    plotext.xticks(ticks.tolist(), [format_tokens(tick) for tick in ticks])
    plotext.xlabel("tokens")
    plotext.title("loss")
    return str(plotext.build())


def make_table(*columns: str) -> Table:
    """A plain table whose cells are never broken over lines."""
    table = Table(box=SIMPLE)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def print_table(table: Table) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # a file has no width to keep to
    console.print(table)


def format_seconds(seconds: float) -> str:
    """A duration in two units at most: "42 s", "3 min 5 s", "2 h 10 min", "12 days"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 2 * 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds / 86400:,.0f} days"


def format_bytes(num_bytes: float) -> str:
    """A size in the largest fitting unit: "1.6 MB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def _smooth(tokens: np.ndarray, values: np.ndarray, num_points: int = 160) -> tuple[np.ndarray, np.ndarray]:
    """Means over equal stretches: single steps are too noisy to look at."""
    if len(tokens) <= num_points:
        return tokens, values
    pieces = np.array_split(np.arange(len(tokens)), num_points)
    return np.array([tokens[piece].mean() for piece in pieces]), np.array([values[piece].mean() for piece in pieces])
