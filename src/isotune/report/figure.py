"""What a figure is: a name, words, and a drawing that a page or a file can take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A plotly drawing with its words; without a drawing `missing` says why and which runs would allow it."""

    name: str  # file name and anchor: "loss-by-elr"; of several families "loss-by-elr-batch-64"
    title: str
    caption: str  # what is drawn and what to look for, and what decided the verdict where there is one
    drawing: dict[str, Any] = field(repr=False)  # {"data": [...], "layout": {...}}, plain JSON; {} where `missing`
    missing: str = ""
    group: str = ""  # the family, in sources with several of them
    kind: str = ""  # the name without the family: "loss-by-elr"
