"""What the runs of a sweep are invariant to: LR, ELR = LR * WD, WD or another product LR^a WD^b.

Two stratified permutation tests ask whether a setting matters at all:

    p_wd    given LR, does WD matter?    values shuffled among cells of one LR; F of a quadratic in log2 ELR
    p_lr    given ELR, does LR matter?   values shuffled among cells of one ELR; F of a quadratic in log2 LR

Shuffling freely would ask whether anything matters, which is always so. A test that finds nothing shows nothing, so
invariance needs equivalence too: what changes along the invariant direction is under 20 % of what changes across it.

    strength = mean over neighbouring cells, g octaves apart, of (difference / g)^2 - 2 cell_noise / g^2
    share    = sqrt(strength along / strength across), jackknifed by leaving out one LR (for WD: one WD) at a time

    candidate   along (must not matter)     across (must matter)       test across
    ELR         LR within ELR strata        WD within LR strata        p_wd
    LR          WD within LR strata         LR within WD strata        p_lr
    WD          LR within WD strata         WD within LR strata        p_wd

Beside the verdict stands the angle of the direction in which the values change (angle.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from isotune.analyze.angle import ROUNDING, VALUES_AT_A_TIME, Angle, as_columns, index_angle
from isotune.analyze.curves import Curves, log2_settings
from isotune.analyze.distances import same_up_to
from isotune.errors import InputError
from isotune.recipe.quantities import show

Verdict = Literal["LR", "ELR", "WD", "another", "neither", "undecided"]

ALPHA = 0.05
EQUIVALENCE_SHARE = 0.2
PERMUTATIONS = 9999
MIN_DISTINCT_SHUFFLES = 40  # below, a permutation p-value could never be small
MIN_CELLS = 6
MIN_NOISE_FREEDOM = 3
MIN_NEIGHBOURS = 2  # pairs that a strength is a mean of, whichever LR is left out
MIN_NEIGHBOURS_PER_CELL = 0.25  # fewer: the runs lie off any grid, and a few of them agree by accident
SAME_ANGLE = 5.0  # degrees: an index this near to LR, ELR or WD is not another one, however sure


@dataclass(frozen=True)
class Share:
    """How much a value changes along a direction, as a share of its change across; 0 is perfect invariance."""

    value: float
    low: float
    high: float
    level: float
    reason: str = ""  # why there is none

    @property
    def missing(self) -> bool:
        return math.isnan(self.high)


@dataclass(frozen=True)
class Invariance:
    """What the values are invariant to, the numbers that say so, and the reasons in words."""

    verdict: Verdict
    angle: Angle
    p_wd: float  # given LR, does WD matter?
    p_lr: float  # given ELR, does LR matter?
    elr_share: Share
    lr_share: Share
    wd_share: Share
    cell_noise: float  # variance of a cell's value
    num_cells: int
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def invariance(
    log2_lr: ArrayLike,
    log2_wd: ArrayLike,
    value: ArrayLike,
    *,
    cell_noise: float | None = None,
    cell_noise_freedom: float = math.inf,
    alpha: float = ALPHA,
    equivalence_share: float = EQUIVALENCE_SHARE,
    level: float = 0.9,
    permutations: int = PERMUTATIONS,
    random_seed: int = 0,
) -> Invariance:
    """What the value (one per run, or a curve per run, which is averaged) is invariant to, with the reasons.

    WD is coupled (see curves.log2_settings). Seeds of one cell are averaged. `cell_noise`, the variance of a cell's
    value, comes from twins or seeds where the caller has them, with `cell_noise_freedom` degrees of freedom. Left out,
    it is what seeds say, or else what is left of the values once a term for each LR, each WD and each ELR is taken out.

    ELR, LR or WD: the test across finds an effect, and the share's interval at `level` lies below `equivalence_share`.
    Another or neither: no share is that small, and given LR, given ELR and given WD the rest of a quadratic surface
    matters, each by a stratified permutation test. Another: beyond the noise, one index leaves less than the square of
    `equivalence_share` of the variance unexplained. Neither: it leaves more. Undecided: none of this is shown.
    """
    cells = _cells(log2_lr, log2_wd, value)
    refusal = _refusal(cells)
    if refusal:
        return _undecided(cells, level, refusal)
    noise, freedom, noise_words = _cell_noise(cells, cell_noise, cell_noise_freedom)
    p_wd = _stratified_test(cells.value, cells.lr, _powers(cells.elr), permutations, random_seed)
    p_lr = _stratified_test(cells.value, cells.elr, _powers(cells.lr), permutations, random_seed + 1)
    within_lr, within_wd, within_elr = (cells.lr, cells.wd), (cells.wd, cells.lr), (cells.elr, cells.lr)

    def share(along: _Direction, across: _Direction, leave_out: np.ndarray) -> Share:
        return _share(cells.value, along, across, leave_out, noise, freedom, level)

    shares = {
        "ELR": share(within_elr, within_lr, cells.lr),
        "LR": share(within_lr, within_wd, cells.lr),
        "WD": share(within_wd, within_lr, cells.wd),
    }
    angle = index_angle(cells.lr, cells.wd, cells.value, level=level)
    across = {"ELR": p_wd, "LR": p_lr, "WD": p_wd}
    strata = {"ELR": cells.elr, "LR": cells.lr, "WD": cells.wd}
    surface = _quadratic(cells.lr, cells.wd)
    beyond = {
        name: _stratified_test(cells.value, labels, surface, permutations, random_seed + 2)
        for name, labels in strata.items()
    }
    index = _index_fit(angle, cells.value, noise, freedom, alpha, equivalence_share)
    verdict, reasons = _verdict(across, beyond, shares, angle, index, alpha, equivalence_share)
    if noise_words and verdict == "undecided":
        reasons = (*reasons, noise_words)
    return Invariance(
        verdict,
        angle,
        p_wd.p,
        p_lr.p,
        shares["ELR"],
        shares["LR"],
        shares["WD"],
        noise,
        len(cells.value),
        reasons,
        tuple(test.warning for test in (p_wd, p_lr) if test.warning),
    )


def invariance_of_curves(
    curves: Curves, *, alpha: float = ALPHA, level: float = 0.9, permutations: int = PERMUTATIONS, random_seed: int = 0
) -> Invariance:
    """What the runs' means over their common window are invariant to."""
    log2_lr, log2_wd = log2_settings(curves.infos)
    return invariance(
        log2_lr, log2_wd, curves.values, alpha=alpha, level=level, permutations=permutations, random_seed=random_seed
    )


@dataclass(frozen=True)
class _Cells:
    """Settings and mean value of each cell; LR, WD and ELR are equal where they agree up to rounding."""

    lr: np.ndarray
    wd: np.ndarray
    elr: np.ndarray
    value: np.ndarray
    seed_noise: float  # of a cell's mean, NaN without seeds
    seed_freedom: int


@dataclass(frozen=True)
class _Test:
    p: float
    warning: str = ""


_Direction = tuple[np.ndarray, np.ndarray]  # strata, and the position within them


def _cells(log2_lr: ArrayLike, log2_wd: ArrayLike, value: ArrayLike) -> _Cells:
    x, y, z = as_columns(log2_lr, log2_wd, value)
    x, y = same_up_to(x), same_up_to(y)
    settings, cell = np.unique(np.column_stack([x, y]), axis=0, return_inverse=True)
    cell = cell.ravel()
    counts = np.bincount(cell, minlength=len(settings))
    means = np.bincount(cell, weights=z, minlength=len(settings)) / np.maximum(counts, 1)
    freedom = len(z) - len(settings)
    noise = math.nan
    if freedom:
        noise = float(((z - means[cell]) ** 2).sum()) / freedom * float(np.mean(1 / counts))
    return _Cells(settings[:, 0], settings[:, 1], same_up_to(settings.sum(axis=1)), means, noise, freedom)


def _refusal(cells: _Cells) -> str:
    """Why nothing can be said, or nothing."""
    num_lr, num_wd = len(np.unique(cells.lr)), len(np.unique(cells.wd))
    if len(cells.value) < 3:
        return f"{len(cells.value)} settings say nothing about a direction: it takes {MIN_CELLS}, three LR by two WD"
    if num_lr < 2:
        return "all runs have one LR: nothing tells LR from WD; add runs with another LR"
    if num_wd < 2:
        return "all runs have one WD: nothing tells LR from ELR; add runs with another WD"
    if len(cells.value) < MIN_CELLS:
        return f"{len(cells.value)} cells are too few: it takes {MIN_CELLS}"
    if np.ptp(cells.value) <= ROUNDING * np.abs(cells.value).max():
        return "all values are equal: nothing depends on LR or WD"
    return ""


def _undecided(cells: _Cells, level: float, reason: str) -> Invariance:
    nan = math.nan
    no_share = Share(nan, nan, nan, level, reason)
    angle = Angle(nan, nan, nan, level, nan, reason)
    return Invariance("undecided", angle, nan, nan, no_share, no_share, no_share, nan, len(cells.value), (reason,))


def _cell_noise(cells: _Cells, given: float | None, given_freedom: float) -> tuple[float, float, str]:
    """(variance of a cell's value, degrees of freedom, a word on it): given, from seeds, or from what terms leave."""
    if given is not None:
        if not 0 <= given < math.inf:
            raise InputError(f"cell_noise={show(given)} must be a variance of at least 0")
        return given, given_freedom, ""
    if cells.seed_freedom >= MIN_NOISE_FREEDOM:
        return cells.seed_noise, float(cells.seed_freedom), ""
    for design in (_terms(cells.lr, cells.wd, cells.elr), _quadratic(cells.lr, cells.wd)):
        basis = _orthonormal(design)
        freedom = len(cells.value) - basis.shape[1]
        if freedom >= MIN_NOISE_FREEDOM:
            rest = cells.value - basis @ (basis.T @ cells.value)
            return float(rest @ rest) / freedom, float(freedom), ""
    return math.nan, 0.0, "the noise of a cell is unknown: add seeds, perturbed twins or more cells"


def _terms(*labels: np.ndarray) -> np.ndarray:
    """A column for each value of each label."""
    return np.column_stack([column[:, None] == np.unique(column) for column in labels]).astype(float)


def _quadratic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    u, v = x - x.mean(), y - y.mean()
    return np.column_stack([np.ones_like(u), u, v, u * u, u * v, v * v])


def _powers(position: np.ndarray) -> np.ndarray:
    u = position - position.mean()
    return np.column_stack([u, u * u])


def _orthonormal(design: np.ndarray) -> np.ndarray:
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    return left[:, singular > 1e-9 * singular[0]] if len(singular) else left


def _stratified_test(
    value: np.ndarray, strata: np.ndarray, columns: np.ndarray, permutations: int, random_seed: int
) -> _Test:
    """p of: given the stratum, do the columns matter? Values are shuffled within strata only.

    The scatter within strata is the same for all shuffles, so F goes up with what the columns explain, |Q' value|^2.
    """
    labels, stratum = np.unique(strata, return_inverse=True)
    sizes = np.bincount(stratum)
    num_shuffles = math.prod(math.factorial(int(size)) for size in sizes)
    if num_shuffles == 1:
        return _Test(math.nan, "no two cells share a stratum: a test cannot be made")
    within = value - (np.bincount(stratum, weights=value) / sizes)[stratum]
    within_columns = _centred(columns, stratum, sizes)
    if num_shuffles < MIN_DISTINCT_SHUFFLES:
        return _line_test(within, within_columns, len(labels), num_shuffles)
    basis = _orthonormal(within_columns)
    least = float(((within @ basis) ** 2).sum()) - 1e-10 * float(within @ within)
    count = total = 0
    for shuffled in _shuffles(stratum, num_shuffles, permutations, random_seed):
        count += int((((within[shuffled] @ basis) ** 2).sum(axis=1) >= least).sum())
        total += len(shuffled)
    return _Test(count / total if num_shuffles <= permutations else (1 + count) / (1 + total))


def _centred(columns: np.ndarray, stratum: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The columns minus their means within strata."""
    means = np.array([np.bincount(stratum, weights=column) / sizes for column in columns.T]).T
    return columns - means[stratum]


def _line_test(within: np.ndarray, columns: np.ndarray, num_strata: int, num_shuffles: int) -> _Test:
    """The F test of the first column that varies within strata."""
    squares = (columns**2).sum(axis=0)
    line = columns[:, int(np.argmax(squares > 1e-9))]
    freedom = len(within) - num_strata - 1
    if freedom < 1:
        return _Test(math.nan, "too few cells share a stratum: a test cannot be made")
    total = float(within @ within)
    explained = float(within @ line) ** 2 / float(line @ line)
    f = explained * freedom / max(total - explained, 1e-300)
    return _Test(
        float(special.fdtrc(1, freedom, f)),
        f"{num_shuffles} shuffles are too few for a permutation test: the F test of a straight line took its place",
    )


def _shuffles(stratum: np.ndarray, num_shuffles: int, permutations: int, random_seed: int) -> Iterator[np.ndarray]:
    """Rows of indices that move cells within their stratum only: all there are, or as many random ones, in parts."""
    order = np.argsort(stratum, kind="stable")

    def placed(moved: np.ndarray) -> np.ndarray:
        indices = np.empty_like(moved)
        indices[:, order] = moved
        return indices

    if num_shuffles <= permutations:
        members = [np.flatnonzero(stratum == index) for index in range(int(stratum.max()) + 1)]
        rows = [np.concatenate(row) for row in itertools.product(*(itertools.permutations(group) for group in members))]
        yield placed(np.array(rows, dtype=int))
        return
    rng = np.random.default_rng(random_seed)
    part = max(1, VALUES_AT_A_TIME // len(order))
    for begin in range(0, permutations, part):
        keys = rng.random((min(part, permutations - begin), len(order)))
        keys += stratum[order]  # strata stay in their places
        yield placed(order[np.argsort(keys, axis=1)])


def _share(
    value: np.ndarray,
    along: _Direction,
    across: _Direction,
    leave_out: np.ndarray,
    noise: float,
    freedom: float,
    level: float,
) -> Share:
    """sqrt(strength along / strength across) with its jackknife interval; the noise's error is added in quadrature."""

    def missing(reason: str) -> Share:
        return Share(math.nan, math.nan, math.nan, level, reason)

    units = np.unique(leave_out)
    if math.isnan(noise):
        return missing("the noise of a cell is unknown")
    if len(units) < 3:
        return missing(f"{len(units)} values to leave out one at a time are too few for an interval: it takes 3")
    everything = np.ones(len(value), dtype=bool)
    strengths = np.array(
        [
            [_strength(value, direction, kept, noise) for direction in (along, across)]
            for kept in (everything, *(leave_out != unit for unit in units))
        ]
    )  # [all, then each left out] x [along, across] x [strength, its derivative by the noise]
    if np.isnan(strengths).any():
        return missing("too few neighbouring cells share an LR, a WD or an ELR")
    (a, a_noise), (c, c_noise) = strengths[0]
    noise_error = noise * math.sqrt(2 / freedom)
    # Without a change across, c would scatter by this; whichever unit is left out, there must be more. A jackknife of c
    # itself would be fooled by a change that is far larger at one end of the grid than at the other.
    num_pairs = len(value) - len(np.unique(across[0]))
    c_error = abs(c_noise) * noise * math.sqrt(2 / freedom + 3 / num_pairs)
    if strengths[:, 1, 0].min() - float(special.stdtrit(len(units) - 1, 0.975)) * c_error <= 0:
        return missing("the change across is not told from 0")
    ratio = a / c
    error = math.hypot(
        _jackknife_error(strengths[1:, 0, 0] / strengths[1:, 1, 0]), (a_noise - ratio * c_noise) / c * noise_error
    )
    reach = float(special.stdtrit(len(units) - 1, (1 + level) / 2)) * error
    middle, low, high = (math.sqrt(max(0.0, r)) for r in (ratio, ratio - reach, ratio + reach))
    return Share(middle, low, high, level)


def _strength(value: np.ndarray, direction: _Direction, kept: np.ndarray, noise: float) -> tuple[float, float]:
    """Mean square slope between neighbours of a stratum, noise taken out, and its derivative by the noise."""
    strata, position = (column[kept] for column in direction)
    order = np.lexsort((position, strata))
    # Strata are as wide as rounding: two cells of one ELR may have one LR too, and then no octaves lie between them.
    same = (np.diff(strata[order]) == 0) & (np.diff(position[order]) > 0)
    if same.sum() < max(MIN_NEIGHBOURS, MIN_NEIGHBOURS_PER_CELL * len(strata)):
        return math.nan, math.nan
    difference = np.diff(value[kept][order])[same]
    octaves = np.diff(position[order])[same]
    per_noise = -2 * float(np.mean(1 / octaves**2))
    return float(np.mean((difference / octaves) ** 2)) + noise * per_noise, per_noise


def _jackknife_error(values: np.ndarray) -> float:
    m = len(values)
    return math.sqrt((m - 1) / m * float(((values - values.mean()) ** 2).sum()))


@dataclass(frozen=True)
class _IndexFit:
    """Whether one index LR^a WD^b explains the values: shown, refuted, or (neither) open."""

    is_shown: bool = False
    is_refuted: bool = False
    words: str = ""


def _index_fit(
    angle: Angle, value: np.ndarray, noise: float, freedom: float, alpha: float, equivalence_share: float
) -> _IndexFit:
    """What the best index leaves of the values, beyond their noise, against the square of `equivalence_share`."""
    if math.isnan(angle.unexplained):
        return _IndexFit(words=f"whether another index explains it is open: {angle.reason}")
    limit = equivalence_share**2
    one = f"one index explains it, at {angle.degrees:.0f} degrees ({angle.low:.0f} to {angle.high:.0f})"
    if angle.unexplained < limit:
        return _IndexFit(is_shown=True, words=one)
    if math.isnan(noise):
        return _IndexFit(words="whether another index explains it is open: the noise of a cell is unknown")
    noise_share = noise / float(np.var(value, ddof=1))
    rest_freedom = len(value) - 5
    most = angle.unexplained * rest_freedom / float(special.chdtri(rest_freedom, 1 - alpha)) - noise_share
    if most < limit:
        return _IndexFit(is_shown=True, words=one)
    p = float(special.fdtrc(rest_freedom, freedom, angle.unexplained / noise_share)) if noise_share else 0.0
    rest = f"the best index leaves {max(0.0, angle.unexplained - noise_share):.0%} of the variance beyond the noise"
    if p < alpha and angle.unexplained - noise_share >= limit:
        return _IndexFit(is_refuted=True, words=f"no index explains it: {rest} (p = {p:.2g})")
    return _IndexFit(words=f"whether another index explains it is open: {rest}, {max(0.0, most):.0%} at most")


def _verdict(
    tests: dict[str, _Test],
    beyond: dict[str, _Test],
    shares: dict[str, Share],
    angle: Angle,
    index: _IndexFit,
    alpha: float,
    equivalence_share: float,
) -> tuple[Verdict, tuple[str, ...]]:
    matters = {
        "ELR": f"given LR, WD {_finding(tests['ELR'].p, alpha)}",
        "LR": f"given ELR, LR {_finding(tests['LR'].p, alpha)}",
    }
    shown = [name for name in shares if tests[name].p < alpha and shares[name].high < equivalence_share]
    if shown:
        name = min(shown, key=lambda name: shares[name].high)
        along = {"ELR": "LR at equal ELR", "LR": "WD at equal LR", "WD": "LR at equal WD"}[name]
        small = f"{along} changes it by {_percent(shares[name])} of the change across, under {equivalence_share:.0%}"
        verdicts: dict[str, Verdict] = {"ELR": "ELR", "LR": "LR", "WD": "WD"}
        return verdicts[name], (matters["LR" if name == "LR" else "ELR"], small)
    far = all(share.missing or share.value > equivalence_share for share in shares.values())
    is_named = index.is_shown and any(_is_near(angle, named) for named in (0.0, 45.0, 90.0))
    reasons = [matters["ELR"], matters["LR"]]
    if far and not is_named and all(test.p < alpha for test in beyond.values()):
        why = tuple(f"{name} alone does not explain it (p = {test.p:.2g})" for name, test in beyond.items())
        if index.is_shown or index.is_refuted:
            return "another" if index.is_shown else "neither", (*why, index.words)
        reasons = [*why, index.words]
    for name, share in shares.items():
        words = share.reason if share.missing else f"its share is {_percent(share)}, not under {equivalence_share:.0%}"
        if not share.missing and share.high < equivalence_share:
            words = f"its share is small, {_percent(share)}, but a change across it is not seen"
        reasons.append(f"invariance to {name} is not shown: {words}")
    return "undecided", (*reasons, index.words) if is_named else tuple(reasons)


def _finding(p: float, alpha: float) -> str:
    if math.isnan(p):
        return "cannot be tested"
    return f"matters (p = {p:.2g})" if p < alpha else f"is not seen to matter (p = {p:.2g})"


def _percent(share: Share) -> str:
    return f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"


def _is_near(angle: Angle, degrees: float) -> bool:
    """Whether the interval comes closer to a named direction than anybody would tell apart."""
    turn = (degrees - angle.degrees + 90) % 180 - 90
    return angle.low - angle.degrees - SAME_ANGLE <= turn <= angle.high - angle.degrees + SAME_ANGLE
