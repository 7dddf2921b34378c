"""Commands with placeholders such as {learning_rate}: what may stand in them, checked before anything is run."""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from isotune.errors import InputError
from isotune.recipe.quantities import show
from isotune.tune.questions import Question

Value = float | int | str

AXES = ("learning_rate", "weight_decay")
PLACEHOLDERS = ("learning_rate", "weight_decay", "tokens", "seed", "out", "resume")
ROUNDING = 0.01  # of an LR or a WD, relative, that a placeholder's format may do
SCRIPTS = (".py", ".sh", ".bash", ".jl", ".R", ".pl", ".rb", ".js", ".lua")


class _Number(float):
    """Eight digits, unless the placeholder says otherwise: {learning_rate:.3e}."""

    def __format__(self, spec: str) -> str:
        return format(float(self), spec or ".8g")


def values_of(question: Question, weight_decay: float, out: str, resume: str) -> dict[str, Value]:
    """What each placeholder stands for; WD is as the command wants it."""
    return {
        "learning_rate": _Number(question.learning_rate),
        "weight_decay": _Number(weight_decay),
        "tokens": question.tokens,
        "seed": question.seed,
        "out": out,
        "resume": resume,
    }


def fill_words(command: str, values: Mapping[str, Value]) -> list[str]:
    """A command's words with the values in their places. A word that becomes empty is left out. For a run that begins
    so is a word with nothing but {resume} to fill in, `--resume={resume}`, and an option before it: `--resume {resume}`
    is nothing."""
    words: list[str] = []
    for template in split_command(command):
        if not values["resume"] and _is_for_resuming(template):
            if words and words[-1].startswith("-") and not template.startswith("-") and "=" not in template:
                words.pop()
            continue
        word = template.format(**values)
        if word or not template:
            words.append(word)
    return words


def _is_for_resuming(template: str) -> bool:
    """Whether a word says no more than what to resume; a script in quotes says more."""
    return set(placeholders_in("--command", [template])) == {"resume"} and not any(map(str.isspace, template))


def split_command(command: str) -> list[str]:
    """The words of a command, as a shell would part them."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command {show(command)} cannot be read ({error}): check its quotes") from None
    if not words:
        raise InputError("--command is empty: give the program that trains, with its options")
    return words


def name_of(command: str) -> str:
    """A short name: the script's or module's, else the program's.

    >>> name_of("python -u src/train.py --out {out}"), name_of("torchrun -m big.trainer"), name_of("./go {out}")
    ('train', 'big.trainer', 'go')
    """
    words = split_command(command)
    scripts = [word for word in words if Path(word).suffix in SCRIPTS and "{" not in word]
    if scripts:
        return Path(scripts[0]).stem
    return words[words.index("-m") + 1] if "-m" in words[:-1] else Path(words[0]).name


def require_placeholders(option: str, parts: Sequence[str], needed: Sequence[str]) -> None:
    """Refuses a text, in parts that are filled one by one, that lacks a placeholder or cannot be filled."""
    found = placeholders_in(option, parts)
    missing = [name for name in needed if name not in found]
    if missing:
        raise InputError(f"{option} lacks {', '.join(f'{{{name}}}' for name in missing)}: put it where it belongs")
    unknown = [name for name in found if name not in PLACEHOLDERS]
    if unknown:
        names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise InputError(f"{option} has {{{unknown[0]}}}, which is none of {names}: write {{{{ and }}}} for braces")
    example = values_of(Question(0.001, 0.1, 1000), 0.1, "out", "resume")
    for part in parts:
        try:
            part.format(**example)
        except (ValueError, TypeError, LookupError) as error:
            raise InputError(
                f"{option} {part!r} cannot be filled in ({error}): write {{learning_rate}}, or such as {{seed:03d}}"
            ) from None


def require_exact(option: str, parts: Sequence[str], settings: Iterable[tuple[float, float]]) -> None:
    """Refuses formats of (LR, WD) that leave too few digits, such as {learning_rate:.3f}: another setting would be
    trained than was asked for. WD is as the command wants it."""
    fields = [field for part in parts for field in string.Formatter().parse(part) if field[1] in AXES and field[2]]
    for learning_rate, weight_decay in settings if fields else ():
        values = values_of(Question(learning_rate, weight_decay, 1), weight_decay, "", "")
        for _, name, spec, conversion in fields:
            value = learning_rate if name == AXES[0] else weight_decay
            written = f"{{{name}{'!' + conversion if conversion else ''}:{spec}}}".format(**values)
            try:
                is_exact = abs(float(written) - value) <= ROUNDING * value
            except ValueError:  # no plain number, which may be meant
                continue
            if not is_exact:
                raise InputError(
                    f"{option} would write {value:.4g} as {written.strip()}: give {{{name}:{spec}}} more digits, or "
                    f"write {{{name}}}"
                )


def placeholders_in(option: str, parts: Sequence[str]) -> list[str]:
    """Their names, in order."""
    found = []
    for part in parts:
        try:
            found += [name for _, name, _, _ in string.Formatter().parse(part) if name is not None]
        except ValueError as error:
            raise InputError(f"{option} {part!r} cannot be read ({error}): write {{{{ and }}}} for braces") from None
    return found
