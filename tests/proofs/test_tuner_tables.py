"""The list of bounds that hold on tables."""

import json

import pytest
import tuner_tables
from tuner_tables import Course, Ended


def test_a_bound_holds_where_the_regret_is_no_larger():
    ended = [Ended(number, regret, 0.002, 0.1, True) for number, regret in enumerate([0.003, 0.002, 0.0, 0.0021])]
    found = tuner_tables.summary(Course("nano", "batch 4", 1 << 20), ended)
    assert not found["own"]["hit"] and (found["hits"], found["replays"]) == (2, 3)
    assert [one["replay"] for one in found["missed"]] == [3]
    assert found["mean_regret"] == pytest.approx(0.0041 / 3, rel=0.01) and found["mean_bound"] == 0.002
    about = {"commit": "0123456789", "date": "2026-11-18T00:00:00", "command": "`x`"}
    text = tuner_tables.page_block(about | {"courses": [found]})
    assert "own losses 0 of 1 bounds hold, with drawn ones 2 of 3" in text
    assert "| nano, batch 4, 1.05M | 0.3 % | 0.2 % | no | 2 of 3 | 0.14 % | 0.2 % |" in text


def test_a_tuning_ends_where_it_is_done_and_is_judged_by_the_surface():
    ended = tuner_tables.tuned(Course("german48", "batch 16", 655_360), 0)
    assert ended.is_done and 0 < ended.share_of_grid < 1 and ended.regret >= 0 and ended.bound > 0


def test_the_page_shows_the_committed_list():
    results = json.loads(tuner_tables.RESULTS.read_text())
    block = tuner_tables.PAGE.read_text().split(tuner_tables.BEGIN)[1].split(tuner_tables.END)[0]
    assert block.strip() == tuner_tables.page_block(results), "run python proofs/tuner_tables.py"
    assert {one["table"] for one in results["courses"]} == set(tuner_tables.FAMILIES)
