from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest
from roll_launch.config import HfData, JsonlData, ParquetData, PythonData, ReasoningGymData
from roll_launch.data import DataError, open_rows


def questions(count: int) -> list[dict[str, str]]:
    return [{"question": f"{index}+1?", "answer": str(index + 1)} for index in range(count)]


def jsonl(tmp_path: Path, count: int) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{index}"}}\n' for index in range(count)))
    return path


def test_jsonl_rows_are_opened_in_order_up_to_the_limit(tmp_path: Path) -> None:
    path = jsonl(tmp_path, 5)
    rows = open_rows(JsonlData(source="jsonl", path=path, limit=2))
    assert [row.prompt for row in rows] == ["0", "1"]
    assert len(open_rows(JsonlData(source="jsonl", path=path))) == 5


def test_rows_after_the_limit_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\nnot json\n')
    assert [row.prompt for row in open_rows(JsonlData(source="jsonl", path=path, limit=1))] == ["a"]


def test_parquet_rows_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"q": ["a", "b"], "level": [1, 2]}), path)
    rows = open_rows(ParquetData(source="parquet", path=path, prompt="q"))
    assert [(row.prompt, row.columns) for row in rows] == [("a", {"level": 1}), ("b", {"level": 2})]


def test_hub_rows_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    jsonl(tmp_path / "set", 3).rename(tmp_path / "set" / "train.jsonl")
    rows = open_rows(HfData(source="hf", name=str(tmp_path / "set"), split="train"))
    assert [row.prompt for row in rows] == ["0", "1", "2"]


def test_puzzles_are_opened_with_their_entry() -> None:
    pytest.importorskip("reasoning_gym")
    data = ReasoningGymData(source="reasoning_gym", task="chain_sum", size=2, seed=1)
    row = open_rows(data)[0]
    assert row.prompt is not None and row.prompt.startswith("State the final answer")
    assert list(row.columns) == ["entry"]


def test_rows_of_a_function_are_opened() -> None:
    data = PythonData(source="python", callable=f"{__name__}:questions", arguments={"count": 2})
    assert [(row.prompt, row.reference) for row in open_rows(data)] == [("0+1?", "1"), ("1+1?", "2")]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_no_rows_at_all_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"rows\.jsonl has no rows"):
        open_rows(JsonlData(source="jsonl", path=path))


def test_a_function_without_rows_is_an_error() -> None:
    data = PythonData(source="python", callable=f"{__name__}:questions", arguments={"count": 0})
    with pytest.raises(DataError, match="questions has no rows"):
        open_rows(data)
