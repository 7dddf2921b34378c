"""`isotune reproduce` as a user runs it, and its pages. Oracles: the judge called by hand, parsers of JSON and HTML."""

import importlib
import json
import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from planted import ROOT, RULES, recipes_of

from isotune.claims import ClaimVerdict, Estimate, Judgement, Measured, Tables, Verdict, judge_claim
from isotune.claims.pages import as_json, as_lines, as_markdown, words_of
from isotune.claims.sweeps import SWEEPS
from isotune.cli import isotune as command_line
from isotune.errors import InputError
from isotune.report.figures import KINDS
from isotune.report.verdicts import verdict_page

SCRIPT = "<script>alert(1)</script>"


def call(*arguments, **options):
    """What a command prints, in this process."""
    result = CliRunner().invoke(command_line, ["reproduce", *map(str, arguments)], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def made_verdict():
    """A verdict with everything that pages must cope with: markup, pipes, missing and infinite numbers, parts."""
    entry = replace(RULES.claims["C11"], claim=f"A | claim {SCRIPT}", paper=f"Fig. 1 & {SCRIPT}")
    measured = Measured(
        {"lr_share": Estimate(0.1, 0.05, math.inf), "elr_share": Estimate(math.nan, reason="no seeds")},
        9,
        {f"shown {SCRIPT}": {"a": [1, 2.5, None]}},
        (f"note {SCRIPT}",),
    )
    parts = (
        Judgement("large_below_1", Verdict("holds", f"why {SCRIPT}"), measured),
        Judgement("large_above_3", Verdict("undecided", "rows not there"), None, ("some (none; sweep nano-large)",)),
    )
    return ClaimVerdict(entry, Verdict("undecided", f"differs {SCRIPT}"), parts, parts[:1])


class Page(HTMLParser):
    """Which elements a page has, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "onload", "onclick"} & {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def test_a_page_is_self_contained_and_keeps_markup_as_text():
    page = Page(verdict_page([made_verdict()], {"command": SCRIPT}))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.text.count(SCRIPT) >= 6  # claim, paper, why, shown, note, command
    assert "lr_share 0.1 [0.05, no limit], elr_share missing (no seeds)" in page.text


def test_json_has_every_number_and_no_nan():
    found = json.loads(json.dumps(as_json([made_verdict()], {"command": "x"}), allow_nan=False))
    first, second = found["claims"][0]["judgements"]
    assert first["statistics"]["lr_share"] == {"value": 0.1, "low": 0.05, "high": None, "reason": ""}
    assert second["missing_rows"] == ["some (none; sweep nano-large)"] and "statistics" not in second
    assert found["counts"] == {"holds": 0, "fails": 0, "undecided": 1}


def test_a_markdown_row_has_as_many_cells_as_its_head():
    lines = as_markdown([made_verdict()], {}).splitlines()
    head, _, row = (line for line in lines if line.startswith("|"))
    assert head.count("|") == row.replace("\\|", "").count("|") == 8


def test_only_a_claim_that_fails_is_explained_everywhere():
    one = made_verdict()
    one = replace(one, entry=replace(one.entry, explanation=f"since {SCRIPT}", figures=("shift", "noise")))
    for verdict, times in ((Verdict("fails", "why"), 1), (Verdict("holds", "why"), 0)):
        each = replace(one, verdict=verdict)
        assert "\n".join(as_lines([each])).count(f"explanation: since {SCRIPT}") == times
        assert as_markdown([each], {}).count(f"- explanation: since {SCRIPT}") == times
        assert Page(verdict_page([each], {})).text.count(f"explanation: since {SCRIPT}") == times
        (found,) = as_json([each], {})["claims"]
        assert (found["explanation"], found["figures"]) == (f"since {SCRIPT}" * times, ["shift", "noise"])
        assert "| shift, noise |" in as_markdown([each], {}) and "     figure: shift, noise" in as_lines([each])


def test_every_figure_of_a_claim_is_one_that_can_be_drawn():
    named = {figure for entry in RULES.claims.values() for figure in entry.figures}
    assert named and named <= set(KINDS)
    without = [name for name, entry in RULES.claims.items() if not entry.figures]
    assert without == ["C28", "C32"]  # norms of parameters and updates are not drawn


def test_text_names_claim_paper_ours_verdict_and_why():
    lines = as_lines([made_verdict()])
    assert lines[0].startswith("C11  UNDECIDED  A | claim")
    assert lines[1].startswith("     paper: Fig. 1")
    assert lines[2].startswith("     ours: large_below_1: lr_share 0.1 [0.05, no limit]")
    assert lines[-1].startswith("1 claim: 0 holds, 0 fails, 1 undecided.")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Estimate(0.12345, -1.0, 20_000.4), "0.123 [-1, 20,000]"),
        (Estimate(2.0), "2"),
        ([1, "word", None, math.nan], "1, word, None, missing"),
        ({"a": Estimate(1.0)}, "a: 1"),
    ],
)
def test_values_in_words(value, words):
    assert words_of(value) == words


# The command


def test_the_command_judges_the_committed_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "docs")  # found from below the clone's folder too
    printed = json.loads(call("c07", "--json", "--out", tmp_path / "out").output)
    by_hand = judge_claim(RULES.claims["C07"], Tables(ROOT / "tables", RULES))
    (claim,) = printed["claims"]
    assert (claim["id"], claim["verdict"]) == ("C07", by_hand.verdict.verdict)
    statistics = by_hand.judgements[0].measured.statistics
    for name, found in claim["judgements"][0]["statistics"].items():
        assert found["value"] == pytest.approx(statistics[name].value)
    assert list(printed["tables"]) == ["nano"] or "small32" in printed["tables"]
    assert json.loads((tmp_path / "out" / "verdicts.json").read_text()) == printed
    assert "C07" in (tmp_path / "out" / "verdicts.md").read_text()
    assert "</html>" in (tmp_path / "out" / "verdicts.html").read_text()


def test_other_tables_and_rules_can_be_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none").mkdir()
    done = call("C13", "--tables", tmp_path / "none", "--claims", ROOT / "experiments" / "claims.toml")
    assert "C13  UNDECIDED" in done.output and "sweep nano-switch" in done.output


def test_outside_a_clone_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="clone isotune's repository.*or give it with --claims"):
        call()
    with pytest.raises(InputError, match="or give it with --tables"):
        call("--claims", ROOT / "experiments" / "claims.toml")


def test_mistakes_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(InputError, match="no claim is called C99: choose among C01"):
        call("C99")
    with pytest.raises(InputError, match="is no folder"):
        call("C07", "--tables", tmp_path / "nowhere")
    with pytest.raises(InputError, match="give --out, and no --tables"):
        call("C07", "--train")


def test_the_price_is_shown_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    few = [sweep for sweep in SWEEPS if sweep.name in ("nano-low", "nano-init-2")]
    monkeypatch.setattr("isotune.claims.sweeps.SWEEPS", few)
    command = importlib.import_module("isotune.cli.reproduce")
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("trained without a yes"))
    done = call("C07", "--train", "--out", tmp_path / "out", input="n\n")
    assert done.exit_code != 0
    assert "nano-low" in done.output and "26.7M" in done.output and "Train?" in done.output
    assert not (tmp_path / "out").exists()


def test_every_sweep_of_the_tables_has_its_recipes():
    assert all(recipes_of(sweep.name) for sweep in SWEEPS if not sweep.name.startswith("small32"))
    assert {sweep.table for sweep in SWEEPS} == {"nano", "nano-variants", "small32", "small32-variants"}
