"""From a stage's `data:` section to its rows. Called by the plan of a run."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from roll_launch.config import (
    DataConfig,
    HfData,
    JsonlData,
    MixtureData,
    ParquetData,
    PromptDataConfig,
    PythonData,
    ReasoningGymData,
)
from roll_launch.config.schema.data import Columns
from roll_launch.data.conventions import normalise
from roll_launch.data.errors import DataError
from roll_launch.data.readers import (
    read_callable,
    read_hub,
    read_jsonl,
    read_parquet,
    read_reasoning_gym,
)
from roll_launch.data.rows import RawRow, Row


def open_rows(data: PromptDataConfig) -> list[Row]:
    """The rows of a data source, in its order, at most `limit` of them; of a mixture, domain after domain.

    Raises:
        DataError: if the source cannot be read or is empty, or a row has no prompt or a value of a wrong
            type.
    """
    if isinstance(data, MixtureData):
        return [replace(row, domain=domain.name) for domain in data.domains for row in open_rows(domain.data)]
    names = Columns() if isinstance(data, ReasoningGymData) else data
    return [normalise(raw, names) for raw in open_raw_rows(data)]


def open_raw_rows(data: DataConfig) -> list[RawRow]:
    """The rows of a data source as they are, in its order, at most `limit` of them.

    Raises:
        DataError: if the source cannot be read or is empty.
    """
    names = Columns() if isinstance(data, ReasoningGymData) else data
    rows = list(islice(_raw_rows(data), names.limit))
    if not rows:
        raise DataError(f"{_named(data)} has no rows")
    return rows


def _raw_rows(data: DataConfig) -> Iterator[RawRow]:
    match data:
        case JsonlData():
            return read_jsonl(data.path)
        case ParquetData():
            return read_parquet(data.path)
        case HfData():
            return read_hub(data.name, data.config, data.split)
        case ReasoningGymData():
            return read_reasoning_gym(data.task, data.size, data.seed, data.options)
        case PythonData():
            return read_callable(data.callable, data.arguments)


def _named(data: DataConfig) -> str:
    match data:
        case JsonlData() | ParquetData():
            return str(data.path)
        case HfData():
            return f"data set {data.name} ({data.split})"
        case ReasoningGymData():
            return f"reasoning-gym task {data.task}"
        case PythonData():
            return data.callable
