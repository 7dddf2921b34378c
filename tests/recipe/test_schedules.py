"""The usual recipes, their rounding, and what they share."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotune.errors import InputError
from isotune.recipe import (
    PRESETS,
    Phase,
    Ramp,
    Recipe,
    Setup,
    batch_switch,
    constant,
    cosine,
    new_settings,
    square_root_rule,
    wsd,
)

SETUP = Setup(model=PRESETS["nano"])
SETTINGS = {"learning_rate": "2^-10", "weight_decay": 0.125, "batch_size": 4}
STEP = 4 * 64
LARGE_STEP = 64 * 64
TRUNK = constant(SETUP, tokens="2.56M", warmup_tokens="25.6K", **SETTINGS)


def summary(recipe):
    """(tokens, start, end, weight decay, batch size) of each phase."""
    rows = []
    for phase in recipe.phases:
        lr = phase.learning_rate
        start, end = (lr.start, lr.end) if isinstance(lr, Ramp) else (lr, lr)
        rows.append((phase.tokens, start, end, phase.weight_decay, phase.batch_size))
    return rows


def test_constant_warms_up_and_stays():
    assert summary(TRUNK) == [(25_600, 0, 2**-10, 0.125, 4), (2_534_400, 2**-10, 2**-10, 0.125, 4)]


def test_wsd_warms_up_stays_and_decays_to_zero():
    recipe = wsd(SETUP, tokens="2.56M", warmup_tokens="25.6K", decay_tokens="128K", **SETTINGS)
    assert summary(recipe) == [
        (25_600, 0, 2**-10, 0.125, 4),
        (2_406_400, 2**-10, 2**-10, 0.125, 4),
        (128_000, 2**-10, 0, 0.125, 4),
    ]
    assert recipe.phases[-1].ends_a_decay
    assert not recipe.phases[0].ends_a_decay


def test_cosine_falls_along_half_a_cosine():
    recipe = cosine(SETUP, tokens=STEP * 1000, warmup_tokens=STEP * 10, final_learning_rate="2^-13", **SETTINGS)
    for k, step in enumerate(list(recipe.steps())[10:]):
        angle = math.pi * (k + 0.5) / 990
        assert step.learning_rate == pytest.approx(2**-13 + (2**-10 - 2**-13) * (1 + math.cos(angle)) / 2, rel=1e-12)


@pytest.mark.parametrize(("shape", "at_quarter"), [("linear", 0.75), ("one_minus_sqrt", 0.5)])
def test_decay_shapes_have_their_closed_forms(shape, at_quarter):
    ramp = Ramp(1.0, 0.0, 400, shape)
    assert ramp.at(100) == pytest.approx(at_quarter)
    assert (ramp.at(0), ramp.at(400)) == (1.0, 0.0)


# Rounding


@given(st.integers(40_960, 10**7), st.integers(0, 20_000), st.sampled_from([1, 4, 16, 64]))
def test_lengths_are_rounded_to_the_nearest_step_and_what_was_asked_is_remembered(tokens, decay, batch_size):
    step = batch_size * 64
    settings = {**SETTINGS, "batch_size": batch_size, "tokens": tokens, "decay_tokens": decay}
    if 0 < decay < step / 2:
        with pytest.raises(InputError, match="less than half of one step"):
            wsd(SETUP, **settings)
        return
    recipe = wsd(SETUP, **settings)
    assert abs(recipe.tokens - tokens) <= step / 2
    if decay:
        assert abs(recipe.phases[-1].tokens - decay) <= step / 2
        assert recipe.phases[-1].requested_tokens == decay
    assert sum(phase.requested_tokens for phase in recipe.phases) == tokens
    assert all(phase.tokens % step == 0 for phase in recipe.phases)


def test_a_sweep_can_round_all_its_recipes_alike():
    small, large = (
        wsd(SETUP, tokens="2.5M", decay_tokens="100K", quantum_tokens=LARGE_STEP, **{**SETTINGS, "batch_size": batch})
        for batch in (4, 64)
    )
    assert [p.tokens for p in small.phases] == [p.tokens for p in large.phases]
    with pytest.raises(InputError, match="choose a multiple of 256"):
        wsd(SETUP, tokens="2.5M", decay_tokens=0, quantum_tokens=100, **SETTINGS)


def test_what_was_asked_for_is_never_negative():
    recipe = wsd(SETUP, tokens=12_000, warmup_tokens=6_100, decay_tokens=6_100, **{**SETTINGS, "batch_size": 64})
    assert [(p.tokens, p.requested_tokens) for p in recipe.phases] == [(4096, 6100), (4096, 0), (4096, 6100)]


# Batch schedules


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True), st.data())
def test_a_batch_schedule_changes_the_batch_and_nothing_else(switches, data):
    sizes = [1, *(data.draw(st.sampled_from([1, 2, 4, 16])) for _ in switches)]
    quantum = 16 * 64
    positions = [0, *sorted(quantum * at for at in switches)]
    schedule = " ".join(f"{at}:{size}" for at, size in zip(positions, sizes, strict=True))
    common = {"tokens": 10 * quantum, "learning_rate": 0.001, "weight_decay": 0.1, "warmup_tokens": 2 * quantum,
              "decay_tokens": 4 * quantum, "quantum_tokens": quantum}  # fmt: skip
    plain = wsd(SETUP, batch_size=1, **common)
    switched = wsd(SETUP, batch_size=schedule, **common)
    assert switched.tokens == plain.tokens
    fine = list(plain.steps())
    for step in switched.steps():
        assert (
            step.batch_size == [size for at, size in zip(positions, sizes, strict=True) if at <= step.tokens_before][-1]
        )
        assert step.weight_decay == 0.1
        # The mean of the small steps inside it, since every ramp here is linear.
        inside = fine[step.tokens_before // 64 : step.tokens // 64]
        assert step.learning_rate == pytest.approx(sum(s.learning_rate for s in inside) / len(inside), rel=1e-12)


def test_a_batch_schedule_equals_the_batch_switch_of_a_trunk_rounded_alike():
    common = {"learning_rate": "2^-10", "weight_decay": 0.125, "quantum_tokens": LARGE_STEP}
    trunk = constant(SETUP, tokens="2.56M", warmup_tokens="40960", batch_size=4, **common)
    by_switch = batch_switch(trunk, switch_tokens="1.28M", tokens="2.56M", batch_size=64, decay_tokens="128K")
    by_schedule = wsd(
        SETUP, tokens="2.56M", warmup_tokens="40960", decay_tokens="128K", batch_size="0:4 1.28M:64", **common
    )
    assert by_switch == by_schedule


@pytest.mark.parametrize(
    ("batch_size", "complaint"),
    [("0:4 3M:64", "has no step before 2560000"), ("0:4 8100:16 8200:64", "move the switches apart"),
     ("0:48 1M:64", "divide the largest"), ("0:4 100:64", "less than half")],
)  # fmt: skip
def test_a_batch_schedule_that_cannot_be_played_is_refused(batch_size, complaint):
    with pytest.raises(InputError, match=complaint):
        constant(SETUP, tokens="2.56M", **{**SETTINGS, "batch_size": batch_size})


# Leaving a source


def test_type_1_is_the_source_then_the_new_settings():
    recipe = new_settings(
        TRUNK, switch_tokens="256K", tokens="2.56M", learning_rate="2^-9", weight_decay=1, batch_size=64
    )
    switch = 63 * LARGE_STEP  # 256,000 is 62.5 large steps
    assert summary(recipe) == [
        (25_600, 0, 2**-10, 0.125, 4),
        (switch - 25_600, 2**-10, 2**-10, 0.125, 4),
        (2_560_000 - switch, 2**-9, 2**-9, 1.0, 64),
    ]


def test_type_2_keeps_learning_rate_and_weight_decay():
    recipe = batch_switch(TRUNK, switch_tokens="720K", tokens="2.56M", batch_size=64, decay_tokens="128K")
    assert {(step.learning_rate, step.weight_decay) for step in recipe.steps(25_600, 2_400_256)} == {(2**-10, 0.125)}
    assert summary(recipe)[-1] == (31 * LARGE_STEP, 2**-10, 0, 0.125, 64)


def test_the_square_root_rule_multiplies_the_learning_rate_by_the_root_of_the_ratio():
    rule = square_root_rule(TRUNK, switch_tokens="720K", tokens="2.56M", batch_size=64)
    plain = batch_switch(TRUNK, switch_tokens="720K", tokens="2.56M", batch_size=64)
    assert rule.learning_rate == 4 * plain.learning_rate
    assert [row[0] for row in summary(rule)] == [row[0] for row in summary(plain)]
    assert rule.weight_decay == plain.weight_decay


def test_every_switched_recipe_shares_the_sources_states_up_to_the_switch():
    switched = [
        new_settings(TRUNK, switch_tokens="720K", tokens="2.56M", learning_rate="2^-9", batch_size=64),
        batch_switch(TRUNK, switch_tokens="720K", tokens="2.56M", batch_size=64),
        square_root_rule(TRUNK, switch_tokens="720K", tokens="1.5M", batch_size=64, decay_tokens="128K"),
    ]
    for tokens in (0, 256, 10_240, 25_600, 256_000, 176 * LARGE_STEP):
        assert {recipe.state_id("c", tokens) for recipe in switched} == {TRUNK.state_id("c", tokens)}
    after = 177 * LARGE_STEP
    assert len({recipe.state_id("c", after) for recipe in [*switched, TRUNK]}) == 4


@pytest.mark.parametrize("source", [
    constant(SETUP, tokens=LARGE_STEP * 20, warmup_tokens=LARGE_STEP * 10, **SETTINGS),
    cosine(SETUP, tokens=LARGE_STEP * 20, **SETTINGS),
    wsd(SETUP, tokens=LARGE_STEP * 20, decay_tokens=LARGE_STEP * 18, decay_shape="one_minus_sqrt", **SETTINGS),
])  # fmt: skip
def test_a_source_left_on_a_ramp_shares_its_states_too(source):
    recipe = new_settings(
        source, switch_tokens=LARGE_STEP * 7, tokens=LARGE_STEP * 20, learning_rate=0.5, batch_size=64
    )
    for tokens in range(0, LARGE_STEP * 7 + 1, STEP):
        assert recipe.state_id("c", tokens) == source.state_id("c", tokens)
    assert list(recipe.steps(0, LARGE_STEP * 7)) == list(source.steps(0, LARGE_STEP * 7))


@pytest.mark.parametrize("switch_tokens", [0, LARGE_STEP * 2, LARGE_STEP * 18, LARGE_STEP * 20])
def test_on_a_ramp_no_learning_rate_can_stay(switch_tokens):
    # A batch switch in the warm-up would otherwise jump to its peak: a new learning rate that nobody asked for.
    source = wsd(SETUP, tokens=LARGE_STEP * 20, warmup_tokens=LARGE_STEP * 4, decay_tokens=LARGE_STEP * 4, **SETTINGS)
    for rule in (batch_switch, square_root_rule, new_settings):
        with pytest.raises(InputError, match="lies on a ramp"):
            rule(source, switch_tokens=switch_tokens, tokens=LARGE_STEP * 30, batch_size=64)


def test_where_a_warm_up_ends_its_learning_rate_can_stay():
    source = constant(SETUP, tokens=LARGE_STEP * 20, warmup_tokens=LARGE_STEP * 4, **SETTINGS)
    recipe = batch_switch(source, switch_tokens=LARGE_STEP * 4, tokens=LARGE_STEP * 20, batch_size=64)
    assert summary(recipe)[-1] == (LARGE_STEP * 16, 2**-10, 2**-10, 0.125, 64)


def test_switching_to_the_same_settings_changes_nothing():
    assert new_settings(TRUNK, switch_tokens="1.28M", tokens="2.56M") == TRUNK


def test_batch_sizes_that_are_never_played_do_not_matter():
    source = constant(SETUP, tokens=64 * 48 * 100, **{**SETTINGS, "batch_size": f"0:1 {64 * 48 * 50}:48"})
    recipe = batch_switch(source, switch_tokens=LARGE_STEP * 4, tokens=LARGE_STEP * 20, batch_size=64)
    assert [phase.batch_size for phase in recipe.phases] == [1, 64]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"switch_tokens": "3M"}, "lies beyond the source"), ({"tokens": "720K"}, "for the new settings"),
     ({"tokens": "800K", "decay_tokens": "400K"}, "leave nothing"), ({"batch_size": "0:4 1M:64"}, "is a schedule"),
     ({"batch_size": 0}, "at least 1"), ({"decay_shape": "steep"}, "decay_shape"), ({"quantum_tokens": 0}, "quantum")],
)  # fmt: skip
def test_a_switch_that_cannot_be_made_is_refused(changes, complaint):
    for rule in (new_settings, batch_switch, square_root_rule):
        with pytest.raises(InputError, match=complaint):
            rule(TRUNK, **{"switch_tokens": "720K", "tokens": "2.56M", "batch_size": 64, **changes})


@pytest.mark.parametrize(
    ("schedule", "changes", "complaint"),
    [(wsd, {"decay_tokens": "3M"}, "do not fit"), (wsd, {"decay_tokens": 0, "tokens": 0}, "trains nothing"),
     (wsd, {"decay_tokens": 0, "decay_shape": []}, "decay_shape"), (constant, {"warmup_tokens": "3M"}, "do not fit"),
     (cosine, {"warmup_tokens": "2.56M"}, "leaves nothing"), (cosine, {"final_learning_rate": 1}, "lower it")],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused(schedule, changes, complaint):
    with pytest.raises(InputError, match=complaint):
        schedule(SETUP, **{"tokens": "2.56M", **SETTINGS, **changes})


def test_a_handmade_source_may_be_left_wherever_its_steps_end():
    source = Recipe(SETUP, (Phase(tokens=256 * 100, learning_rate=0.001, weight_decay=0.1, batch_size=4),))
    recipe = new_settings(source, switch_tokens=256 * 99, tokens=256 * 200, learning_rate=0.002)
    assert [phase.tokens for phase in recipe.phases] == [256 * 99, 256 * 101]
