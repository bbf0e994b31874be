"""Readers: each yields the rows of one kind of source as they are. `open_rows` chooses among them."""

import importlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from roll_launch.callable_path import CallablePathError, resolve_callable
from roll_launch.data.errors import DataError
from roll_launch.data.rows import RawRow
from roll_launch.suggestion import did_you_mean


def read_jsonl(path: Path) -> Iterator[RawRow]:
    """Yields the row of each line that is not blank; origin `file.jsonl:12`.

    Raises:
        DataError: if the file is missing or not UTF-8, or a line is not a JSON object.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield RawRow(columns=_json_object(line, f"{path}:{number}"), origin=f"{path}:{number}")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"cannot read {path}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error


def read_parquet(path: Path) -> Iterator[RawRow]:
    """Yields the rows of a Parquet file; origin `file.parquet:12`.

    Raises:
        DataError: if the file is missing or not Parquet.
    """
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for columns in batch.to_pylist():
                    number += 1
                    yield RawRow(columns=columns, origin=f"{path}:{number}")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error
    except pyarrow.ArrowException as error:
        raise DataError(f"cannot read {path} after row {number}: {error}") from error


def read_hub(name: str, config: str | None, split: str) -> Iterator[RawRow]:
    """Yields the rows of a Hugging Face data set; origin `name[train]:12`.

    Args:
        name: name on the hub, or a directory.
        config: its configuration, where it has several.
        split: such as `train`, or `train[:100]`.

    Raises:
        DataError: if the library is missing or the data set cannot be loaded.
    """
    datasets = _library("datasets", extra="datasets")
    try:
        rows: Iterable[Mapping[str, object]] = datasets.load_dataset(name, config, split=split)
    # The boundary to `datasets`: a missing network, name, configuration or split raises a type of its own.
    except Exception as error:
        raise DataError(
            f"cannot load the data set {name!r} (config {config!r}, split {split!r}): "
            f"{type(error).__name__}: {error}"
        ) from error
    for number, columns in enumerate(rows, start=1):
        yield RawRow(columns=columns, origin=f"{name}[{split}]:{number}")


def read_reasoning_gym(task: str, size: int, seed: int, options: Mapping[str, object]) -> Iterator[RawRow]:
    """Yields puzzles of a reasoning-gym task; origin `reasoning_gym/chain_sum:12`.

    Columns are `prompt` (the question), `reference` (its answer) and `entry` (all that the task's own
    scorer reads).

    Raises:
        DataError: if the library is missing, or the task or one of its options is unknown or out of range.
    """
    with warnings.catch_warnings():
        # cellpylib, which reasoning-gym imports, compares with `is` to a literal.
        warnings.simplefilter("ignore", SyntaxWarning)
        _library("reasoning_gym", extra="reasoning-gym")
    factory = importlib.import_module("reasoning_gym.factory")
    if task not in factory.DATASETS:
        raise DataError(
            f"reasoning-gym has no task {task!r}{did_you_mean(task, factory.DATASETS)} "
            f"(it has {len(factory.DATASETS)} tasks)"
        )
    _, settings = factory.DATASETS[task]
    known = sorted(set(settings.__dataclass_fields__) - {"size", "seed"})
    for option in options:
        if option not in known:
            raise DataError(
                f"reasoning-gym's task {task!r} has no option {option!r}{did_you_mean(option, known)} "
                f"(it has {', '.join(known)})"
            )
    origin = f"reasoning_gym/{task}"
    try:
        puzzles = factory.create_dataset(task, size=size, seed=seed, **options)
        for number, entry in enumerate(puzzles, start=1):
            columns = {"prompt": entry["question"], "reference": entry["answer"], "entry": entry}
            yield RawRow(columns=columns, origin=f"{origin}:{number}")
    # The boundary to reasoning-gym, which refuses options by assertions and makes puzzles when asked for.
    except Exception as error:
        raise DataError(f"{origin} with {dict(options)}: {type(error).__name__}: {error}") from error


def read_callable(path: str, arguments: Mapping[str, object]) -> Iterator[RawRow]:
    """Yields the rows that a function returns or yields; origin `module:function:12`.

    Args:
        path: `"package.module:function"`.
        arguments: its keyword arguments.

    Raises:
        DataError: if there is no such callable, if it raises, or what it gives is not an iterable of
            mappings.
    """
    try:
        function = resolve_callable(path)
    except CallablePathError as error:
        raise DataError(str(error)) from error
    number = 0
    try:
        rows = function(**arguments)
        if not isinstance(rows, Iterable):
            raise DataError(f"{path}: returned {type(rows).__name__}; allowed is an iterable of mappings")
        for number, columns in enumerate(rows, start=1):
            if not isinstance(columns, Mapping):
                got = f"{type(columns).__name__} {columns!r:.80}"
                raise DataError(f"{path}:{number}: got {got}; allowed is a mapping")
            yield RawRow(columns=columns, origin=f"{path}:{number}")
    except DataError:
        raise
    # The boundary to a user's function: whatever it raises becomes one message.
    except (Exception, SystemExit) as error:
        raise DataError(f"{path} raised after row {number}: {type(error).__name__}: {error}") from error


def _json_object(line: str, origin: str) -> Mapping[str, object]:
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise DataError(f"{origin}: nested too deeply: {line.strip():.80}") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{origin}: not JSON ({error.msg} at column {error.colno}): {line.strip():.80}"
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{origin}: got a JSON {type(value).__name__}; allowed is an object: {line.strip():.80}"
        )
    return value


def _library(name: str, *, extra: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"this data source needs {extra}: pip install 'roll-launch[{extra}]' ({error})"
        ) from error
