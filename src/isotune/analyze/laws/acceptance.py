"""The exponents that a fit accepts; with those that it accepts at other values of an estimate which all points share.

The floors of training curves at one alpha move together with it. Their scatter around a law says nothing of that, so
the law is fitted to the floors of other alphas too, and what is accepted is the union over them. Alpha takes its part d
of the reach (0 at the best alpha, 1 at the ends of its interval) and leaves the rest to the scatter:

    accepted = all (alpha, q) with R_alpha(q) <= min over q of R_alpha + (1 - d(alpha)) s^2 t^2

so that small errors of both kinds add up in quadrature. Where alpha is wrong the floors scatter more: s^2 is that of
the alpha at which they scatter least, with a degree of freedom less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from isotune.analyze.laws.points import Points
from isotune.analyze.laws.projection import Kind, Projection, accepted_exponents, best_exponent, project
from isotune.analyze.laws.scatter import Interval


@dataclass(frozen=True)
class CommonError:
    """How all values move with an estimate that they share, from one end of its interval to the other."""

    shifts: np.ndarray  # [estimates x points] of y; not finite where an estimate says nothing about y
    departures: np.ndarray  # of each estimate: 0 at the best, 1 at an end of its interval

    @property
    def is_bounded(self) -> bool:
        return bool(np.isfinite(self.shifts).all())


@dataclass(frozen=True)
class Accepted:
    """Accepted exponents in order, their linear fits, and how much room each leaves for the other parameters."""

    exponents: np.ndarray
    fits: Projection
    room: np.ndarray  # 0 at the ends


@dataclass(frozen=True)
class AtEstimate:
    """The best fit at one value of the estimate that all points share."""

    data: Points
    exponent: float
    square_sum: float
    departure: float


def fit_at_estimates(kind: Kind, data: Points, bounds: Interval, common: CommonError | None) -> list[AtEstimate]:
    """The fit to the data as they are, then those at the other estimates."""
    moved = [(data, 0.0)]
    if common is not None:
        moved += [
            (replace(data, y=data.y + shift), float(departure))
            for shift, departure in zip(common.shifts, common.departures, strict=True)
        ]
    fits = []
    for points, departure in moved:
        best = best_exponent(kind, points, bounds)
        fits.append(AtEstimate(points, best, float(project(kind, points, np.array([best])).square_sum[0]), departure))
    return fits


def accept(kind: Kind, fits: Sequence[AtEstimate], reach: float, bounds: Interval) -> Accepted:
    """What has a sum of squares of up to `reach` above the least, of which an estimate takes its part."""
    return _union([_accept(kind, fit, reach * (1 - fit.departure), bounds) for fit in fits])


def _accept(kind: Kind, fit: AtEstimate, reach: float, bounds: Interval) -> Accepted:
    # Rounding alone leaves this much; a perfect fit then has intervals of about that width.
    rounding = 1e-26 * float(fit.data.weight @ fit.data.y**2)
    ceiling = fit.square_sum + reach + rounding
    exponents = accepted_exponents(kind, fit.data, fit.exponent, ceiling, bounds)
    fits = project(kind, fit.data, exponents)
    return Accepted(exponents, fits, np.maximum(ceiling - fits.square_sum, 0.0))


def _union(parts: Sequence[Accepted]) -> Accepted:
    exponents = np.concatenate([part.exponents for part in parts])
    order = np.argsort(exponents, kind="stable")
    fits = {
        column.name: np.concatenate([getattr(part.fits, column.name) for part in parts])[order]
        for column in fields(Projection)
    }
    room = np.concatenate([part.room for part in parts])
    return Accepted(exponents[order], Projection(**fits), room[order])
