"""Prompts of a stage, encoded. Plans hold them; the scheduler gives them out."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from roll_launch.data import PromptOrder, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A row of the data and its prompt's token ids, int32[P].

    `key` is its number among those of its domain, after the domain: "17", "math/17".
    """

    key: str
    row: Row
    token_ids: np.ndarray

    @property
    def columns(self) -> Mapping[str, object]:
        """What graders get by name: the prompt, its domain in a mixture, and the row's further columns."""
        row = self.row
        prompt = row.prompt if row.messages is None else list(row.messages)
        domain = {"domain": row.domain} if row.domain else {}
        return {"prompt": prompt, **domain, **row.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The prompts of one data source, in file order; `dropped` rows had too long a prompt."""

    prompts: tuple[Prompt, ...]
    dropped: int

    def endless(self, seed: int, *, first: int = 0) -> Iterator[Prompt]:
        """Epoch after epoch, each in an order of its own drawn from `seed`, from occurrence `first` on."""
        order = PromptOrder(len(self.prompts), seed)
        return (self.prompts[order.row(occurrence)] for occurrence in itertools.count(first))
