import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_rewards import RewardError, make_grader


@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("The answer is 42.", "42"),
        ("first 1, then 2, so 3", 3),
        ("1,000", "1000"),
        ("1,234,567", "1234567"),
        ("1\u202f234\u202f567", 1234567),
        ("12,345.60", "12345.6"),
        ("0.50", "0.5"),
        (".5", "0.5"),
        ("+5", "5"),
        ("\u22125", "-5"),
        ("x=-5", -5),
        ("$5", "5"),
        ("25%", "25"),
        ("60 km/h", "60"),
        ("so...5", "5"),
        ("7-2", "2"),
        ("(7)-2", "2"),
        ("1/2", "0.5"),
        ("2/3.", "2/3"),
        ("-3/4", "-0.75"),
        ("1 1/2", "1.5"),
        ("10 20/5", "4"),
        (r"\frac{1}{2}", "0.5"),
        (r"\dfrac{1}{2}", "0.5"),
        (r"\frac12", "1/2"),
        (r"1\frac{1}{2}", "1.5"),
        (r"\boxed{-\frac{10}{3}}", "-10/3"),
        ("1.5e3", "1500"),
        ("1E-3", "0.001"),
        (r"1.5\times 10^{3}", "1500"),
        ("1.5 × 10^3", "1500"),
        ("10^{-3}", "0.001"),
        ("2^10", "1024"),
        (r"\text{17}", "17"),
        ("**72**", "72"),
        ("0.1", 0.1),
        ("7", np.int64(7)),
        ("0.1", np.float32(0.1)),
        ("18", "He has 6 bags of 3, so #### 18"),
    ],
)
async def test_equal_numbers_are_right_however_they_are_written(response: str, reference: object) -> None:
    score = await make_grader("number").grade(response, reference)
    assert score.value == 1.0, score


@pytest.mark.parametrize(
    ("response", "reference"),
    [
        ("1,2", "12"),
        ("1.000", "1000"),
        ("-5", "5"),
        ("5", "-5"),
        ("3.01", "3"),
        ("0.999", "1"),
        ("0.333333", "1/3"),
        ("4/3", "3/4"),
        (r"\frac{1}{3}", r"\frac{1}{2}"),
        (r"\frac{14}{5}", r"\frac{1}{45}"),
        ("42, or maybe 43", "42"),
        ("2^10", "10"),
        ("1e309", "1e308"),
    ],
)
async def test_unequal_numbers_are_wrong(response: str, reference: object) -> None:
    score = await make_grader("number").grade(response, reference)
    assert score.value == 0.0
    assert score.parsed is not None


async def test_parsed_is_the_number_as_written() -> None:
    assert (await make_grader("number").grade("about 1,234.5 kg", "7")).parsed == "1,234.5"


@pytest.mark.parametrize(
    "response", ["", "I cannot solve this.", "1/0", "0^-1", "v2", "x_1", "\u0663", "-", "1e401", "7^401"]
)
async def test_response_without_a_readable_number_scores_zero_unparsed(response: str) -> None:
    score = await make_grader("number").grade(response, "1")
    assert score.value == 0.0
    assert score.parsed is None


@pytest.mark.parametrize(
    "response",
    [
        "9" * 10**6,
        "1e999999999",
        "1e-999999999",
        "9" * 400 + "^" + "9" * 400,
        "10^" + "9" * 300,
        "1,111" * 200_000,
        "1 " * 500_000,
        "1/" * 500_000,
        "-" * 10**6 + "x",
        "5" + " " * 10**6 + "x",
    ],
    ids=lambda response: response[:8],
)
async def test_hostile_response_costs_no_more_than_another(response: str) -> None:
    grader = make_grader("number")
    started = time.perf_counter()
    score = await grader.grade(response, "2")
    assert time.perf_counter() - started < 0.5
    assert score.value == 0.0


async def test_number_longer_than_the_limit_is_not_read_as_its_tail() -> None:
    assert (await make_grader("number").grade("1" + "0" * 5000 + "7", "7")).parsed is None


async def test_number_is_not_read_from_the_middle_where_the_search_begins() -> None:
    response = "12" + "-" * 1998 + "v7"
    assert (await make_grader("number").grade(response, "2")).parsed is None


async def test_numbers_are_read_up_to_four_hundred_digits() -> None:
    grader = make_grader("number")
    assert (await grader.grade("7" * 400, "7" * 400)).value == 1.0
    assert (await grader.grade("7" * 401, "7")).parsed is None


async def test_absolute_tolerance_includes_its_bound() -> None:
    grader = make_grader("number", abs_tolerance=0.3)
    assert (await grader.grade("1.3", "1")).value == 1.0
    assert (await grader.grade("1.300001", "1")).value == 0.0


async def test_relative_tolerance_scales_with_the_reference() -> None:
    grader = make_grader("number", rel_tolerance=0.01)
    assert (await grader.grade("-101", "-100")).value == 1.0
    assert (await grader.grade("-102", "-100")).value == 0.0
    assert (await grader.grade("0.0001", "0")).value == 0.0


@given(st.integers(-(10**12), 10**12), st.integers(0, 6), st.booleans())
async def test_decimals_and_fractions_of_the_same_value_agree(
    digits: int, places: int, separators: bool
) -> None:
    whole, rest = divmod(abs(digits), 10**places)
    decimal = f"{whole:,}" if separators else f"{whole}"
    decimal += f".{rest:0{places}d}" if places else ""
    sign = "-" if digits < 0 else ""
    fraction = Fraction(digits, 10**places)
    score = await make_grader("number").grade(f"so {sign}{decimal} it is", str(fraction))
    assert score.value == 1.0
    assert score.parsed == sign + decimal


@given(st.text(max_size=300))
async def test_any_text_gets_a_verdict(response: str) -> None:
    assert (await make_grader("number").grade(response, "1")).value in (0.0, 1.0)


@pytest.mark.parametrize("reference", [None, True, "none", float("nan"), float("inf"), [1], "1/0"])
async def test_reference_without_a_number_is_refused(reference: object) -> None:
    with pytest.raises(RewardError, match="reference of grader 'number' must be a finite number"):
        await make_grader("number").grade("1", reference)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_tolerance_below_zero_or_without_end_is_refused(value: float) -> None:
    with pytest.raises(RewardError, match="'rel_tolerance' of grader 'number' must be at least 0"):
        make_grader("number", rel_tolerance=value)
