"""Text with places to instances of a schema: nothing converted, everything wrong reported at once."""

import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from roll_launch.config import ConfigError, Finding, Section, load_text


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Cat(Section):
    kind: Literal["cat"]
    lives: int = 9


class Dog(Section):
    kind: Literal["dog", "hound"]
    tricks: tuple[str, ...] = ()
    breed: str


class Values(Section):
    i: int = 0
    f: float = 0.0
    b: bool = False
    s: str = ""
    p: Path = Path("x")
    n: int | None = None
    number: int | float = 0
    either: int | str = 0
    name: Literal["cosine", "linear"] | None = None
    colour: Colour = Colour.RED
    pair: tuple[float, int] = (0.0, 0)
    items: list[int] = Field(default_factory=list)
    table: dict[str, int] = Field(default_factory=dict)
    tables: list[dict[str, list[float]]] = Field(default_factory=list)
    any: Any = None
    big: int = Field(default=5, ge=2, lt=10)
    small: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = ()
    text: Annotated[str, Field(pattern="^a+$")] = "a"
    pets: tuple[Annotated[Cat | Dog, Field(discriminator="kind")], ...] = ()
    pet: Cat | Dog | None = None


class Root(Section):
    v: Values = Values()
    must: str = "given"


def loaded(**values: str) -> Values:
    lines = "".join(f"  {key}: {text}\n" for key, text in values.items())
    return load_text(f"v:\n{lines}", Root, source="x.yaml").config.v


def refused(text: str, schema: type[BaseModel] = Root) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, schema, source="x.yaml")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("i", "8", 8),
        ("f", "8", 8.0),
        ("f", "1e-6", 1e-6),
        ("b", "True", True),
        ("s", "off", "off"),
        ("s", "2026-11-30", "2026-11-30"),
        ("s", '"8"', "8"),
        ("s", '""', ""),
        ("p", "~/x", Path.home() / "x"),
        ("p", "a/../b", Path("a/../b")),
        ("n", "null", None),
        ("n", "", None),
        ("n", "3", 3),
        ("number", "3", 3),
        ("number", "3.0", 3.0),
        ("either", "3", 3),
        ("either", '"3"', "3"),
        ("either", "off", "off"),
        ("name", "cosine", "cosine"),
        ("name", "'linear'", "linear"),
        ("name", "~", None),
        ("colour", "green", Colour.GREEN),
        ("pair", "[1, 2]", (1.0, 2)),
        ("items", "[1, 2]", [1, 2]),
        ("table", "{a: 1, off: 2}", {"a": 1, "off": 2}),
        ("tables", "[{a: [1, .5]}, {}]", [{"a": [1.0, 0.5]}, {}]),
        ("any", '{a: [1, "2", 1e-3, off, null]}', {"a": [1, "2", 1e-3, "off", None]}),
        ("pet", "cat", Cat(kind="cat")),
        ("pet", "{kind: hound, breed: x}", Dog(kind="hound", breed="x")),
        ("pet", "null", None),
        (
            "pets",
            "[cat, {kind: dog, breed: x, tricks: [on]}]",
            (Cat(kind="cat"), Dog(kind="dog", breed="x", tricks=("on",))),
        ),
    ],
)
def test_a_value_arrives_as_the_declared_type(key: str, text: str, value: object) -> None:
    got = getattr(loaded(**{key: text}), key)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("i", '"8"', 'not an int; got "8" (str); write 8 without quotes; allowed: int'),
        ("i", "8.0", "not an int; got 8.0 (float); for a whole number write 8; allowed: int"),
        ("i", "true", "not an int; got true (bool); allowed: int"),
        ("i", "", "has no value; got nothing (null); allowed: int"),
        ("i", "[1]", "not an int; got list of 1; allowed: int"),
        ("f", "fast", "not a float; got fast (str); allowed: float"),
        ("f", ".nan", "not a float; got .nan (float); write a finite number; allowed: float"),
        ("b", "yes", "not a boolean; got yes (str); write true or false; allowed: bool"),
        ("b", "1", "not a boolean; got 1 (int); write true or false; allowed: bool"),
        ("b", '"false"', 'not a boolean; got "false" (str); write false without quotes; allowed: bool'),
        ("s", "8", 'not text; got 8 (int); for text write "8" in quotes; allowed: str'),
        ("s", "null", 'has no value; got null; for text write "null" in quotes; allowed: str'),
        ("s", "{a: 1}", "not text; got mapping with a; allowed: str"),
        ("p", '""', 'not a path; got "" (str); write the path of a file or directory; allowed: path'),
        ("p", "~nobody-here/x", "not a path: Could not determine home directory."),
        ("n", "x", "not an int; got x (str); allowed: int or null"),
        ("number", "x", "not a value of an allowed type; got x (str); allowed: int or float"),
        ("name", "cosin", "not a value of an allowed type; got cosin (str); did you mean cosine?"),
        ("name", "true", "got true (bool); allowed: cosine or linear or null"),
        (
            "colour",
            "Green",
            "not an allowed name; got Green (str); did you mean green? allowed: red or green",
        ),
        ("pair", "[1]", "a list of another length; got 1 item; allowed: list of 2: float, int"),
        ("pair", "[1, 2.5]", "v.pair.1: not an int; got 2.5 (float)"),
        ("items", "5", "not a list; got 5 (int); write [5]; allowed: list of int"),
        ("items", "null", "not a list; got null; allowed: list of int"),
        ("table", "{a: b}", "v.table.a: not an int; got b (str)"),
        ("tables", "[{a: [x]}]", "v.tables.0.a.0: not a float; got x (str)"),
        ("big", "1", "must be greater than or equal to 2; got 1 (int); allowed: int >= 2 and < 10"),
        ("small", "[0.5, 1]", "v.small.1: must be less than 1; got 1 (int)"),
        ("text", "b", "should match pattern ^a+$; got b (str)"),
        (
            "pet",
            "{kind: cta}",
            "v.pet.kind: unknown kind; got cta (str); did you mean cat? allowed: cat, dog or hound",
        ),
        ("pet", "{lives: 3}", "v.pet.kind: required key is missing; allowed: cat, dog or hound"),
        ("pet", "{kind: [cat]}", "v.pet.kind: unknown kind; got list of 1"),
        ("pet", "dog", "v.pet.breed: required key is missing; allowed: str"),
        ("pet", "dgo", "got dgo (str); allowed: mapping with kind cat, dog or hound or null"),
        (
            "pet",
            "{kind: cat, breed: x}",
            "v.pet.breed: unknown key; breed belongs to kind dog or hound; chosen is cat",
        ),
        ("pets", "[{kind: cat, lifes: 3}]", "v.pets.0.lifes: unknown key; did you mean lives?"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_is_allowed(key: str, text: str, problem: str) -> None:
    (got,) = refused(f"v:\n  {key}: {text}\n")
    assert got.startswith("x.yaml:2: v.") and problem in got


def test_everything_wrong_is_reported_at_once_in_the_order_of_the_file() -> None:
    text = (
        "v:\n  b: yes\n  i: x\n  i: 3\n  zzz: 1\n  big: 20\n  s: ${nope}\n"
        "  pets:\n    - {kind: dog}\nmust: 5\n"
    )
    assert [line.split(";")[0] for line in refused(text)] == [
        "x.yaml:2: v.b: not a boolean",
        "x.yaml:3: v.i: not an int",
        "x.yaml:4: v.i: key i is given twice, on lines 3 and 4",
        "x.yaml:5: v.zzz: unknown key",
        "x.yaml:6: v.big: must be less than 10",
        "x.yaml:7: v.s: unresolved reference ${nope}",
        "x.yaml:9: v.pets.0.breed: required key is missing",
        "x.yaml:10: must: not text",
    ]


def test_a_section_without_content_is_refused_with_a_way_out() -> None:
    (problem,) = refused("v:\nmust: x\n")
    assert problem.startswith("x.yaml:1: v: not a mapping; got nothing (null); remove the key, or write {}")


def test_credentials_are_not_repeated_in_messages() -> None:
    class Tracker(Section):
        api_key: int = 0

    for value in ("hunter2", '"12345678"'):
        (problem,) = refused(f"api_key: {value}\n", Tracker)
        assert "***" in problem and value.strip('"') not in problem


def test_findings_of_well_formed_parts_are_reported_beside_other_problems() -> None:
    class Part(Section):
        low: int
        high: int

        def findings(self) -> Any:
            if self.low > self.high:
                yield Finding(path=("low",), message="above high", got=f"{self.low}")

    class Whole(Section):
        parts: tuple[Part, ...]
        name: str

    assert refused("parts:\n  - {low: 3, high: 1}\n  - {low: x, high: 1}\nname: 5\n", Whole) == [
        "x.yaml:2: parts.0.low: above high; got 3",
        "x.yaml:3: parts.1.low: not an int; got x (str); allowed: int",
        'x.yaml:4: name: not text; got 5 (int); for text write "5" in quotes; allowed: str',
    ]


def test_any_pydantic_model_can_be_a_schema() -> None:
    class Plain(BaseModel):
        a: int
        b: dict[str, float] = {}

    config = load_text("a: 1\nb: {x: 2}\n", Plain).config
    assert config == Plain(a=1, b={"x": 2.0})
    assert refused("a: 1\nc: 2\n", Plain) == ["x.yaml:2: c: unknown key; allowed: a, b"]


def test_unions_without_a_tag_take_the_model_that_fits_best() -> None:
    class Circle(Section):
        radius: float

    class Box(Section):
        width: float
        height: float

    class Drawing(Section):
        shape: Circle | Box | list[int] | None = None

    assert load_text("shape: {width: 1, height: 2}", Drawing).config.shape == Box(width=1.0, height=2.0)
    assert load_text("shape: [1]", Drawing).config.shape == [1]
    assert refused("shape: {width: 1, height: x}\n", Drawing) == [
        "x.yaml:1: shape.height: not a float; got x (str); allowed: float"
    ]


def test_a_type_of_pydantics_own_is_left_to_pydantic() -> None:
    class Text:
        def __init__(self, value: str) -> None:
            self.value = value

    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        odd: Text

    assert "x.yaml:1: odd: must be an instance of" in refused("odd: x\n", Odd)[0]
