"""Code blocks of the docs and of README.md: Python runs, commands exist and take their options, recipes are read."""

import dataclasses
import shlex
import shutil
import tomllib

import click
import pytest
from code_blocks import BEFORE, PAGES, ROOT, Block, blocks_of, check_block, check_page, commands_of, print_of, resolve
from outputs import is_shown_right, outputs_of

from isotune.errors import InputError

# What other people's libraries warn of is not the page's fault.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder that looks like the repository to who reads in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "recipes", "recipes")
    (tmp_path / "tables").mkdir()
    for table in (ROOT / "tables").iterdir():
        (tmp_path / "tables" / table.name).symlink_to(table)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=lambda page: page.stem)
def test_every_block_of_a_page_is_right(page, workplace, monkeypatch):
    check_page(page, monkeypatch)


SHOWN = [(words, shown) for page in PAGES for words, shown in outputs_of(page)]


@pytest.mark.parametrize(("words", "shown"), SHOWN, ids=[shlex.join(words) for words, _ in SHOWN])
def test_pages_show_what_commands_print(words, shown, workplace):
    remedy = f"isotune {shlex.join(words)} prints something else: run python tests/docs/outputs.py, then read the page"
    assert is_shown_right(shown, print_of(words)), remedy


def test_what_is_made_before_a_page_has_its_page():
    assert {path.stem for path in BEFORE.glob("*.py")} <= {page.stem for page in PAGES}


# The checks themselves


def block(language, text, not_run=""):
    return Block(PAGES[0], 1, language, text, not_run)


WRONG_COMMANDS = {
    "isotune diagnosis tables/nano": "no command diagnosis",
    "isotune diagnose tables/nano --tokens 5M": "No such option.*--tokens",
    "isotune advise tables/nano": "Missing parameter: tokens",
    "isotune train nano-wsd --device tpu": "'tpu' is not one of",
    "isotune sweep start nano-grid": "no command sweep start",
    "isotune train nano-wsd && isotune runs delete studies/nano-wsd": "no command runs delete",
    "srun isotune train --lr 1": "Missing parameter: recipe_name",
    "pip install 'isotune[comet]'": "no extra comet",
    "make everything": "no target everything",
    "python examples/missing.py": "no examples/missing.py",
    "istoune diagnose tables/nano": "what is istoune",
}


@pytest.mark.parametrize("not_run", ["", "needs a GPU"])
@pytest.mark.parametrize(("line", "words"), WRONG_COMMANDS.items(), ids=WRONG_COMMANDS)
def test_a_wrong_command_is_found(line, words, not_run):
    with pytest.raises((click.UsageError, AssertionError), match=words):
        check_block(block("sh", line + "\n", not_run), {})


def test_a_command_that_reads_is_run(workplace):
    line = block("sh", "isotune recipe show nano-wsdd\n")
    with pytest.raises(InputError, match="there is no recipe 'nano-wsdd'"):
        check_block(line, {})
    check_block(dataclasses.replace(line, not_run="not there yet"), {})


@pytest.mark.parametrize(
    ("language", "text", "error", "words"),
    [
        ("python", "from isotune.analyze import diagnoze", AttributeError, "diagnoze"),
        ("python", "def broken(:", SyntaxError, "invalid syntax"),
        ("toml", "model = [", tomllib.TOMLDecodeError, "Invalid value"),
        ("toml", 'model = "nano"\n[schedule]\nkind = "wds"', InputError, "wds"),
    ],
)
def test_a_wrong_block_is_found_even_if_it_cannot_run(language, text, error, words, workplace):
    with pytest.raises(error, match=words):
        check_block(block(language, text + "\n", "needs a GPU"), {})


def test_a_python_block_runs_unless_it_says_why_not(workplace):
    names = {}
    check_block(block("python", "x = 1\n"), names)
    check_block(block("python", "x = 2\n", "needs a GPU"), names)
    assert names["x"] == 1


def test_commands_are_taken_apart():
    text = "FOO=1 isotune train a \\\n  --lr 1  # why\n#SBATCH --array=0\nisotune runs list b | head > c && make test\n"
    assert commands_of(block("bash", text)) == [
        ["isotune", "train", "a", "--lr", "1"],
        ["isotune", "runs", "list", "b"],
        ["head"],
        ["make", "test"],
    ]
    assert commands_of(block("console", "$ isotune --help\nUsage: isotune\n")) == [["isotune", "--help"]]


def test_blocks_are_found_with_their_reasons(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: why -->\n\n```python\na\n```\ntext\n\n    ```sh\n    b\n    ```\n")
    first, second = blocks_of(page)
    assert (first.line, first.language, first.text, first.not_run) == (3, "python", "a\n", "why")
    assert (second.language, second.text, second.not_run) == ("sh", "b\n", "")


def test_names_are_looked_up():
    resolve("isotune.analyze.decay.calibrate")
    resolve("isotune.analyze.surface.LossSurface.is_censored")
    with pytest.raises(AttributeError):
        resolve("isotune.analyze.decay.calibrated")
