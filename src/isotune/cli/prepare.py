"""`isotune prepare`: text into token shards."""

from __future__ import annotations

from pathlib import Path

import click

from isotune.cli.terminal import ProgressLine
from isotune.recipe import format_tokens, parse_tokens


@click.command()
@click.argument("inputs", nargs=-1, required=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--tokenizer", default="gpt2", show_default=True, type=click.Choice(["gpt2", "bytes"]))
@click.option("--validation", multiple=True, help="Held-out files or folders, instead of a share.")
@click.option("--validation-share", default=0.01, show_default=True, help="Share of the text that is held out.")
@click.option("--shard-tokens", default="100M", show_default=True, help="Tokens in a shard.")
@click.option("--text-key", default="text", show_default=True, help="Where JSON lines keep their text.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def prepare(
    inputs: tuple[str, ...],
    out: Path,
    tokenizer: str,
    validation: tuple[str, ...],
    validation_share: float,
    shard_tokens: str,
    text_key: str,
    quiet: bool,
) -> None:
    """Turn INPUTS (text or JSON lines, plain, .gz or .zst; folders; or `python-sources`) into token shards.

    Repeat the command to continue after a kill.
    """
    from isotune.corpus import Progress
    from isotune.corpus import prepare as run

    with ProgressLine(unit="bytes", quiet=quiet) as line:

        def show(progress: Progress) -> None:
            line.total = max(1, progress.bytes_total)
            line.advance(progress.bytes_done - line.done)

        prepared = run(
            inputs,
            out,
            tokenizer=tokenizer,
            validation=validation,
            validation_share=validation_share,
            shard_tokens=parse_tokens("--shard-tokens", shard_tokens),
            text_key=text_key,
            progress=show,
        )
    if not quiet:
        click.echo(
            f"{out}: {format_tokens(prepared.train_tokens)} tokens to train on, "
            f"{format_tokens(prepared.validation_tokens)} held out (fingerprint {prepared.fingerprint}); "
            f'use it with corpus = "{out}" in a recipe, or --corpus {out}'
        )
