import pytest
from roll_rewards import RewardError, make_grader


async def test_equal_text_scores_one_and_other_text_zero() -> None:
    grader = make_grader("exact")
    assert (await grader.grade(" abc\n", "abc")).value == 1.0
    assert (await grader.grade("abcd", "abc")).value == 0.0
    assert (await grader.grade("ABC", "abc")).value == 0.0


async def test_answer_is_what_follows_the_last_occurrence() -> None:
    score = await make_grader("exact", after=";").grade("cab;acb; abc", "abc")
    assert score.value == 1.0
    assert score.parsed == "abc"


async def test_an_earlier_draft_does_not_count() -> None:
    assert (await make_grader("exact", after=";").grade("abc;acb", "abc")).value == 0.0


async def test_whole_response_is_the_answer_when_the_marker_is_absent() -> None:
    score = await make_grader("exact", after="####").grade("42", "42")
    assert score.value == 1.0
    assert score.parsed == "42"


async def test_nothing_after_the_marker_is_an_empty_answer() -> None:
    score = await make_grader("exact", after=";").grade("abc;", "abc")
    assert score.value == 0.0
    assert score.parsed == ""


async def test_white_space_counts_when_it_is_not_stripped() -> None:
    grader = make_grader("exact", strip=False)
    assert (await grader.grade("abc ", "abc")).value == 0.0
    assert (await grader.grade("abc ", "abc ")).value == 1.0


async def test_case_is_ignored_when_asked() -> None:
    score = await make_grader("exact", case_sensitive=False).grade("STRASSE", "straße")
    assert score.value == 1.0


async def test_any_of_several_references_is_right() -> None:
    grader = make_grader("exact")
    assert (await grader.grade("grey", ["gray", "grey"])).value == 1.0
    assert (await grader.grade("green", ["gray", "grey"])).value == 0.0


async def test_substrings_do_not_count_in_either_direction() -> None:
    grader = make_grader("exact")
    assert (await grader.grade("1", "12")).value == 0.0
    assert (await grader.grade("12", "1")).value == 0.0
    assert (await grader.grade("", "poodle")).value == 0.0


@pytest.mark.parametrize("reference", [None, 5, [], ["a", 1], {"a": 1}])
async def test_reference_that_is_not_text_is_refused(reference: object) -> None:
    with pytest.raises(RewardError, match="reference of grader 'exact' must be a string or a non-empty list"):
        await make_grader("exact").grade("a", reference)


def test_empty_marker_is_refused() -> None:
    with pytest.raises(RewardError, match="must not be empty"):
        make_grader("exact", after="")
