"""Search in a given corpus by BM25, as a tool. Needs the extra `retrieval` (bm25s)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roll_agentic.errors import AgenticError
from roll_agentic.tools.schema import ToolSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text that can be found.

    Example: `Passage(title="Rhine", text="The Rhine is a river ...")`.
    """

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A passage that was found, with its BM25 score."""

    passage: Passage
    score: float


class Bm25Index:
    """An index of passages in memory, built at once.

    Args:
        passages: At least one.

    Raises:
        AgenticError: There is no passage, or bm25s is not installed.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        if not passages:
            raise AgenticError("a Bm25Index needs at least one passage, got none")
        try:
            import bm25s  # type: ignore[import-untyped]  # no types
        except ImportError as error:
            raise AgenticError("search needs bm25s: pip install 'roll-agentic[retrieval]'") from error
        self._passages = tuple(passages)
        self._index = bm25s.BM25()
        corpus = [_words(f"{passage.title} {passage.text}") for passage in passages]
        self._vocabulary = {word for words in corpus for word in words}
        self._index.index(corpus, show_progress=False)

    def find(self, query: str, *, most: int = 3) -> list[Hit]:
        """The passages that fit a query best, best first; only those that share a word with it.

        Args:
            query: Words.
            most: How many at most, at least 1.
        """
        words = [word for word in _words(query) if word in self._vocabulary]
        if not words or most < 1:
            return []
        indices, scores = self._index.retrieve(
            [words], k=min(most, len(self._passages)), show_progress=False, n_threads=0
        )
        pairs = zip(indices[0].tolist(), scores[0].tolist(), strict=True)
        return [Hit(passage=self._passages[index], score=score) for index, score in pairs if score > 0]


class SearchTool:
    """The tool `search(query)`.

    Args:
        index: Where to search.
        most: How many passages a result has at most, at least 1.
    """

    def __init__(self, index: Bm25Index, *, most: int = 3) -> None:
        self._index = index
        self._most = most

    @property
    def schema(self) -> ToolSchema:
        """The schema of `search(query)`."""
        return {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Search the corpus and read the passages that fit best.",
                "parameters": {
                    "type": "object",
                    "properties": {"query": {"type": "string", "description": "Words to look for."}},
                    "required": ["query"],
                },
            },
        }

    async def call(self, arguments: Mapping[str, object]) -> str:
        """The passages, numbered, or that there is none."""
        hits = self._index.find(str(arguments["query"]), most=self._most)
        if not hits:
            return "Nothing was found."
        return "\n".join(
            f"({number}) {hit.passage.title}: {hit.passage.text}" for number, hit in enumerate(hits, 1)
        )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
