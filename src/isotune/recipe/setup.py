"""The half of a recipe that no phase changes: model, corpus, init, optimizer, seed, precision."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from isotune.errors import InputError
from isotune.recipe.quantities import (
    require_choice,
    require_not_negative,
    require_positive,
    require_positive_int,
    settle,
    show,
    whole_number,
)

# Part of every identity: raised when the same recipe starts to give other numbers.
NUMERICS_VERSION = 1

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder with RMSNorm, RoPE, SwiGLU and untied embeddings (the Llama family)."""

    width: int
    num_layers: int
    num_heads: int
    ffn_width: int
    vocabulary_size: int
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("width", "num_layers", "num_heads", "ffn_width", "vocabulary_size"):
            settle(self, name, require_positive_int(f"model.{name}", getattr(self, name)))
        for name in ("rope_base", "norm_epsilon"):
            settle(self, name, require_positive(f"model.{name}", getattr(self, name)))
        if self.width % self.num_heads:
            raise InputError(
                f"model.width={self.width} is not a multiple of model.num_heads={self.num_heads}: "
                f"try width {self.width // self.num_heads * self.num_heads or self.num_heads}"
            )
        if self.head_width % 2:
            raise InputError(
                f"model.width / model.num_heads = {self.head_width} is odd, and rotary embeddings turn pairs: "
                f"choose another number of heads"
            )

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def num_parameters(self) -> int:
        per_layer = 4 * self.width**2 + 3 * self.width * self.ffn_width + 2 * self.width
        return 2 * self.vocabulary_size * self.width + self.num_layers * per_layer + self.width

    def flops_per_token(self, sequence_length: int) -> int:
        """Training FLOPs for one token: 6 for each weight that is multiplied (the input embedding is only
        looked up) and 12 * layers * width * length for attention (the usual count, causality not deducted)."""
        multiplied = self.num_parameters - self.vocabulary_size * self.width
        return 6 * multiplied + 12 * self.num_layers * self.width * sequence_length


PRESETS: Mapping[str, ModelShape] = {
    # Bytes; 133k parameters: shows the paper's phenomenon in about two minutes on one core.
    "nano": ModelShape(width=64, num_layers=2, num_heads=4, ffn_width=176, vocabulary_size=256),
    # GPT-2 tokens (50,257, padded to a multiple of 128); 6.6M parameters, most of them embeddings.
    "micro": ModelShape(width=64, num_layers=4, num_heads=4, ffn_width=176, vocabulary_size=50_304),
    # The paper's model: 163.6M parameters with the vocabulary padded to 51,200.
    "paper-164m": ModelShape(width=768, num_layers=12, num_heads=12, ffn_width=2048, vocabulary_size=51_200),
}


@dataclass(frozen=True, kw_only=True)
class Init:
    """Normal weights with this standard deviation; output projections divided by sqrt(2 * layers).

    `scale` multiplies the initial value of every matrix. `perturbation` moves every weight by so many standard
    deviations times another normal draw: how far two runs drift apart that differ by this alone is the floor below
    which no distance means anything.
    """

    std: float = 0.02
    scale: float = 1.0
    perturbation: float = 0.0

    def __post_init__(self) -> None:
        settle(self, "std", require_positive("init.std", self.std))
        settle(self, "scale", require_positive("init.scale", self.scale))
        settle(self, "perturbation", require_not_negative("init.perturbation", self.perturbation))


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW with decoupled, LR-coupled weight decay (w *= 1 - lr * wd) on matrices only."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0  # inf: never clips

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            value = require_not_negative(f"optimizer.{name}", getattr(self, name))
            if value >= 1:
                raise InputError(f"optimizer.{name}={show(value)} must lie in [0, 1): try 0.9 or 0.95")
            settle(self, name, value)
        settle(self, "epsilon", require_positive("optimizer.epsilon", self.epsilon))
        if self.clip_norm != math.inf:
            settle(self, "clip_norm", require_positive("optimizer.clip_norm (inf: no clipping)", self.clip_norm))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all recipes of a study share, and the seed.

    `corpus` is the name of a built-in corpus or a path; its identity is its fingerprint (text, tokenizer, split),
    known once it is read.
    `max_epochs` is a permission, not a setting of the run: the first pass is the same whatever it says.
    """

    model: ModelShape
    corpus: str = "python-sources"
    sequence_length: int = 64
    seed: int = 0
    init: Init = field(default_factory=Init)
    optimizer: AdamW = field(default_factory=AdamW)
    precision: Precision = "float32"
    max_epochs: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.model, ModelShape):
            raise InputError(f"model={show(self.model)} must be a ModelShape, such as one of PRESETS")
        if not isinstance(self.corpus, str) or not self.corpus:
            raise InputError(f'corpus={show(self.corpus)} must be a built-in name or a path: write "python-sources"')
        settle(self, "sequence_length", require_positive_int("sequence_length", self.sequence_length))
        settle(self, "max_epochs", require_positive_int("max_epochs", self.max_epochs))
        seed = whole_number(self.seed)
        if seed is None or not 0 <= seed < 2**32:
            raise InputError(f"seed={show(self.seed)} must be a whole number from 0 to 2^32 - 1")
        settle(self, "seed", seed)
        require_choice("precision", self.precision, get_args(Precision))

    def root(self, corpus_fingerprint: str) -> dict[str, object]:
        """The half of an identity that no phase changes, as plain values with floats written exactly."""
        return dict(_root(self, corpus_fingerprint))


@functools.lru_cache(maxsize=256)  # a plan asks for the same few thousands of times
def _root(setup: Setup, corpus_fingerprint: str) -> dict[str, object]:
    return {
        "model": exact(setup.model),
        "init": _without_defaults(exact(setup.init), perturbation=0.0),
        "optimizer": exact(setup.optimizer),
        "corpus": corpus_fingerprint,
        "sequence_length": setup.sequence_length,
        "seed": setup.seed,
        "precision": setup.precision,
        "numerics_version": NUMERICS_VERSION,
    }


def _without_defaults(values: Any, **later: float) -> dict[str, object]:
    """Entries that were added later count only where they say something, so that older addresses stay."""
    return {name: value for name, value in values.items() if name not in later or value != later[name].hex()}


def exact(value: object) -> object:
    """Plain data in which every float is written by its exact value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: exact(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare}
    if isinstance(value, float):
        return value.hex()
    return value
