"""What one family says: the verdict with settings to paste, and the evidence in tables and sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isotune.analyze.advice import Advice, advise
from isotune.analyze.diagnosis import Diagnosis
from isotune.analyze.scaling import Laws
from isotune.errors import InputError
from isotune.report import words
from isotune.report.findings import Findings
from isotune.report.page.html import Html, element, folded, join
from isotune.report.page.text import as_sentence, lines_to_paste, sentence_list, word_table


@dataclass(frozen=True)
class Told:
    """A family's findings, with the advice for its largest budget or the refusal to give any."""

    diagnosis: Diagnosis
    laws: Laws
    advice: Advice | None
    refusal: str = ""


def tell(findings: Findings) -> tuple[Told, ...]:
    """What is to be told of each family."""
    told = []
    for diagnosis, laws in zip(findings.diagnoses, findings.laws, strict=True):
        ends = diagnosis.surfaces or diagnosis.family.budgets
        budget = max((end.tokens for end in ends), default=1)
        try:
            advice = advise(findings.diagnoses, tokens=budget, family=diagnosis.family.name, level=findings.level)
        except InputError as error:
            told.append(Told(diagnosis, laws, None, str(error)))
        else:
            told.append(Told(diagnosis, laws, advice))
    return tuple(told)


def show_verdict(told: Told, *, is_folded: bool = False) -> Html:
    """The family's answers, the settings first; folded, the headline stays in sight."""
    diagnosis, advice = told.diagnosis, told.advice
    rows = [join(element("dt", name), element("dd", as_sentence(text))) for name, text in _facts(told) if text]
    heading = element("h3", f"{words.family_title(diagnosis)}: {words.family_counts(diagnosis)}")
    headline = words.advice_headline(advice) if advice else "No LR and WD can be advised yet"
    details = [
        *(_show_settings(advice, diagnosis.family.name) if advice else []),
        element("dl", *rows, class_="facts"),
    ]
    if is_folded:
        return element("article", heading, folded(element("span", headline), join(*details)), class_="family")
    return element("article", heading, element("p", headline, class_="headline"), *details, class_="family")


def _show_settings(advice: Advice, family: str) -> list[Html]:
    return [
        word_table(words.advice_table(advice), f"Best settings of {family}"),
        element("p", as_sentence(words.advice_basis(advice)), class_="basis"),
        element("h4", "To paste"),
        lines_to_paste(advice.lines),
    ]


def _facts(told: Told) -> list[tuple[str, str]]:
    """What the verdict says beside the settings, by name."""
    diagnosis, advice = told.diagnosis, told.advice
    facts = [
        ("Why not", told.refusal),
        ("Invariant to", words.invariance_words(diagnosis)),
        ("Direction that matters", words.salient_words(diagnosis) or "not known: no budget has a fitted surface"),
    ]
    if advice is not None:
        parts = [sentence.partition(": ") for sentence in words.advice_sentences(advice)]
        facts += [(name.capitalize(), rest) for name, _, rest in parts]
        facts.append(("n at the end", "" if math.isnan(advice.memory_times) else f"{advice.memory_times:.2g}"))
    return [*facts, ("What to run next", words.next_run_words(diagnosis) or "no run is suggested")]


def show_evidence(told: Told) -> Html:
    """Tables and sentences behind the verdict, to be unfolded."""
    parts = [
        part for heading, *content in _evidence(told) if any(content) for part in (element("h4", heading), *content)
    ]
    return element("details", element("summary", "In numbers and words"), *parts) if parts else Html()


def _evidence(told: Told) -> list[tuple[str | Html, ...]]:
    """(heading, its content) of each part; without content it has nothing to say."""
    diagnosis, laws, advice = told.diagnosis, told.laws, told.advice
    name = diagnosis.family.name
    stages = words.stage_table(diagnosis.stages)
    surfaces = words.surface_table(diagnosis.surfaces, diagnosis.family.weight_decay_convention)
    decays = words.decay_table(laws.decays) if laws.decays is not None else None
    rules = words.rule_table(advice) if advice is not None else None
    return [
        ("Invariance in each stage of n", word_table(stages, f"Stages of n, {name}")),
        ("Best settings of each budget", word_table(surfaces, f"Minimum of each budget, {name}")),
        ("What decided", sentence_list(words.evidence_sentences(diagnosis))),
        ("Laws", sentence_list([*words.law_sentences(laws), *words.missing_law_sentences(laws)])),
        (
            "Decayed loss read off the trunk",
            word_table(decays, f"Predictors of a decayed loss, {name}"),
            sentence_list(laws.decays.warnings if laws.decays is not None else ()),
        ),
        (
            "Rules of thumb",
            word_table(rules, f"Rules of thumb beside {name}"),
            sentence_list(advice.warnings if advice is not None else ()),
        ),
    ]
