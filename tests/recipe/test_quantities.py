"""Numbers as people write them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotune.errors import InputError
from isotune.recipe.quantities import (
    format_tokens,
    parse_batch_schedule,
    parse_batch_size,
    parse_number,
    parse_tokens,
    require_not_negative,
    require_positive_int,
    show,
    whole_number,
)

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**300),
    st.floats(),
    st.text(),
    st.text("0123456789.^-+eKMB_: \u0663", max_size=12),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(), st.integers(), max_size=2),
)


@pytest.mark.parametrize(
    ("written", "tokens"),
    [(2_560_000, 2_560_000), ("2.56M", 2_560_000), ("30B", 30 * 10**9), ("25.6k", 25_600), ("1e9", 10**9), (1e9, 10**9),
     ("1_000", 1000), (" 0 ", 0), ("0.5T", 5 * 10**11), (np.int64(7), 7), (np.float64(8.0), 8)],
)  # fmt: skip
def test_token_counts_are_read_exactly(written, tokens):
    assert parse_tokens("tokens", written) == tokens
    assert type(parse_tokens("tokens", written)) is int


@pytest.mark.parametrize("written", ["", "M", "12Q", "-1", -1, "0.5", "1e999999M", "1e-999999", "1e30", "nan", 1e300,
                                     float("inf"), True, None, [1], 10**5000, "...", "9" * 5000], ids=show)  # fmt: skip
def test_a_bad_token_count_is_refused_with_its_name_and_a_remedy(written):
    with pytest.raises(InputError, match=r"^warmup_tokens=.*: "):
        parse_tokens("warmup_tokens", written)


@given(st.integers(-30, 30))
def test_powers_of_two_are_exact(exponent):
    assert parse_number("learning_rate", f"2^{exponent}") == 2.0**exponent


@pytest.mark.parametrize("written", ["fast", "2^", "^2", "2^3^4", "-2^2", "-8^0.5", "0^-1", "9^999999", "nan", "inf",
                                     -1, float("nan"), True, None, [2], {}, 10**400], ids=show)  # fmt: skip
def test_a_bad_number_is_refused_with_its_name(written):
    with pytest.raises(InputError, match=r"^learning_rate="):
        parse_number("learning_rate", written)


def test_minus_zero_is_zero():
    for value in (-0.0, "-0.0", "-0^1"):
        assert str(parse_number("learning_rate", value)) == "0.0"


def test_numpy_numbers_become_plain_ones():
    assert type(require_positive_int("n", np.int32(3))) is int
    assert type(require_not_negative("x", np.float32(0.5))) is float
    assert type(parse_number("x", np.float64(0.5))) is float
    assert whole_number(np.bool_(True)) is whole_number(np.arange(3)) is whole_number(4.0) is None


def test_a_batch_schedule_is_read_in_megatrons_syntax():
    assert parse_batch_schedule("0:512 30B:8192") == [(0, 512), (30 * 10**9, 8192)]
    assert parse_batch_schedule("64") == parse_batch_schedule(64) == parse_batch_schedule(np.int64(64)) == [(0, 64)]


@pytest.mark.parametrize("written", ["", "0", "0:0", "5:4", "0:4 0:8", "0:4 9:8 8:16", "4:", ":4", "0:4 x:8", "0:-4", 0,
                                     -4, 4.0, True, None, [4], "9" * 5000], ids=show)  # fmt: skip
def test_a_bad_batch_schedule_is_refused(written):
    with pytest.raises(InputError, match=r"^batch_size="):
        parse_batch_schedule(written)


def test_a_schedule_is_no_single_batch_size():
    assert parse_batch_size("64") == 64
    with pytest.raises(InputError, match="is a schedule"):
        parse_batch_size("0:4 1M:64")


@given(ANYTHING)
def test_no_value_makes_the_parsers_fail_otherwise(value):
    for parse in (parse_tokens, parse_number):
        try:
            assert parse("name", value) >= 0
        except InputError as error:
            assert "\n" not in str(error)
    try:
        assert parse_batch_schedule(value)[0][1] >= 1
    except InputError as error:
        assert "\n" not in str(error)


@given(ANYTHING)
def test_every_value_is_shown_on_one_short_line(value):
    assert "\n" not in show(value)
    assert len(show(value)) < 500


def test_a_whole_number_too_long_to_print_is_described():
    assert show([16**5000]) == "[(a whole number of 20001 bits)]"


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(0, "0"), (999, "999"), (1000, "1K"), (25_600, "25.6K"), (999_499, "999K"), (999_600, "1M"), (2_560_000, "2.56M"),
     (105 * 10**9, "105B"), (3 * 10**15, "3000T")],
)  # fmt: skip
def test_token_counts_are_shown_with_three_digits(tokens, text):
    assert format_tokens(tokens) == text
