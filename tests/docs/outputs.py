"""What pages show of the commands' output; `python tests/docs/outputs.py` writes it anew, from the repository's tables.

A comment before a block names the command; `...` stands for lines that are left out, empty lines do not count, and
an empty block is filled with all that the command prints:

    <!-- output of: isotune diagnose tables/nano -->

After renewing, read the pages again: sentences beside a block may speak of its numbers.
"""

import os
import re
import shlex
from pathlib import Path

from code_blocks import PAGES, ROOT, print_of

SHOWN = re.compile(r"<!-- output of: isotune (.+?) -->\n```\n(.*?)```\n", re.DOTALL)
GAP = "..."
START = 8  # characters by which a piece's first line is found again, decimal numbers masked


def outputs_of(page: Path) -> list[tuple[tuple[str, ...], str]]:
    """(the command's words, what the page shows of its output)."""
    return [(tuple(shlex.split(command)), shown) for command, shown in SHOWN.findall(page.read_text())]


def is_shown_right(shown: str, output: str) -> bool:
    """Whether every piece stands in the output, whole and in order, and there is one."""
    lines, begin = _lines(output), 0
    for piece in (pieces := _pieces(shown)):
        places = [at for at in range(begin, len(lines)) if lines[at : at + len(piece)] == piece]
        if not places:
            return False
        begin = places[0] + len(piece)
    return bool(pieces)


def renewed(shown: str, output: str) -> str:
    """The same pieces of another output: found by how they begin, as long as they were."""
    lines, begin, pieces = _lines(output), 0, []
    for piece in _pieces(shown) or [lines]:
        found = [at for at in range(begin, len(lines)) if _start(lines[at]) == _start(piece[0])]
        if not found:
            raise LookupError(f"the output has no line that begins like {piece[0]!r}: write the page by hand")
        begin = found[0] + len(piece)
        pieces.append(lines[found[0] : begin])
    return f"\n{GAP}\n".join("\n".join(piece) for piece in pieces) + "\n"


def _start(line: str) -> str:
    return re.sub(r"\d*\.\d+(e-?\d+)?", "#", line)[:START]


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _pieces(shown: str) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for line in _lines(shown):
        if line.strip() == GAP:
            pieces.append([])
        else:
            pieces[-1].append(line)
    return [piece for piece in pieces if piece]


def main() -> None:
    os.chdir(ROOT)
    for page in PAGES:
        text = page.read_text()
        changed = SHOWN.sub(_renew, text)
        if changed != text:
            page.write_text(changed)
            print(f"{page.relative_to(ROOT)}: renewed, read it again")


def _renew(block: re.Match) -> str:
    output = print_of(tuple(shlex.split(block[1])))
    if is_shown_right(block[2], output):
        return block[0]
    return f"<!-- output of: isotune {block[1]} -->\n```\n{renewed(block[2], output)}```\n"


if __name__ == "__main__":
    main()
