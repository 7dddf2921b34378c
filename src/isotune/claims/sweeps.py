"""The sweeps that the tables are made of, in the order of need: claims and tuners want the grids first, then their
noise, then the rest. The recipes are in experiments/tables/<name>.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Evaluation on 128 windows every 61,440 tokens takes 5 % of the time; 240 steps of batch 4, 15 of batch 64.
NANO: Mapping[str, int] = {
    "every_tokens": 61_440,
    "windows": 128,
    "final_windows": 4096,
    "noise_every_tokens": 12_288,
    "noise_sequences": 8,
}
SMALL32: Mapping[str, int] = {**NANO, "every_tokens": 122_880, "windows": 256, "noise_every_tokens": 49_152}


@dataclass(frozen=True)
class TableSweep:
    """A sweep: the table that it becomes a part of, the study that it is trained in, and what is measured."""

    table: str
    name: str
    study: str
    measured: Mapping[str, int] = field(repr=False)


SWEEPS = (
    TableSweep("nano", "nano-small", "nano", NANO),
    TableSweep("nano", "nano-large", "nano", NANO),
    TableSweep("nano", "nano-low", "nano", NANO),
    TableSweep("small32", "small32-small", "small32", SMALL32),
    TableSweep("small32", "small32-seeds", "small32", SMALL32),
    TableSweep("small32", "small32-low", "small32", SMALL32),
    TableSweep("nano", "nano-switch", "nano", NANO),
    TableSweep("nano", "nano-large-low", "nano", NANO),
    TableSweep("nano", "nano-large-seeds", "nano", NANO),
    TableSweep("nano", "nano-seeds", "nano", NANO),
    TableSweep("nano-variants", "nano-perturbed", "nano-perturbed", NANO),
    TableSweep("nano", "nano-batch-256", "nano-batch-256", {**NANO, "noise_sequences": 32}),
    TableSweep("nano-variants", "nano-late", "nano-late", NANO),
    TableSweep("nano", "nano-diagonal-seeds", "nano", NANO),
    TableSweep("nano-variants", "nano-beta2-0.9", "nano-beta2-0.9", NANO),
    TableSweep("nano-variants", "nano-beta2-0.99", "nano-beta2-0.99", NANO),
    TableSweep("nano-variants", "nano-init-0.25", "nano-init-0.25", NANO),
    TableSweep("nano-variants", "nano-init-0.5", "nano-init-0.5", NANO),
    TableSweep("nano-variants", "nano-init-2", "nano-init-2", NANO),
    TableSweep("nano-variants", "nano-init-4", "nano-init-4", NANO),
    TableSweep("small32", "small32-decay-seeds", "small32", SMALL32),
    TableSweep("small32", "small32-large", "small32", SMALL32),
    TableSweep("small32", "small32-large-seeds", "small32", SMALL32),
    TableSweep("small32", "small32-large-flat", "small32", SMALL32),
    TableSweep("small32-variants", "small32-perturbed", "small32-perturbed", SMALL32),
)
DESCRIPTIONS = {
    "nano": "AdamW on a 133K-parameter byte-level decoder: LR x WD at batch 4 and 64, seeds, switches; batch 256.",
    "small32": "AdamW on a 42K-parameter byte-level decoder, English, 243 tokens each: LR x WD at batch 4 and 64.",
    "small32-variants": "The small32 setting with its init moved by 1e-6.",
    "nano-variants": "The nano setting: init moved by 1e-6, other beta2, scaled init; more LRs at late ELRs.",
}
