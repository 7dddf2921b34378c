"""The tables: which sweeps they are made of, one command to train them and one to export them.

    python experiments/tables.py plan               # what is there and what is missing, in tokens
    python experiments/tables.py run [SWEEP ...]    # trains in this order; kill and repeat as you like
    python experiments/tables.py export [TABLE ...] # writes tables/<table> from what is finished

Hours of two cores. A partial table says so.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"

from dataclasses import dataclass
from pathlib import Path

from isotune.errors import InputError
from isotune.recipe import format_tokens
from isotune.runs import Study, export_table
from isotune.sweep.grids import read_sweep
from isotune.sweep.plan import make_plan

HERE = Path(__file__).parent
STUDIES, TABLES = Path("studies"), HERE.parent / "tables"
# Evaluation on 128 windows every 61,440 tokens takes 5 % of the time; 240 steps of batch 4, 15 of batch 64.
NANO = {
    "every_tokens": 61_440,
    "windows": 128,
    "final_windows": 4096,
    "noise_every_tokens": 12_288,
    "noise_sequences": 8,
}
SMALL32 = NANO | {"every_tokens": 122_880, "windows": 256, "noise_every_tokens": 49_152}


@dataclass(frozen=True)
class TableSweep:
    table: str
    name: str
    study: str
    measured: dict[str, int]

    @property
    def recipes(self):
        return read_sweep(HERE / "tables" / f"{self.name}.toml").recipes

    @property
    def folder(self):
        return STUDIES / self.study


# In the order of need: claims and tuners want the grids first, then their noise, then the rest.
SWEEPS = [
    TableSweep("nano", "nano-small", "nano", NANO),
    TableSweep("nano", "nano-large", "nano", NANO),
    TableSweep("nano", "nano-low", "nano", NANO),
    TableSweep("small32", "small32-small", "small32", SMALL32),
    TableSweep("nano", "nano-switch", "nano", NANO),
    TableSweep("nano", "nano-seeds", "nano", NANO),
    TableSweep("nano-variants", "nano-perturbed", "nano-perturbed", NANO),
    TableSweep("small32", "small32-seeds", "small32", SMALL32),
    TableSweep("nano-variants", "nano-beta2-0.9", "nano-beta2-0.9", NANO),
    TableSweep("nano-variants", "nano-beta2-0.99", "nano-beta2-0.99", NANO),
    TableSweep("nano-variants", "nano-init-0.25", "nano-init-0.25", NANO),
    TableSweep("nano-variants", "nano-init-0.5", "nano-init-0.5", NANO),
    TableSweep("nano-variants", "nano-init-2", "nano-init-2", NANO),
    TableSweep("nano-variants", "nano-init-4", "nano-init-4", NANO),
    TableSweep("small32", "small32-large", "small32", SMALL32),
    TableSweep("small32-variants", "small32-perturbed", "small32-perturbed", SMALL32),
]
DESCRIPTIONS = {
    "nano": "AdamW on a 133K-parameter byte-level decoder: LR x WD at batch 4 and 64, seeds, batch switches.",
    "small32": "AdamW on a 42K-parameter byte-level decoder, English, 243 tokens each: LR x WD at batch 4 and 64.",
    "small32-variants": "The small32 setting with its init moved by 1e-6.",
    "nano-variants": "The nano setting with its init moved by 1e-6, with other beta2, and with scaled init.",
}


def plan(names):
    for sweep in chosen(names):
        made = make_plan(sweep.recipes, opened(sweep.folder))
        price = made.price
        print(
            f"{sweep.name}: {len(made.recipes)} runs, {format_tokens(price.shared)} tokens, "
            f"{format_tokens(price.there)} there, {format_tokens(price.to_train)} to train",
            flush=True,
        )


def run(names):
    from isotune.sweep.run import run_sweep
    from isotune.train import Execution

    for sweep in chosen(names):
        result = run_sweep(
            sweep.recipes,
            sweep.folder,
            execution=Execution(compiled=True),
            evaluation=sweep.measured,
            on_progress=reporter(),
        )
        print(sweep.name, result, flush=True)


def export(names):
    for table in dict.fromkeys(sweep.table for sweep in SWEEPS):
        if names and table not in names:
            continue
        sweeps = [sweep for sweep in SWEEPS if sweep.table == table]
        studies = [study for sweep in sweeps if (study := opened(sweep.folder))]
        studies = list({study.folder: study for study in studies}.values())
        if studies:
            export_table(
                studies,
                TABLES / table,
                name=table,
                description=DESCRIPTIONS[table],
                planned=[recipe for sweep in sweeps for recipe in sweep.recipes],
                replace=True,
            )
            print(f"tables/{table}", flush=True)


def chosen(names):
    unknown = set(names) - {sweep.name for sweep in SWEEPS}
    if unknown:
        raise InputError(f"no sweep is called {', '.join(sorted(unknown))}: use {', '.join(s.name for s in SWEEPS)}")
    return [sweep for sweep in SWEEPS if not names or sweep.name in names]


def opened(folder):
    return Study.open(folder) if (folder / "study.json").exists() else None


def reporter(every=60):
    """Prints the progress about once a minute."""
    import time

    last = [time.monotonic()]

    def report(progress):
        if time.monotonic() - last[0] >= every:
            last[0] = time.monotonic()
            done, total = format_tokens(progress.tokens_done), format_tokens(progress.tokens_total)
            rate, left = progress.tokens_per_second, progress.seconds_left or 0
            print(f"{done} of {total} tokens, {rate:,.0f} a second, {left / 60:.0f} minutes left", flush=True)

    return report


if __name__ == "__main__":
    commands = {"plan": plan, "run": run, "export": export}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    commands[sys.argv[1]](sys.argv[2:])
