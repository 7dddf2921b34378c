"""Published rules for LR, WD and batch size, to be printed beside our advice: never mixed into it.

Each rule is a pure function of what it needs, in one set of conventions: peak learning rate, coupled weight decay
(w *= 1 - LR*WD), parameters without the embeddings, batch in tokens. They contradict each other; `disagreements` says
where. Sources, and what could be checked, are in docs/rules-of-thumb.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from isotune.errors import InputError
from isotune.recipe.quantities import (
    format_tokens,
    parse_tokens,
    require_positive,
    require_positive_int,
    show,
)

FLOPS_PER_PARAMETER = 6  # per token, forward and backward: C = 6 N D
DISAGREEMENT = 2.0  # factor from which two rules disagree

STEP_LAW = "Li et al. 2025, arXiv 2503.04715 (Step Law)"
DEEPSEEK = "DeepSeek-AI 2024, arXiv 2401.02954, equation 1"
BJORCK = "Bjorck et al. 2024, arXiv 2409.19913"
POWER_LINES = "Bergsma et al. 2025, arXiv 2505.13738"
WANG_AITCHISON = "Wang and Aitchison 2024, arXiv 2405.13698"
NANOCHAT = "karpathy/nanochat, scripts/base_train.py at 00255c1"
OLMO_LADDER = "allenai/OLMo-core, wsds_chinchilla_run_configurator.py at 03a3e2e, after Porian et al., arXiv 2406.19146"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A tuned run from which a rule scales; None where something is not known."""

    tokens: float | str | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    batch_size: int | None = None  # sequences
    sequence_length: int | None = None


@dataclass(frozen=True)
class Rule:
    """What a rule suggests, None where it says nothing; `why_not` is filled where it cannot be applied."""

    name: str
    source: str
    formula: str
    assumes: tuple[str, ...]
    verified: bool = True  # the constants were found in the source or in a copy of it
    learning_rate: float | None = None
    weight_decay: float | None = None
    batch_tokens: float | None = None
    batch_size: float | None = None  # the same in sequences, where the sequence length is known
    why_not: str | None = None

    @property
    def applicable(self) -> bool:
        return self.why_not is None


@dataclass(frozen=True)
class Suggestion:
    """The numbers of one rule."""

    learning_rate: float | None = None
    weight_decay: float | None = None
    batch_tokens: float | None = None


def rules(
    *,
    num_parameters: int | None = None,
    tokens: float | str | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    learning_rate: float | None = None,
    compute: float | None = None,
    reference: Reference | None = None,
) -> tuple[Rule, ...]:
    """All rules in a fixed order: with numbers where their inputs are there, else with the inputs that are missing.

    num_parameters   without embeddings
    batch_size       sequences; with sequence_length it is what rules for WD take as given
    learning_rate    the peak LR that will be used, for rules that give WD from it
    compute          training FLOPs; left out, 6 * num_parameters * tokens
    reference        a tuned run of the same model, for rules that only scale

    >>> for rule in rules(num_parameters=100_000_000, tokens="2B"):
    ...     if rule.applicable:
    ...         print(f"{rule.name}: LR {rule.learning_rate:.2g}, batch {rule.batch_tokens:.3g} tokens")
    Step Law: LR 0.0025, batch 1.19e+05 tokens
    DeepSeek LLM: LR 0.0017, batch 2.39e+05 tokens
    OLMo ladder: LR 0.0024, batch 3.11e+05 tokens
    """
    inputs = _Inputs.of(num_parameters, tokens, batch_size, sequence_length, learning_rate, compute, reference)
    found = [_apply(recipe, inputs) for recipe in _RECIPES]
    return tuple(_in_sequences(rule, inputs.sequence_length) for rule in found)


def disagreements(found: Sequence[Rule], *, factor: float = DISAGREEMENT) -> tuple[str, ...]:
    """A sentence for each two rules whose suggestions differ by more than this factor."""
    if not factor > 1:
        raise InputError(f"factor={show(factor)} must be above 1: two rules that differ by more than it disagree")
    sentences = []
    for label, get in _QUANTITIES:
        said = [(_name(rule), value) for rule in found if (value := get(rule)) is not None]
        for (name, value), (other, other_value) in itertools.combinations(said, 2):
            ratio = max(value, other_value) / min(value, other_value)
            if ratio > factor:
                sentences.append(
                    f"{label}: {name} says {_show(label, value)}, {other} says {_show(label, other_value)}, "
                    f"a factor of {ratio:.2g} apart"
                )
    return tuple(sentences)


def step_law(num_parameters: float, tokens: float) -> Suggestion:
    """LR = 1.79 N^-0.713 D^0.307 and B = 0.58 D^0.571 tokens; N without embeddings."""
    n, d = _positive(num_parameters=num_parameters, tokens=tokens)
    return Suggestion(learning_rate=1.79 * n**-0.713 * d**0.307, batch_tokens=0.58 * d**0.571)


def deepseek(compute: float) -> Suggestion:
    """LR = 0.3118 C^-0.1250 and B = 0.2920 C^0.3271 tokens; C in FLOPs.

    The paper's C is (non-embedding FLOPs per token, attention included) * D. 6 N D leaves attention out; a C that is
    off by a factor of two moves LR by a tenth and B by a quarter.
    """
    (c,) = _positive(compute=compute)
    return Suggestion(learning_rate=0.3118 * c**-0.1250, batch_tokens=0.2920 * c**0.3271)


def bjorck(learning_rate: float, reference_tokens: float, tokens: float) -> Suggestion:
    """LR falls with the horizon: LR = LR_ref (D / D_ref)^-0.32."""
    rate, reference, d = _positive(learning_rate=learning_rate, reference_tokens=reference_tokens, tokens=tokens)
    return Suggestion(learning_rate=rate * (d / reference) ** -0.32)


def power_lines(learning_rate: float, batch_tokens: float, tokens: float, num_parameters: float) -> Suggestion:
    """WD = B / (LR tau D) with the timescale tau = 1.084 (D/N)^-0.527; the two constants are not verified."""
    rate, batch, d, n = _positive(
        learning_rate=learning_rate, batch_tokens=batch_tokens, tokens=tokens, num_parameters=num_parameters
    )
    timescale = 1.084 * (d / n) ** -0.527
    return Suggestion(weight_decay=batch / (rate * timescale * d))


def wang_aitchison(weight_decay: float, rate_ratio: float, batch_ratio: float, tokens_ratio: float) -> Suggestion:
    """The timescale B / (LR WD D), in passes over the data, stays: WD = WD_ref (B/B_ref) / (LR/LR_ref) / (D/D_ref)."""
    decay, rate, batch, d = _positive(
        weight_decay=weight_decay, rate_ratio=rate_ratio, batch_ratio=batch_ratio, tokens_ratio=tokens_ratio
    )
    return Suggestion(weight_decay=decay * batch / rate / d)


def nanochat(
    tokens_ratio: float, batch_tokens: float, learning_rate: float | None = None, weight_decay: float | None = None
) -> Suggestion:
    """B = B_ref (D/D_ref)^0.383 to the nearest power of two, LR ~ sqrt(B), WD = WD_ref sqrt(B/B_ref) D_ref/D.

    nanochat's own reference is B_ref = 2^19 tokens at the D_ref of its 12-layer model.
    """
    d, reference = _positive(tokens_ratio=tokens_ratio, batch_tokens=batch_tokens)
    batch = 2.0 ** round(math.log2(reference * d**0.383))
    root = math.sqrt(batch / reference)
    return Suggestion(
        learning_rate=None if learning_rate is None else require_positive("learning_rate", learning_rate) * root,
        weight_decay=None if weight_decay is None else require_positive("weight_decay", weight_decay) * root / d,
        batch_tokens=batch,
    )


def olmo_ladder(num_parameters: float) -> Suggestion:
    """LR = 0.0047 (N/108M)^(-1/3) / 2 and B = 160 * 2048 (N/108M)^(2/3) tokens, WD 0.1; N without embeddings."""
    (n,) = _positive(num_parameters=num_parameters)
    size = n / 108e6
    return Suggestion(
        learning_rate=0.0047 * size ** (-1 / 3) / 2, weight_decay=0.1, batch_tokens=2048 * 160 * size ** (2 / 3)
    )


@dataclass(frozen=True)
class _Inputs:
    """What is known, checked once and in the rules' units; NaN where it is not known."""

    num_parameters: float
    tokens: float
    sequence_length: float
    batch_tokens: float
    learning_rate: float
    compute: float
    reference_tokens: float
    reference_batch_tokens: float
    reference_learning_rate: float
    reference_weight_decay: float

    @staticmethod
    def of(
        num_parameters: int | None,
        tokens: float | str | None,
        batch_size: int | None,
        sequence_length: int | None,
        learning_rate: float | None,
        compute: float | None,
        reference: Reference | None,
    ) -> _Inputs:
        run = reference or Reference()
        length = _optional(require_positive_int, "sequence_length", sequence_length)
        reference_length = _optional(require_positive_int, "reference.sequence_length", run.sequence_length)
        if math.isnan(reference_length):
            reference_length = length
        n, d = _optional(require_positive_int, "num_parameters", num_parameters), _tokens("tokens", tokens)
        known = _optional(require_positive, "compute", compute)
        return _Inputs(
            num_parameters=n,
            tokens=d,
            sequence_length=length,
            batch_tokens=_optional(require_positive_int, "batch_size", batch_size) * length,
            learning_rate=_optional(require_positive, "learning_rate", learning_rate),
            compute=FLOPS_PER_PARAMETER * n * d if math.isnan(known) else known,
            reference_tokens=_tokens("reference.tokens", run.tokens),
            reference_batch_tokens=_optional(require_positive_int, "reference.batch_size", run.batch_size)
            * reference_length,
            reference_learning_rate=_optional(require_positive, "reference.learning_rate", run.learning_rate),
            reference_weight_decay=_optional(require_positive, "reference.weight_decay", run.weight_decay),
        )


@dataclass(frozen=True)
class _Recipe:
    """A rule without its numbers: what it needs, and how they come about."""

    rule: Rule
    needs: tuple[str, ...]  # fields of _Inputs
    suggest: Callable[[_Inputs], Suggestion]


# How a user gives what a field of _Inputs holds.
_ASK = {
    "num_parameters": "num_parameters",
    "tokens": "tokens",
    "batch_tokens": "batch_size with sequence_length",
    "learning_rate": "learning_rate",
    "compute": "compute (or num_parameters with tokens)",
    "reference_tokens": "reference.tokens",
    "reference_batch_tokens": "reference.batch_size with a sequence_length",
    "reference_learning_rate": "reference.learning_rate",
    "reference_weight_decay": "reference.weight_decay",
}


def _suggest_wang_aitchison(given: _Inputs) -> Suggestion:
    """LR and batch are the reference's where they are not given."""
    return wang_aitchison(
        given.reference_weight_decay,
        _ratio(given.learning_rate, given.reference_learning_rate),
        _ratio(given.batch_tokens, given.reference_batch_tokens),
        given.tokens / given.reference_tokens,
    )


def _suggest_nanochat(given: _Inputs) -> Suggestion:
    return nanochat(
        given.tokens / given.reference_tokens,
        given.reference_batch_tokens,
        _known(given.reference_learning_rate),
        _known(given.reference_weight_decay),
    )


_RECIPES = (
    _Recipe(
        Rule(
            "Step Law",
            STEP_LAW,
            "LR = 1.79 N^-0.713 D^0.307, B = 0.58 D^0.571 tokens",
            ("LR and batch are optimal together", "LR decays to a fixed 1e-5"),
        ),
        ("num_parameters", "tokens"),
        lambda given: step_law(given.num_parameters, given.tokens),
    ),
    _Recipe(
        Rule(
            "DeepSeek LLM",
            DEEPSEEK,
            "LR = 0.3118 C^-0.1250, B = 0.2920 C^0.3271 tokens",
            ("C = 6 N D unless compute is given", "fitted on 1e17 to 2e19 FLOPs", "a multi-step LR schedule"),
        ),
        ("compute",),
        lambda given: deepseek(given.compute),
    ),
    _Recipe(
        Rule(
            "Bjorck et al.",
            BJORCK,
            "LR = LR_ref (D/D_ref)^-0.32",
            ("the same model and batch as the reference", "LR was optimal at the reference"),
        ),
        ("tokens", "reference_tokens", "reference_learning_rate"),
        lambda given: bjorck(given.reference_learning_rate, given.reference_tokens, given.tokens),
    ),
    _Recipe(
        Rule(
            "Power Lines",
            POWER_LINES,
            "WD = B / (LR tau D), tau = 1.084 (D/N)^-0.527",
            (
                "the LR is given, tuned elsewhere (the paper uses muP)",
                "LR decays to zero",
                "B below the critical batch",
            ),
            verified=False,
        ),
        ("learning_rate", "batch_tokens", "tokens", "num_parameters"),
        lambda given: power_lines(given.learning_rate, given.batch_tokens, given.tokens, given.num_parameters),
    ),
    _Recipe(
        Rule(
            "Wang and Aitchison",
            WANG_AITCHISON,
            "B / (LR WD D) stays: WD = WD_ref (B/B_ref) (LR_ref/LR) (D_ref/D)",
            (
                "WD was optimal at the reference",
                "LR and batch are the reference's where one of the two runs does not say them",
            ),
        ),
        ("tokens", "reference_tokens", "reference_weight_decay"),
        _suggest_wang_aitchison,
    ),
    _Recipe(
        Rule(
            "nanochat",
            NANOCHAT,
            "B = B_ref (D/D_ref)^0.383, LR ~ sqrt(B), WD = WD_ref sqrt(B/B_ref) D_ref/D",
            ("the exponent is from Power Lines", "its matrices are trained by Muon, with WD decaying to zero"),
        ),
        ("tokens", "reference_tokens", "reference_batch_tokens"),
        _suggest_nanochat,
    ),
    _Recipe(
        Rule(
            "OLMo ladder",
            OLMO_LADDER,
            "LR = 0.0047 (N/108M)^(-1/3) / 2, B = 160 * 2048 (N/108M)^(2/3) tokens, WD 0.1",
            ("a few times Chinchilla's tokens", "the half is for WSD schedules", "embeddings are not decayed"),
        ),
        ("num_parameters",),
        lambda given: olmo_ladder(given.num_parameters),
    ),
)

_QUANTITIES: tuple[tuple[str, Callable[[Rule], float | None]], ...] = (
    ("LR", lambda rule: rule.learning_rate),
    ("WD", lambda rule: rule.weight_decay),
    ("batch", lambda rule: rule.batch_tokens),
)


def _apply(recipe: _Recipe, given: _Inputs) -> Rule:
    missing = [_ASK[name] for name in recipe.needs if math.isnan(getattr(given, name))]
    if missing:
        return replace(recipe.rule, why_not=f"needs {', '.join(missing)}")
    said = recipe.suggest(given)
    return replace(
        recipe.rule,
        learning_rate=said.learning_rate,
        weight_decay=said.weight_decay,
        batch_tokens=said.batch_tokens,
    )


def _in_sequences(rule: Rule, sequence_length: float) -> Rule:
    if rule.batch_tokens is None or math.isnan(sequence_length):
        return rule
    return replace(rule, batch_size=rule.batch_tokens / sequence_length)


def _name(rule: Rule) -> str:
    return rule.name if rule.verified else f"{rule.name} (not verified)"


def _show(label: str, value: float) -> str:
    return f"{format_tokens(value)} tokens" if label == "batch" else f"{value:.2g}"


def _positive(**values: float) -> list[float]:
    return [require_positive(name, value) for name, value in values.items()]


def _optional(check: Callable[[str, object], float], name: str, value: object) -> float:
    return math.nan if value is None else float(check(name, value))


def _tokens(name: str, value: float | str | None) -> float:
    return math.nan if value is None else require_positive(name, parse_tokens(name, value))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _ratio(value: float, reference: float) -> float:
    """1 where one of them is not known: the setting is taken to be the reference's."""
    ratio = value / reference
    return 1.0 if math.isnan(ratio) else ratio
