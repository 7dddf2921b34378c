"""The decoder: RMSNorm, rotary embeddings, causal attention, SwiGLU, untied head.

It computes what transformers' `LlamaForCausalLM` computes, with two fused matrices (query, key and value; gate and up)
because at small widths the number of operations is what costs. Shape suffixes: B batch, T time, D width, H heads,
C head width, R rotated pairs of a head (C / 2), K query, key or value, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isotune.recipe import Init, ModelShape

# Added to the seed of the initial weights, modulo 2^32 since a CPU's generator sees no more: a perturbation must not be
# a multiple of the weights.
PERTURBATION_STREAM = 0x9E3779B9


class Transformer(nn.Module):
    """Windows of tokens -> logits or losses."""

    cos_TR: Tensor
    sin_TR: Tensor

    def __init__(self, shape: ModelShape, sequence_length: int):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.head = nn.Linear(shape.width, shape.vocabulary_size, bias=False)
        cos_TR, sin_TR = rotation_table(shape, sequence_length)
        self.register_buffer("cos_TR", cos_TR, persistent=False)
        self.register_buffer("sin_TR", sin_TR, persistent=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        logits_BTV: Tensor = self.head(self.features(tokens_BT))
        return logits_BTV

    def features(self, tokens_BT: Tensor) -> Tensor:
        """What the head reads [B, T, D]."""
        length = tokens_BT.shape[1]
        rotation = self.cos_TR[:length], self.sin_TR[:length]
        x_BTD: Tensor = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, rotation)
        normalised_BTD: Tensor = self.norm(x_BTD)
        return normalised_BTD

    def sequence_losses(self, windows_BT: Tensor) -> Tensor:
        """The mean cross-entropy [B] of each window's last T - 1 tokens given those before them, in float32.

        Each target's logit is computed once more, from its row of the head: to pick it from the logits would take
        another array of their size for its gradient, and at large vocabularies those arrays are what costs.
        """
        x_BTD = self.features(windows_BT[:, :-1])
        logits_BTV = self.head(x_BTD)
        target_rows_BTD = F.embedding(windows_BT[:, 1:], self.head.weight)
        # In bfloat16 the target's logit is rounded as the others are, so that a sure prediction costs nothing.
        dtype = logits_BTV.dtype
        target_logits_BT = (x_BTD.to(dtype).float() * target_rows_BTD.to(dtype).float()).sum(dim=-1).to(dtype)
        losses_B: Tensor = (logits_BTV.float().logsumexp(dim=-1) - target_logits_BT.float()).mean(dim=1)
        return losses_B

    def initialize(self, init: Init, seed: int) -> None:
        """Draws all weights from the seed, on the CPU, so that every device starts from the same numbers."""
        generator = torch.Generator().manual_seed(seed)
        moves = torch.Generator().manual_seed((seed + PERTURBATION_STREAM) % 2**32)
        output_std = init.std / (2 * self.shape.num_layers) ** 0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim < 2:
                    parameter.fill_(1.0)
                    continue
                is_output = name.endswith(("attention_out.weight", "down.weight"))
                std = init.scale * (output_std if is_output else init.std)
                draw = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
                if init.perturbation:
                    draw += torch.empty(parameter.shape).normal_(0.0, init.perturbation * std, generator=moves)
                parameter.copy_(draw)


class Block(nn.Module):
    """One layer: attention and SwiGLU, each on a normalised copy of the stream."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.num_heads = shape.num_heads
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.gate_up = nn.Linear(shape.width, 2 * shape.ffn_width, bias=False)
        self.down = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def forward(self, x_BTD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rotation)
        return x_BTD + self.feed_forward(self.ffn_norm(x_BTD))

    def attention(self, x_BTD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x_BTD.shape
        qkv_BTKHC = self.query_key_value(x_BTD).view(batch, length, 3, self.num_heads, width // self.num_heads)
        qkv_KBHTC = qkv_BTKHC.permute(2, 0, 3, 1, 4)
        q_BHTC, k_BHTC = rotate(qkv_KBHTC[:2], rotation)
        out_BHTC = F.scaled_dot_product_attention(q_BHTC, k_BHTC, qkv_KBHTC[2], is_causal=True)
        out_BTD: Tensor = self.attention_out(out_BHTC.transpose(1, 2).reshape(batch, length, width))
        return out_BTD

    def feed_forward(self, x_BTD: Tensor) -> Tensor:
        gate, up = self.gate_up(x_BTD).chunk(2, dim=-1)
        # SiLU, spelled out: compiled for a CPU, its gradient is vectorised, that of F.silu is not.
        out_BTD: Tensor = self.down(gate * torch.sigmoid(gate) * up)
        return out_BTD


def rotation_table(shape: ModelShape, sequence_length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, R] of position * base^(-2i/C)."""
    channels = torch.arange(0, shape.head_width, 2, dtype=torch.float32)
    frequencies = 1.0 / shape.rope_base ** (channels / shape.head_width)
    angles = torch.outer(torch.arange(sequence_length, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x_KBHTC: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Each pair (i, i + C/2) of a head's channels, turned by its position's angle."""
    cos_TR, sin_TR = rotation
    first, second = x_KBHTC.chunk(2, dim=-1)
    turned = torch.cat((first * cos_TR - second * sin_TR, second * cos_TR + first * sin_TR), dim=-1)
    return turned.to(x_KBHTC.dtype)
