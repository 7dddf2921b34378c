"""Figures in the page: a drawing that a script fills in, and all of its words; pairs by LR and by ELR share a place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isotune.report.figure import Figure
from isotune.report.page.html import Html, element, join, json_script

BY_LR, BY_ELR = "-by-lr", "-by-elr"  # in the names of two figures that differ in their colours
HEIGHT = 420  # pixels, of a drawing that states none


@dataclass(frozen=True)
class Panel:
    """Figures that are shown in one place, one at a time."""

    figures: tuple[Figure, ...]

    @property
    def group(self) -> str:
        return self.figures[0].group


def panels_of(figures: Sequence[Figure]) -> tuple[Panel, ...]:
    """The panels of all figures that have a drawing."""
    drawn = {figure.name: figure for figure in figures if figure.drawing}
    panels = []
    for name, figure in drawn.items():
        partner = drawn.get(name.replace(BY_LR, BY_ELR)) if BY_LR in name else None
        if BY_ELR in name and name.replace(BY_ELR, BY_LR) in drawn:
            continue  # shown with its partner
        panels.append(Panel((figure,) if partner is None else (figure, partner)))
    return tuple(panels)


def show_panel(panel: Panel, anchor: str) -> Html:
    """The panel with the data of its drawings; where there are two, with a switch between them."""
    first = panel.figures[0]
    title = first.title if len(panel.figures) == 1 else first.title.partition(",")[0]
    height = first.drawing.get("layout", {}).get("height", HEIGHT)
    data = [json_script(f"{anchor}-{number}", figure.drawing) for number, figure in enumerate(panel.figures)]
    captions = [
        element("p", figure.caption, class_="caption", data_figure=str(number), hidden=number > 0)
        for number, figure in enumerate(panel.figures)
    ]
    plot = element(
        "div",
        class_="plot",
        role="img",
        aria_label=f"{title}. {first.caption}",
        style=f"height: {height}px",
        data_drawings=anchor,
        data_name=first.name,
    )
    return element(
        "figure",
        element("h4", title),
        _switch(anchor) if len(panel.figures) > 1 else Html(),
        element("div", plot, class_="scroll"),
        element("figcaption", *captions),
        _buttons(title),
        *data,
        id=first.name,
    )


def _switch(anchor: str) -> Html:
    choices = [
        element(
            "label",
            element("input", type="radio", name=f"{anchor}-colour", value=str(number), checked=number == 0),
            join(" ", name),
        )
        for number, name in enumerate(("LR", "ELR"))
    ]
    return element("fieldset", element("legend", "Colour by"), *choices, class_="switch")


def _buttons(title: str) -> Html:
    buttons = [
        element("button", label, type="button", data_save=kind, aria_label=f"{label}: {title}")
        for kind, label in (("svg", "Save SVG"), ("png", "Save PNG"))
    ]
    return element("div", *buttons, class_="buttons")
