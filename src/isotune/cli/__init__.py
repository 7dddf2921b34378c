"""The command line: parse, call, print."""

from __future__ import annotations

import os
import sys

import click

from isotune.cli.analysis import advise_command, diagnose_command, fit_command
from isotune.cli.figures import figures
from isotune.cli.prepare import prepare
from isotune.cli.recipe import recipe
from isotune.cli.report import report_command
from isotune.cli.reproduce import reproduce
from isotune.cli.runs import runs
from isotune.cli.sweep import sweep
from isotune.cli.table import table
from isotune.cli.train import train
from isotune.cli.tune import tune
from isotune.errors import InputError, describe_os_error

BAD_INPUT = 2  # exit code of everything a user can mend
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="isotune")
def isotune() -> None:
    """Which learning rate, weight decay and batch size?"""


for command in (
    tune,
    train,
    sweep,
    diagnose_command,
    fit_command,
    advise_command,
    report_command,
    figures,
    prepare,
    recipe,
    runs,
    table,
):
    isotune.add_command(command)
isotune.add_command(reproduce)


def main() -> None:
    """Runs the command line; a mistake of the user's ends in one sentence and exit code 2."""
    try:
        sys.exit(isotune(standalone_mode=False))
    except InputError as error:
        _complain(str(error))
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "isotune"
        _complain(f"{error.format_message().rstrip('.')}: see `{command} --help`")
    except click.ClickException as error:
        _complain(error.format_message())
    except BrokenPipeError:  # `isotune runs list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _complain(describe_os_error(error))


def _complain(sentence: str) -> None:
    click.echo(f"isotune: {sentence}", err=True)
    sys.exit(BAD_INPUT)
