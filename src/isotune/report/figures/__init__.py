"""Findings -> figures: of each a pure function that gives its data, and one that draws them.

A figure is an entry of a list here and two functions in a file of this folder. What cannot be drawn raises an
InputError in the first of the two; the figure is then there with that sentence in the place of the drawing. Any other
error is a defect: it is raised, unless a page shall do without that figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from isotune.analyze.diagnosis import Diagnosis
from isotune.analyze.families import place_of
from isotune.analyze.scaling import Laws
from isotune.errors import InputError
from isotune.report.figure import Figure
from isotune.report.figures import (
    cost,
    curves,
    decays,
    distances,
    laws,
    noise_scale,
    shift,
    square_root,
    surfaces,
)
from isotune.report.findings import Findings
from isotune.runs.trajectory import Trajectory

__all__ = ["KINDS", "UNPLACED", "figures_of"]

UNPLACED = "loss"  # the one figure of runs whose settings are unknown

MAX_FAMILIES = 8  # that are drawn one by one


@dataclass(frozen=True)
class Part:
    """What a source says of one family."""

    diagnosis: Diagnosis
    laws: Laws
    diverged: tuple[Trajectory, ...]


Drawn = tuple[str, dict[str, Any]]  # caption, drawing
What = TypeVar("What")


OnDefect = Callable[[str, Exception], None]  # the figure's name, what was raised


def figures_of(findings: Findings, on_defect: OnDefect | None = None) -> tuple[Figure, ...]:
    """All figures of a source, those of the family with most cells first; what cannot be drawn says why.

    With `on_defect`, a figure whose drawing fails is told there and says so in its place; else the error is raised.
    """
    parts = [
        Part(diagnosis, one, _diverged(findings, diagnosis))
        for diagnosis, one in zip(findings.diagnoses, findings.laws, strict=True)
    ]
    if not parts:
        return (_figure(UNPLACED, "Loss curves", "", _unplaced, findings, on_defect),)
    figures = []
    for part in parts[:MAX_FAMILIES]:
        group = part.diagnosis.family.name if len(parts) > 1 else ""
        figures += [_figure(kind, title, group, draw, part, on_defect) for kind, title, draw in OF_A_FAMILY]
    figures += [_figure(kind, title, "", draw, parts[:MAX_FAMILIES], on_defect) for kind, title, draw in OF_ALL]
    if len(parts) > MAX_FAMILIES:
        why = f"{len(parts) - MAX_FAMILIES} of {len(parts)} families are not drawn: give a source with fewer of them"
        figures.append(Figure("other-families", "Other families", "", {}, why, "", "other-families"))
    return tuple(figures)


def _figure(
    kind: str, title: str, group: str, draw: Callable[[What], Drawn], what: What, on_defect: OnDefect | None
) -> Figure:
    name = f"{kind}-{_slug(group)}" if group else kind
    try:
        caption, drawing = draw(what)
    except InputError as error:
        return Figure(name, title, "", {}, str(error), group, kind)
    except Exception as error:
        if on_defect is None:
            raise
        on_defect(name, error)
        why = f"drawing it failed ({type(error).__name__}: {error}), which is a defect of isotune: please report it"
        return Figure(name, title, "", {}, why, group, kind)
    return Figure(name, title, caption, drawing, "", group, kind)


def _slug(group: str) -> str:
    """A family's name as file names and anchors can bear it."""
    return re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-")[:60]


def _diverged(findings: Findings, diagnosis: Diagnosis) -> tuple[Trajectory, ...]:
    """The family's diverged runs, which it knows by their settings alone."""
    places = {place_of(info) for info in diagnosis.family.diverged}
    return tuple(run for run in findings.trajectories if run.info.status == "diverged" and place_of(run.info) in places)


# Of one family


def _loss_by(setting: curves.Setting) -> Callable[[Part], Drawn]:
    def draw(part: Part) -> Drawn:
        data = curves.loss_curves(part.diagnosis.family, part.diverged)
        return curves.loss_caption(part.diagnosis, data, setting), curves.draw_curves(data, setting)

    return draw


def _distances(column: str, when: distances.When) -> Callable[[Part], Drawn]:
    def draw(part: Part) -> Drawn:
        name = part.diagnosis.family.loss if column == "loss" else column
        data = distances.distance_matrices(part.diagnosis, name, when)
        return distances.distances_caption(data), distances.draw_distances(data)

    return draw


def _noise_scale(part: Part) -> Drawn:
    data = noise_scale.noise_scales(part.diagnosis)
    return noise_scale.noise_scale_caption(data), noise_scale.draw_noise_scales(data)


def _noise(part: Part) -> Drawn:
    data = curves.noise_curves(part.diagnosis.family, "scaled_noise")
    return curves.noise_caption(data), curves.draw_curves(data, "ELR")


def _dynamics(part: Part) -> Drawn:
    family = part.diagnosis.family
    panels = [curves.loss_curves(family, part.diverged)]
    panels += [curves.noise_curves(family, column) for column in ("scaled_noise", "scaled_gradient")]
    panels.append(noise_scale.as_curves(noise_scale.noise_scales(part.diagnosis)))
    batch = math.nan if isinstance(family.batch_size, str) else float(family.batch_size)
    return curves.DYNAMICS_CAPTION, curves.draw_dynamics(panels, batch)


def _wsd(part: Part) -> Drawn:
    data = curves.branched_curves(part.diagnosis.family)
    return curves.branched_caption(data), curves.draw_branched(data)


def _surface(part: Part) -> Drawn:
    maps = surfaces.surface_maps(part.diagnosis, 1)
    return surfaces.surface_caption(maps[0]), surfaces.draw_surfaces(maps, _wd_label(part))


def _surfaces(part: Part) -> Drawn:
    maps = surfaces.surface_maps(part.diagnosis)
    if len(maps) < 2:
        raise InputError("there is one budget only: let decays branch off at several (budgets of a sweep)")
    return surfaces.surfaces_caption(maps), surfaces.draw_surfaces(maps, _wd_label(part))


def _wd_label(part: Part) -> str:
    return "WD" if part.diagnosis.family.weight_decay_convention == "coupled" else "ELR / LR"


def _eigen(part: Part) -> Drawn:
    data = surfaces.eigen(part.diagnosis)
    return surfaces.eigen_caption(data), surfaces.draw_eigen(data)


def _shift(part: Part) -> Drawn:
    data = shift.shift_data(part.diagnosis)
    return shift.shift_caption(data), shift.draw_shift(data)


def _laws_of_elr(part: Part) -> Drawn:
    data = laws.laws_of_elr(part.laws)
    return laws.laws_of_elr_caption(data), laws.draw_laws_of_elr(data)


def _decays(part: Part) -> Drawn:
    data = decays.decay_gains(part.diagnosis.family, part.laws)
    return decays.decay_caption(data), decays.draw_decay_gains(data)


OF_A_FAMILY: tuple[tuple[str, str, Callable[[Part], Drawn]], ...] = (
    ("loss-by-lr", "Loss curves, coloured by LR", _loss_by("LR")),
    ("loss-by-elr", "Loss curves, coloured by ELR", _loss_by("ELR")),
    ("shift", "When LR gives way to ELR", _shift),
    ("distances-early", "Distances of early loss curves", _distances("loss", "early")),
    ("distances-loss", "Distances of late loss curves", _distances("loss", "latest")),
    ("distances-noise", "Distances of gradient noise", _distances("scaled_noise", "latest")),
    ("distances-norm", "Distances of gradient norms", _distances("scaled_gradient", "latest")),
    ("final-loss", "Final loss over LR and WD", _surface),
    ("final-loss-budgets", "Final loss over LR and WD, by budget", _surfaces),
    ("eigen", "Curvature and direction against budget", _eigen),
    ("noise-scale", "Noise scale against batch", _noise_scale),
    ("noise", "Gradient noise", _noise),
    ("dynamics", "Loss, noise, norm and noise scale", _dynamics),
    ("wsd", "Trunks and decays", _wsd),
    ("decay-gain", "Gain of a decay against noise", _decays),
    ("laws-of-elr", "L0 and noise against ELR", _laws_of_elr),
)


# Of all families together


def _scaling_laws(parts: Sequence[Part]) -> Drawn:
    found = [laws.family_optima(part.diagnosis, part.laws) for part in parts]
    usable = [one for one in found if len(one.quantities["loss"].best_tokens)]
    if not usable:
        raise InputError("no two runs ended after as many tokens: an optimum needs runs with other LR and WD")
    return laws.optima_caption(usable), laws.draw_optima(usable)


def _square_root(parts: Sequence[Part]) -> Drawn:
    data = square_root.square_root_data([part.diagnosis for part in parts])
    return square_root.square_root_caption(data), square_root.draw_square_root(data)


def _cost(parts: Sequence[Part]) -> Drawn:
    costs = cost.costs_of([part.diagnosis.family for part in parts])
    return cost.cost_caption(costs), cost.draw_costs(costs)


OF_ALL: tuple[tuple[str, str, Callable[[Sequence[Part]], Drawn]], ...] = (
    ("scaling-laws", "Best LR, WD, ELR and loss against budget", _scaling_laws),
    ("square-root-rule", "The square-root rule", _square_root),
    ("cost", "Tokens trained", _cost),
)
KINDS = tuple(kind for kind, _, _ in (*OF_A_FAMILY, *OF_ALL))


def _unplaced(findings: Findings) -> Drawn:
    """Curves of runs of which nothing else can be said, since their settings are unknown."""
    data = curves.unplaced_curves(findings.trajectories, findings.loss)
    return f"Loss curves. Nothing else can be said: {findings.reason}.", curves.draw_unplaced(data)
