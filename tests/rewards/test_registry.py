import dataclasses
import typing

import pytest
from roll_rewards import GRADERS, RewardError, make_grader


def test_grader_is_made_with_its_options() -> None:
    grader = make_grader("exact", after=";", case_sensitive=False)
    assert grader == GRADERS["exact"](after=";", strip=True, case_sensitive=False)


def test_unknown_grader_names_the_nearest_and_all_there_are() -> None:
    with pytest.raises(RewardError) as caught:
        make_grader("exakt")
    message = str(caught.value)
    assert "'exakt'; did you mean 'exact'?" in message
    assert all(name in message for name in GRADERS)


def test_unknown_option_names_the_nearest_and_all_that_are_allowed() -> None:
    with pytest.raises(
        RewardError, match="grader 'exact' has no option 'afer'; did you mean 'after'"
    ) as caught:
        make_grader("exact", afer=";")
    assert "it has after, case_sensitive, strip" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("exact", {"strip": "yes"}, "option 'strip' of grader 'exact' must be bool, got str 'yes'"),
        ("exact", {"after": 1}, "option 'after' of grader 'exact' must be str or None, got int 1"),
        ("exact", {"strip": 1}, "must be bool, got int 1"),
        ("number", {"abs_tolerance": True}, "must be float, got bool True"),
        ("number", {"abs_tolerance": "0.1"}, "must be float, got str '0.1'"),
        ("pattern", {"pattern": "a", "match": "last"}, "must be 'search' or 'full', got str 'last'"),
        ("pattern", {"pattern": "a", "group": 1.0}, "must be int or str or None, got float 1.0"),
    ],
)
def test_option_of_a_wrong_type_is_named(name: str, options: dict, message: str) -> None:
    with pytest.raises(RewardError) as caught:
        make_grader(name, **options)
    assert message in str(caught.value)


def test_whole_number_serves_as_a_float_option() -> None:
    assert make_grader("number", abs_tolerance=1) == GRADERS["number"](abs_tolerance=1.0)


def test_missing_required_option_is_named() -> None:
    with pytest.raises(RewardError, match="grader 'pattern' needs the option 'pattern', str"):
        make_grader("pattern")


@pytest.mark.parametrize("name", sorted(GRADERS))
def test_every_option_of_every_grader_is_type_checked(name: str) -> None:
    required = {
        "pattern": {"pattern": "a"},
        "python": {"callable": "math:sqrt"},
        "reasoning_gym": {"task": "gcd"},
    }
    for option in typing.get_type_hints(GRADERS[name]):
        with pytest.raises(RewardError, match=f"option '{option}' of grader '{name}' must be"):
            make_grader(name, **required.get(name, {}) | {option: object()})


@pytest.mark.parametrize("name", sorted(GRADERS))
def test_every_grader_is_frozen(name: str) -> None:
    parameters = typing.cast(typing.Any, GRADERS[name]).__dataclass_params__
    assert dataclasses.is_dataclass(GRADERS[name])
    assert parameters.frozen
