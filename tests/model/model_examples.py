"""Models and windows to test with."""

import torch

from isotune.model import Transformer
from isotune.recipe import PRESETS, Init, ModelShape

SHAPES = {
    "nano": PRESETS["nano"],
    "one head": ModelShape(width=32, num_layers=2, num_heads=1, ffn_width=88, vocabulary_size=97),
    "odd sizes": ModelShape(width=30, num_layers=3, num_heads=5, ffn_width=37, vocabulary_size=101),
    "narrowest heads": ModelShape(width=6, num_layers=1, num_heads=3, ffn_width=1, vocabulary_size=2),
    "other rope base": ModelShape(
        width=48, num_layers=2, num_heads=2, ffn_width=96, vocabulary_size=64, rope_base=500_000.0
    ),
    "other norm epsilon": ModelShape(
        width=48, num_layers=2, num_heads=2, ffn_width=96, vocabulary_size=64, norm_epsilon=0.01
    ),
}
SEQUENCE_LENGTH = 24


def make_model(shape: ModelShape, sequence_length: int = SEQUENCE_LENGTH, seed: int = 0) -> Transformer:
    """A model in which nothing is small or equal by chance: large weights, norms that differ from 1."""
    model = Transformer(shape, sequence_length)
    model.initialize(Init(std=0.2), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model


def make_windows(shape: ModelShape, batch: int = 3, length: int = SEQUENCE_LENGTH + 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(shape.vocabulary_size, (batch, length), generator=torch.Generator().manual_seed(seed))
