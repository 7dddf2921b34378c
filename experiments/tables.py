"""The tables: which sweeps they are made of, one command to train them and one to export them.

    python experiments/tables.py plan               # what is there and what is missing, in tokens
    python experiments/tables.py run [SWEEP ...]    # trains in this order; kill and repeat as you like
    python experiments/tables.py export [TABLE ...] # adds what is finished to tables/<table>, whose rows stay
    python experiments/tables.py verify [TABLE ...] # trains a first stretch of each table again and compares
    python experiments/tables.py sheet [TABLE ...]  # what the data sheets tables/<table>.md show, from the tables

`run` takes hours of two cores. A partial table says so. `verify` and `sheet` need no study, only the tables.
"""

import json
import os
import subprocess
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"

from datetime import UTC, datetime
from pathlib import Path

from isotune.claims.sweeps import DESCRIPTIONS as CLAIM_TABLES
from isotune.claims.sweeps import SMALL32, TableSweep
from isotune.claims.sweeps import SWEEPS as CLAIM_SWEEPS
from isotune.errors import InputError
from isotune.recipe import format_tokens
from isotune.runs import Study, export_table, merge_tables, read_table
from isotune.sweep.grids import read_sweep
from isotune.sweep.plan import make_plan

HERE = Path(__file__).parent
STUDIES, TABLES, RESULTS = Path("studies"), HERE.parent / "tables", HERE / "results"
# No claim is judged on these: tuners are raced on them.
RACE_SWEEPS = (
    TableSweep("german48", "german48-grid", "german48", SMALL32),
    TableSweep("german48", "german48-seeds", "german48", SMALL32),
)
SWEEPS = (*CLAIM_SWEEPS, *RACE_SWEEPS)
DESCRIPTIONS = {
    **CLAIM_TABLES,
    "german48": "AdamW on an 80K-parameter byte-level decoder, a German-English dictionary: LR x WD at batch 16.",
}


def recipes_of(sweep):
    return read_sweep(HERE / "tables" / f"{sweep.name}.toml").recipes


def folder_of(sweep):
    return STUDIES / sweep.study


def plan(names):
    for sweep in chosen(names):
        made = make_plan(recipes_of(sweep), opened(folder_of(sweep)))
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
            recipes_of(sweep),
            folder_of(sweep),
            execution=Execution(compiled=True),
            evaluation=dict(sweep.measured),
            on_progress=reporter(),
        )
        print(sweep.name, result, flush=True)


def export(names):
    for table in dict.fromkeys(sweep.table for sweep in SWEEPS):
        if names and table not in names:
            continue
        sweeps = [sweep for sweep in SWEEPS if sweep.table == table]
        studies = [study for sweep in sweeps if (study := opened(folder_of(sweep)))]
        studies = list({study.folder: study for study in studies}.values())
        if studies:
            add_to_table(table, studies, [recipe for sweep in sweeps for recipe in recipes_of(sweep)])
            print(f"tables/{table}", flush=True)


def add_to_table(table, studies, planned):
    """Studies come and go, the rows of a table stay: what is trained now is added to them."""
    folder, about = TABLES / table, {"name": table, "description": DESCRIPTIONS[table], "planned": planned}
    if not (folder / "manifest.json").exists():
        export_table(studies, folder, **about)
        return
    with tempfile.TemporaryDirectory() as beside:
        export_table(studies, Path(beside) / table, **about)
        merge_tables(folder, [Path(beside) / table])


def verify(names):
    from table_verify import verify_table

    verified = {}
    for name, table in existing_tables(names).items():
        verified[name] = verify_table(table, beside(name))
        print(json.dumps(verified[name]), flush=True)
    path = RESULTS / "verify_tables.json"
    before = json.loads(path.read_text())["tables"] if path.exists() else {}
    origin = circumstances("verify")
    verified = {name: result | origin for name, result in verified.items()}
    write_result(path, {"tables": {**before, **verified}})
    sys.exit(0 if all(result["passed"] for result in verified.values()) else 1)


def sheet(names):
    from table_sheet import make_sheet, sheet_text, update_block

    for name in chosen_tables(names):
        sweeps = {one.name: recipes_of(one) for one in SWEEPS if one.table == name}
        table = existing_tables([name]).get(name)
        made = make_sheet(name, table, beside(name), sweeps)
        write_result(RESULTS / f"{name}_sheet.json", circumstances(f"sheet {name}") | made)
        update_block(TABLES / f"{name}.md", sheet_text(made))
        print(f"tables/{name}.md", flush=True)


def chosen_tables(names):
    tables = list(dict.fromkeys(sweep.table for sweep in SWEEPS))
    unknown = set(names) - set(tables)
    if unknown:
        raise InputError(f"no table is called {', '.join(sorted(unknown))}: use {', '.join(tables)}")
    return [table for table in tables if not names or table in names]


def existing_tables(names):
    """The tables that were exported, by their names."""
    folders = {name: TABLES / name for name in chosen_tables(names)}
    return {name: read_table(folder) for name, folder in folders.items() if (folder / "manifest.json").exists()}


def beside(name):
    """The tables of variants of a table: they hold its perturbed twins."""
    variants = f"{name}-variants"
    return list(existing_tables([variants]).values()) if variants in chosen_tables([]) else []


def circumstances(words):
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": f"python experiments/tables.py {words}",
        "commit": head or "unknown",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_result(path, result):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


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
    commands = {"plan": plan, "run": run, "export": export, "verify": verify, "sheet": sheet}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    try:
        commands[sys.argv[1]](sys.argv[2:])
    except InputError as error:
        raise SystemExit(str(error)) from None
