"""Power laws with intervals that cover: y = c x^q, y = floor + a x^q, and training curves L0 + A (LR t)^-alpha.

Once the exponent q is fixed, each of these is a linear fit. So the exponent is searched on a line, the rest follows:

    R(q)      = weighted residual sum of squares of the linear fit at exponent q
    exponent  = argmin R(q)                                    variable projection: no start values, no local minima
    accepted  = all q with R(q) <= R(exponent) + s^2 t^2       s^2 the residual variance, t Student's quantile
    interval of a linear combination g of the other parameters, as the floor or the value at some x:
                the union over accepted q of  g(q) +- sqrt((s^2 t^2 + R(exponent) - R(q)) * var_g(q) / s^2)

These are profile (likelihood ratio) intervals. For y = c x^q in log space they are Student's, exactly; elsewhere they
bend with the model, and they are infinite where the data do not bound a parameter. They draw no random numbers. A
bootstrap was measured beside them: for 5 points, nominal 90 % hold the truth in 70 % of the draws (residuals) or 84 %
(pairs), since residuals are smaller than errors and a resample repeats points; the profile holds it in 90 %. The
numbers are in `proofs/results/analysis_coverage_surface.json`.

Neighbouring points of a training curve resemble each other. There s^2 is multiplied by tau = (1 + rho)/(1 - rho), rho
the neighbours' correlation of the residuals, and n points count as n/tau.

Robust fits are Huber's: residuals beyond 1.345 robust deviations are pulled in, and the intervals come from the values
with their residuals pulled in (Huber's pseudo-values, with his factor for few points). They cost a twentieth of the
precision where nothing is wrong, so they are an option; Theil and Sen's exponent always stands beside a power law.

Assumed: x without error, independent errors (except in training curves) of equal size in the space of the fit, or as
`weights` or `standard_errors` say. Where it fails: with fewer than 8 points a robust fit finds no outliers, and a
one-sided outlier at the end of the range still pulls it; curves of fewer than 60 points were not measured, and a curve
that is no power law has residuals alike over long stretches, which widen intervals but do not undo the bias.
"""

from isotune.analyze.laws.points import is_constant, point_weights
from isotune.analyze.laws.power import PowerLaw, fit_power_law
from isotune.analyze.laws.prediction import Prediction
from isotune.analyze.laws.robust import HUBER, NORMAL_MAD
from isotune.analyze.laws.saturating import SaturatingPowerLaw, fit_saturating_power_law
from isotune.analyze.laws.scatter import NO_INTERVAL, ErrorScale, Interval, error_scale
from isotune.analyze.laws.training_curves import TrainingCurve, TrainingCurves, fit_training_curves

__all__ = [
    "HUBER",
    "NORMAL_MAD",
    "NO_INTERVAL",
    "ErrorScale",
    "Interval",
    "PowerLaw",
    "Prediction",
    "SaturatingPowerLaw",
    "TrainingCurve",
    "TrainingCurves",
    "error_scale",
    "fit_power_law",
    "fit_saturating_power_law",
    "fit_training_curves",
    "is_constant",
    "point_weights",
]
