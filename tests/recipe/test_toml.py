"""Recipe files: what they mean, and that every mistake gets one sentence."""

import copy
import datetime
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotune.errors import InputError
from isotune.recipe import (
    PRESETS,
    AdamW,
    Init,
    Phase,
    Ramp,
    Recipe,
    Setup,
    batch_switch,
    constant,
    cosine,
    new_settings,
    read_recipe,
    recipe_from_table,
    recipe_to_table,
    square_root_rule,
    wsd,
)

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
SETUP = Setup(model=PRESETS["nano"])
CONSTANT = {"kind": "constant", "tokens": "2.56M", "learning_rate": "2^-10", "weight_decay": 0.125, "batch_size": 4}
WSD = {**CONSTANT, "kind": "wsd", "warmup_tokens": "25.6K", "decay_tokens": "128K"}
SWITCH = {"switch_tokens": "720K", "tokens": "2.56M", "batch_size": 64, "source": CONSTANT}
PHASE = {"tokens": 25_600, "learning_rate": 0.001, "weight_decay": 0.1, "batch_size": 4}


def table(**entries):
    return {"model": "nano", **entries}


def without_kind(schedule):
    return {key: value for key, value in schedule.items() if key not in ("kind", "source")}


def read(entries, **overrides):
    return recipe_from_table(entries, "file.toml", overrides)


# What files mean


def test_a_schedule_is_the_function_of_its_kind():
    arguments = without_kind(WSD)
    assert read(table(schedule=WSD)) == wsd(SETUP, **arguments)
    del arguments["decay_tokens"]
    assert read(table(schedule={**arguments, "kind": "cosine"})) == cosine(SETUP, **arguments)
    assert read(table(schedule={**arguments, "kind": "constant"})) == constant(SETUP, **arguments)


@pytest.mark.parametrize("function", [new_settings, batch_switch, square_root_rule])
def test_a_switch_continues_its_source(function):
    source = constant(SETUP, **without_kind(CONSTANT))
    expected = function(source, **without_kind(SWITCH))
    assert read(table(schedule={**SWITCH, "kind": function.__name__})) == expected


def test_sources_may_be_nested():
    inner = {**SWITCH, "kind": "batch_switch", "batch_size": 16}
    outer = {**SWITCH, "kind": "new_settings", "switch_tokens": "1.28M", "learning_rate": 0.01, "source": inner}
    assert [phase.batch_size for phase in read(table(schedule=outer)).phases] == [4, 16, 64]


def test_the_setup_is_read_whole():
    model = {"width": 32, "num_layers": 1, "num_heads": 2, "ffn_width": 64, "vocabulary_size": 256}
    recipe = read({
        "model": model, "corpus": "some/path", "sequence_length": 32, "seed": 5, "precision": "bfloat16",
        "max_epochs": 3,
        "init": {"std": 0.01, "scale": 2}, "optimizer": {"beta1": 0, "clip_norm": math.inf}, "schedule": CONSTANT,
    })  # fmt: skip
    setup = recipe.setup
    assert (setup.model.width, setup.corpus, setup.sequence_length, setup.seed) == (32, "some/path", 32, 5)
    assert (setup.precision, setup.max_epochs) == ("bfloat16", 3)
    assert setup.init == Init(std=0.01, scale=2.0)
    assert setup.optimizer == AdamW(beta1=0.0, clip_norm=math.inf)


def test_phases_are_rounded_to_the_largest_step_and_their_ramps_with_them():
    recipe = read(table(phases=[
        {**PHASE, "tokens": "25.6K", "learning_rate": {"start": 0, "end": "2^-10"}},
        {**PHASE, "tokens": "1M", "learning_rate": "2^-10"},
        {**PHASE, "tokens": "100K", "learning_rate": {"start": "2^-10", "end": 0, "shape": "cosine"}, "batch_size": 64},
    ]))  # fmt: skip
    assert [p.tokens for p in recipe.phases] == [6 * 4096, 244 * 4096, 24 * 4096]
    assert [p.requested_tokens for p in recipe.phases] == [25_600, 10**6, 10**5]
    assert recipe.phases[0].learning_rate == Ramp(0.0, 2**-10, 6 * 4096)
    assert recipe.phases[2].learning_rate == Ramp(2**-10, 0.0, 24 * 4096, "cosine")


def test_a_phase_may_play_a_part_of_a_ramp():
    recipe = read(table(phases=[
        {**PHASE, "tokens": 4096, "learning_rate": {"start": 1, "end": 0, "tokens": 8192}},
        {**PHASE, "tokens": 4096, "learning_rate": {"start": 1, "end": 0, "offset": 4096}, "batch_size": 16},
    ]))  # fmt: skip
    assert [p.learning_rate for p in recipe.phases] == [Ramp(1.0, 0.0, 8192), Ramp(1.0, 0.0, 8192, offset=4096)]


# Overrides


def test_overrides_replace_what_the_file_says():
    recipe = read(table(schedule=WSD), learning_rate="2^-8", weight_decay=0.5, tokens="1.28M", batch_size="0:4 640K:8",
                  seed=3, warmup_tokens=0, decay_tokens="64K", corpus="other", precision="bfloat16")  # fmt: skip
    setup = Setup(model=PRESETS["nano"], seed=3, corpus="other", precision="bfloat16")
    assert recipe == wsd(setup, tokens="1.28M", learning_rate=2**-8, weight_decay=0.5, batch_size="0:4 640K:8",
                         warmup_tokens=0, decay_tokens="64K")  # fmt: skip


def test_an_override_of_none_replaces_nothing_and_the_table_is_left_alone():
    original = table(schedule=dict(WSD))
    before = copy.deepcopy(original)
    assert read(original, learning_rate=None, seed=None) == read(original)
    read(original, learning_rate=1, seed=7)
    assert original == before


def test_phases_take_a_new_seed_and_no_new_learning_rate():
    assert read(table(phases=[PHASE]), seed=3).setup.seed == 3
    with pytest.raises(InputError, match=r"^file.toml: learning_rate cannot be overridden, .*\[\[phases\]\]: edit"):
        read(table(phases=[PHASE]), learning_rate=1)


@pytest.mark.parametrize(
    ("schedule", "override", "complaint"),
    [(CONSTANT, {"decay_tokens": 1}, "choose another kind"), (CONSTANT, {"switch_tokens": 1}, "edit it in the file"),
     ({**SWITCH, "kind": "batch_switch"}, {"warmup_tokens": 1}, "schedule.source"), (CONSTANT, {3: 1}, "override one"),
     (CONSTANT, {"max_epochs": 2}, "cannot be overridden"), (7, {"tokens": 1}, "must be a table")],
)  # fmt: skip
def test_an_override_that_fits_nothing_is_refused(schedule, override, complaint):
    with pytest.raises(InputError, match=complaint):
        recipe_from_table(table(schedule=schedule), "file.toml", override)


# Storing


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_that_come_with_isotune_read_back_from_json_as_the_same(path):
    recipe = read_recipe(path)
    again = recipe_from_table(json.loads(json.dumps(recipe_to_table(recipe), allow_nan=False)), "copy")
    assert again == recipe
    assert again.state_id("c", again.tokens) == recipe.state_id("c", recipe.tokens)
    asked = [p.tokens if p.requested_tokens is None else p.requested_tokens for p in recipe.phases]
    assert [p.requested_tokens for p in again.phases] == asked


def test_the_recipes_that_come_with_isotune_share_their_trunk():
    by_name = {path.stem: read_recipe(path) for path in RECIPES}
    assert {"nano-constant", "nano-wsd", "nano-cosine", "nano-type1", "nano-type2", "nano-square-root", "micro-wsd",
            "paper-164m"} <= set(by_name)  # fmt: skip
    sharing = ("nano-constant", "nano-wsd", "nano-type1", "nano-type2", "nano-square-root")
    assert len({by_name[name].state_id("c", 256_000) for name in sharing}) == 1


def test_a_stored_recipe_is_not_rounded_again():
    # 25,600 tokens are whole steps of batch 4, not of the 64 that comes later; and 6 does not even divide 64.
    first = Phase(tokens=25_600, learning_rate=0.001, weight_decay=0.1, batch_size=4)
    for batch in (64, 6):
        later = Phase(tokens=batch * 64, learning_rate=0.001, weight_decay=0.1, batch_size=batch)
        setup = Setup(model=PRESETS["nano"], optimizer=AdamW(clip_norm=math.inf))
        recipe = Recipe(setup, (first, later))
        assert recipe_from_table(json.loads(json.dumps(recipe_to_table(recipe))), "copy") == recipe


NUMBERS = st.one_of(st.floats(0, 10), st.sampled_from(["2^-10", "1e-3", 0, 1]))
PHASES = st.fixed_dictionaries({
    "tokens": st.one_of(st.integers(2048, 10**6), st.just("1M")),
    "learning_rate": st.one_of(
        NUMBERS,
        st.fixed_dictionaries({"start": NUMBERS, "end": NUMBERS},
                              optional={"shape": st.sampled_from(["linear", "cosine", "one_minus_sqrt"]),
                                        "offset": st.integers(0, 10**6), "tokens": st.just("3M")}),
    ),
    "weight_decay": NUMBERS,
    "batch_size": st.sampled_from([1, 4, 16, 64, "8"]),
})  # fmt: skip


@given(st.lists(PHASES, min_size=1, max_size=4), st.sampled_from([0.5, "inf", math.inf]))
def test_any_list_of_phases_reads_back_from_json_as_the_same(phases, clip_norm):
    recipe = read(table(phases=phases, optimizer={"clip_norm": clip_norm}))
    again = recipe_from_table(json.loads(json.dumps(recipe_to_table(recipe), allow_nan=False)), "copy")
    assert again == recipe
    assert again.state_id("c", again.tokens) == recipe.state_id("c", recipe.tokens)


# Mistakes


@pytest.mark.parametrize(("entries", "complaint"), [
    (table(), r"neither of \[schedule\] and \[\[phases\]\]: keep exactly one"),
    (table(schedule=CONSTANT, phases=[PHASE]), "both of"),
    ({"schedule": CONSTANT}, "missing key model: add it"),
    ({"model": "nan0", "schedule": CONSTANT}, "model='nan0' is no preset: did you mean 'nano'?"),
    ({"model": "huge", "schedule": CONSTANT}, "model='huge' is no preset: use one of micro, nano, paper-164m"),
    ({"model": 7, "schedule": CONSTANT}, "model=7 must be one of the presets"),
    ({"model": {"width": 64}, "schedule": CONSTANT}, "missing keys ffn_width, num_heads.* of model"),
    ({"model": {"depth": 2}, "schedule": CONSTANT}, r"unknown key 'depth' of model \(value 2\)"),
    (table(sequence_lenght=64, schedule=CONSTANT), "unknown key 'sequence_lenght'.*did you mean 'sequence_length'"),
    (table(seed="zero", schedule=CONSTANT), "seed='zero' must be a whole number"),
    (table(corpus=["a"], schedule=CONSTANT), r"corpus=\['a'\] must be"),
    (table(precision="float16", schedule=CONSTANT), "precision='float16' must be one of float32, bfloat16"),
    (table(init=3, schedule=CONSTANT), "init=3 must be a table"),
    (table(init={"sdt": 1}, schedule=CONSTANT), "unknown key 'sdt' of init .*did you mean 'std'"),
    (table(optimizer={"clip_norm": "off"}, schedule=CONSTANT), "clip_norm.*'off' must be a positive number"),
    (table(optimizer={"beta2": 2}, schedule=CONSTANT), r"optimizer.beta2=2.0 must lie in \[0, 1\)"),
    (table(schedule={}), r"\[schedule\] lacks the key 'kind': add one of batch_switch"),
    (table(schedule={"kind": "WSD"}), r"\[schedule\] kind='WSD' is unknown: did you mean 'wsd'"),
    (table(schedule={"kind": "quadratic"}), "kind='quadratic' is unknown: use one of batch_switch, constant, cosine"),
    (table(schedule={"kind": ["wsd"]}), r"kind=\['wsd'\] is unknown"),
    (table(schedule={**CONSTANT, "tokens": -5}), r"\[schedule\]: tokens=-5 is negative"),
    (table(schedule={**CONSTANT, "learning_rate": "fast"}), r"\[schedule\]: learning_rate='fast' is not a number: "),
    (table(schedule={**CONSTANT, "learning_rate": [1]}), r"\[schedule\]: learning_rate=\[1\]"),
    (table(schedule={**CONSTANT, "batch_size": True}), r"\[schedule\]: batch_size=True"),
    (table(schedule={**CONSTANT, "decay_tokens": 1}), "unknown key 'decay_tokens' of schedule"),
    (table(schedule={**CONSTANT, "source": CONSTANT}), "unknown key 'source' of schedule"),
    (table(schedule={"kind": "wsd", "tokens": 1}), "missing keys batch_size, decay_tokens, learning_rate, "),
    (table(schedule={"kind": "batch_switch"}), "missing keys batch_size, source, switch_tokens, tokens of schedule"),
    (table(schedule={**SWITCH, "kind": "batch_switch", "source": {**CONSTANT, "tokens": "x"}}),
     r"^file.toml: \[schedule.source\]: tokens='x' is not a number of tokens"),
    (table(schedule={**SWITCH, "kind": "batch_switch", "source": 1}), "schedule.source=1 must be a table"),
    (table(phases=[]), r"phases=\[\] must be a list of tables"),
    (table(phases={"tokens": 1}), "must be a list of tables"),
    (table(phases=[PHASE, 3]), "phase 2=3 must be a table"),
    (table(phases=[PHASE, {"tokens": 1}]), "missing keys batch_size, learning_rate, weight_decay of phase 2"),
    (table(phases=[{**PHASE, "batch_size": "0:4 1M:8"}]), "phase 1: batch_size='0:4 1M:8' is a schedule"),
    (table(phases=[{**PHASE, "learning_rate": {"start": 1}}]), "phase 1: missing key end of learning_rate"),
    (table(phases=[{**PHASE, "learning_rate": {"start": 1, "end": 0, "shape": "steep"}}]), "phase 1: shape='steep'"),
    (table(phases=[{**PHASE, "learning_rate": {"start": 1, "end": 0, "tokens": 64}}]), "phase 1: .*lengthen the ramp"),
    (table(phases=[{**PHASE, "requested_tokens": 1, "tokens": 100}]), "phase 1: 100 tokens is not a multiple.*try 256"),
    (table(phases=[{**PHASE, "batch_size": 6}, PHASE]), "phase 1: .*divide the largest"),
    (table(phases=[{**PHASE, "tokens": 10}]), "phase 1: tokens=10 is less than half"),
    ([1], r"a recipe=\[1\] must be a table"),
])  # fmt: skip
def test_a_mistake_is_named_in_one_sentence(entries, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        read(entries)
    assert str(caught.value).startswith("file.toml: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_one_that_has_nearly_its_name(tmp_path):
    (tmp_path / "nano-wsd.toml").touch()
    with pytest.raises(InputError, match=r"nano-wds.toml: there is no such file: did you mean .*nano-wsd.toml\?"):
        read_recipe(tmp_path / "nano-wds.toml")
    with pytest.raises(InputError, match="there is no such file: give"):
        read_recipe(tmp_path / "no" / "such.toml")


@pytest.mark.parametrize(("content", "complaint"), [
    (b'model = "nano"\nseed = = 3\n', r"not TOML: .*line 2"),
    (b"\xff\xfe", "byte 0 is not UTF-8"),
    (b"a = " + b"[" * 100_000, "not TOML"),
    (b"seed = " + b"9" * 5000, "not TOML"),
    (b'seed = 0x' + b"f" * 5000 + b'\nmodel = "nano"\nschedule = 1', "seed=|schedule="),
    (b'[schedule]\nkind = 2020-01-01\n[model]', "missing keys"),
    (b"", "missing key model"),
])  # fmt: skip
def test_a_broken_file_gets_one_sentence(tmp_path, content, complaint):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["", ".", "a\0b"])
def test_what_is_no_file_is_refused(path):
    with pytest.raises(InputError):
        read_recipe(path)


def test_a_file_with_windows_line_ends_and_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + RECIPES[0].read_bytes().replace(b"\n", b"\r\n"))
    assert read_recipe(path) == read_recipe(RECIPES[0])


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 300),
        st.integers(min_value=10**400, max_value=10**401),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(
            ["nano", "wsd", "constant", "cosine", "batch_switch", "2^-10", "2.56M", "0:4 1M:64", "inf", "-1"]
        ),
        st.just(datetime.date(2020, 1, 1)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["model", "corpus", "sequence_length", "seed", "precision", "max_epochs", "init", "optimizer", "schedule", "phases",
     "kind", "tokens", "learning_rate", "weight_decay", "batch_size", "warmup_tokens", "decay_tokens", "decay_shape",
     "switch_tokens", "source", "quantum_tokens", "start", "end", "shape", "offset", "requested_tokens", "std", "scale",
     "beta1", "clip_norm", "width", "num_heads", "final_learning_rate", "x"]
)  # fmt: skip
SOUND = [
    table(schedule=WSD, init={"std": 0.1}, optimizer={"clip_norm": 1.0}, seed=1, precision="float32"),
    table(schedule={**SWITCH, "kind": "batch_switch"}, max_epochs=2),
    table(schedule={**SWITCH, "kind": "new_settings", "learning_rate": 1, "decay_shape": "cosine"}, corpus="c"),
    table(schedule={**CONSTANT, "kind": "cosine", "final_learning_rate": 0.0, "quantum_tokens": 256}),
    table(phases=[PHASE, {**PHASE, "learning_rate": {"start": 1, "end": 0, "tokens": "1M", "offset": 256}}]),
    {"model": {"width": 64, "num_layers": 2, "num_heads": 4, "ffn_width": 8, "vocabulary_size": 9}, "phases": [PHASE]},
]


def places(value):
    """Every container inside a table."""
    found = [value] if isinstance(value, dict | list) else []
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found + [place for child in children for place in places(child)]


@st.composite
def spoiled_tables(draw):
    """A sound table in which one to three entries are replaced, removed or added, at any depth."""
    result = copy.deepcopy(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(result)))
        if isinstance(place, list):
            place.append(draw(VALUES))
            continue
        key = draw(st.one_of(KEYS, st.sampled_from(sorted(place, key=str))) if place else KEYS)
        if draw(st.integers(0, 4)) == 0:
            place.pop(key, None)
        else:
            place[key] = draw(VALUES)
    return result


@settings(max_examples=300)
@given(
    st.one_of(spoiled_tables(), st.dictionaries(KEYS, VALUES, max_size=6), VALUES),
    st.one_of(st.just({}), st.dictionaries(KEYS, VALUES, max_size=2)),
)
def test_any_table_gives_a_recipe_or_one_sentence(entries, overrides):
    try:
        recipe = recipe_from_table(entries, "file.toml", overrides)
    except InputError as error:
        assert str(error).startswith("file.toml: ")
        assert "\n" not in str(error)
    else:
        assert recipe_from_table(recipe_to_table(recipe), "copy") == recipe
