"""A small language model and its data, shared by the examples: any torch module would do."""

import torch
from torch import nn

BATCHES = 40  # microbatches
MICRO_BATCH_SIZE = 4


class TinyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 16)
        self.hidden = nn.Linear(16, 32)
        self.out = nn.Linear(32, 16)
        self.head = nn.Linear(16, 50, bias=False)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.out(torch.tanh(self.hidden(self.embedding(input_ids[:, :-1])))))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def sequences() -> torch.Tensor:
    """Random walks, so that there is something to learn."""
    generator = torch.Generator().manual_seed(1)
    steps = torch.randint(-2, 3, (BATCHES * MICRO_BATCH_SIZE, 13), generator=generator)
    return steps.cumsum(dim=1) % 50


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
