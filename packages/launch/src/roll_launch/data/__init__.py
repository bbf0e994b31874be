"""Data of a run: sources, rows, the order they are used in, and their token ids."""

from roll_launch.data.encoding import EncodedPrompts, EncodedSamples, PromptEncoder
from roll_launch.data.errors import DataError, EmptyResponseError
from roll_launch.data.open_source import open_rows
from roll_launch.data.order import PromptOrder
from roll_launch.data.rows import RawRow, Row

__all__ = [
    "DataError",
    "EmptyResponseError",
    "EncodedPrompts",
    "EncodedSamples",
    "PromptEncoder",
    "PromptOrder",
    "RawRow",
    "Row",
    "open_rows",
]
