"""Configurations as YAML text."""

import math
from enum import Enum
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from roll_launch.config import RunConfig, Section, dump_config, dump_data, load_config, load_text
from roll_launch.config.credentials import is_credential


class Anything(Section):
    name: str = ""
    path: Path = Path("x")
    pair: tuple[float, float] = (0.0, 1.0)
    note: str | None = None
    data: Any = None


printable = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Cn", "Co"]), max_size=30)
numbers_as_text = st.sampled_from(
    [
        "8",
        "1e-6",
        "off",
        "null",
        "~",
        "true",
        "2026-11-30",
        "007",
        "1_000",
        "0x1f",
        ".5",
        ".nan",
        "12:30",
        "=",
        "<<",
        "${a.b}",
        "$${x}",
        "a: b",
        "# c",
        "*x",
        "- a",
        "",
        " ",
        "'",
        '"',
        "{",
        "a\nb",
        "x " * 100,
    ]
)
texts = printable | numbers_as_text
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
keys = printable.map(lambda text: f"k{text}").filter(lambda key: not is_credential(key))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


@given(texts, values)
def test_loading_a_dump_gives_the_same_configuration(text: str, value: object) -> None:
    config = Anything(name=text, note=text, data=value)
    assert load_text(dump_config(config), Anything, environment={}).config == config


def test_names_and_sets_are_dumped_as_they_are_written() -> None:
    class Colour(Enum):
        RED = "red"

    class Odd(Section):
        colour: Colour = Colour.RED
        tags: frozenset[str] = frozenset({"off"})

    assert dump_config(Odd()) == "colour: red\ntags: ['off']\n"
    assert load_text(dump_config(Odd()), Odd).config == Odd()


def test_the_quickstart_comes_back_equal() -> None:
    path = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
    config = load_config(path).config
    assert load_text(dump_config(config), RunConfig).config == config


def test_only_the_written_fields_of_an_algorithm_are_dumped() -> None:
    path = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
    overrides = ["stages.rlvr.algorithm={preset: grpo, dual_clip: null, kl: {placement: loss, coef: 0.01}}"]
    config = load_config(path, overrides).config
    text = dump_config(config)
    assert "estimator" not in text and "dual_clip: null" in text
    assert load_text(text, RunConfig).config == config


def test_infinity_keeps_its_sign_and_numbers_their_type() -> None:
    got = load_text(dump_data({"data": [math.inf, -math.inf, 1.0, 1, 1e-6]}), Anything).config.data
    assert got == [math.inf, -math.inf, 1.0, 1, 1e-6]
    assert [type(value) for value in got] == [float, float, float, int, float]


def test_credentials_are_masked_and_so_are_their_copies() -> None:
    text = dump_data(
        {"tracker": {"api_key": "dummy-123456"}, "url": "http://h/?k=dummy-123456", "project": "p"}
    )
    assert "dummy" not in text and "project: p" in text


def test_secrets_of_the_environment_are_masked() -> None:
    text = "name: 'Bearer ${env:SERVICE_TOKEN}'\ndata: {x: 1}\n"
    loaded = load_text(text, Anything, environment={"SERVICE_TOKEN": "s3cr3t"})
    assert loaded.config.name == "Bearer s3cr3t"
    assert "s3cr3t" not in dump_config(loaded.config, secrets=loaded.document.secrets)
