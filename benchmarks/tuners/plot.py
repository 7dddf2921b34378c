"""Mean regret against tokens as a share of the grid's, drawn as SVG by hand: no drawing library writes it offline."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT, TOP = 760, 460, 70, 45, 190, 30
COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
DASHES = ("", "2 2", "6 3", "8 2 2 2")  # the next one when all colors are used
WIDE = ("isotune", 3.0)  # whose line is wider than 1.5
SHARES = (0.01, 1.0)  # of the grid's price
REGRETS = (1e-4, 0.1)


def draw(file: Path, title: str, shares: np.ndarray, regrets: Mapping[str, np.ndarray]) -> None:
    """One line for each tuner on logarithmic axes; NaN and what is off the axes is left out or cut."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
        *_axes(),
    ]
    for number, (name, values) in enumerate(regrets.items()):
        turn, color = divmod(number, len(COLORS))
        width = WIDE[1] if name == WIDE[0] else 1.5
        style = f'stroke="{COLORS[color]}" stroke-width="{width}" stroke-dasharray="{DASHES[turn % len(DASHES)]}"'
        there = np.isfinite(values)
        points = " ".join(f"{_x(s):.1f},{_y(v):.1f}" for s, v in zip(shares[there], values[there], strict=True))
        parts.append(f'<polyline points="{points}" fill="none" {style}/>')
        y = TOP + 10 + 14 * number
        parts.append(f'<line x1="{WIDTH - RIGHT + 10}" x2="{WIDTH - RIGHT + 34}" y1="{y - 4}" y2="{y - 4}" {style}/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 40}" y="{y}">{escape(name)}</text>')
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _axes() -> list[str]:
    parts = []
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        parts.append(f'<line x1="{_x(share)}" x2="{_x(share)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_x(share)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{100 * share:g} %</text>')
    for regret in (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.1):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(regret)}" y2="{_y(regret)}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{_y(regret) + 4}" text-anchor="end">{100 * regret:g} %</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">tokens, as a share of the full grid</text>')
    height = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {height})" text-anchor="middle"'
    parts.append(f'<text x="14" y="{height}" {turned}>mean regret</text>')
    return parts


def _x(share: float) -> float:
    low, high = np.log(SHARES)
    return float(LEFT + (np.log(np.clip(share, *SHARES)) - low) / (high - low) * (WIDTH - LEFT - RIGHT))


def _y(regret: float) -> float:
    low, high = np.log(REGRETS)
    return float(HEIGHT - BOTTOM - (np.log(np.clip(regret, *REGRETS)) - low) / (high - low) * (HEIGHT - BOTTOM - TOP))
