"""The fenced code blocks of pages, and how each kind is checked; `python tests/docs/code_blocks.py` lists them.

A comment before a block says why it cannot run here; it is still compiled, or its commands are still parsed:

    <!-- not run: needs a GPU -->

What a page takes for granted (a model, a file of runs) is made by tests/docs/before/<page>.py, which runs first in the
page's folder, shares its names and has pytest's `monkeypatch`.
"""

import ast
import importlib
import importlib.util
import re
import shlex
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
from click.testing import CliRunner

from isotune.cli import isotune as command_line

ROOT = Path(__file__).parents[2]
BEFORE = Path(__file__).parent / "before"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

SHELLS = ("sh", "bash", "console")
FENCE = re.compile(r"^ *(```+|~~~+) *([\w-]*)")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")

# Commands that read and print; they run where their source is there. The rest trains or writes, and is only parsed.
READING = {"diagnose", "fit", "advise", "table show", "table check", "recipe show", "sweep plan", "sweep status"}
READING |= {"runs list", "runs show"}
TIMED = {"recipe show", "sweep plan"}  # measure this machine's speed unless told not to
LAUNCHERS = {"srun", "torchrun", "python", "python3"}  # what may stand before isotune
FOREIGN = {"ray", "cd", ".", "source", "export", "git", "mkdir", "curl", "tensorboard", "mlflow", "wandb"}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of its fence
    language: str
    text: str
    not_run: str  # why, or ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks, reason = [], ""
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            found = NOT_RUN.fullmatch(line.strip())
            if found or line.strip():
                reason = found[1] if found else ""
            continue
        fence, language = opening.groups()
        body = []
        for _, inner in lines:
            if inner.strip() == fence:
                break
            body.append(inner)
        text = textwrap.dedent("\n".join(body)) + "\n"
        blocks.append(Block(page, number, language, text, reason))
        reason = ""
    return blocks


def check_page(page: Path, monkeypatch: object) -> None:
    """Runs or parses every block of the page, in the present folder; raises at the first that is wrong."""
    namespace = {"__name__": "__main__", "monkeypatch": monkeypatch}
    before = BEFORE / f"{page.stem}.py"
    if before.exists():
        exec(compile(before.read_text(), before, "exec"), namespace)
    for block in blocks_of(page):
        try:
            check_block(block, namespace)
        except Exception as error:
            raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error


def check_block(block: Block, namespace: dict) -> None:
    if block.language == "python":
        check_python(block, namespace)
    elif block.language in SHELLS:
        for words in commands_of(block):
            check_command(words, may_run=not block.not_run)
    elif block.language == "toml":
        check_toml(block.text)


# Python


def check_python(block: Block, namespace: dict) -> None:
    code = compile("\n" * block.line + block.text, block.page, "exec", dont_inherit=True)
    if not block.not_run:
        exec(code, namespace)
        return
    for name in imported_names(block.text):
        resolve(name)


def imported_names(code: str) -> list[str]:
    """Every name of ours that the code imports, with its module."""
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "isotune":
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.split(".")[0] == "isotune"]
    return names


def resolve(dotted: str) -> None:
    """Raises unless the name is a module, or something in one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        if not has_module(".".join(parts[:count])):
            continue
        if count == len(parts):  # a module: importing it could take another tool's
            return
        value = importlib.import_module(".".join(parts[:count]))
        for name in parts[count:]:
            # The fields of a dataclass without a default are no attributes of it.
            value = None if name in getattr(value, "__dataclass_fields__", ()) else getattr(value, name)
        return
    raise AttributeError(f"there is no {dotted}")


def has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


# Commands


def commands_of(block: Block) -> list[list[str]]:
    """The simple commands of a shell block as words, without comments, variables and redirections."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":  # the rest is output
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    commands = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for word in lexer:
            if set(word) <= set("&|;"):
                commands.append(words)
                words = []
            elif set(word) <= set("<>"):
                redirected = True
            elif redirected:
                redirected = False
            elif words or not re.fullmatch(r"\w+=.*", word):
                words.append(word)
        commands.append(words)
    return [words for words in commands if words]


def check_command(words: list[str], may_run: bool) -> None:
    """Raises if the command does not exist, has options that it does not know, or fails."""
    program = words[0]
    if program in LAUNCHERS and "isotune" in words:
        words = words[words.index("isotune") :]
        program = "isotune"
    if program == "isotune":
        check_isotune(words[1:], may_run)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words[1:]:
            assert "=" in word or word in targets, f"make has no target {word}"
    elif program in ("pip", "pip3"):
        for extra in re.findall(r"\[([\w,-]+)\]", " ".join(words)):
            check_extras(extra.split(","))
    elif program in ("python", "python3"):
        for word in words[1:]:
            is_ours = word.endswith(".py") and "/" in word
            assert not is_ours or (ROOT / word).exists(), f"there is no {word}"
    else:
        assert program in FOREIGN, f"what is {program}? If it is right, add it to FOREIGN"


def check_extras(names: list[str]) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(names) <= set(known), f"isotune has no extra {', '.join(set(names) - set(known))}"


def check_isotune(words: list[str], may_run: bool) -> None:
    name, arguments = parse_isotune(words)
    if not may_run or name not in READING or not arguments:
        return
    source = arguments[0]
    if not Path(source).exists() and name not in TIMED:
        return
    print_of(tuple(words) + (("--no-timing",) if name in TIMED else ()))


def parse_isotune(words: list[str]) -> tuple[str, list[str]]:
    """The command's name and its arguments, as click reads them; what click does not know raises."""
    command: click.Command = command_line
    context = click.Context(command, info_name="isotune")
    names, rest = [], list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"isotune has no command {' '.join([*names, name])}")
        command = found
        names.append(name)
        context = click.Context(command, info_name=name, parent=context)
    try:
        context = command.make_context(" ".join(names) or "isotune", rest, parent=context.parent)
    except click.exceptions.Exit:  # --help, --version
        return " ".join(names), []
    arguments = [context.params[one.name] for one in command.params if isinstance(one, click.Argument)]
    return " ".join(names), [str(one) for one in arguments if isinstance(one, str | Path)]


_printed: dict[tuple[str, ...], str] = {}


def print_of(words: tuple[str, ...]) -> str:
    """What isotune prints; a command about the repository's own tables is run once for all pages."""
    if words not in _printed:
        result = CliRunner().invoke(command_line, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, f"isotune {shlex.join(words)}: {result.output}"
        if not any(word.startswith("tables/") for word in words):
            return result.output
        _printed[words] = result.output
    return _printed[words]


# Files


def check_toml(text: str) -> None:
    """Raises unless it is TOML, and a recipe or a sweep where it looks like one."""
    from isotune.recipe import read_recipe
    from isotune.sweep import read_sweep

    table = tomllib.loads(text)
    path = Path("block.toml")
    path.write_text(text)
    if "recipe" in table:
        from isotune.cli.options import find_recipe

        read_sweep(path, find=find_recipe)
    elif "model" in table:
        read_recipe(path)


if __name__ == "__main__":
    for one in (block for page in PAGES for block in blocks_of(page)):
        how = f"not run: {one.not_run}" if one.not_run else "checked"
        if one.language in ("python", "toml", *SHELLS):
            print(f"{one.place}: {one.language}, {how}")
