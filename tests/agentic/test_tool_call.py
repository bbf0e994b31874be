import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import AgenticError
from roll_agentic.tools import (
    PARSERS,
    ParsedResponse,
    call_parser,
    parse_hermes,
    parse_openai,
    parse_python_blocks,
    parse_pythonic,
    parse_qwen_coder,
    parse_xml,
)

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


def calls(parsed: ParsedResponse) -> list[tuple[str, dict]]:
    return [(call.name, dict(call.arguments)) for call in parsed.calls]


def hermes(payload: object) -> str:
    return f"<tool_call>\n{json.dumps(payload)}\n</tool_call>"


def test_hermes_calls_come_in_order_and_leave_the_text() -> None:
    parsed = parse_hermes("I look. " + hermes({"name": "f", "arguments": {"x": 1}}) + hermes({"name": "g"}))
    assert calls(parsed) == [("f", {"x": 1}), ("g", {})]
    assert parsed.text == "I look."
    assert [call.id for call in parsed.calls] == ["call_0", "call_1"]


@pytest.mark.parametrize(
    ("response", "mistake"),
    [
        ('<tool_call>{"name": "f", "arguments": "not json"}</tool_call>', "arguments of f must be an object"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "arguments of f must be an object"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}', "not closed"),
        ('<tool_call>{"name": </tool_call>', "not JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "needs 'name' and 'arguments'"),
        ("<tool_call>5</tool_call>", "needs 'name' and 'arguments'"),
    ],
)
def test_malformed_hermes_calls_are_mistakes_and_never_carried_out(response: str, mistake: str) -> None:
    parsed = parse_hermes(response)
    assert parsed.calls == ()
    assert mistake in parsed.mistakes[0]


def test_good_call_survives_a_bad_one() -> None:
    parsed = parse_hermes("<tool_call>{</tool_call>" + hermes({"name": "g", "arguments": {}}))
    assert (calls(parsed), len(parsed.mistakes)) == ([("g", {})], 1)
    unclosed = parse_hermes('<tool_call>{"name": "f"}' + hermes({"name": "g"}))
    assert (calls(unclosed), len(unclosed.mistakes)) == ([("g", {})], 1)


def test_qwen_coder_calls_are_parsed() -> None:
    text = (
        "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n<parameter=lines>\n[1, 2]\n"
        "</parameter>\n</function>\n</tool_call>"
    )
    parsed = parse_qwen_coder(text)
    assert calls(parsed) == [("write", {"path": "a.txt", "lines": [1, 2]})]
    assert parsed.text == ""
    assert "not closed" in parse_qwen_coder("<function=f><parameter=x>1</parameter>").mistakes[0]


def test_xml_calls_are_elements_named_after_the_tool() -> None:
    text = "<think>so</think><search><query>Rhine</query></search>"
    assert calls(parse_xml(text, names=["search"])) == [("search", {"query": "Rhine"})]
    assert parse_xml(text, names=["search"]).text == "<think>so</think>"
    assert calls(parse_xml("<stop></stop>")) == [("stop", {})]
    assert "must be elements" in parse_xml("<search>Rhine</search>", names=["search"]).mistakes[0]
    assert "not closed" in parse_xml("<search><query>x</query>", names=["search"]).mistakes[0]


def test_python_blocks_are_programs() -> None:
    assert calls(parse_python_blocks("So:\n```python\nprint(1)\n```\ndone")) == [
        ("python", {"code": "print(1)\n"})
    ]
    assert calls(parse_python_blocks("<python>\nprint(2)\n</python>")) == [("python", {"code": "print(2)\n"})]
    assert parse_python_blocks("```json\n{}\n```").calls == ()
    assert "not closed" in parse_python_blocks("```python\nprint(1)").mistakes[0]


def test_pythonic_calls_are_plain_values_only() -> None:
    parsed = parse_pythonic('[search(query="Rhine"), add(a=1, b=[2, {"c": None}])]')
    assert calls(parsed) == [("search", {"query": "Rhine"}), ("add", {"a": 1, "b": [2, {"c": None}]})]
    assert parse_pythonic("[1, 2] is a list").text == "[1, 2] is a list"
    assert "plain values" in parse_pythonic("[f(x=open('a'))]").mistakes[0]
    assert "name(key=value)" in parse_pythonic("[f(1)]").mistakes[0]
    assert "not valid" in parse_pythonic("[f(x=1").mistakes[0]


def test_openai_calls_keep_their_ids() -> None:
    parsed = parse_openai(
        [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}},
            {"id": "c"},
        ],
        text="hm",
    )
    assert [(call.id, call.name, call.arguments) for call in parsed.calls] == [("a", "f", {"x": 1})]
    assert len(parsed.mistakes) == 2
    assert parsed.text == "hm"


@pytest.mark.parametrize("name", list(PARSERS))
@given(text=st.text(alphabet='<>/=[]{}()":,`pytholcaflunmer_ \n1', max_size=80))
def test_no_text_breaks_a_parser(name: str, text: str) -> None:
    parsed = call_parser(name)(text)
    assert isinstance(parsed.text, str)
    assert len({call.id for call in parsed.calls}) == len(parsed.calls)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_hermes_arguments_survive(arguments: dict) -> None:
    assert calls(parse_hermes(hermes({"name": "f", "arguments": arguments}))) == [("f", arguments)]


def test_unknown_parser_is_refused() -> None:
    with pytest.raises(AgenticError, match="no call parser 'xmll'; there are hermes"):
        call_parser("xmll")
