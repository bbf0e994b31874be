"""Rows of preferences in the forms that people have, and what is said of others."""

import json
from pathlib import Path

import pytest
from roll_launch.config import JsonlData, PreferenceColumns
from roll_launch.data import DataError, PromptEncoder
from roll_launch.data.preferences import PreferenceRow, encode_preferences, open_preferences
from roll_launch.tasks.sort_letters import write_tokenizer

COLUMNS = PreferenceColumns()


def _opened(
    tmp_path: Path, *rows: dict[str, object], labelled: bool = False, **names: str
) -> list[PreferenceRow]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_preferences(JsonlData(source="jsonl", path=path, **names), COLUMNS, labelled=labelled)


def test_text_pairs_share_their_prompt(tmp_path: Path) -> None:
    (row,) = _opened(tmp_path, {"prompt": "ba=", "chosen": "ab", "rejected": "ba", "score": 1})
    assert [(each.prompt, each.response) for each in row.responses] == [("ba=", "ab"), ("ba=", "ba")]
    assert row.desirable is None and row.origin.endswith("rows.jsonl:1")


def test_messages_and_one_assistant_message_each(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "ba="}]
    said = [[{"role": "assistant", "content": text}] for text in ("ab", "ba")]
    (row,) = _opened(tmp_path, {"prompt": asked, "chosen": said[0], "rejected": said[1]})
    assert [(each.messages, each.response) for each in row.responses] == [
        (tuple(asked), t) for t in ("ab", "ba")
    ]


def test_conversations_without_a_prompt_share_what_they_begin_with(tmp_path: Path) -> None:
    asked = [{"role": "system", "content": "sort"}, {"role": "user", "content": "ba="}]
    said = [[*asked, {"role": "assistant", "content": text}] for text in ("ab", "ba")]
    (row,) = _opened(tmp_path, {"chosen": said[0], "rejected": said[1]})
    assert [(each.messages, each.response) for each in row.responses] == [
        (tuple(asked), t) for t in ("ab", "ba")
    ]


def test_labelled_responses(tmp_path: Path) -> None:
    rows = _opened(
        tmp_path,
        {"prompt": "ba=", "completion": "ab", "label": True},
        {"prompt": "ba=", "completion": "ba", "label": 0},
        labelled=True,
    )
    assert [(row.responses[0].response, row.desirable) for row in rows] == [("ab", True), ("ba", False)]


@pytest.mark.parametrize(
    ("row", "labelled", "said"),
    [
        (
            {"prompt": "ba=", "chosen": "ab"},
            False,
            "rows.jsonl:1: no column 'rejected'; found 'prompt', 'chosen'",
        ),
        ({"chosen": "ba=ab", "rejected": "ba=ba"}, False, "no prompt beside a chosen and a rejected text"),
        (
            {"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]},
            False,
            "share 0 of 1 and 1 messages",
        ),
        (
            {"prompt": "ba=", "response": "ab", "label": "yes"},
            True,
            "column 'label' is 'yes'; allowed is true",
        ),
        ({"prompt": "ba=", "response": "ab"}, True, "column 'label' is None"),
        ({"prompt": "ba=", "label": True}, True, "no response"),
    ],
)
def test_a_row_of_another_form_is_named(
    tmp_path: Path, row: dict[str, object], labelled: bool, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        _opened(tmp_path, row, labelled=labelled)


def test_pairs_are_left_out_as_a_whole_and_counted(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    rows = _opened(
        tmp_path,
        {"prompt": "ba=", "chosen": "ab", "rejected": "ba"},
        {"prompt": "ba=", "chosen": "ab", "rejected": "ab"},
        {"prompt": "ba=", "chosen": "ab", "rejected": ""},
        {"prompt": "ba=", "chosen": "ab", "rejected": "babababababa"},
    )
    encoded = encode_preferences(rows, PromptEncoder(tmp_path), max_tokens=8, overlong="drop")
    assert (len(encoded.rows), encoded.empty, encoded.dropped) == (1, 2, 1)
    ((chosen, rejected), desirable) = encoded.rows[0]
    assert chosen[0].tolist()[:3] == rejected[0].tolist()[:3] and desirable is None
    assert chosen[1].tolist() == [False] * 3 + [True] * 3
    with pytest.raises(DataError, match=r"rows.jsonl:4: prompt and response have 16 tokens; allowed are 8"):
        encode_preferences(rows, PromptEncoder(tmp_path), max_tokens=8, overlong="error")
