"""How mistakes are said."""

import pickle

from roll_launch.config.problems import ConfigError, Problem, in_file_order, shortened, without_secrets
from roll_launch.errors import RollLaunchError


def problem(line: int | None, message: str = "unknown key", source: str = "x.yaml") -> Problem:
    return Problem(source=source, line=line, path="a.b", message=message)


def test_a_problem_is_one_line_with_place_key_value_hint_and_what_is_allowed() -> None:
    full = Problem(
        source="x.yaml",
        line=12,
        path="a.b",
        message="not an int",
        got="x (str)",
        allowed="int >= 1",
        hint="write 1",
    )
    assert str(full) == "x.yaml:12: a.b: not an int; got x (str); write 1; allowed: int >= 1"
    asked = Problem(
        source="x.yaml", line=1, path="a", message="unknown key", allowed="b", hint="did you mean b?"
    )
    assert str(asked) == "x.yaml:1: a: unknown key; did you mean b? allowed: b"
    assert str(Problem(source="command line", message="empty override")) == "command line: empty override"


def test_a_report_fits_on_a_screen() -> None:
    report = str(ConfigError(problem(line) for line in range(1, 40)))
    assert len(report.splitlines()) == 13
    assert report.endswith("... and 27 more")


def test_an_error_survives_pickling() -> None:
    error = ConfigError([problem(1), problem(None)])
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, RollLaunchError)
    assert (str(copy), copy.problems) == (str(error), error.problems)


def test_problems_are_ordered_by_line_with_the_command_line_last_and_said_once() -> None:
    mixed = [problem(None, source="command line"), problem(9), problem(2), problem(9), problem(None)]
    assert [(p.source, p.line) for p in in_file_order(mixed, "x.yaml")] == [
        ("x.yaml", 2),
        ("x.yaml", 9),
        ("x.yaml", None),
        ("command line", None),
    ]


def test_long_values_are_cut_in_the_middle() -> None:
    assert shortened("a  b\nc") == "a b c"
    cut = shortened("x" * 500 + "end")
    assert len(cut) <= 60 and cut.endswith("xend")


def test_secrets_are_masked_wherever_a_problem_repeats_them() -> None:
    told = Problem(source="x.yaml", message="no grader hunter22", got="hunter22 (str)", hint="not hunter22")
    assert "hunter22" not in str(without_secrets(told, frozenset({"hunter22"})))
