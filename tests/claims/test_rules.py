"""The rules of claims.toml: read, refused, evaluated. Oracles: Python's own logic, truth tables, verdicts by hand."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from planted import ROOT, RULES

from isotune.claims import Estimate, Measured, judge_claim, read_rules
from isotune.claims.rules import Entry, evaluate, judge_measured, parse_condition
from isotune.errors import InputError

NAN = math.nan


def entry(holds_if="share_high < limit", fails_if="share_low > limit", names=("share",), **numbers):
    numbers = {"level": 0.9, "min_cells": 4, "limit": 0.2} | numbers
    return Entry("X", "claim", "paper", (), (), (), (), holds_if, fails_if, dict.fromkeys(names, ""), numbers)


def measured(num_cells=9, **statistics):
    return Measured({name: Estimate(*value) for name, value in statistics.items()}, num_cells)


def verdict_of(rule, found):
    return judge_measured(rule, found).verdict


# The file


def test_every_claim_of_the_paper_is_in_the_file_with_conditions_that_can_be_read():
    names = [f"C{number:02}" for number in range(1, 33)] + [f"B_{letter}" for letter in "abcde"]
    assert list(RULES.claims) == names


def test_a_key_of_an_entry_overrides_the_default_of_the_same_name():
    assert RULES.claims["C02"]["min_floor_pairs"] == 2
    assert RULES.claims["C01"]["min_floor_pairs"] == RULES.defaults["min_floor_pairs"] == 8


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("format = 1", "format = 2", "format 2"),
        ('holds_if = "alignment_slope_high < effect_size"', 'holds_if = "slope_high < effect_size"', "slope_high"),
        ('paper = "Fig. 2b, c; no number"', "", "C16"),
        ("\n[defaults]", "\n[defaults", "TOML"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path, old, new, words):
    text = (ROOT / "experiments" / "claims.toml").read_text()
    assert old in text
    path = tmp_path / "claims.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=words):
        read_rules(path)


def test_a_file_that_is_not_there_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="is not there"):
        read_rules(tmp_path / "claims.toml")


# Conditions


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "a.real > 0",
        "a[0] > 0",
        "(lambda: 1)() > 0",
        "[x for x in (1,)] > 0",
        "a if a > 0 else b",
        "a",
        "1",
        "a and b",
        "not a > 0",
        "a == 1",
        "a in b",
        "a ** b > 0",
        "a > 'word'",
        "a > True",
        "a > f'{b}'",
        "(a := 1) > 0",
        "a > 0; b > 0",
        "",
        "a >",
        "1" * 10_000 + " > 0 and " + "(" * 500,
    ],
)
def test_what_is_no_condition_is_refused_and_not_executed(expression):
    with pytest.raises(InputError, match="condition"):
        parse_condition(expression)


def test_every_condition_of_the_file_agrees_with_python_where_nothing_is_missing():
    for rule in RULES.claims.values():
        names = dict(rule.numbers)
        for place, name in enumerate(rule.statistic):
            names |= {
                f"{name}{end}": 0.37 * place - 0.4 + step for end, step in (("", 0), ("_low", -0.3), ("_high", 0.3))
            }
        for condition in (rule.holds_if, rule.fails_if):
            assert evaluate(condition, names) is eval(condition, {"__builtins__": {}}, names)


def test_logic_has_three_values():
    values = {"t": 1.0, "f": -1.0, "u": NAN}
    truth = {"t": True, "f": False, "u": None}
    for a, b in itertools.product(truth, truth):
        both, either = {truth[a], truth[b]}, {truth[a], truth[b]}
        conjunction = False if False in both else (None if None in both else True)
        disjunction = True if True in either else (None if None in either else False)
        assert evaluate(f"{a} > 0 and {b} > 0", values) is conjunction
        assert evaluate(f"{a} > 0 or {b} > 0", values) is disjunction


def test_arithmetic_and_a_division_by_zero_is_unknown():
    assert evaluate("a / b * 2 - -1 > 45 - 3", {"a": 21.0, "b": 1.0}) is True
    assert evaluate("a / b > 0", {"a": 1.0, "b": 0.0}) is None
    assert evaluate("0 < a < 2", {"a": 1.0}) is True


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="'a'"):
        evaluate("a > 0", {"b": 1.0})


# Verdicts


def test_a_verdict_follows_the_interval():
    assert verdict_of(entry(), measured(share=(0.1, 0.05, 0.15))) == "holds"
    assert verdict_of(entry(), measured(share=(0.4, 0.3, 0.5))) == "fails"
    assert verdict_of(entry(), measured(share=(0.2, 0.1, 0.3))) == "undecided"


def test_both_conditions_true_are_undecided():
    rule = entry("share_high < limit", "share_low > -limit")
    found = judge_measured(rule, measured(share=(0.1, 0.05, 0.15)))
    assert (found.verdict, found.why) == ("undecided", "holds_if and fails_if are both true")


def test_an_undecided_verdict_names_the_conditions_that_were_not_met_and_the_runs_that_would_decide():
    rule = entry("share_high < limit and p < limit", "share_low > limit", ("share", "p"))
    found = judge_measured(rule, replace(measured(share=(0.2, 0.1, 0.3), p=(0.01,)), would_decide="more seeds"))
    assert found.why == "not met: share_high < limit (0.3 against 0.2); would decide: more seeds"
    told = judge_measured(replace(rule, would_decide="longer runs"), measured(share=(0.2, 0.1, 0.3), p=(0.01,)))
    assert told.why.endswith("; would decide: longer runs"), "the entry's runs, where the judge names none"


def test_every_committed_verdict_that_is_undecided_names_rows_or_runs_that_would_decide():
    verdicts = json.loads((ROOT / "experiments" / "verdicts" / "verdicts.json").read_text())["claims"]
    undecided = {each["id"]: each["why"] for each in verdicts if each["verdict"] == "undecided"}
    assert [name for name, why in undecided.items() if "would decide" not in why and "rows not there" not in why] == []


def test_few_cells_are_undecided_whatever_the_numbers():
    found = judge_measured(entry(), measured(num_cells=3, share=(0.4, 0.3, 0.5)))
    assert (found.verdict, found.why) == ("undecided", "3 cells, 4 are needed")


def test_a_missing_value_is_never_the_reason_for_a_verdict():
    rule = entry("share_high < limit and p < limit", "share_low > limit or p > limit", ("share", "p"))
    missing = judge_measured(rule, measured(share=(0.1, 0.05, 0.15), p=(NAN, NAN, NAN, "no strata")))
    assert missing.verdict == "undecided" and "p (no strata)" in missing.why
    assert verdict_of(rule, measured(share=(0.4, 0.3, 0.5))) == "fails"  # by the share alone, whatever p
    assert verdict_of(rule, measured(share=(NAN,), p=(0.1,))) == "undecided"


def test_a_claim_does_not_fail_while_it_may_still_hold():
    rule = entry("p < limit", "share_low > limit", ("share", "p"))
    assert verdict_of(rule, measured(share=(0.4, 0.3, 0.5))) == "undecided"
    assert verdict_of(rule, measured(share=(0.4, 0.3, 0.5), p=(0.9,))) == "fails"


def test_what_only_the_other_condition_needs_may_be_missing():
    """C01: where WD does nothing at all, the share of ELR has no denominator, and the claim is at its best."""
    rule = entry("share_high < limit", "share_low > limit or other_high < limit", ("share", "other"))
    assert verdict_of(rule, measured(share=(0.1, 0.05, 0.15))) == "holds"


def test_conditions_on_what_is_left_out_are_not_judged():
    rule = entry("share_high < limit and gap_low > limit", "share_low > limit or gap_high < limit", ("share", "gap"))
    found = replace(measured(share=(0.1, 0.05, 0.15)), left_out=("gap",))
    assert verdict_of(rule, found) == "holds"
    assert verdict_of(rule, measured(share=(0.1, 0.05, 0.15))) == "undecided"
    alone = entry("gap_low > limit", "gap_high < limit", ("gap",))
    assert verdict_of(alone, replace(measured(), left_out=("gap",))) == "undecided"


def test_a_claim_without_a_judge_is_undecided():
    nobody = replace(RULES.claims["C01"], id="Z99")
    assert judge_claim(nobody, None).verdict.verdict == "undecided"
