"""The loss over (log2 LR, log2 WD) as a paraboloid: its minimum, the direction that matters, where it is flat.

Least squares over the cells within `margin` of the best one, x = log2 LR and y = log2 WD measured from their means:

    loss = c0 + c1 x + c2 y + c3 x^2 + c4 x y + c5 y^2,    Hessian H = [[2 c3, c4], [c4, 2 c5]]

Intervals follow from the coefficients' covariance s^2 V, with Student's quantile t, and draw no random numbers:

    minimum      all m for which some point p with coordinate m has  g' (G V G')^-1 g <= s^2 t^2,  where g = G c is the
                 fitted gradient at p: whether p is the minimum is a linear question (Fieller). The same for log2 ELR
    loss at it   value +- t s sqrt(phi' V phi): at a minimum the errors of its place do not matter to first order
    direction    the top eigenvector's angle is half that of the vector (c3 - c5, c4). Accepted are the angles whose
                 perpendicular component is within t standard errors of 0, and all if the vector is not told from 0
    active       the top eigenvector of M = mean over cells of (gradient gradient'), again half the angle of a vector,
                 (M11 - M22, 2 M12), less what errors add to it; needs no minimum and no convexity

A bootstrap of the residuals would be too narrow (with 12 cells and 6 coefficients residuals have half the errors'
variance), and it cannot say "unbounded". Angles are axial: 0 is LR, 45 is ELR, 90 is WD, and 91 is -89. An interval is
given around its angle, so its ends may lie beyond 90 or -90; (angle - 90, angle + 90) is every direction.

Assumed: cells with independent errors of equal size, or as `weights` (numbers of seeds) or `standard_errors` say.

Where it fails: a loss that is no paraboloid within the margin (real ones rise faster at high LR) shifts the minimum,
and no interval knows of it. Cubic terms that make 1.6 % of the loss at the rim of the margin shift it by .7 octaves
along the valley, and nominal 90 % then never hold the truth; an F test of the cubic terms warns, always at a noise of
.2 %, in a third of the cases at .5 %. A smaller margin helps, at the price of noise.
The numbers are in `proofs/results/analysis_coverage_surface.json`.
"""

from isotune.analyze.surface.cells import Cell
from isotune.analyze.surface.directions import NAMED_DIRECTIONS, SALIENT_BOUNDARY, Factor
from isotune.analyze.surface.fitting import MARGIN, LossSurface, fit_surface
from isotune.analyze.surface.flat_set import TOLERANCE, FlatSet

__all__ = [
    "MARGIN",
    "NAMED_DIRECTIONS",
    "SALIENT_BOUNDARY",
    "TOLERANCE",
    "Cell",
    "Factor",
    "FlatSet",
    "LossSurface",
    "fit_surface",
]
