import pickle
from collections.abc import Mapping

import pytest
from roll_launch.config.schema.data import Columns
from roll_launch.data import DataError, RawRow, Row
from roll_launch.data.conventions import normalise

USER = {"role": "user", "content": "2+2?"}
ASSISTANT = {"role": "assistant", "content": "4"}


def normalised(columns: Mapping[str, object], **names: str) -> Row:
    return normalise(RawRow(columns=columns, origin="rows.jsonl:7"), Columns.model_validate(names))


@pytest.mark.parametrize(
    ("columns", "prompt", "messages"),
    [
        ({"prompt": "2+2?"}, "2+2?", None),
        ({"prompt": [USER]}, None, (USER,)),
        ({"messages": [USER, ASSISTANT]}, None, (USER, ASSISTANT)),
        ({"messages": '[{"role": "user", "content": "2+2?"}]'}, None, (USER,)),
        ({"messages": [{**USER, "tool_calls": None}]}, None, (USER,)),
        ({"messages": [USER], "prompt": None}, None, (USER,)),
        (
            {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
            None,
            (USER, ASSISTANT),
        ),
        ({"instruction": "Add.", "input": "2+2?"}, "Add.\n\n2+2?", None),
        ({"instruction": "Add 2 and 2.", "input": ""}, "Add 2 and 2.", None),
        ({"question": "2+2?", "text": "2+2? 4"}, "2+2?", None),
    ],
)
def test_prompt_is_found_by_its_usual_names(
    columns: dict[str, object], prompt: str | None, messages: tuple[dict[str, str], ...] | None
) -> None:
    row = normalised(columns)
    assert (row.prompt, row.messages) == (prompt, messages)


@pytest.mark.parametrize(
    "columns",
    [
        {"prompt": "2+2?", "response": "4"},
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": [USER], "completion": [ASSISTANT]},
        {"instruction": "2+2?", "input": "", "output": "4"},
        {"text": "4"},
    ],
)
def test_response_is_found_by_its_usual_names(columns: dict[str, object]) -> None:
    row = normalised(columns)
    assert row.response == "4"
    assert row.columns == {}


@pytest.mark.parametrize(
    "columns",
    [
        {"reference": "4", "solution": "two and two"},
        {"ground_truth": "4"},
        {"reward_model": {"style": "rule", "ground_truth": "4"}},
        {"answer": "4", "solution": "2+2=4"},
        {"solution": "4"},
    ],
)
def test_reference_is_found_by_its_usual_names(columns: dict[str, object]) -> None:
    assert normalised({"prompt": "2+2?", **columns}).reference == "4"


def test_other_columns_are_kept_by_name() -> None:
    row = normalised(
        {
            "data_source": "gsm8k",
            "prompt": [USER],
            "reward_model": {"style": "rule", "ground_truth": "4"},
            "extra_info": {"index": 3},
        }
    )
    assert row.columns == {
        "data_source": "gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 3},
    }
    assert row.origin == "rows.jsonl:7"


def test_named_columns_win_and_a_dot_reaches_into_a_mapping() -> None:
    columns = {"prompt": "no", "question": "2+2?", "extra": {"key": "4"}, "answer": "5", "said": "four"}
    row = normalised(columns, prompt="question", reference="extra.key", response="said")
    assert (row.prompt, row.reference, row.response) == ("2+2?", "4", "four")
    assert row.columns == {"prompt": "no", "extra": {"key": "4"}, "answer": "5"}


def test_messages_can_be_named() -> None:
    assert normalised({"chat": [USER], "prompt": "x"}, messages="chat").messages == (USER,)


def test_columns_that_a_grader_could_not_take_are_left_out() -> None:
    row = normalised({"prompt": "x", "reference": "old", "gold": "new"}, reference="gold")
    assert row.reference == "new"
    assert row.columns == {}


def test_messages_read_as_lines_of_roles() -> None:
    assert normalised({"messages": [USER, ASSISTANT]}).text == "user: 2+2?\nassistant: 4"
    assert normalised({"prompt": "2+2?"}).text == "2+2?"


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ({"query": "x"}, {}, "rows.jsonl:7: no prompt; looked for prompt, .*found 'query'"),
        ({"prompt": "x", "messages": [USER]}, {}, "'prompt' and 'messages' could each be the prompt"),
        (
            {"questions": "x"},
            {"prompt": "question"},
            "no column 'question'; found 'questions'; did you mean 'questions'",
        ),
        ({"prompt": "x"}, {"reference": "extra.key"}, "no column 'extra.key'; found 'prompt'"),
        ({"prompt": "x"}, {"response": "answer"}, "no column 'answer'"),
        ({"prompt": 3}, {}, "column 'prompt' is int 3; allowed is text or a list of messages"),
        ({"prompt": []}, {}, r"column 'prompt' is list \[\]; .*not empty"),
        ({"messages": "hello"}, {}, "column 'messages' is str 'hello'"),
        (
            {"messages": [{"role": "user"}]},
            {},
            "has the message dict .*allowed is a mapping with role and content",
        ),
        (
            {"conversations": [{"from": "bot", "value": "x"}]},
            {},
            "has the turn dict .*from being one of human",
        ),
        ({"prompt": "x", "response": 3}, {}, "column 'response' is int 3"),
        (
            {"prompt": "x", "completion": [USER]},
            {},
            "messages of user; allowed is text or one assistant message",
        ),
        ({"instruction": ["x"]}, {}, "column 'instruction' is list .*allowed is text"),
        ({"prompt": "x"}, {"prompt": "prompt", "messages": "messages"}, "allowed is one"),
    ],
)
def test_a_row_that_cannot_be_used_says_why_and_where(
    columns: dict[str, object], names: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        normalised(columns, **names)


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(DataError("rows.jsonl:7: no prompt")))
    assert isinstance(error, DataError)
    assert str(error) == "rows.jsonl:7: no prompt"
