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
NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click before 8.2 has none, and prints its help


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="isotune")
def isotune() -> None:
    """Which learning rate, weight decay and batch size?"""


# In the list of commands; the first sentence of a help is longer than its line there.
COMMANDS = {
    tune: "Find LR and WD with few runs.",
    train: "Train a recipe.",
    sweep: "Train many recipes, each shared prefix once.",
    diagnose_command: "What runs are invariant to, what matters.",
    fit_command: "Fit the laws that runs follow.",
    advise_command: "LR, WD and batch for a budget, by your runs.",
    report_command: "One HTML page of all that runs say.",
    figures: "Figures of runs as files.",
    prepare: "Turn text into a corpus.",
    recipe: "Look at recipes.",
    runs: "Look at the runs of a study.",
    table: "Make, merge, check, show replay tables.",
    reproduce: "Judge the paper's claims.",
}
for command, words in COMMANDS.items():
    command.short_help = words
    isotune.add_command(command)


def main() -> None:
    """Runs the command line; a mistake of the user's ends in one sentence and exit code 2."""
    try:
        sys.exit(isotune(standalone_mode=False))
    except InputError as error:
        _complain(str(error))
    except click.exceptions.Abort:
        sys.exit(INTERRUPTED)
    except NO_ARGUMENTS as error:
        click.echo(error.format_message(), err=True)
        sys.exit(BAD_INPUT)
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
