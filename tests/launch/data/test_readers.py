import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest
from roll_launch.data import DataError
from roll_launch.data.readers import (
    read_callable,
    read_hub,
    read_jsonl,
    read_parquet,
    read_reasoning_gym,
)


def numbered(count: int) -> Iterator[dict[str, int]]:
    yield from ({"number": index} for index in range(count))


def failing() -> Iterator[dict[str, int]]:
    yield {"number": 0}
    raise KeyError("lost")


def unmapped() -> list[object]:
    return [{"number": 0}, "one"]


def single() -> int:
    return 3


def test_jsonl_rows_know_their_line_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"prompt": "ä"}\n\n{"prompt": "b"}\n', encoding="utf-8")
    rows = list(read_jsonl(path))
    assert [row.columns["prompt"] for row in rows] == ["ä", "b"]
    assert [row.origin for row in rows] == [f"{path}:1", f"{path}:3"]


def test_broken_json_names_file_line_column_and_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": oops}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not JSON .*column 12.*oops"):
        list(read_jsonl(path))


def test_a_json_list_is_not_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("[1, 2]\n")
    with pytest.raises(DataError, match=r":1: got a JSON list; allowed is an object"):
        list(read_jsonl(path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jsonl: No such file"):
        list(read_jsonl(tmp_path / "gone.jsonl"))
    with pytest.raises(DataError, match=r"gone\.parquet"):
        list(read_parquet(tmp_path / "gone.parquet"))


def test_jsonl_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(DataError, match="not UTF-8"):
        list(read_jsonl(path))


def test_parquet_rows_keep_nested_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    prompt = [{"role": "user", "content": "2+2?"}]
    pq.write_table(
        pa.Table.from_pylist([{"prompt": prompt, "reward_model": {"ground_truth": "4"}}] * 2), path
    )
    rows = list(read_parquet(path))
    assert rows[1].columns == {"prompt": prompt, "reward_model": {"ground_truth": "4"}}
    assert [row.origin for row in rows] == [f"{path}:1", f"{path}:2"]


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("prompt,response\n")
    with pytest.raises(DataError, match=r"cannot read .*rows\.parquet"):
        list(read_parquet(path))


def test_hub_reader_loads_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    rows = list(read_hub(str(tmp_path / "set"), None, "train"))
    assert [row.columns["prompt"] for row in rows] == ["a", "b"]
    assert rows[1].origin.endswith("set[train]:2")
    with pytest.raises(DataError, match="split 'tarin'"):
        list(read_hub(str(tmp_path / "set"), None, "tarin"))


def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'roll-launch\[datasets\]'"):
        list(read_hub("any", None, "train"))


def test_reasoning_gym_gives_the_entry_that_its_scorer_needs() -> None:
    pytest.importorskip("reasoning_gym")
    rows = list(read_reasoning_gym("chain_sum", 3, 7, {"max_terms": 2}))
    again = list(read_reasoning_gym("chain_sum", 3, 7, {"max_terms": 2}))
    assert [row.columns for row in rows] == [row.columns for row in again]
    entry = rows[0].columns["entry"]
    assert isinstance(entry, dict)
    assert rows[0].columns["prompt"] == entry["question"]
    assert rows[0].columns["reference"] == entry["answer"]
    assert rows[2].origin == "reasoning_gym/chain_sum:3"


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("chain_sums", {}, "no task 'chain_sums'; did you mean 'chain_sum'"),
        ("chain_sum", {"max_term": 2}, "no option 'max_term'; did you mean 'max_terms'"),
        ("chain_sum", {"min_terms": -1}, "min_terms must be positive"),
    ],
)
def test_reasoning_gym_refuses_unknown_names_and_bad_values(
    task: str, options: dict[str, object], message: str
) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(DataError, match=message):
        list(read_reasoning_gym(task, 1, 0, options))


def test_callable_is_called_with_its_arguments() -> None:
    rows = list(read_callable(f"{__name__}:numbered", {"count": 2}))
    assert [row.columns["number"] for row in rows] == [0, 1]
    assert rows[1].origin == f"{__name__}:numbered:2"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("numberd", {}, "has no 'numberd'; did you mean 'numbered'"),
        ("failing", {}, "raised after row 1: KeyError: 'lost'"),
        ("numbered", {"size": 2}, "raised after row 0: TypeError"),
        ("unmapped", {}, ":2: got str 'one'; allowed is a mapping"),
        ("single", {}, "returned int; allowed is an iterable of mappings"),
    ],
)
def test_callable_that_gives_no_rows_is_an_error(
    name: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(read_callable(f"{__name__}:{name}", arguments))
