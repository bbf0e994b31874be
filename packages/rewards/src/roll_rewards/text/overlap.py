"""How much two texts say the same words: exact match, F1, ROUGE and word error rate. Pure functions."""

import re
import string
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

MAX_WORDS = 20_000
"""Longer texts are cut here before a quadratic comparison."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CJK = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af])")


def normal_answer(text: str) -> str:
    """Lower-cased text without punctuation, English articles and double spaces.

    Source: SQuAD's evaluation (arXiv 1606.05250).
    """
    bare = text.casefold().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def words(text: str) -> list[str]:
    """Words of a normalised text; Chinese, Japanese and Korean characters stand alone."""
    return _CJK.sub(r" \1 ", normal_answer(text)).split()[:MAX_WORDS]


def f1(found: Sequence[Hashable], wanted: Sequence[Hashable]) -> float:
    """Harmonic mean of precision and recall of two bags of words, 0..1; two empty ones agree."""
    if not found or not wanted:
        return float(len(found) == len(wanted))
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))


def rouge_n(found: Sequence[str], wanted: Sequence[str], n: int) -> float:
    """F1 of the n-grams of two texts, 0..1.

    Args:
        found: Words of the response.
        wanted: Words of the reference.
        n: Length of the n-grams, at least 1.

    Source: ROUGE (Lin 2004).
    """
    return (
        f1(_grams(found, n), _grams(wanted, n))
        if len(wanted) >= n or len(found) >= n
        else rouge_n(found, wanted, 1)
    )


def rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of the longest common subsequence of two texts, 0..1.

    Source: ROUGE (Lin 2004).
    """
    if not found or not wanted:
        return float(len(found) == len(wanted))
    return 2 * _common_subsequence(found, wanted) / (len(found) + len(wanted))


def word_error_rate(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Insertions, deletions and substitutions that make one text the other, per word of the reference.

    At least 0, and above 1 when the response is much longer; an empty reference counts as one word.
    """
    one, other = _codes(found, wanted)
    row = np.arange(len(other) + 1)
    steps = np.arange(len(other) + 1)
    for place, word in enumerate(one, start=1):
        changed = np.minimum(row[1:] + 1, row[:-1] + (other != word))
        best = np.concatenate(([place], changed))
        # A run of insertions costs one each: the running minimum of (cost - position), plus position.
        row = np.minimum.accumulate(best - steps) + steps
    return float(row[-1]) / max(len(wanted), 1)


def _common_subsequence(found: Sequence[str], wanted: Sequence[str]) -> int:
    one, other = _codes(found, wanted)
    row = np.zeros(len(other) + 1, dtype=np.int64)
    for word in one:
        longer = np.concatenate(([0], np.where(other == word, row[:-1] + 1, row[1:])))
        row = np.maximum.accumulate(np.maximum(longer, row))
    return int(row[-1])


def _codes(found: Sequence[str], wanted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    numbers: dict[str, int] = {}
    coded = [
        np.array([numbers.setdefault(word, len(numbers)) for word in side], dtype=np.int64)
        for side in (found[:MAX_WORDS], wanted[:MAX_WORDS])
    ]
    return coded[0], coded[1]


def _grams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
