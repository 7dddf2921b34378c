"""The examples' model in training, with two microbatches in each step."""

import sys

import code_blocks

sys.path.insert(0, str(code_blocks.ROOT / "examples"))
from tiny_model import MICRO_BATCH_SIZE, TinyModel, make_optimizer, sequences

model = TinyModel()
optimizer = make_optimizer(model)
pieces = sequences().split(MICRO_BATCH_SIZE) * 8
batches = list(zip(pieces[::2], pieces[1::2], strict=True))
