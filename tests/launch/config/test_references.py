"""References in values."""

from typing import Any

import pytest
from roll_launch.config import ConfigError, Section, load_text


class Inner(Section):
    i: int = 0
    f: float = 0.0
    b: bool = False
    s: str = ""
    items: tuple[int, ...] = ()
    any: Any = None


class Item(Section):
    name: str
    i: int = 0


class Run(Section):
    a: Inner = Inner()
    b: Inner = Inner()
    stages: tuple[Item, ...] = ()


def loaded(text: str, *arguments: str, **environment: str) -> Run:
    return load_text(text, Run, arguments, "x.yaml", environment=environment).config


def refused(text: str, *arguments: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(text, *arguments, **environment)
    return str(caught.value)


def test_a_value_that_is_one_reference_keeps_its_type() -> None:
    config = loaded("a: {i: 5, f: 1e-6, b: true, items: [1, 2]}\nb: ${a}\n")
    assert config.b == config.a


def test_references_stand_in_lists_in_chains_and_in_quotes() -> None:
    config = loaded(
        'a: {i: 5, items: ["${a.i}", 7, "${b.i}"]}\nb:\n  i: ${b.items.1}\n  items: ${a.any}\n', "a.any=[3,4]"
    )
    assert config.a.items == (5, 7, 4)
    assert config.b.items == (3, 4)


def test_list_items_are_named_by_index_or_name() -> None:
    config = loaded(
        "stages: [{name: x, i: 3}, {name: y, i: 4}]\na: {i: '${stages.y.i}', f: '${stages.0.i}'}\n"
    )
    assert (config.a.i, config.a.f) == (4, 3.0)


def test_a_reference_within_text_is_written_into_the_text() -> None:
    assert loaded("a: {i: 5, f: 1e-6, s: '${a.i}-${a.f}/x'}\n").a.s == "5-1e-6/x"


def test_text_made_of_references_is_text() -> None:
    assert 'a.i: not an int; got "35" (str)' in refused("a: {f: 5, i: '3${a.f}'}\n")


def test_a_dollar_is_literal_before_an_escaped_brace() -> None:
    assert loaded("a: {s: 'cost $5 $${a.i} $'}\n").a.s == "cost $5 ${a.i} $"


def test_the_command_line_is_seen_by_references_and_may_have_some() -> None:
    config = loaded("a: {i: 1}\nb: {i: '${a.i}'}\n", "a.i=9", "b.f=${a.i}")
    assert (config.b.i, config.b.f) == (9, 9.0)


def test_the_environment_is_read_by_the_type_that_is_asked_for() -> None:
    text = "a: {i: '${env:N}', f: '${env:N}', s: '${env:N}', b: '${env:B}', any: '${env:N}'}\n"
    config = loaded(text, N="007".lstrip("0"), B="True")
    assert (config.a.i, config.a.f, config.a.s, config.a.b, config.a.any) == (7, 7.0, "7", True, 7)


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("${env:X,5}", 5),
        ("${env:X, 5 }", 5),
        ("${env:X,[1, 2]}", [1, 2]),
        ("${env:X,}", None),
        ("${env:X,a,b}", "a,b"),
        ("${env:X,${a.i}}", 3),
        ("${env:X,${env:Y,off}}", "off"),
        ("${env:X,p${a.i}q}", "p3q"),
        ("${env:E}", ""),
    ],
)
def test_an_absent_variable_has_its_default(reference: str, value: object) -> None:
    assert loaded(f"a: {{i: 3, any: '{reference}'}}\n", E="").a.any == value


def test_a_variable_is_not_searched_for_references() -> None:
    assert loaded("a: {s: '${env:X}'}\n", X="${a.i}").a.s == "${a.i}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {s: '${nowhere}'}\n", "x.yaml:1: a.s: unresolved reference ${nowhere}; the top level has a"),
        ("a: {i: 1, s: '${a.j}'}\n", "unresolved reference ${a.j}; a has i, s"),
        (
            "learner: {i: 1}\na:\n  s: ${lerner.i}\n",
            "x.yaml:3: a.s: unresolved reference ${lerner.i}; did you mean ${learner}?",
        ),
        ("a: {i: 1}\nb: {i: '${i}'}\n", "unresolved reference ${i}; did you mean ${a.i}?"),
        ("a: {items: [1], i: '${a.items.3}'}\n", "unresolved reference ${a.items.3}"),
        ("a: {i: 1, s: '${a.i.x}'}\n", "unresolved reference ${a.i.x}"),
        ("a: {i: '${a.i}'}\n", "circular reference ${a.i}: a.i -> a.i"),
        ("a: {i: '${b.i}'}\nb: {i: '${a.i}'}\n", "circular reference ${b.i}: a.i -> b.i -> a.i"),
        ("a: {any: {x: '${a}'}}\n", "circular reference ${a}: a.any.x -> a.any.x"),
        ("a: {s: '${a.i'}\n", "a reference ${ without its }"),
        ("a: {s: '${}'}\n", "reference ${} has no known form"),
        ("a: {s: '${oc.decode:x}'}\n", "allowed: ${a.b.c}, ${env:NAME}, ${env:NAME,default}"),
        ("a: {s: '${a..i}'}\n", "has no known form"),
        ("a: {any: {}, s: 'x${a.any}'}\n", "reference ${a.any} is a mapping and cannot stand within text"),
        ("a: {items: [], s: 'x${a.items}'}\n", "reference ${a.items} is a list and cannot stand within text"),
        ("a: {any: null, s: 'x${a.any}'}\n", "reference ${a.any} is null and cannot stand within text"),
        ("a: {s: '${env:NOPE}'}\n", "unresolved reference ${env:NOPE}: the variable NOPE is not set"),
        ("a: {s: '${env:HOEM}'}\n", "did you mean HOME?"),
        ("a: {any: '${env:X,[1}'}\n", "the default of ${env:X}: not valid YAML"),
    ],
)
def test_what_cannot_be_resolved_is_named_with_its_place(text: str, message: str) -> None:
    assert message in refused(text, HOME="/h")


def test_a_broken_reference_is_the_only_problem_of_its_value() -> None:
    assert len(refused("a: {i: '${nowhere}', items: ['${nowhere}']}\n").splitlines()) == 2


def test_a_wrong_value_is_placed_where_the_reference_stands() -> None:
    assert refused("a:\n  s: x\nb:\n  i: ${a.s}\n") == "x.yaml:4: b.i: not an int; got x (str); allowed: int"


def test_references_that_explode_are_refused() -> None:
    levels = [f"x{level}: [{', '.join([_quoted(f'a.any.x{level - 1}')] * 10)}]" for level in range(1, 9)]
    assert "more than 200000 values" in refused(f"a: {{any: {{x0: [1, 2], {', '.join(levels)}}}}}")


def test_a_chain_without_end_is_refused() -> None:
    links = [f"x{link}: {_quoted(f'a.any.x{link + 1}')}" for link in range(200)]
    assert "a chain of more than 50 references" in refused(f"a: {{any: {{{', '.join(links)}, x200: 1}}}}")


def _quoted(key: str) -> str:
    return f'"${{{key}}}"'


def test_credentials_of_the_environment_are_masked_in_messages() -> None:
    text = refused("a: {i: '${env:HF_TOKEN}', b: 'x${env:HF_TOKEN}y'}\n", HF_TOKEN="hf_verysecret")
    assert "verysecret" not in text and "***" in text
