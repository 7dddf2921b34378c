"""A training run of a second: TinyModel with AdamW, warm-up, constant LR and a decay to zero, for the examples."""

import torch
from tiny_model import MICRO_BATCH_SIZE, TinyModel, sequences

TOKENS_PER_STEP = MICRO_BATCH_SIZE * 12  # a sequence of 13 has 12 targets
NUM_STEPS = 60
TOKENS = NUM_STEPS * TOKENS_PER_STEP


def train(learning_rate: float, weight_decay: float, num_steps: int = NUM_STEPS) -> float:
    """The loss on held-out sequences after training; weight decay is coupled, as in torch.optim.AdamW."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay, foreach=False
    )
    data = sequences()
    held_out, batches = data[:32], data[32:].split(MICRO_BATCH_SIZE)
    for step in range(num_steps):
        rising, falling = (step + 1) / 5, (num_steps - step) / (0.2 * num_steps)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, rising, falling)
        optimizer.zero_grad()
        model(batches[step % len(batches)])["loss"].backward()
        optimizer.step()
    with torch.no_grad():
        return float(model(held_out)["loss"])
