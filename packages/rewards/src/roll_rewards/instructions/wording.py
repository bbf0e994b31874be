"""IFEval's checks of what a response says: keywords, letters, language, lengths, case, commas.

Each takes the response and the instruction's arguments by IFEval's names.

Source: Instruction-Following Evaluation for Large Language Models (arXiv 2311.07911), table 3.
"""

import re
from collections.abc import Sequence
from typing import Literal

from roll_rewards.text.scripts import detected_language

Relation = Literal["at least", "less than"]
_ABBREVIATION = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|vs|etc|e\.g|i\.e|Fig|No|Inc|Ltd|Co|U\.S|a\.m|p\.m|Ph\.D)\.",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<![.!?。！？])[.!?。！？]++[\"'”’)\]]*+(?=\s|$|[\u4e00-\u9fff])")


def holds(count: int, relation: str, number: int) -> bool:
    """Whether a count is `at least` or `less than` a number."""
    return count < number if relation == "less than" else count >= number


def keywords_exist(response: str, *, keywords: Sequence[str]) -> bool:
    """Whether every keyword stands in the response, in any letter case, also inside words."""
    return all(re.search(re.escape(word), response, re.IGNORECASE) for word in keywords)


def keyword_frequency(response: str, *, keyword: str, frequency: int, relation: str) -> bool:
    """Whether a keyword stands often enough (`at least`) or seldom enough (`less than`)."""
    return holds(len(re.findall(re.escape(keyword), response, re.IGNORECASE)), relation, frequency)


def no_forbidden_words(response: str, *, forbidden_words: Sequence[str]) -> bool:
    """Whether none of the words stands in the response as a word."""
    return not any(re.search(rf"\b{re.escape(word)}\b", response, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(response: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    """Whether a letter or sign stands often or seldom enough, in either case."""
    return holds(response.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(response: str, *, language: str) -> bool:
    """Whether the response is in a language, by ISO 639-1 code; without letters it is."""
    found = detected_language(response)
    return found is None or found == language.split("-")[0].lower()


def sentence_count(response: str) -> int:
    """Sentences by their closing marks; a last one without a mark counts."""
    text = _ABBREVIATION.sub(lambda found: found[0].replace(".", ""), response.strip())
    text = re.sub(r"(?<=\d)\.(?=\d)|(?<!\.)\.{3,}+(?=\s+[a-z])", "", text)
    pieces = [piece for piece in _SENTENCE_END.split(text) if re.search(r"\w", piece)]
    return len(pieces)


def number_sentences(response: str, *, num_sentences: int, relation: str) -> bool:
    """Whether there are enough or few enough sentences."""
    return holds(sentence_count(response), relation, num_sentences)


def number_paragraphs(response: str, *, num_paragraphs: int) -> bool:
    """Whether there are exactly so many paragraphs, divided by `***`; an empty one at either end is none."""
    parts = re.split(r"\s?\*\*\*\s?", response)
    inner = parts[1:-1]
    if any(not part.strip() for part in inner):
        return False
    return sum(bool(part.strip()) for part in parts) == num_paragraphs


def number_words(response: str, *, num_words: int, relation: str) -> bool:
    """Whether there are enough or few enough words."""
    return holds(len(re.findall(r"\w+", response)), relation, num_words)


def nth_paragraph_first_word(
    response: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """Whether there are so many paragraphs, divided by two line ends, and the n-th begins with a word."""
    paragraphs = re.split(r"\n\n", response)
    filled = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if filled != num_paragraphs or not 1 <= nth_paragraph <= len(paragraphs):
        return False
    tokens = paragraphs[nth_paragraph - 1].split()
    if not tokens:
        return False
    first = re.split(r"[.,?!'\"]", tokens[0].lstrip("'\""))[0]
    return first.lower() == first_word.lower()


def capital_word_frequency(response: str, *, capital_frequency: int, capital_relation: str) -> bool:
    """Whether words all in capitals are frequent or rare enough."""
    tokens = re.findall(r"[^\W\d_]+(?:[-'][^\W\d_]+)*", response)
    return holds(sum(token.isupper() for token in tokens), capital_relation, capital_frequency)


def english_capital(response: str) -> bool:
    """Whether the response is English in capitals alone."""
    return response.isupper() and response_language(response.lower(), language="en")


def english_lowercase(response: str) -> bool:
    """Whether the response is English without capitals."""
    return response.islower() and response_language(response, language="en")


def no_comma(response: str) -> bool:
    """Whether there is no comma."""
    return "," not in response
