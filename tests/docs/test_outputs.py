"""How shown output is compared with what a command prints; test_code_blocks.py compares that of the pages."""

import pytest
from outputs import is_shown_right, renewed

OUTPUT = "head\n\nbatch 4: 62 cells\n  LR 0.1   \n  WD 2\nbatch 64: 54 cells\n  LR 0.3\n"


@pytest.mark.parametrize(
    ("shown", "is_right"),
    [
        ("batch 4: 62 cells\n  LR 0.1\n", True),
        ("head\n...\n  WD 2\n\nbatch 64: 54 cells\n", True),
        ("batch 4: 62 cells\n  LR 0.2\n", False),
        ("batch 4: 62 cells\n  WD 2\n", False),  # a line is missing between them
        ("  WD 2\n...\nhead\n", False),
        ("", False),
    ],
)
def test_differences_are_seen(shown, is_right):
    assert is_shown_right(shown, OUTPUT) is is_right


def test_pieces_are_renewed_by_how_they_begin():
    shown = "head\n...\nbatch 64: 54 cells\n  LR 0.3\n"
    changed = OUTPUT.replace("54 cells\n  LR 0.3", "60 cells\n  LR 0.4")
    assert renewed(shown, changed) == "head\n...\nbatch 64: 60 cells\n  LR 0.4\n"
    assert is_shown_right(renewed(shown, changed), changed)
    assert is_shown_right(renewed("", OUTPUT), OUTPUT)
    with pytest.raises(LookupError, match="batch 64"):
        renewed(shown, "head\n")
