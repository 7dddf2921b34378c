"""What the analysis finds on the committed tables: the numbers of docs/findings.md, which stand between its markers.

    python experiments/findings.py        # half a minute; the sentences around the numbers are written by hand

It asks what `isotune diagnose` and `isotune fit` ask, with the same defaults, but for one thing: the predictors of
decayed losses are compared with two rivals, "nothing" and "constant", in their ranks too, by a paired bootstrap over
groups of equal ELR.
"""

from __future__ import annotations

import math
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from table_sheet import update_block

from isotune.analyze import diagnose, fit_laws
from isotune.analyze.decay import Decay, Kind, compare_predictors
from isotune.analyze.diagnosis import Diagnosis, StageFinding, SurfaceFinding, degrees
from isotune.analyze.invariance import Share
from isotune.analyze.laws import PowerLaw, SaturatingPowerLaw, TrainingCurves
from isotune.analyze.scaling import Laws, decays_of
from isotune.errors import InputError
from isotune.integrations.importers import open_source
from isotune.recipe import format_tokens
from isotune.report.words import PAPER_FLOOR_EXPONENT, PAPER_NOISE_EXPONENT

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"
TABLES = ("nano", "small32")
# The families that the paper has, by the names that the analysis gives them, in the order of the page.
ROLES = {
    "batch 4": "small batch",
    "batch 64": "large batch",
    "batch 64 after batch 4 until 1.05M": "Type 2",
    "batch 64 after LR 2^-10 and WD 0.125 and batch 4 until 262K": "Type 1",
}
OPTIMA = {
    "optimal_learning_rate": "best LR",
    "optimal_weight_decay": "best WD",
    "optimal_effective_learning_rate": "best ELR",
    "optimal_loss": "best loss",
}
RIVALS: tuple[Kind, ...] = ("nothing", "constant")
LEVEL = 0.9
DRAWS = 2000
NONE = "-"

Interval = tuple[float, float]


@dataclass(frozen=True)
class Finding:
    """What one family of a table says."""

    table: str
    diagnosis: Diagnosis
    laws: Laws

    @property
    def label(self) -> str:
        name = self.diagnosis.family.name
        return f"{self.table}, {ROLES.get(name, name)}"

    @property
    def can_be_judged(self) -> bool:
        looked_at = [stage.invariance for stage in self.diagnosis.stages]
        fitted = [one.surface for one in self.diagnosis.surfaces]
        return any(one is not None for one in (*looked_at, *fitted))


def main() -> None:
    findings = [one for name in TABLES for one in find(name, ROOT / "tables" / name)]
    write_page(PAGE, findings)
    print(PAGE.relative_to(ROOT))


def find(table: str, source: Path) -> list[Finding]:
    """The families of a source: those of the paper first, then those with most cells."""
    place = {name: number for number, name in enumerate(ROLES)}
    diagnoses = diagnose(open_source(str(source)).trajectories, level=LEVEL)
    diagnoses_in_order = sorted(diagnoses, key=lambda one: place.get(one.family.name, len(place)))
    return [Finding(table, one, fit_laws(one, level=LEVEL)) for one in diagnoses_in_order]


def write_page(path: Path, findings: Sequence[Finding]) -> None:
    for name, text in blocks(findings).items():
        update_block(path, text, *markers(name))


def markers(name: str) -> tuple[str, str]:
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def blocks(findings: Sequence[Finding]) -> dict[str, str]:
    """The generated parts of the page, by the names of their markers."""
    judged = [finding for finding in findings if finding.can_be_judged]
    return {
        "families": families_text(findings),
        "stages": stages_text(judged),
        "shifts": shifts_text(judged),
        "optima": optima_text(judged),
        "laws": laws_text(judged),
        "scaling": scaling_text(judged),
        "decays": decays_text(judged),
    }


# Families


def families_text(findings: Sequence[Finding]) -> str:
    rows, notes = [], []
    for finding in findings:
        family = finding.diagnosis.family
        if finding.can_be_judged:
            rows.append((finding.label, family.name, str(family.num_cells), str(len(family.curves))))
        else:
            notes.append(f"not judged: {finding.label} (cells: {family.num_cells}): {finding.diagnosis.reason}")
    return with_notes(markdown(("here", "family", "cells", "curves"), rows), notes)


# Stages


def stages_text(findings: Sequence[Finding]) -> str:
    columns = (
        "family",
        "n",
        "tokens",
        "cells",
        "alike at equal",
        "WD at equal LR: p",
        "its share",
        "LR at equal ELR: p",
        "its share",
        "angle",
    )
    rows, notes = [], []
    for finding in findings:
        for stage in finding.diagnosis.stages:
            rows.append((finding.label, *stage_row(stage)))
            if why := no_numbers(stage):
                notes.append(f"{finding.label}, {stage.range}: {why}")
    return with_notes(markdown(columns, rows), notes)


def stage_row(stage: StageFinding) -> tuple[str, ...]:
    found = stage.invariance
    if found is None:
        return (stage.range, NONE, "0", stage.verdict, *[NONE] * 5)
    return (
        stage.range,
        f"{format_tokens(stage.tokens[0])} to {format_tokens(stage.tokens[1])}",
        str(found.num_cells),
        stage.verdict,
        number(found.p_wd, ".2g"),
        share(found.lr_share),
        number(found.p_lr, ".2g"),
        share(found.elr_share),
        angle(found.angle.degrees, (found.angle.low, found.angle.high)),
    )


def no_numbers(stage: StageFinding) -> str:
    """Why a stage has no angle."""
    if stage.invariance is None:
        return stage.reason
    return "; ".join(stage.invariance.reasons) if math.isnan(stage.invariance.angle.degrees) else ""


def share(found: Share) -> str:
    return NONE if found.missing else f"{100 * found.value:.0f} % [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def shifts_text(findings: Sequence[Finding]) -> str:
    rows = []
    for finding in findings:
        shift = finding.diagnosis.shift
        if shift is None or shift.verdict != "shift":
            why = "; ".join(shift.reasons) if shift is not None else "too few runs with a curve"
            rows.append((finding.label, *[NONE] * 3, f"undecided: {why}"))
            continue
        parts = (shift.memory_times, shift.learning_rate, shift.weight_decay)
        values = [with_interval(part.value, (part.low, part.high), ".2g") for part in parts]
        rows.append((finding.label, *values, "; ".join(shift.warnings)))
    return markdown(("family", "n at the shift", "exponent of LR", "exponent of WD", ""), rows)


# Optima


def optima_text(findings: Sequence[Finding]) -> str:
    columns = ("family", "budget", "cells", "angle", "best LR", "best WD", "best ELR", "loss", "")
    rows, notes = [], {}
    for finding in findings:
        for one in finding.diagnosis.surfaces:
            rows.append((finding.label, *optimum_row(one)))
            for warning in one.surface.warnings if one.surface is not None and not one.surface.is_censored else ():
                notes.setdefault(f"{finding.label}: {warning}", []).append(format_tokens(one.tokens))
    return with_notes(markdown(columns, rows), [f"{words} ({', '.join(budgets)})" for words, budgets in notes.items()])


def optimum_row(one: SurfaceFinding) -> tuple[str, ...]:
    surface, budget = one.surface, format_tokens(one.tokens)
    if surface is None:
        return (budget, str(len(one.cells.value)), *[NONE] * 5, f"no surface: {one.reason}")
    turned = angle(surface.active_direction, surface.active_direction_interval)
    if surface.is_censored:
        outside = " and ".join(name.replace("_", " ") for name in surface.censored)
        where = f"not known to be inside the grid ({outside}); best cell {surface.best_cell.loss:.4f}"
        return (budget, str(surface.num_cells), turned, *[NONE] * 4, where)
    return (
        budget,
        str(surface.num_cells),
        turned,
        power_of_two(surface.minimum_log2_learning_rate, surface.minimum_log2_learning_rate_interval),
        power_of_two(surface.minimum_log2_weight_decay, surface.minimum_log2_weight_decay_interval),
        power_of_two(
            surface.minimum_log2_effective_learning_rate, surface.minimum_log2_effective_learning_rate_interval
        ),
        with_interval(surface.minimum_loss, surface.minimum_loss_interval, ".4f"),
        "",
    )


def power_of_two(log2: float, ends: Interval) -> str:
    return with_interval(2.0**log2, (2.0 ** ends[0], 2.0 ** ends[1]), ".2g")


# Laws


def laws_text(findings: Sequence[Finding]) -> str:
    columns = ("family", "law", "floor", "factor", "exponent", "paper", "R2", "")
    rows = []
    for finding in findings:
        laws, paper = finding.laws, f"{PAPER_FLOOR_EXPONENT:.4f}"
        parts = (
            ("L(t), alpha", laws.curves, NONE, "curves"),
            ("L0 of ELR", laws.floors, paper, "floors"),
            ("late loss of ELR", laws.late_losses, paper, "late_losses"),
            ("G of ELR", laws.noise, f"{PAPER_NOISE_EXPONENT:.4f}", "noise"),
        )
        for name, law, beside, key in parts:
            floor, factor, exponent, fit, remark = law_cells(law, laws.reasons.get(key, ""))
            rows.append((finding.label, name, floor, factor, exponent, beside, fit, remark))
    return markdown(columns, rows)


def scaling_text(findings: Sequence[Finding]) -> str:
    columns = ("family", "of tokens", "floor", "factor", "exponent", "R2", "")
    rows = []
    for finding in findings:
        laws = finding.laws
        refusals = {laws.reasons.get(name) for name in OPTIMA}
        if len(refusals) == 1 and None not in refusals:
            rows.append((finding.label, "all four", *law_cells(None, laws.reasons["optimal_loss"])))
            continue
        for name, words in OPTIMA.items():
            rows.append((finding.label, words, *law_cells(getattr(laws, name), laws.reasons.get(name, ""))))
    return markdown(columns, rows)


def law_cells(law: TrainingCurves | PowerLaw | SaturatingPowerLaw | None, reason: str) -> tuple[str, ...]:
    """(floor, factor, exponent, R2, remark); of a law that was refused the reason."""
    if law is None:
        return (*[NONE] * 4, f"no law: {reason}")
    fit, remark = f"{law.r_squared:.3f}", "; ".join(law.warnings)
    if isinstance(law, TrainingCurves):
        runs = f"{len(law.runs)} runs" + (f"; {remark}" if remark else "")
        return NONE, NONE, with_interval(law.alpha, law.alpha_interval, ".3f"), fit, runs
    exponent = with_interval(law.exponent, law.exponent_interval, ".3f")
    if isinstance(law, PowerLaw):
        return NONE, with_interval(law.coefficient, law.coefficient_interval, ".2g"), exponent, fit, remark
    floor = with_interval(law.floor, law.floor_interval, ".3f")
    return floor, with_interval(law.amplitude, law.amplitude_interval, ".2g"), exponent, fit, remark


# Decays


def decays_text(findings: Sequence[Finding]) -> str:
    columns = ("family", "decayed loss from", "RMSE", "median error", "Kendall tau")
    columns += tuple(f"RMSE / {rival}" for rival in RIVALS) + tuple(f"tau - {rival}" for rival in RIVALS)
    rows, notes = [], []
    for finding in findings:
        comparison = finding.laws.decays
        if comparison is None:
            notes.append(f"{finding.label}: {finding.laws.reasons['decays']}")
            continue
        notes += [f"{finding.label}: {warning}" for warning in comparison.warnings]
        rows += [(finding.label, *row) for row in predictor_rows(scored_decays(finding.laws))]
    return with_notes(markdown(columns, rows), notes)


def scored_decays(laws: Laws) -> list[Decay]:
    """The decays that the comparison of these laws is about: those with metered noise, where they are enough."""
    assert laws.decays is not None
    decays = decays_of(laws.family)
    metered = [decay for decay in decays if math.isfinite(decay.trunk.scaled_noise)]
    num_scored = len(laws.decays.scores[laws.decays.best].predicted)
    return metered if len(metered) == num_scored else decays


def predictor_rows(decays: Sequence[Decay]) -> list[tuple[str, ...]]:
    compared = {rival: compare_predictors(decays, against=rival, level=LEVEL, draws=DRAWS) for rival in RIVALS}
    scores, best = compared[RIVALS[0]].scores, compared[RIVALS[0]].best
    rows = []
    for kind, score in scores.items():
        ratios = [compared[rival].rmse_ratio_intervals.get(kind) for rival in RIVALS]
        gains = [
            None if rival == kind else tau_gain(decays, score.predicted, scores[rival].predicted) for rival in RIVALS
        ]
        rows.append(
            (
                f"{kind} (best)" if kind == best else kind,
                f"{score.rmse:.4f}",
                f"{100 * score.median_relative_error:.2f} %",
                number(score.kendall_tau, ".2f"),
                *(ends(interval, ".2f") for interval in ratios),
                *(ends(interval, ".3f") for interval in gains),
            )
        )
    return rows


def tau_gain(decays: Sequence[Decay], predicted: np.ndarray, rival: np.ndarray, random_seed: int = 0) -> Interval:
    """Interval of tau(predicted) - tau(rival), each the mean over budgets, by a paired bootstrap over groups.

    A group drawn k times counts k times in every pair that it is part of; copies of one decay are no pair.
    """
    truth = np.array([decay.decayed_loss for decay in decays])
    budgets = np.array([decay.trunk.tokens for decay in decays])
    names, group = np.unique([decay.group for decay in decays], return_inverse=True)
    rng = np.random.default_rng(random_seed)
    counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    gains = []
    for budget in np.unique(budgets):
        here = budgets == budget
        member = np.eye(len(names))[group[here]]
        order = signs(truth[here])
        pairs = drawn_sums(member, order**2, counts)
        gain = drawn_sums(member, (signs(predicted[here]) - signs(rival[here])) * order, counts)
        gains.append(gain / np.where(pairs > 0, pairs, math.nan))
    low, high = np.nanquantile(np.nanmean(gains, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def signs(values: np.ndarray) -> np.ndarray:
    return np.sign(values[:, None] - values)


def drawn_sums(member: np.ndarray, of_pairs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum over pairs of decays, for each draw of groups."""
    return np.einsum("dg,gh,dh->d", counts, member.T @ of_pairs @ member, counts)


# Words


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def with_notes(table: str, notes: Sequence[str]) -> str:
    return "\n".join([table, "", *(f"- {note}" for note in notes)]) if notes else table


def number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else NONE


def with_interval(value: float, interval: Interval, form: str) -> str:
    low, high = (format(end, form) if math.isfinite(end) else "?" for end in interval)
    return f"{number(value, form)} [{low}, {high}]"


def angle(value: float, interval: Interval) -> str:
    return NONE if math.isnan(value) else f"{degrees(value)} [{degrees(interval[0])}, {degrees(interval[1])}]"


def ends(interval: Interval | None, form: str) -> str:
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
