"""The numbers of docs/findings.md, from made sweeps: what was planted stands in their rows, and refusals in words."""

import dataclasses
import math

import findings
import numpy as np
import pytest
from findings import Finding, blocks, markers, tau_gain, write_page
from made_sweeps import LR_EXPONENT, WD_EXPONENT, drifting_optimum, planted_decays, run, with_info
from synthetic import grid, sweep

from isotune.analyze import diagnose, fit_laws
from isotune.analyze.decay import Decay, TrunkReading
from isotune.analyze.families import make_families
from isotune.errors import InputError
from isotune.integrations.importers import open_source


def findings_of(runs):
    return [Finding("made", diagnosis, fit_laws(diagnosis)) for diagnosis in diagnose(runs)]


@pytest.fixture(scope="module")
def drifting():
    (finding,) = findings_of(drifting_optimum(np.random.default_rng(0)))
    return finding


@pytest.fixture(scope="module")
def texts(drifting):
    return blocks([drifting])


def row(text, *beginning):
    """The cells of the only row that begins with these."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    (found,) = [cells for cells in rows if cells[: len(beginning)] == list(beginning)]
    return found


def value_and_interval(cell):
    value, low, high = (float(part) for part in cell.replace("[", "").replace("]", "").replace(",", "").split())
    return value, low, high


def test_planted_exponents_stand_in_their_rows(drifting, texts):
    for name, truth in (("best LR", LR_EXPONENT), ("best WD", WD_EXPONENT), ("best ELR", LR_EXPONENT + WD_EXPONENT)):
        _, _, floor, _, exponent, _, remark = row(texts["scaling"], drifting.label, name)
        value, low, high = value_and_interval(exponent)
        assert low <= truth <= high and value == pytest.approx(truth, abs=0.05)
        assert (floor, remark) == ("-", "")


def test_a_row_of_a_budget_is_its_surface(drifting, texts):
    finding = drifting.diagnosis.surfaces[0]
    surface = finding.surface
    _, budget, cells, angle, lr, _, _, loss, remark = row(texts["optima"], drifting.label, "328K")
    assert (budget, cells, remark) == ("328K", str(surface.num_cells), "")
    assert angle.startswith(f"{surface.active_direction:.0f} [")
    ends = (2.0**end for end in surface.minimum_log2_learning_rate_interval)
    assert value_and_interval(lr) == pytest.approx((2.0**surface.minimum_log2_learning_rate, *ends), rel=0.05)
    assert value_and_interval(loss) == pytest.approx((surface.minimum_loss, *surface.minimum_loss_interval), abs=5e-5)


def test_a_minimum_outside_the_grid_is_no_number(drifting):
    finding = drifting.diagnosis.surfaces[0]
    surface = dataclasses.replace(finding.surface, censored=("weight_decay",))
    cells = findings.optimum_row(dataclasses.replace(finding, surface=surface))
    assert cells[3:7] == ("-",) * 4 and "not known to be inside the grid (weight decay)" in cells[7]


def test_refusals_are_told_in_words(drifting, texts):
    reasons = drifting.laws.reasons
    assert reasons["noise"]
    cells = row(texts["laws"], drifting.label, "G of ELR")
    assert cells[4:6] == ["-", "0.3561"] and cells[-1] == f"no law: {reasons['noise']}"
    nothing = dict.fromkeys(findings.OPTIMA) | {"reasons": dict.fromkeys(findings.OPTIMA, "too few")}
    refused = dataclasses.replace(drifting.laws, **nothing)
    text = findings.scaling_text([dataclasses.replace(drifting, laws=refused)])
    assert row(text, drifting.label, "all four")[-1] == "no law: too few"


def late_loss(x, y, step):
    """L0 + A (LR t)^-alpha with L0 = 1.5 + 2 ELR^0.4."""
    elr, lr = 2.0 ** (x + y)[:, None], 2.0 ** x[:, None]
    return 1.5 + 2 * elr**0.4 + 0.1 * (lr * step) ** -0.5


def test_late_runs_of_equal_elr_are_alike_and_their_laws_come_back():
    cells = grid(np.arange(-9.0, -5.0), np.arange(-3.0, 1.0))
    runs = sweep(np.random.default_rng(0), *cells, late_loss, noise=2e-4, correlation=0.0)
    (finding,) = findings_of([with_info(one, decay_tokens=0) for one in runs])
    text = findings.stages_text([finding])
    *_, num_cells, verdict, p_wd, lr_share, _, elr_share, angle = row(text, finding.label, "n > 3")
    assert (int(num_cells), verdict) == (len(finding.diagnosis.stages[-1].runs), "ELR") and float(p_wd) < 0.05
    assert float(elr_share.split()[0]) < 20 < float(lr_share.split()[0])
    value, low, high = value_and_interval(angle)
    assert low <= value <= high and abs(value - 45) <= 5  # not 45: A (LR t)^-alpha goes with LR
    assert f"{finding.label}, n < 0.3: " in text  # why there is nothing
    for law, truth in (("L(t), alpha", 0.5), ("L0 of ELR", 0.4)):
        exponent = row(findings.laws_text([finding]), finding.label, law)[4]
        assert value_and_interval(exponent)[0] == pytest.approx(truth, abs=0.05)


def test_shares_are_percents_and_missing_ones_no_number():
    share = findings.Share(0.162, 0.09, 0.21, 0.9)
    assert findings.share(share) == "16 % [9, 21]"
    assert findings.share(dataclasses.replace(share, high=math.nan)) == "-"


def test_a_family_that_says_nothing_is_named_with_the_reason(drifting):
    (alone,) = findings_of([run(2.0**-9, 2.0**y) for y in (-3.0, -2.0, -1.0)])
    text = findings.families_text([drifting, alone])
    assert f"- not judged: {alone.label} (cells: 3): all runs have one LR" in text
    assert blocks([alone])["stages"].count("\n") == 1  # a head without rows


def test_the_predictor_that_was_planted_is_the_best_one():
    (finding,) = findings_of(planted_decays(np.random.default_rng(0)))
    text = findings.decays_text([finding])
    best = row(text, finding.label, "noise (best)")
    assert float(best[2]) < 0.001 and all(float(cell.split()[-1]) < 0.1 for cell in best[5:7])
    assert row(text, finding.label, "constant")[6] == "" == row(text, finding.label, "constant")[8]
    assert "'free' left out" in text


def test_gains_of_ranks_are_those_of_counted_pairs(monkeypatch):
    """The oracle: every draw written out as a list of decays, and its pairs counted one by one."""
    monkeypatch.setattr(findings, "DRAWS", 40)
    rng = np.random.default_rng(1)
    decays = [
        Decay(TrunkReading(budget, 2.0, 0.1, 0.1, 1e-3), float(rng.normal()), group)
        for budget in (1.0, 2.0)
        for group in (-3.0, -2.0, -1.0)
        for _ in range(3)
    ]
    truth = [decay.decayed_loss for decay in decays]
    predicted, rival = (truth + scale * rng.standard_normal(len(truth)) for scale in (0.5, 2.0))

    def tau(values, drawn, budget):
        inside = [i for i in drawn if decays[i].trunk.tokens == budget]
        pairs = [(i, j) for i in inside for j in inside if i != j]
        return np.mean([np.sign(values[i] - values[j]) * np.sign(truth[i] - truth[j]) for i, j in pairs])

    gains = []
    for counts in np.random.default_rng(0).multinomial(3, [1 / 3] * 3, size=40):
        times = dict(zip((-3.0, -2.0, -1.0), counts, strict=True))
        drawn = [i for i, decay in enumerate(decays) for _ in range(times[decay.group])]
        gains.append(np.mean([tau(predicted, drawn, b) - tau(rival, drawn, b) for b in (1.0, 2.0)]))
    assert tau_gain(decays, predicted, rival) == pytest.approx(tuple(np.quantile(gains, [0.05, 0.95])))


def test_the_roles_are_families_of_the_committed_table():
    families = make_families(open_source(str(findings.ROOT / "tables" / "nano")).trajectories)
    assert {family.name for family in families} >= findings.ROLES.keys()


def test_the_page_gets_its_blocks_and_keeps_its_sentences(drifting, texts, tmp_path):
    page = tmp_path / "findings.md"
    old = {name: "\nold\n".join(markers(name)) for name in texts}
    page.write_text("".join(f"Before {name}.\n\n{block}\n\nAfter.\n" for name, block in old.items()))
    write_page(page, [drifting])
    for name, text in texts.items():
        begin, end = markers(name)
        assert f"Before {name}.\n\n{begin}\n{text}\n{end}\n\nAfter.\n" in page.read_text()
    page.write_text("no markers")
    with pytest.raises(InputError, match="families:begin"):
        write_page(page, [])


def test_the_committed_page_has_the_tables_that_the_script_writes(texts):
    """Their columns, not their numbers: those take the tables."""
    page = findings.PAGE.read_text()
    for name, text in texts.items():
        begin, end = markers(name)
        block = page.split(begin)[1].split(end)[0]
        assert block.strip().splitlines()[:2] == text.splitlines()[:2], f"{name}: run python experiments/findings.py"
