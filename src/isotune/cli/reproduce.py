"""`isotune reproduce`: does the paper hold? Verdicts from tables, or from runs trained anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from isotune.cli.execution import importing_torch, stop_on_signals
from isotune.cli.terminal import StatusLine, format_seconds
from isotune.errors import InputError
from isotune.recipe import Recipe, format_tokens

CLAIMS, TABLES, RECIPES = Path("experiments/claims.toml"), Path("tables"), Path("experiments/tables")


@click.command()
@click.argument("claims", nargs=-1, metavar="[CLAIM]...")
@click.option("--tables", type=click.Path(path_type=Path), help="Folder of the tables [default: the clone's tables/].")
@click.option("--claims", "rules_path", type=click.Path(path_type=Path), help="Rules [default: the clone's].")
@click.option("--out", type=click.Path(path_type=Path), help="Also write verdicts.md, verdicts.json and verdicts.html.")
@click.option("--train", "train_anew", is_flag=True, help="Train the tables first, into OUT; shows the price and asks.")
@click.option("--yes", is_flag=True, help="With --train: do not ask.")
@click.option("--workers", type=int, help="With --train: processes [default: one per core, or per GPU].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reproduce(
    claims: tuple[str, ...],
    tables: Path | None,
    rules_path: Path | None,
    out: Path | None,
    train_anew: bool,
    yes: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Judge the paper's claims by their rules: holds, fails or undecided, with numbers and reasons.

    CLAIM is a name such as C03 or B_b [default: all, a minute or so]. Run it in a clone of the repository, or give
    --tables and --claims. With --train the runs are trained first (days of two cores) and judged from OUT/tables.
    """
    from isotune.claims import Tables, chosen_claims, judge_claim, read_rules
    from isotune.claims.pages import as_json as verdicts_as_json
    from isotune.claims.pages import as_lines

    rules = read_rules(rules_path or _in_clone(CLAIMS, "--claims"))
    entries = chosen_claims(rules, claims)
    if train_anew:
        tables = _train(_in_clone(RECIPES, None), out, tables, yes, workers)
    source = Tables(tables or _in_clone(TABLES, "--tables"), rules)
    verdicts = []
    with StatusLine(quiet=as_json) as line:
        for number, entry in enumerate(entries, start=1):
            line.show(f"judging {number} of {len(entries)}, {entry.id}: {entry.claim}")
            verdicts.append(judge_claim(entry, source))
    facts = _facts(claims, out, source)
    if out is not None:
        _write(out, verdicts, facts)
    if as_json:
        click.echo(json.dumps(verdicts_as_json(verdicts, facts), indent=1))
        return
    for text in as_lines(verdicts):
        click.echo(text)


def _in_clone(path: Path, option: str | None) -> Path:
    """This path of the clone that the working directory lies in."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / CLAIMS).exists() and (folder / path).exists():
            found = folder / path
            return found.relative_to(Path.cwd()) if folder == Path.cwd() else found
    instead = f", or give it with {option}" if option else ""
    raise InputError(
        f"{path} is not in this folder or above: clone isotune's repository and run this command in it{instead}"
    )


def _facts(claims: Sequence[str], out: Path | None, source: Any) -> dict[str, Any]:
    """What the verdicts were made from."""
    from isotune.runs.provenance import source_commit

    commit, is_dirty = source_commit()
    return {
        "command": " ".join(["isotune reproduce", *claims, *(["--out", str(out)] if out else [])]),
        "code": commit + (" with changes" if is_dirty else ""),
        "tables": source.describe(),
    }


def _write(out: Path, verdicts: Sequence[Any], facts: dict[str, Any]) -> None:
    from isotune.claims.pages import as_json, as_markdown
    from isotune.report.verdicts import verdict_page

    out.mkdir(parents=True, exist_ok=True)
    (out / "verdicts.md").write_text(as_markdown(verdicts, facts))
    (out / "verdicts.json").write_text(json.dumps(as_json(verdicts, facts), indent=1) + "\n")
    (out / "verdicts.html").write_text(verdict_page(verdicts, facts))


# Training anew


@dataclass(frozen=True)
class _Price:
    sweep: Any  # TableSweep
    recipes: list[Recipe]
    shared: int  # tokens of all its runs, each shared prefix once
    to_train: int


def _train(recipes: Path, out: Path | None, tables: Path | None, yes: bool, workers: int | None) -> Path:
    """Trains all sweeps that OUT/studies lacks and exports them; the folder of the new tables."""
    if out is None or tables is not None:
        raise InputError("--train writes studies and tables into a folder of its own: give --out, and no --tables")
    prices = _prices(recipes, out / "studies")
    _show_price(prices, recipes.parent.parent / TABLES, workers)
    _require_corpora(prices)
    if any(price.to_train for price in prices) and not yes:
        click.confirm("Train?", abort=True, err=True)
    stop = stop_on_signals()
    for price in prices:
        if price.to_train and not stop:
            _run(price, out / "studies", workers, stop)
    if stop:
        raise InputError("training was stopped: repeat the same command, which continues where it was")
    _export(prices, out)
    return out / TABLES


def _prices(recipes: Path, studies: Path) -> list[_Price]:
    """What each sweep still costs. Sweeps of one study may share prefixes, so this is an upper bound."""
    from isotune.claims.sweeps import SWEEPS
    from isotune.sweep import make_plan, read_sweep

    prices = []
    for sweep in SWEEPS:
        runs = read_sweep(recipes / f"{sweep.name}.toml").recipes
        price = make_plan(runs, _opened(studies / sweep.study)).price
        prices.append(_Price(sweep, list(runs), price.shared, price.to_train))
    return prices


def _opened(folder: Path) -> Any:
    from isotune.runs import Study

    return Study.open(folder) if (folder / "study.json").exists() else None


def _show_price(prices: Sequence[_Price], committed: Path, workers: int | None) -> None:
    """Tokens of each sweep, and the time that they took for the committed tables."""
    from isotune.sweep.run import num_cores

    processes = workers or num_cores()
    speeds = {name: _seconds_per_token(committed / name) for name in ("nano", "small32")}
    total = 0.0
    click.echo(f"{'sweep':<20}{'runs':>6}{'tokens':>10}{'to train':>10}  time on {processes} processes", err=True)
    for price in prices:
        # The smaller model is not slower, so nano's speed is a bound where its own is not known.
        speed = speeds[price.sweep.table.split("-")[0]] or speeds["nano"]
        seconds = price.to_train * speed / processes
        total += seconds
        tokens, left = format_tokens(price.shared), format_tokens(price.to_train)
        time = format_seconds(seconds) if speed else "not known"
        click.echo(f"{price.sweep.name:<20}{len(price.recipes):>6}{tokens:>10}{left:>10}  {time}", err=True)
    to_train = format_tokens(sum(price.to_train for price in prices))
    time = f"about {format_seconds(total)} at the speed of the committed tables" if total else "a time nobody measured"
    click.echo(f"In all {to_train} tokens, {time}. Studies and tables go into --out.", err=True)


def _seconds_per_token(folder: Path) -> float:
    """Core seconds of a token in this table; 0 where that is not known."""
    from isotune.runs import read_table

    if not (folder / "manifest.json").exists():
        return 0.0
    rows = [row for row in read_table(folder).runs() if row.core_seconds and row.tokens_trained]
    return sum(row.core_seconds or 0.0 for row in rows) / max(1, sum(row.tokens_trained for row in rows))


def _require_corpora(prices: Sequence[_Price]) -> None:
    """A corpus that is missing is better known before the first sweep than after it."""
    from isotune.corpus import open_corpus

    for corpus in dict.fromkeys(price.recipes[0].setup.corpus for price in prices if price.to_train):
        try:
            open_corpus(corpus)
        except InputError as error:
            raise InputError(f"{error} (small32's is written by `python experiments/dictionaries.py gcide`)") from None


def _run(price: _Price, studies: Path, workers: int | None, stop: list[int]) -> None:
    with importing_torch(1):
        from isotune.sweep.run import local_workers, run_sweep
        from isotune.train import Execution

    with StatusLine() as line:
        result = run_sweep(
            price.recipes,
            studies / price.sweep.study,
            execution=Execution(compiled=True),
            evaluation=dict(price.sweep.measured),
            make_executor=local_workers(workers),
            on_progress=lambda progress: line.show(
                f"{price.sweep.name}: {format_tokens(progress.tokens_done)} of {format_tokens(progress.tokens_total)}"
            ),
            should_stop=lambda: bool(stop),
        )
    for segment, reason in result.problems:
        click.echo(f"{price.sweep.name}: {segment} failed: {reason}", err=True)


def _export(prices: Sequence[_Price], out: Path) -> None:
    from isotune.claims.sweeps import DESCRIPTIONS
    from isotune.runs import export_table

    for table in dict.fromkeys(price.sweep.table for price in prices):
        of_table = [price for price in prices if price.sweep.table == table]
        folders = dict.fromkeys(out / "studies" / price.sweep.study for price in of_table)
        export_table(
            [study for folder in folders if (study := _opened(folder))],
            out / TABLES / table,
            name=table,
            description=DESCRIPTIONS[table],
            planned=[recipe for price in of_table for recipe in price.recipes],
            replace=True,
        )
