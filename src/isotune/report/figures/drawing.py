"""How figures look: panels with axes, colours that everyone can tell apart, numbers short enough for a page.

Backgrounds are transparent and ink is a grey that shows on white and on black; a page may set `layout.font.color`.
"""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.recipe.quantities import format_tokens

INK = "#7f7f7f"
FAINT = "rgba(128,128,128,0.22)"
CLEAR = "rgba(0,0,0,0)"
# Okabe and Ito's colours for categories, without their black and yellow: one is lost on a dark page, one on a light.
CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
ACCENT = "#D55E00"
FONT_SIZE = 12
PANEL_HEIGHT = 300
DIGITS = 5  # significant ones of every number that is drawn
TITLE_STANDOFF = 6  # pixels between an axis' labels and its title
MARGIN = {"l": 8, "r": 8, "t": 8, "b": 8}

Trace = dict[str, Any]


class Drawing:
    """Panels in rows, each with its traces and axes; `finish` gives the plain dictionary."""

    def __init__(self, num_panels: int = 1, *, columns: int = 2, panel_height: int = PANEL_HEIGHT, gap: float = 0.19):
        self._columns = min(columns, num_panels)
        self._rows = math.ceil(num_panels / self._columns)
        self._gap = gap
        self._height = panel_height * self._rows + 40
        self._data: list[Trace] = []
        self._named: set[str] = set()
        self._layout: dict[str, Any] = {}
        self._annotations: list[dict[str, Any]] = []
        self._shapes: list[dict[str, Any]] = []

    def add(self, panel: int, *traces: Trace) -> None:
        """Draws traces in a panel."""
        for trace in traces:
            in_legend = trace.get("showlegend") and trace["name"] not in self._named  # a name once, for all panels
            self._named |= {trace["name"]} if in_legend else set()
            place = {"xaxis": f"x{_number(panel)}", "yaxis": f"y{_number(panel)}"}
            self._data.append({**trace, **place, "showlegend": bool(in_legend)})

    def axes(self, panel: int, x: dict[str, Any], y: dict[str, Any], title: str = "") -> None:
        """Sets the axes of a panel, and its title where there are several."""
        left, right, bottom, top = self._place(panel)
        number = _number(panel)
        shared = {"automargin": True, "gridcolor": FAINT, "linecolor": INK, "zeroline": False, "ticks": "outside"}
        shared |= {"tickcolor": FAINT, "showline": True}
        self._layout[f"xaxis{number}"] = shared | {"domain": [left, right], "anchor": f"y{number}"} | _apart(x)
        self._layout[f"yaxis{number}"] = shared | {"domain": [bottom, top], "anchor": f"x{number}"} | _apart(y)
        if title:
            self._annotations.append(
                {"text": title, "x": left, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left"}
                | {"yanchor": "bottom", "showarrow": False, "font": {"size": FONT_SIZE}}
            )

    def change_axis(self, panel: int, y: dict[str, Any]) -> None:
        """Changes the y axis of a panel that has one."""
        self._layout[f"yaxis{_number(panel)}"] |= _apart(y)

    def line(self, panel: int, *, x: float | None = None, y: float | None = None, words: str = "") -> None:
        """A dotted line across a panel, at one x or y (of a logarithmic axis the value itself)."""
        number = _number(panel)
        at = {"x0": x, "x1": x, "y0": 0, "y1": 1} if x is not None else {"x0": 0, "x1": 1, "y0": y, "y1": y}
        refs = {"xref": f"x{number}" if x is not None else f"x{number} domain"}
        refs["yref"] = f"y{number} domain" if x is not None else f"y{number}"
        label: dict[str, Any] = {"text": words, "textposition": "start", "font": {"size": FONT_SIZE - 2}}
        if x is not None:
            label |= {"textposition": "end", "textangle": 0, "xanchor": "left", "yanchor": "top", "padding": 4}
        dotted = {"color": INK, "width": 1.5, "dash": "dot"}
        self._shapes.append({"type": "line", "line": dotted, **at, **refs, **({"label": label} if words else {})})

    def set(self, **layout: Any) -> None:
        """Sets anything else of the layout."""
        self._layout |= layout

    def finish(self) -> dict[str, Any]:
        """The drawing as plain data, its numbers rounded."""
        layout = {
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "font": {"size": FONT_SIZE, "color": INK, "family": "Helvetica, Arial, sans-serif"},
            "margin": MARGIN | ({"t": 26} if self._annotations else {}),
            "height": self._height,
            "hovermode": "closest",
            "showlegend": bool(self._named),
            "legend": {"orientation": "h", "y": -0.02, "yref": "container", "yanchor": "bottom", "x": 0},
            **self._layout,
        }
        if self._annotations:
            layout["annotations"] = self._annotations
        if self._shapes:
            layout["shapes"] = self._shapes
        return {"data": [compact(trace) for trace in self._data], "layout": compact(layout)}

    def _place(self, panel: int) -> tuple[float, float, float, float]:
        row, column = divmod(panel, self._columns)
        width = (1 - self._gap * (self._columns - 1)) / self._columns
        between = min(0.3, 96 / self._height) if self._rows > 1 else 0.0
        height = (1 - between * (self._rows - 1)) / self._rows
        left, top = column * (width + self._gap), 1 - row * (height + between)
        return left, left + width, max(0.0, top - height), top


def _apart(axis: dict[str, Any]) -> dict[str, Any]:
    """The axis with its title just beside its labels, however wide they are: plotly's own place is a fixed one."""
    return axis | {"title": {"text": "", "standoff": TITLE_STANDOFF, **axis.get("title", {})}}


def _number(panel: int) -> str:
    """plotly's first axis has no number."""
    return "" if panel == 0 else str(panel + 1)


# Colours


@dataclass(frozen=True)
class Scale:
    """Colours of an ordered setting, by its log2."""

    label: str
    low: float
    high: float
    values: tuple[float, ...]  # that occur, for the ticks of the bar

    @staticmethod
    def of(label: str, log2_values: Iterable[float]) -> Scale:
        values = np.unique(np.round(np.array([v for v in log2_values if math.isfinite(v)], dtype=float), 2))
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        more = min(0.04 * (high - low), 0.45) or 0.5  # else the bar's topmost tick would touch its title
        return Scale(label, low - more, high + more, tuple(values.tolist()))

    def color(self, log2_value: float) -> str:
        share = (log2_value - self.low) / (self.high - self.low) if math.isfinite(log2_value) else 0.0
        return _viridis(min(max(share, 0.0), 1.0))

    def axis(self, **place: Any) -> dict[str, Any]:
        """A plotly `coloraxis` with the bar of these colours."""
        shares = np.linspace(0, 1, 9).tolist()
        ticks = octave_ticks(self.values[0], self.values[-1]) if self.values else np.zeros(0)
        bar = {
            "title": {"text": f"{self.label}<br>\u00a0", "side": "top"},
            "tickvals": ticks,
            "ticktext": [power_of_two(value) for value in ticks],
            "thickness": 11,
            "outlinewidth": 0,
            "len": 0.9,
            **place,
        }
        scale = [[share, _viridis(share)] for share in shares]
        return {"cmin": self.low, "cmax": self.high, "colorscale": scale, "colorbar": bar}

    def carrier(self, axis: str = "coloraxis") -> Trace:
        """An invisible trace: a bar is drawn for a trace only."""
        marker = {"color": [self.low, self.high], "coloraxis": axis, "size": 0.1, "opacity": 0}
        return {"type": "scatter", "x": [None, None], "y": [None, None], "mode": "markers", "marker": marker} | {
            "hoverinfo": "skip",
            "showlegend": False,
        }


@functools.cache
def _viridis(share: float) -> str:
    """A colour of viridis, without its darkest and brightest ends, which vanish on a black or a white page."""
    from plotly.colors import hex_to_rgb, sequential

    anchors = np.array([hex_to_rgb(color) for color in sequential.Viridis])
    place = (0.1 + 0.78 * share) * (len(anchors) - 1)
    red, green, blue = (round(float(np.interp(place, np.arange(len(anchors)), column))) for column in anchors.T)
    return f"#{red:02x}{green:02x}{blue:02x}"


# Axes


def token_axis(low: float, high: float, title: str = "tokens", *, most: int = 6) -> dict[str, Any]:
    """A logarithmic axis of tokens whose ticks are written 100K, 1M."""
    low = max(low, 1.0)
    high = max(high, low * 1.01)
    ticks = _decade_ticks(low, high, most)
    return {
        "type": "log",
        "title": {"text": title},
        "range": [math.log10(low), math.log10(high)],
        "tickvals": ticks,
        "ticktext": [format_tokens(tick) for tick in ticks],
    }


def plain_token_axis(high: float, title: str = "tokens", *, pad: float = 0.03) -> dict[str, Any]:
    """A plain axis of tokens from 0 on."""
    ticks = _even_ticks(0.0, high, 6)
    words = [format_tokens(tick) if tick else "0" for tick in ticks]
    return {"title": {"text": title}, "range": [0, (1 + pad) * high], "tickvals": ticks, "ticktext": words}


def log_axis(title: str, values: Iterable[float], *, pad: float = 0.06, most: int = 6) -> dict[str, Any]:
    """A logarithmic axis for positive values."""
    kept = np.array([value for value in values if math.isfinite(value) and value > 0], dtype=float)
    low, high = (float(kept.min()), float(kept.max())) if len(kept) else (0.1, 10.0)
    more = pad * max(math.log10(high / low), 0.3)
    start, end = math.log10(low) - more, math.log10(high) + more
    ticks = _decade_ticks(10**start, 10**end, most)
    if len(ticks) < 2:
        ticks = _even_ticks(10**start, 10**end, most)
    words = [_decimal(tick) for tick in ticks]
    return {"type": "log", "title": {"text": title}, "range": [start, end], "tickvals": ticks, "ticktext": words}


def octave_axis(title: str, log2_values: Iterable[float], *, pad: float = 0.5, most: int = 7) -> dict[str, Any]:
    """A plain axis of log2 values whose ticks are written as powers of two."""
    values = np.array([value for value in log2_values if math.isfinite(value)], dtype=float)
    low, high = (float(values.min()), float(values.max())) if len(values) else (-1.0, 0.0)
    ticks = octave_ticks(low, high, most)
    return {
        "title": {"text": title},
        "range": [low - pad, high + pad],
        "tickvals": ticks,
        "ticktext": [power_of_two(tick) for tick in ticks],
    }


def plain_axis(title: str, values: Iterable[float] = (), *, pad: float = 0.05) -> dict[str, Any]:
    """A plain axis; with values, its range is theirs."""
    kept = np.array([value for value in values if math.isfinite(value)], dtype=float)
    axis: dict[str, Any] = {"title": {"text": title}, "nticks": 7}
    if len(kept):
        more = pad * (float(np.ptp(kept)) or abs(float(kept[0])) or 1.0)
        axis["range"] = [float(kept.min()) - more, float(kept.max()) + more]
    return axis


def power_of_two(log2_value: float) -> str:
    """2^-10 with a raised exponent; a number that is no power of two in digits."""
    rounded = round(float(log2_value), 2)
    if rounded.is_integer() and abs(rounded) > 1:
        return f"2<sup>{rounded:.0f}</sup>"
    return f"{2.0 ** float(log2_value):.3g}"


def octave_ticks(low: float, high: float, most: int = 7) -> np.ndarray:
    """Whole powers of two inside the range, evenly apart; the ends themselves where there are no two."""
    first, last = math.ceil(low - 0.02), math.floor(high + 0.02)
    if last <= first:
        return np.array([low, high]) if high > low else np.array([low])
    step = math.ceil((last - first) / (most - 1))
    return np.arange(first, last + 1, step)


def _decimal(value: float) -> str:
    """A tick's number; tiny and huge ones as 2·10^-5."""
    if 1e-3 <= value < 1e5:
        return f"{value:.4g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10.0**exponent:.3g}"
    return ("" if factor == "1" else f"{factor}·") + f"10<sup>{exponent}</sup>"


def _decade_ticks(low: float, high: float, most: int) -> list[float]:
    """1, 2 and 5 of each decade, or fewer of them, inside the range."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def _even_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers inside the range, evenly apart."""
    unit = 10.0 ** math.floor(math.log10(high - low))
    step = next(unit * part for part in (0.1, 0.2, 0.5, 1, 2, 5) if (high - low) / (unit * part) <= most)
    return [float(f"{step * place:.6g}") for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


# Marks


def points(
    x: Any, y: Any, *, color: Any, name: str = "", symbol: str = "circle", size: float = 7, **more: Any
) -> Trace:
    """Markers; `more` is plotly's."""
    marker = {"color": color, "symbol": symbol, "size": size} | more.pop("marker", {})
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker, "name": name} | more


def lines(x: Any, y: Any, *, color: str, name: str = "", width: float = 1.5, dash: str = "solid", **more: Any) -> Trace:
    """A line; `more` is plotly's."""
    line = {"color": color, "width": width} | ({"dash": dash} if dash != "solid" else {})
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "name": name} | more


def band(x: np.ndarray, low: np.ndarray, high: np.ndarray, color: str, **more: Any) -> Trace:
    """The area between two lines; none where an end is unknown."""
    known = np.isfinite(low) & np.isfinite(high)
    x, low, high = x[known], low[known], high[known]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": np.concatenate([x, x[::-1]]),
        "y": np.concatenate([high, low[::-1]]),
        "fill": "toself",
        "fillcolor": see_through(color),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    } | more


def error_bars(values: Sequence[float], intervals: Sequence[tuple[float, float]], color: str) -> dict[str, Any]:
    """plotly's error bars from intervals; an infinite end has no bar."""
    above = [_bar(high - value) for value, (_, high) in zip(values, intervals, strict=True)]
    below = [_bar(value - low) for value, (low, _) in zip(values, intervals, strict=True)]
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return bars | {"color": color, "thickness": 1, "width": 3}


def as_text(words: str) -> str:
    """What a user wrote, so that plotly shows it as it stands: it reads a little HTML."""
    return html.escape(words, quote=False)


def see_through(color: str, share: float = 0.18) -> str:
    """A hex colour as one that lets others through.

    >>> see_through("#0072B2")
    'rgba(0,114,178,0.18)'
    """
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:g})"


def _bar(length: float) -> float:
    return max(length, 0.0) if math.isfinite(length) else 0.0


# Numbers


def thin(values: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the values, evenly spread, the first and the last among them.

    >>> thin(np.arange(10), 4).tolist()
    [0, 3, 6, 9]
    """
    if len(values) <= most:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def compact(value: Any) -> Any:
    """Plain data for JSON: numbers with five significant digits, None for those that are not finite."""
    if isinstance(value, dict):
        return {name: compact(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return compact(value.tolist())
    if isinstance(value, list | tuple):
        return [compact(item) for item in value]
    if isinstance(value, np.generic):
        return compact(value.item())
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        rounded = float(f"{value:.{DIGITS}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
    return value
