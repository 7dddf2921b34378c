"""The page as text: what it says of every kind of source, and that nothing a user typed gets out of its place."""

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from made_pages import LABEL, SCRIPT, diverged, hundred_runs, page_of, shortened, with_nans
from made_sweeps import BUDGETS, best_settings, run, with_info
from synthetic import EVERY_TOKENS

from isotune.analyze.advice import paste_in
from isotune.analyze.diagnosis import diagnose
from isotune.report import words
from isotune.report.figure import Figure
from isotune.report.findings import find
from isotune.report.page import Account
from isotune.report.page.figures import panels_of
from isotune.report.page.html import Html, element, json_script
from isotune.report.page.runs import _cells
from isotune.report.words import WordTable


class Parsed(HTMLParser):
    """Elements with their attributes and texts, as a browser would read them."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self._open = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.texts.append("")
        if tag not in ("meta", "input", "img", "br"):
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data):
        for index in self._open:
            self.texts[index] += data

    def all(self, tag):
        return [
            (attributes, text)
            for (name, attributes), text in zip(self.elements, self.texts, strict=True)
            if name == tag
        ]

    @property
    def text(self):
        """What is read on the page, without scripts and styles."""
        body = self.texts[[tag for tag, _ in self.elements].index("main")]
        for _, script in self.all("script"):
            body = body.replace(script, "") if script else body
        return " ".join(body.split())


@pytest.fixture(scope="module")
def runs():
    return hundred_runs()


@pytest.fixture(scope="module")
def hundred(runs):
    return page_of(runs, label=LABEL, warnings=(f"a note on {SCRIPT}",))


@pytest.fixture(scope="module")
def parsed(hundred):
    return Parsed(hundred)


# What it says


def test_the_verdict_has_the_planted_optimum_and_the_lines_of_advise(parsed, runs):
    lr, _, _ = best_settings(BUDGETS[2])
    lines = [text for attributes, text in parsed.all("pre") if attributes["aria-label"].startswith("Line for")]
    found = float(re.search(r"lr=([\d.e-]+)", lines[0]).group(1))
    assert found == pytest.approx(lr, rel=0.1)
    wd = float(re.search(r"weight_decay=([\d.e-]+)", lines[0]).group(1))
    assert lines == list(paste_in(found, wd).values())


def test_the_words_are_those_of_diagnose(parsed, runs):
    (diagnosis,) = diagnose(runs)
    for sentence in (words.invariance_words(diagnosis), words.next_run_words(diagnosis), *diagnosis.evidence):
        assert " ".join(sentence.split()) in parsed.text


def test_verdict_comes_before_evidence_warnings_reproduction_and_runs(parsed):
    assert [attributes["id"] for attributes, _ in parsed.all("section")] == [
        "verdict",
        "evidence",
        "warnings",
        "reproduce",
        "runs",
    ]


def test_every_run_has_its_row(parsed, runs):
    rows = re.findall(r"run-\d+", " ".join(text for _, text in parsed.all("td")))
    assert len(set(rows)) == 99
    numbers = [attributes["data-value"] for attributes, _ in parsed.all("td") if "data-value" in attributes]
    assert numbers[:6] == [repr(2.0**-11), repr(2.0**-7), repr(2.0**-18), "4.0", "0.0", repr(float(runs[0].tokens[-1]))]


def test_what_a_tuner_found_comes_first():
    table = WordTable(("round", "why"), (("1", SCRIPT),))
    account = Account("What the tuner found", "LR 2^-10\n  loss 1.5", (("Asked", table),), {"torch": "AdamW()"})
    page = Parsed(page_of([run(2**-9, 0.1)], figures=(), accounts=(account,)))
    assert [a["id"] for a, _ in page.all("section")][:2] == ["what-the-tuner-found", "verdict"]
    assert SCRIPT in page.text and "AdamW()" in page.text


def test_a_run_of_our_own_is_named_by_what_no_column_says():
    one = run(2**-9, 0.1, source="tables/made", has_plateau=True, schedule="0 -> 0.002 over 24K, 0.002 for 2M")
    switched = with_info(one, decay_tokens=131_072, history="batch 4 until 1.05M", perturbation=1e-6)
    rising = with_info(one, has_plateau=False, schedule="cosine")
    names = [_cells(each, find([one], label="tables/made"))[-1].text for each in (one, switched, rising)]
    assert names == ["constant LR", "decay of 131K, after batch 4 until 1.05M, perturbed init", "cosine"]


# Hostile names


def test_what_a_user_typed_stays_text(hundred, parsed):
    assert SCRIPT in parsed.text  # as a run's name, a setup, a source, a command and a note
    assert "alert(1)" not in "".join(text for a, text in parsed.all("script") if a.get("type") != "application/json")
    assert not parsed.all("img")
    assert parsed.all("h1")[0][1] == LABEL
    assert len(parsed.all("script")) == 3 + hundred.count('type="application/json"')


def test_data_for_scripts_cannot_end_the_script():
    value = {"name": "</script><script>alert(1)</script>", "text": "<!-- & \u2028"}
    (_, text), *rest = Parsed(json_script("x", value)).all("script")
    assert not rest and json.loads(text) == value
    assert "<" not in text and "&" not in text


def test_attributes_and_children_are_escaped_unless_they_are_html():
    made = element("p", '<b>"', Html("<i></i>"), title='"><script>', hidden=True, lang=False)
    assert made == '<p title="&quot;&gt;&lt;script&gt;" hidden>&lt;b&gt;&quot;<i></i></p>'


def test_the_policy_allows_the_pages_own_scripts_and_nothing_else(parsed):
    policy = next(a["content"] for a, _ in parsed.all("meta") if a.get("http-equiv"))
    scripts = [text for attributes, text in parsed.all("script") if "type" not in attributes]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes and len(hashes) == 3
    assert policy.startswith("default-src 'none'; script-src 'sha256") and "http" not in policy


# For everyone


def test_headings_go_down_by_one(parsed):
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_anchors_are_unique_and_links_lead_to_them(parsed):
    anchors = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(anchors) == len(set(anchors))
    assert {attributes["href"].removeprefix("#") for attributes, _ in parsed.all("a")} <= set(anchors)


def test_figures_and_controls_have_names(parsed):
    plots = [a for a, _ in parsed.all("div") if a.get("class") == "plot"]
    assert plots and all(len(a["aria-label"]) > 20 and a["role"] == "img" for a in plots)
    assert parsed.elements[0] == ("html", {"lang": "en"})
    assert all(text.strip() or attributes.get("aria-label") for attributes, text in parsed.all("button"))
    assert all(text.strip() for _, text in parsed.all("label")) and all(a.get("scope") for a, _ in parsed.all("th"))


def test_a_page_of_a_hundred_runs_is_below_eight_megabytes(hundred):
    assert len(hundred.encode()) < 8e6


# Figures


def test_figures_by_lr_and_by_elr_share_a_panel_and_others_do_not():
    drawing = {"data": [], "layout": {}}
    names = ["loss-by-lr-a", "loss-by-elr-a", "loss-by-lr-b", "surface-a", "noise-by-elr-a"]
    figures = [Figure(name, "T", "c", drawing) for name in names] + [Figure("x-by-elr", "T", "", {}, "why")]
    shown = [[figure.name for figure in panel.figures] for panel in panels_of(figures)]
    assert shown == [["loss-by-lr-a", "loss-by-elr-a"], ["loss-by-lr-b"], ["surface-a"], ["noise-by-elr-a"]]


def test_a_figure_that_cannot_be_drawn_is_a_warning_with_its_reason():
    figures = [Figure(name, name.upper(), "", {}, "nobody measured it") for name in ("one", "two")]
    page = Parsed(page_of([run(2**-9, 0.1)], figures=figures))
    assert "ONE, TWO: nobody measured it." in page.text


# Sources of which little can be said


def test_one_run_says_why_there_is_no_direction():
    page = Parsed(page_of([run(2**-9, 0.1)]))
    assert "no direction can be inferred from one learning rate" in page.text
    assert "No LR and WD can be advised yet" in page.text and "What to run nextLR" in page.text


def test_only_diverged_runs_are_listed_and_nothing_is_advised(runs):
    page = page_of([diverged(one) for one in runs[:5]])
    read = Parsed(page)
    assert "All runs diverged" in page and "5 runs diverged" in read.text
    assert [text for _, text in read.all("td")].count("diverged") == 5
    assert "torch.optim" not in read.text


def test_runs_without_a_finite_loss_are_counted(runs):
    assert "No run has a finite val_loss" in page_of([with_nans(one) for one in runs[:5]])
    assert "1 run without a finite val_loss" in page_of([with_nans(runs[0]), *runs[1:5]])
    assert "without a finite" not in page_of(runs[:5])


def test_no_runs_make_a_page_that_says_so():
    assert "there are no runs" in Parsed(page_of([])).text


def test_runs_that_have_not_ended_are_announced(runs):
    page = page_of([*runs[:8], with_info(shortened(runs[8]), status="running")])
    assert "1 run had not ended when this page was made" in page
    assert "9 runs (8 finished, 1 running)" in page


def test_a_thousand_runs_have_a_thousand_rows_and_a_page_below_eight_megabytes():
    """20 LR, 10 WD, 5 seeds."""
    made = []
    for index in range(1000):
        lr, wd, seed = index % 20, index // 20 % 10, index // 200
        one = run(2.0 ** (-12 + lr / 4), 2.0 ** (-8 + wd), 6 * EVERY_TOKENS, seed=seed)
        wiggled = one.columns["val_loss"] + 0.01 * np.sin(lr + wd + seed)
        made.append(type(one)(one.columns | {"val_loss": wiggled}, one.info))
    page = page_of(made)
    assert Parsed(page).texts and page.count("<tr>") > 1000 and '"run-count" role="status" data-total="1000"' in page
    assert len(page.encode()) < 8e6
