"""What plain text means, by the type that is asked for."""

import pytest
from roll_launch.config.scalars import (
    ScalarError,
    read_any,
    read_bool,
    read_float,
    read_int,
    read_str,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("8", 8.0),
        ("-3", -3.0),
        ("1_000", 1000.0),
        ("1_000.5", 1000.5),
        ("0x10", 16.0),
        ("0o17", 15.0),
    ],
)
def test_numbers_are_floats_where_a_float_is_asked_for(text: str, value: float) -> None:
    got = read_float(text)
    assert got == value and isinstance(got, float)


@pytest.mark.parametrize(
    "text",
    [".inf", "-.inf", ".nan", "NaN", "inf", "infinity", "1e400", "fast", "1:30", "true", "", "9" * 5000],
)
def test_what_is_no_finite_number_is_no_float(text: str) -> None:
    with pytest.raises(ScalarError):
        read_float(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("+8", 8), ("-8", -8), ("1_000", 1000), ("0o17", 15), ("0x1f", 31), ("0b11", 3), ("0", 0)],
)
def test_integer_literals_are_ints(text: str, value: int) -> None:
    assert read_int(text) == value


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8.0", "for a whole number write 8"),
        ("1e3", "for a whole number write 1000"),
        ("017", "a leading zero can be read in two ways; write 17 or 0o17"),
        ("08", "a leading zero can be read in two ways; write 8"),
        ("2.5", None),
        ("--5", None),
        ("_1", None),
        ("1__0", None),
        ("٣", None),
        ("1:30", None),
    ],
)
def test_what_is_no_int_is_refused_with_what_to_write_instead(text: str, hint: str | None) -> None:
    with pytest.raises(ScalarError) as caught:
        read_int(text)
    assert caught.value.args[0] == hint


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "Y", "1", "0", "maybe", "tRuE", ""])
def test_only_true_and_false_are_booleans(text: str) -> None:
    assert read_bool("true") and read_bool("True") and not read_bool("FALSE")
    with pytest.raises(ScalarError, match="write true or false"):
        read_bool(text)


@pytest.mark.parametrize("text", ["off", "2026-11-30", "12:30", "1_000", "007", "a b", "NaN", "=", "<<"])
def test_what_yaml_1_1_would_convert_stays_text(text: str) -> None:
    assert read_str(text) == text
    assert read_any(text) == text


@pytest.mark.parametrize("text", ["8", "1e-6", "true", "null", "~", ".inf"])
def test_numbers_booleans_and_null_are_no_text_without_quotes(text: str) -> None:
    with pytest.raises(ScalarError):
        read_str(text)


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), ("1e-3", 1e-3), ("true", True), ("null", None), ("", None), ("0x10", 16)]
)
def test_untyped_text_follows_the_core_rules(text: str, value: object) -> None:
    got = read_any(text)
    assert got == value and type(got) is type(value)
