"""Values from the command line."""

from typing import Any

import pytest
from pydantic import Field
from roll_launch.config import ConfigError, Section, load_text


class Engine(Section):
    kind: str = "fake"


class Stage(Section):
    name: str
    steps: int = 1
    engine: Engine = Engine()


class Learner(Section):
    learning_rate: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.99)
    tag: str = ""
    note: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class Run(Section):
    name: str
    learner: Learner = Learner()
    stages: tuple[Stage, ...] = ()


TEXT = "name: q\nlearner: {learning_rate: 1.0}\nstages:\n  - {name: sft, steps: 3}\n  - {name: rlvr}\n"


def loaded(*arguments: str) -> Run:
    return load_text(TEXT, Run, arguments, "x.yaml").config


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["learner.learning_rate=2e-5"],
        ["+learner.learning_rate=2e-5"],
        ["++learner.learning_rate=2e-5"],
        ["--learner.learning_rate=2e-5"],
        ["--learner.learning_rate", "2e-5"],
        ["learner.learning_rate = 2e-5"],
        ["learner.learning_rate=1", "learner.learning_rate=2e-5"],
        ["learner={learning_rate: 2e-5}"],
    ],
)
def test_every_form_sets_the_value_and_the_last_wins(arguments: list[str]) -> None:
    assert loaded(*arguments).learner.learning_rate == 2e-5


def test_a_value_may_be_negative_after_a_space() -> None:
    assert loaded("--learner.learning_rate", "-1").learner.learning_rate == -1.0


def test_list_items_are_named_by_index_or_by_name() -> None:
    config = loaded("stages.0.steps=5", "stages.rlvr.steps=7", "stages.rlvr.engine.kind=real")
    assert [stage.steps for stage in config.stages] == [5, 7]
    assert config.stages[1].engine.kind == "real"


def test_keys_that_the_file_does_not_have_are_added_and_others_stay() -> None:
    config = loaded("learner.options={a: {b: [1]}}", "learner.options.a.c=off")
    assert config.learner.options == {"a": {"b": [1], "c": "off"}}
    assert config.learner.learning_rate == 1.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2024", "2024"),
        ('"8"', "8"),
        ("a: b # c", "a: b # c"),
        ("x=y", "x=y"),
        ("off", "off"),
        ("'true'", "true"),
    ],
)
def test_text_needs_no_quotes_that_a_shell_would_remove(value: str, expected: str) -> None:
    assert loaded(f"learner.tag={value}").learner.tag == expected


def test_an_empty_value_is_null() -> None:
    assert loaded("learner.note=x", "learner.note=").learner.note is None
    assert "learner.tag: has no value; got nothing (null)" in refused("learner.tag=")


@pytest.mark.parametrize("value", ["True", "false", "null"])
def test_booleans_and_null_are_no_text(value: str) -> None:
    assert "command line: learner.tag:" in refused(f"learner.tag={value}")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "command line: empty override; allowed: key.key=value"),
        ("   ", "command line: empty override"),
        ("learner.learning_rate", "command line: 'learner.learning_rate' is not an override"),
        ("+learner.learning_rate", "is not an override"),
        ("~learner.learning_rate", "is not an override"),
        ("=5", "command line: an override without a key"),
        ("learner..learning_rate=1", "command line: learner..learning_rate: is no key"),
        (
            "--learner.learning_rate",
            "command line: learner.learning_rate: has no value; write --learner.learning_rate",
        ),
        ("learner.betas=[1", "command line: learner.betas: not valid YAML"),
        ("learner.options={a: 1, a: 2}", "command line: learner.options: key a is given twice"),
        ("stages.2.steps=1", "stages has 2 items; there is no 2; allowed: 0 to 1"),
        ("stages.-1.steps=1", "stages has 2 items; there is no -1; allowed: 0 to 1"),
        (f"stages.{'9' * 5000}.steps=1", "stages has 2 items"),
        ("stages.rlrv.steps=1", "stages has no item named rlrv; did you mean rlvr?"),
        ("stages.other.steps=1", "stages has no item named other; allowed: sft, rlvr"),
        ("name.first=x", "name is a single value (q) and has no keys"),
        ("learner=5", "command line: learner: not a mapping; got 5 (int)"),
        (
            "learner.lerning_rate=1",
            "command line: learner.lerning_rate: unknown key; did you mean learning_rate?",
        ),
        ("stages.rlvr.step=1", "command line: stages.rlvr.step: unknown key; did you mean steps?"),
    ],
)
def test_what_cannot_be_set_is_refused_and_said_to_come_from_the_command_line(
    argument: str, message: str
) -> None:
    assert message in refused(argument)


def test_an_option_without_value_does_not_swallow_the_next_one() -> None:
    text = refused("--learner.tag", "--learner.note=x")
    assert text.startswith("command line: learner.tag: has no value")


def test_problems_of_the_file_come_before_those_of_the_command_line() -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(TEXT.replace("sft, steps", "sft, stepz"), Run, ["learner.tag=", "nme=x"], "x.yaml")
    sources = [str(problem).split(":")[0] for problem in caught.value.problems]
    assert sources == ["x.yaml", "command line", "command line"]


def test_arguments_with_credentials_are_shown_masked() -> None:
    assert "hunter2" not in refused("api_key:hunter2")
    assert "hunter2" not in refused("token=hunter2 hunter2")
