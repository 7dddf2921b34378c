"""Each rule against values worked out by hand, and against runs that its authors published."""

import itertools
import math

import pytest

from isotune.analyze.rules_of_thumb import (
    Reference,
    bjorck,
    deepseek,
    disagreements,
    nanochat,
    olmo_ladder,
    power_lines,
    rules,
    step_law,
    wang_aitchison,
)
from isotune.errors import InputError

REFERENCE = Reference(tokens="1B", learning_rate=2e-3, weight_decay=0.1, batch_size=128, sequence_length=1024)
EVERYTHING = {
    "num_parameters": 100_000_000,
    "tokens": "10B",
    "batch_size": 256,
    "sequence_length": 1024,
    "learning_rate": 1e-3,
    "reference": REFERENCE,
}


def named(name, **inputs):
    return next(rule for rule in rules(**inputs) if rule.name == name)


# Values by hand


def test_step_law_at_1b_parameters_and_100b_tokens():
    # log10 LR = 0.25285 - 0.713 * 9 + 0.307 * 11 = -2.78715;  log10 B = -0.23657 + 0.571 * 11 = 6.04443
    said = step_law(1e9, 100e9)
    assert said.learning_rate == pytest.approx(1.6325e-3, rel=1e-3)
    assert said.batch_tokens == pytest.approx(1.1077e6, rel=1e-3)
    assert said.weight_decay is None


def test_step_law_raises_lr_and_batch_with_data_and_lowers_lr_with_size():
    assert step_law(1e9, 4e9).learning_rate / step_law(1e9, 1e9).learning_rate == pytest.approx(1.53, abs=0.005)
    assert step_law(1e9, 4e9).batch_tokens / step_law(1e9, 1e9).batch_tokens == pytest.approx(2.21, abs=0.005)
    assert step_law(2e9, 1e9).learning_rate / step_law(1e9, 1e9).learning_rate == pytest.approx(2**-0.713)
    assert step_law(2e9, 1e9).batch_tokens == step_law(1e9, 1e9).batch_tokens


def test_deepseek_at_ten_to_the_twenty():
    # C^-0.125 = 10^-2.5;  C^0.3271 = 10^6.542
    said = deepseek(1e20)
    assert said.learning_rate == pytest.approx(0.3118 * 10**-2.5)
    assert said.batch_tokens == pytest.approx(0.2920 * 10**6.542)


@pytest.mark.parametrize(
    ("layers", "width", "learning_rate", "batch"), [(30, 4096, 4.2e-4, 2304), (95, 8192, 3.2e-4, 4608)]
)
def test_deepseek_gives_the_settings_of_its_own_models(layers, width, learning_rate, batch):
    flops_per_token = 72 * layers * width**2 + 12 * layers * width * 4096  # the paper's M
    said = deepseek(flops_per_token * 2e12)
    assert said.learning_rate == pytest.approx(learning_rate, rel=0.03)
    assert said.batch_tokens == pytest.approx(batch * 4096, rel=0.1)


def test_bjorck_lowers_lr_with_the_horizon():
    assert bjorck(1e-3, 25e9, 100e9).learning_rate == pytest.approx(6.417e-4, rel=1e-3)  # 4^-0.32 = 0.6417
    assert bjorck(1e-3, 25e9, 25e9).learning_rate == 1e-3


def test_power_lines_sets_the_timescale():
    # 20 tokens per parameter: 1.084 * exp(-0.527 * 2.99573) = 0.22354
    decay = power_lines(1e-3, 262_144, 2e9, 1e8).weight_decay
    assert 262_144 / (1e-3 * decay * 2e9) == pytest.approx(0.22354, rel=1e-4)
    assert power_lines(1e-3, 524_288, 2e9, 1e8).weight_decay == pytest.approx(2 * decay)


def test_wang_and_aitchison_keep_the_timescale():
    assert wang_aitchison(0.1, 1, 1, 10).weight_decay == pytest.approx(0.01)
    assert wang_aitchison(0.1, 1, 4, 1).weight_decay == pytest.approx(0.4)
    decay = wang_aitchison(0.1, 2, 4, 8).weight_decay
    assert 4 / (2 * decay * 8) == pytest.approx(1 / 0.1)


@pytest.mark.parametrize(
    ("depth", "power"), [(8, 18), (10, 19), (12, 19), (16, 19), (18, 20), (26, 20), (32, 21), (50, 21)]
)
def test_nanochat_gives_the_batches_that_it_uses(depth, power):
    # Tokens go with parameters, and parameters about with the cube of the depth; 12 layers are its reference.
    assert nanochat((depth / 12) ** 3, 2**19).batch_tokens == 2**power


def test_nanochat_keeps_the_timescale_of_wang_and_aitchison():
    said = nanochat(16, 2**19, learning_rate=1e-3, weight_decay=0.2)
    assert said.batch_tokens == 2**21  # 16^0.383 is 2^1.53
    assert said.learning_rate == pytest.approx(2e-3)
    assert said.weight_decay == pytest.approx(wang_aitchison(0.2, 2, 4, 16).weight_decay)


def test_olmo_ladder_at_its_anchor_and_eight_times_above():
    anchor = olmo_ladder(108e6)
    assert anchor.learning_rate == pytest.approx(0.00235) and anchor.batch_tokens == pytest.approx(160 * 2048)
    assert olmo_ladder(8 * 108e6).learning_rate == pytest.approx(0.00235 / 2)
    assert olmo_ladder(8 * 108e6).batch_tokens == pytest.approx(4 * 160 * 2048)
    assert anchor.weight_decay == 0.1


# All of them


def test_with_everything_given_every_rule_says_something():
    found = rules(**EVERYTHING)
    assert [rule.name for rule in found] == [
        "Step Law",
        "DeepSeek LLM",
        "Bjorck et al.",
        "Power Lines",
        "Wang and Aitchison",
        "nanochat",
        "OLMo ladder",
    ]
    assert all(rule.applicable for rule in found)
    assert all(rule.learning_rate or rule.weight_decay or rule.batch_tokens for rule in found)
    assert all(rule.source and rule.assumes and rule.formula for rule in found)


def test_units_reach_the_rules_as_they_should():
    assert named("Step Law", **EVERYTHING).learning_rate == step_law(1e8, 1e10).learning_rate
    assert named("DeepSeek LLM", **EVERYTHING).learning_rate == deepseek(6e18).learning_rate
    assert named("Bjorck et al.", **EVERYTHING).learning_rate == pytest.approx(2e-3 * 10**-0.32)
    expected = power_lines(1e-3, 256 * 1024, 1e10, 1e8).weight_decay
    assert named("Power Lines", **EVERYTHING).weight_decay == expected
    assert named("Wang and Aitchison", **EVERYTHING).weight_decay == pytest.approx(0.1 * 2 * 2 / 10)
    assert named("nanochat", **EVERYTHING).batch_tokens == 2**18  # 2^17 * 10^0.383 = 2^18.27


def test_a_batch_in_tokens_is_shown_in_sequences_too():
    rule = named("OLMo ladder", num_parameters=108_000_000, sequence_length=2048)
    assert rule.batch_size == pytest.approx(160)
    assert named("OLMo ladder", num_parameters=108_000_000).batch_size is None


def test_a_rule_whose_inputs_are_missing_says_which():
    found = {rule.name: rule for rule in rules(tokens="10B")}
    assert found["Step Law"].why_not == "needs num_parameters" and not found["Step Law"].applicable
    assert "compute (or num_parameters with tokens)" in found["DeepSeek LLM"].why_not
    assert found["Bjorck et al."].why_not == "needs reference.tokens, reference.learning_rate"
    assert "batch_size with sequence_length" in found["Power Lines"].why_not
    assert found["Step Law"].learning_rate is None and found["Step Law"].batch_tokens is None
    assert not any(rule.applicable for rule in rules())


def test_compute_that_is_known_is_not_approximated():
    assert named("DeepSeek LLM", compute=1e20).learning_rate == deepseek(1e20).learning_rate
    both = named("DeepSeek LLM", compute=1e20, num_parameters=1000, tokens=1000)
    assert both.learning_rate == deepseek(1e20).learning_rate


def test_at_the_reference_itself_the_scaling_rules_change_nothing():
    same = {"tokens": "1B", "reference": REFERENCE}
    assert named("Bjorck et al.", **same).learning_rate == pytest.approx(2e-3)
    assert named("Wang and Aitchison", **same).weight_decay == pytest.approx(0.1)
    rule = named("nanochat", **same)
    assert (rule.learning_rate, rule.weight_decay, rule.batch_tokens) == pytest.approx((2e-3, 0.1, 2**17))


def test_what_could_not_be_verified_is_marked():
    assert [rule.name for rule in rules() if not rule.verified] == ["Power Lines"]
    sentences = [sentence for sentence in disagreements(rules(**EVERYTHING)) if "Power Lines" in sentence]
    assert sentences and all("Power Lines (not verified) says" in sentence for sentence in sentences)


# Where they disagree


def test_two_rules_that_differ_by_more_than_a_factor_of_two_are_named():
    found = rules(**EVERYTHING | {"num_parameters": 10_000_000, "tokens": "100B"})
    sentences = disagreements(found)
    values = {rule.name: rule.learning_rate for rule in found if rule.learning_rate}
    for one, other in itertools.combinations(values, 2):
        apart = max(values[one], values[other]) / min(values[one], values[other]) > 2
        assert any(s.startswith(f"LR: {one} says") and f"{other} says" in s for s in sentences) == apart, (one, other)
    assert len(values) == 5
    assert any(sentence.startswith("batch:") and "tokens" in sentence for sentence in sentences)


def test_step_law_and_bjorck_disagree_about_more_data():
    anchor = Reference(tokens="1B", learning_rate=step_law(1e8, 1e9).learning_rate)
    near = rules(num_parameters=100_000_000, tokens="1B", reference=anchor)
    far = rules(num_parameters=100_000_000, tokens="100B", reference=anchor)

    def both(found):
        return [s for s in disagreements(found) if "Step Law" in s and "Bjorck" in s]

    assert both(near) == []
    # log10 LR: 0.25285 - 0.713 * 8 + 0.307 * 11 = -2.07415, and -2.68815 - 0.32 * 2; 10^1.254 = 18
    assert both(far) == ["LR: Step Law says 0.0084, Bjorck et al. says 0.00047, a factor of 18 apart"]


def test_rules_that_agree_are_silent_and_a_narrow_factor_is_not():
    found = [rule for rule in rules(num_parameters=100_000_000, tokens="2B") if rule.name != "Step Law"]
    assert disagreements(found) == ()
    assert len(disagreements(found, factor=1.2)) == 2  # LR and batch


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_parameters": 0}, "num_parameters=0 must be"),
        ({"num_parameters": 1.5}, "num_parameters=1.5 must be"),
        ({"tokens": "lots"}, "tokens='lots' is not a number of tokens: write"),
        ({"tokens": 0}, "tokens=0 must be"),
        ({"batch_size": -4}, "batch_size=-4 must be"),
        ({"learning_rate": math.nan}, "learning_rate=nan must be"),
        ({"compute": 0}, "compute=0 must be"),
        ({"reference": Reference(weight_decay=0)}, "reference.weight_decay=0 must be"),
        ({"reference": Reference(tokens="-1")}, "reference.tokens='-1' is negative"),
    ],
)
def test_bad_inputs_are_refused_in_words(wrong, words):
    with pytest.raises(InputError, match=words):
        rules(**wrong)


def test_functions_refuse_bad_inputs_too():
    with pytest.raises(InputError, match="tokens=-1"):
        step_law(1e9, -1)
    with pytest.raises(InputError, match="factor=1"):
        disagreements([], factor=1)
