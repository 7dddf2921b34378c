"""Phases, steps and identities, against brute-force walks and closed forms."""

import dataclasses
import math
import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotune.errors import InputError
from isotune.recipe import PRESETS, AdamW, Init, ModelShape, Phase, Ramp, Recipe, Setup, constant, wsd

SEQUENCE_LENGTH = 8
SETUP = Setup(model=PRESETS["nano"], sequence_length=SEQUENCE_LENGTH)

# Few values, so that neighbours are often equal; with 0 and an exact and an inexact one.
RATES = st.sampled_from([0.0, 2**-10, 0.001])
WEIGHT_DECAYS = st.sampled_from([0.0, 0.1])
BATCH_SIZES = st.sampled_from([1, 2, 4])
SHAPES = st.sampled_from(["linear", "cosine", "one_minus_sqrt"])


@st.composite
def phase_lists(draw) -> list[Phase]:
    """One stretch: a constant, or a ramp that is played in parts of several batch sizes and perhaps not to its end."""
    phases = []
    wd = draw(WEIGHT_DECAYS)
    if draw(st.booleans()):
        lr, batch, steps = draw(RATES), draw(BATCH_SIZES), draw(st.integers(1, 6))
        tokens = steps * batch * SEQUENCE_LENGTH
        return [Phase(tokens=tokens, learning_rate=lr, weight_decay=wd, batch_size=batch)]
    parts = draw(st.lists(st.tuples(BATCH_SIZES, st.integers(1, 4)), min_size=1, max_size=3))
    lengths = [steps * batch * SEQUENCE_LENGTH for batch, steps in parts]
    total = sum(lengths) + draw(st.integers(0, 3)) * SEQUENCE_LENGTH
    ramp = Ramp(draw(RATES), draw(RATES), total, draw(SHAPES))
    whole = Phase(tokens=total, learning_rate=ramp, weight_decay=wd, batch_size=1)
    position = 0
    for (batch, _), length in zip(parts, lengths, strict=True):
        part = whole.part(position, position + length)
        phases.append(Phase(tokens=length, learning_rate=part.learning_rate, weight_decay=wd, batch_size=batch))
        position += length
    return phases


@st.composite
def recipes(draw) -> Recipe:
    stretches = draw(st.lists(phase_lists(), min_size=1, max_size=4))
    return Recipe(SETUP, tuple(phase for stretch in stretches for phase in stretch))


def brute_force_steps(phases, sequence_length):
    """Every step by the definition: the ramp's formula at the step's midpoint, in plain Python."""
    steps, position = [], 0
    for phase in phases:
        size = phase.batch_size * sequence_length
        for k in range(phase.tokens // size):
            lr = phase.learning_rate
            if isinstance(lr, Ramp):
                x = (lr.offset + (k + 0.5) * size) / lr.tokens
                progress = {"linear": x, "cosine": (1 - math.cos(math.pi * x)) / 2, "one_minus_sqrt": math.sqrt(x)}
                lr = lr.start + (lr.end - lr.start) * progress[lr.shape]
            steps.append((position, position + size, lr, phase.weight_decay, phase.batch_size))
            position += size
    return steps


def brute_force_memory_times(phases, sequence_length, tokens):
    n, last, position = 0.0, None, 0
    for phase in phases:
        size = phase.batch_size * sequence_length
        on_ramp = isinstance(phase.learning_rate, Ramp) and phase.learning_rate.start != phase.learning_rate.end
        for _ in range(phase.tokens // size):
            position += size
            if position > tokens:
                return n
            if on_ramp:
                n, last = 0.0, None
                continue
            now = (phase.peak_learning_rate, phase.weight_decay)
            n = (n if now == last else 0.0) + now[0] * now[1]
            last = now
    return n


def phase(tokens=64, learning_rate=0.001, weight_decay=0.1, batch_size=1, **more):
    return Phase(tokens=tokens, learning_rate=learning_rate, weight_decay=weight_decay, batch_size=batch_size, **more)


def recipe_of(*phases, setup=SETUP):
    return Recipe(setup, tuple(phases))


def identity(recipe, tokens=None):
    return recipe.state_id("corpus", recipe.tokens if tokens is None else tokens)


# Steps


@given(recipes())
def test_steps_match_a_plain_walk_over_the_phases(recipe):
    expected = brute_force_steps(recipe.phases, SEQUENCE_LENGTH)
    steps = list(recipe.steps())
    assert [(s.tokens_before, s.tokens, s.weight_decay, s.batch_size) for s in steps] == [
        (a, b, wd, batch) for a, b, _, wd, batch in expected
    ]
    np.testing.assert_allclose([s.learning_rate for s in steps], [e[2] for e in expected], rtol=1e-14, atol=1e-18)
    assert recipe.num_steps == len(steps)
    assert all(type(s.learning_rate) is float and type(s.tokens) is int for s in steps)


@given(recipes(), st.data())
def test_a_walk_to_any_position_and_one_from_there_make_the_whole_to_the_last_bit(recipe, data):
    cut = data.draw(st.integers(0, recipe.tokens))
    assert list(recipe.steps(0, cut)) + list(recipe.steps(cut)) == list(recipe.steps())
    assert recipe.steps_at(cut) == len(list(recipe.steps(0, cut)))


@pytest.mark.parametrize("shape", ["linear", "cosine", "one_minus_sqrt"])
def test_a_ramp_has_the_same_bits_whole_and_in_parts(shape):
    # A state's address names the whole ramp, so where a walk was interrupted must not show in any learning rate.
    setup = Setup(model=PRESETS["nano"])
    recipe = recipe_of(phase(64 * 1001, Ramp(0.001, 0.0, 64 * 1001, shape)), setup=setup)
    whole = list(recipe.steps())
    for size in (1, 3, 17, 500):
        parts = [s for at in range(0, 1001, size) for s in recipe.steps(64 * at, min(64 * (at + size), recipe.tokens))]
        assert parts == whole


@pytest.mark.parametrize("shape", ["linear", "cosine", "one_minus_sqrt"])
def test_a_batch_switch_inside_a_ramp_keeps_the_ramps_learning_rate_at_every_midpoint(shape):
    common = {"tokens": 4096, "learning_rate": 0.001, "weight_decay": 0.1, "decay_tokens": 2048, "decay_shape": shape}
    switched = wsd(SETUP, batch_size="0:1 3072:4", **common)
    ramp = Ramp(0.001, 0.0, 2048, shape)
    on_ramp = [step for step in switched.steps() if step.tokens_before >= 2048]
    assert {step.batch_size for step in on_ramp} == {1, 4}
    for step in on_ramp:
        midpoint = np.array([(step.tokens_before + step.tokens) / 2 - 2048])
        assert step.learning_rate == ramp.at(midpoint)[0]


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 4), st.integers(0, 4))
def test_flow_time_in_tokens_is_the_same_at_any_batch_size(batch_size, warmup, decay):
    length = 16 * SEQUENCE_LENGTH
    recipe = wsd(SETUP, tokens=length * 10, learning_rate=0.001, weight_decay=0.1, batch_size=batch_size,
                 warmup_tokens=length * warmup, decay_tokens=length * decay)  # fmt: skip
    area = 0.001 * length * (10 - warmup / 2 - decay / 2)
    assert sum(s.learning_rate * (s.tokens - s.tokens_before) for s in recipe.steps()) == pytest.approx(area, rel=1e-13)
    assert recipe.flow_time_at(recipe.tokens) * batch_size * SEQUENCE_LENGTH == pytest.approx(area, rel=1e-13)


@given(recipes(), st.data())
def test_flow_time_matches_the_sum_over_steps(recipe, data):
    tokens = data.draw(st.integers(0, recipe.tokens))
    expected = math.fsum(step.learning_rate for step in recipe.steps(0, tokens))
    assert recipe.flow_time_at(tokens) == pytest.approx(expected, rel=1e-12, abs=1e-18)


# Memory times


@given(recipes(), st.data())
def test_memory_times_match_a_plain_walk_over_the_steps(recipe, data):
    tokens = data.draw(st.integers(0, recipe.tokens))
    expected = brute_force_memory_times(recipe.phases, SEQUENCE_LENGTH, tokens)
    assert recipe.memory_times_at(tokens) == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_a_batch_switch_does_not_reset_memory_times_and_a_change_of_lr_or_wd_does():
    start = phase(80, 0.001, 0.1, 1)  # 10 steps
    for after, n in [
        (phase(64, 0.001, 0.1, 4), 12 * 1e-4),
        (phase(64, 0.002, 0.1, 4), 2 * 2e-4),
        (phase(64, 0.001, 0.2, 4), 2 * 2e-4),
        (phase(64, 0.001, 0.1, 1), 18 * 1e-4),
        (phase(64, Ramp(0.001, 0.0, 64), 0.1, 1), 0.0),
    ]:
        assert recipe_of(start, after).memory_times_at(144) == pytest.approx(n)


def test_memory_times_of_a_recipe_are_those_of_its_last_constant_phase():
    recipe = recipe_of(phase(800, 0.001), phase(80, 0.002), phase(64, Ramp(0.002, 0.0, 64)))
    assert recipe.memory_times == pytest.approx(10 * 0.002 * 0.1)
    assert recipe_of(phase(64, Ramp(0.001, 0.0, 64, "cosine"))).memory_times == 0


# What names a run


def test_a_run_is_named_by_its_last_constant_phase_or_else_by_its_longest_at_the_highest_learning_rate():
    recipe = wsd(SETUP, tokens=4096, learning_rate=0.001, weight_decay=0.1, batch_size="0:1 1024:4", decay_tokens=1024)
    assert (recipe.learning_rate, recipe.weight_decay, recipe.batch_size) == (0.001, 0.1, 4)
    assert recipe.effective_learning_rate == 0.001 * 0.1
    rise, fall = Ramp(0.0, 0.001, 64), Ramp(0.001, 0.0, 640)
    cosine_like = recipe_of(phase(64, rise), phase(640, fall, weight_decay=0.5, batch_size=4))
    assert (cosine_like.learning_rate, cosine_like.weight_decay, cosine_like.batch_size) == (0.001, 0.5, 4)


def test_the_phase_at_a_position_is_the_one_whose_step_ends_there():
    recipe = recipe_of(phase(64, 0.001), phase(64, 0.002))
    assert [recipe.phase_at(t).learning_rate for t in (0, 8, 64, 72, 128)] == [0.001, 0.001, 0.001, 0.002, 0.002]


@pytest.mark.parametrize("tokens", [-1, 129, float("nan")])
def test_positions_outside_the_recipe_are_refused(tokens):
    recipe = recipe_of(phase(64, 0.001), phase(64, 0.002))
    for method in (recipe.phase_at, recipe.steps_at, recipe.memory_times_at, recipe.flow_time_at, recipe.prefix):
        with pytest.raises(InputError, match="from 0 to 128"):
            method(tokens)


def test_a_position_inside_a_step_has_no_state():
    with pytest.raises(InputError, match="try 64 or 96"):
        recipe_of(phase(64), phase(64, batch_size=4)).state_id("corpus", 72)


# Canonical form and identity


@given(recipes(), st.data())
def test_a_recipe_is_the_same_however_its_phases_are_cut(recipe, data):
    pieces = []
    for whole in recipe.phases:
        size = whole.batch_size * SEQUENCE_LENGTH
        cut = data.draw(st.integers(0, whole.tokens // size)) * size
        pieces += [whole.part(a, b) for a, b in ((0, cut), (cut, whole.tokens)) if a < b]
    again = Recipe(recipe.setup, tuple(pieces))
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert identity(again) == identity(recipe)
    assert list(again.steps()) == list(recipe.steps())


@given(recipes(), recipes())
def test_states_have_the_same_address_only_after_the_same_steps(one, other):
    ids = {identity(one, step.tokens): list(one.steps(0, step.tokens)) for step in one.steps()}
    assert len(ids) == one.num_steps
    for step in other.steps():
        if identity(other, step.tokens) in ids:
            assert ids[identity(other, step.tokens)] == list(other.steps(0, step.tokens))


@given(recipes())
def test_a_prefix_has_the_address_of_the_recipe_that_ends_there(recipe):
    for step in recipe.steps():
        shorter = Recipe(recipe.setup, recipe.prefix(step.tokens))
        assert identity(shorter) == identity(recipe, step.tokens)
        assert shorter.tokens == step.tokens
    assert recipe.prefix(0) == ()
    assert recipe.prefix(recipe.tokens) == recipe.phases


def test_what_starts_a_played_ramp_again_does_not_continue_it():
    ramp = Ramp(0.0, 0.001, 64)
    last = dataclasses.replace(ramp, offset=56)
    recipe = recipe_of(phase(64, ramp), phase(8, last), phase(64, ramp))
    assert len(recipe.phases) == 3


def test_a_flat_ramp_is_a_constant():
    assert recipe_of(phase(64, Ramp(0.001, 0.001, 640)), phase(64)) == recipe_of(phase(128))


def test_merged_phases_remember_what_was_asked_for_together():
    assert recipe_of(phase(64, requested_tokens=60), phase(64, requested_tokens=66)).phases[0].requested_tokens == 126
    assert recipe_of(phase(64, requested_tokens=60), phase(64)).phases[0].requested_tokens is None


def test_equal_numbers_of_different_types_have_equal_addresses():
    shape = {"num_layers": 2, "num_heads": 4, "ffn_width": 176, "vocabulary_size": 256}
    plain = Recipe(
        Setup(
            model=ModelShape(width=64, rope_base=10000.0, **shape),
            sequence_length=8,
            init=Init(scale=2.0),
            optimizer=AdamW(beta1=0.0, clip_norm=1.0),
        ),
        (phase(64, Ramp(0.0, 1.0, 64), 0.0), phase(64, 1.0, 2.0)),
    )
    mixed = Recipe(
        Setup(
            model=ModelShape(width=np.int64(64), rope_base=10000, **shape),
            sequence_length=np.int32(8),
            seed=np.int64(0),
            init=Init(scale=2),
            optimizer=AdamW(beta1=-0.0, clip_norm=1),
        ),
        [phase(np.int64(64), Ramp(-0.0, 1, np.int64(64), offset=np.int64(0)), -0.0), phase(64, np.float64(1), 2)],
    )
    assert plain == mixed
    assert identity(plain) == identity(mixed, np.int64(128)) == identity(mixed, 128.0)


def test_the_next_float_has_another_address():
    lr = 0.001
    assert identity(recipe_of(phase(64, lr))) != identity(recipe_of(phase(64, math.nextafter(lr, 1))))


def test_an_address_depends_on_what_was_trained_and_not_on_what_was_asked_or_allowed():
    recipe = recipe_of(phase(64))
    asked = recipe_of(phase(64, requested_tokens=60))
    allowed = recipe_of(phase(64), setup=dataclasses.replace(SETUP, max_epochs=5))
    elsewhere = recipe_of(phase(64), setup=dataclasses.replace(SETUP, corpus="another/path/of/the/same"))
    assert identity(recipe) == identity(asked) == identity(allowed) == identity(elsewhere)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"precision": "bfloat16"}, {"model": PRESETS["micro"]}, {"init": Init(std=0.03)},
     {"optimizer": AdamW(beta2=0.99)}, {"optimizer": AdamW(clip_norm=math.inf)}],
)  # fmt: skip
def test_an_address_depends_on_the_whole_root(change):
    assert identity(recipe_of(phase(64))) != identity(recipe_of(phase(64), setup=dataclasses.replace(SETUP, **change)))
    assert recipe_of(phase(64)).state_id("one corpus", 0) != recipe_of(phase(64)).state_id("another", 0)


def test_addresses_are_what_they_were():
    # A change here makes every stored state unreachable, so it must be meant (as with a new NUMERICS_VERSION).
    recipe = wsd(Setup(model=PRESETS["nano"]), tokens="2.56M", learning_rate="2^-10", weight_decay=0.125, batch_size=4,
                 warmup_tokens="25.6K", decay_tokens="128K")  # fmt: skip
    assert recipe.state_id("corpus", 0) == "2a0db29dbc906ea48b8f6644f16a8309"
    assert recipe.state_id("corpus", 2_500_096) == "8d64b78b5da6b11815881acab2152fc8"


def test_budgets_share_their_trunk_up_to_where_the_shorter_one_decays():
    settings = {"learning_rate": "2^-10", "weight_decay": 0.125, "batch_size": 4, "warmup_tokens": "25.6K"}
    setup = Setup(model=PRESETS["nano"])
    trunk = constant(setup, tokens="2.56M", **settings)
    short = wsd(setup, tokens="1.28M", decay_tokens="128K", **settings)
    long = wsd(setup, tokens="2.56M", decay_tokens="128K", **settings)
    for tokens in (0, 256, 12_800, 25_600, 256_000, 1_152_000):
        assert identity(short, tokens) == identity(long, tokens) == identity(trunk, tokens)
    assert identity(short, 1_152_256) != identity(long, 1_152_256) == identity(trunk, 1_152_256)


# Invalid phases cannot be built


@pytest.mark.parametrize("bad", [
    lambda: Ramp(-1.0, 0.0, 64),
    lambda: Ramp(0.0, math.inf, 64),
    lambda: Ramp(0.0, "1", 64),
    lambda: Ramp(0.0, 1.0, 0),
    lambda: Ramp(0.0, 1.0, 64, "steep"),
    lambda: Ramp(0.0, 1.0, 64, ["linear"]),
    lambda: Ramp(0.0, 1.0, 64, offset=64),
    lambda: Ramp(0.0, 1.0, 64, offset=-8),
    lambda: Ramp(0.0, 1.0, 64, offset=True),
    lambda: phase(72, Ramp(0.0, 1.0, 64)),
    lambda: phase(64, Ramp(0.0, 1.0, 64, offset=8)),
    lambda: phase(0),
    lambda: phase(64.0),
    lambda: phase(batch_size=0),
    lambda: phase(weight_decay=-0.1),
    lambda: phase(weight_decay=None),
    lambda: phase(learning_rate=math.nan),
    lambda: recipe_of(),
    lambda: recipe_of(phase(60)),
    lambda: recipe_of(phase(8, batch_size=4)),
    lambda: AdamW(beta1=1.0),
    lambda: AdamW(beta2="high"),
    lambda: AdamW(clip_norm=0),
    lambda: AdamW(clip_norm="never"),
    lambda: AdamW(epsilon=math.nan),
    lambda: Init(std=0),
    lambda: dataclasses.replace(SETUP, seed=-1),
    lambda: dataclasses.replace(SETUP, seed=True),
    lambda: dataclasses.replace(SETUP, corpus=7),
    lambda: dataclasses.replace(SETUP, model="nano"),
    lambda: dataclasses.replace(SETUP, precision="float8"),
    lambda: dataclasses.replace(SETUP, max_epochs=0),
    lambda: dataclasses.replace(PRESETS["nano"], num_heads=3),
    lambda: dataclasses.replace(PRESETS["nano"], num_heads=64),
    lambda: dataclasses.replace(PRESETS["nano"], width="64"),
])  # fmt: skip
def test_what_makes_no_sense_cannot_be_built(bad):
    with pytest.raises(InputError):
        bad()


def test_a_refused_length_comes_with_lengths_that_would_do():
    with pytest.raises(InputError, match=r"phase 2: 60 tokens .* try 32 or 64"):
        recipe_of(phase(64), phase(60, 0.002, batch_size=4))


def test_recipes_are_frozen_and_travel_between_processes():
    recipe = recipe_of(phase(64, Ramp(0.0, 0.001, 64)), phase(64))
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.phases = ()


def test_long_recipes_are_quick_to_walk_and_to_address():
    recipe = wsd(Setup(model=PRESETS["paper-164m"], sequence_length=1024), tokens="105B", learning_rate="2^-10",
                 weight_decay=0.1, batch_size=512, warmup_tokens="1B", decay_tokens="5B")  # fmt: skip
    start = time.perf_counter()
    assert sum(1 for _ in recipe.steps()) == recipe.num_steps > 200_000
    for step in range(0, 200_000, 1000):
        identity(recipe, step * 512 * 1024)
    # Half a second on a slow machine; walking every step for each address would take minutes.
    assert time.perf_counter() - start < 5


@given(recipes())
def test_settings_at_positions_are_those_of_the_steps_that_reach_them(recipe):
    steps = list(recipe.steps())
    positions = np.array([0, 1, *(step.tokens for step in steps), *(step.tokens - 3 for step in steps)])
    reached = np.searchsorted([step.tokens for step in steps], positions)
    number, rate, decay, batch = recipe.settings_at(positions)
    assert number.tolist() == np.where(positions > 0, reached + 1, 0).tolist()
    assert rate.tolist() == [steps[index].learning_rate for index in reached]
    assert decay.tolist() == [steps[index].weight_decay for index in reached]
    assert batch.tolist() == [steps[index].batch_size for index in reached]
