"""Questions that are answered by searching a corpus. Needs the extra `retrieval` (bm25s)."""

import random
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from roll_agentic.environment import Environment, Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.errors import AgenticError
from roll_agentic.tools.environment import ToolEnvironment
from roll_agentic.tools.search import Bm25Index, Passage, SearchTool
from roll_agentic.tools.toolbox import Toolbox

_INSTRUCTIONS = (
    "Answer the question. What you need is in a corpus that the tool search(query) finds passages in. "
    "Give the final answer, as short as it can be, in <answer> </answer>."
)
_FIRST = ("Ada", "Bruno", "Clara", "Dario", "Elsa", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Leo")
_LAST = ("Amsel", "Birke", "Dorn", "Eiche", "Falke", "Holm", "Kranich", "Linde", "Marder", "Reiher", "Ulm")
_PLACE = ("Alten", "Breiten", "Dunkel", "Eber", "Falken", "Grau", "Hohen", "Königs", "Linden", "Mühl", "Neu")
_ENDING = ("bach", "berg", "burg", "dorf", "feld", "hafen", "stein", "tal")
_CRAFT = ("glass", "paper", "clocks", "violins", "bells", "lenses", "ropes", "maps")


class Question:
    """A question with its accepted answers."""

    def __init__(self, text: str, answers: Sequence[str]) -> None:
        self.text = text
        self.answers = tuple(answers)


class QuestionAnswering:
    """One question, one answer: reward 1 for an exact match, or the overlap of words.

    Text is compared without case, punctuation and articles, as SQuAD's evaluation does.

    Args:
        questions: At least one; the seed picks one.
        partial: Whether an answer that does not match gets the F1 of its words as reward.

    Raises:
        AgenticError: There is no question.
    """

    def __init__(self, questions: Sequence[Question], *, partial: bool = False) -> None:
        if not questions:
            raise AgenticError("QuestionAnswering needs at least one question, got none")
        self._questions, self._partial = tuple(questions), partial
        self._asked: Question | None = None

    def reset(self, *, seed: int) -> Reset:
        """Ask the question that belongs to the seed."""
        self._asked = random.Random(seed).choice(self._questions)
        return self._asked.text, {"instructions": _INSTRUCTIONS, "state": self._asked.text}

    def step(self, action: str, /) -> Step:
        """Judge the answer.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._asked is None:
            raise AgenticError("QuestionAnswering has no episode going on; call reset before step")
        asked, self._asked = self._asked, None
        answer = _normalised(marked_answer(action))
        overlaps = [_overlap(answer, _normalised(wanted)) for wanted in asked.answers]
        reward = max(overlaps) if self._partial else float(max(overlaps) == 1.0)
        return "", reward, True, False, {"action_is_valid": bool(answer), "answers": asked.answers}


def retrieval_qa(
    *,
    corpus: Sequence[Mapping[str, str]] | None = None,
    questions: Sequence[Mapping[str, object]] | None = None,
    calls: int = 4,
    passages: int = 3,
    partial: bool = False,
    parser: str = "hermes",
) -> Environment:
    """Question answering with the tool `search(query)`.

    Args:
        corpus: Passages as `{"title": ..., "text": ...}`; None for the shipped one, an invented country
            of towns and people, about which no model knows anything beforehand.
        questions: `{"question": ..., "answers": [...]}`; None for questions about the shipped corpus,
            half of which need two searches. Give both or neither.
        calls: How many searches an episode may make, at least 0.
        passages: How many passages a search finds at most, at least 1.
        partial: See `QuestionAnswering`.
        parser: How calls are written; see `PARSERS`.

    Raises:
        AgenticError: Only one of corpus and questions is given, a field is missing, or bm25s is not
            installed.
    """
    if (corpus is None) != (questions is None):
        raise AgenticError("retrieval_qa needs both corpus and questions, or neither")
    if corpus is None or questions is None:
        texts, asked = invented_country()
    else:
        try:
            texts = [Passage(title=passage["title"], text=passage["text"]) for passage in corpus]
            asked = [Question(str(q["question"]), list(q["answers"])) for q in questions]  # type: ignore[call-overload]  # checked by the except
        except (KeyError, TypeError) as error:
            raise AgenticError(
                f"passages need 'title' and 'text', questions 'question' and a list 'answers': {error!r}"
            ) from error
    tools = Toolbox([SearchTool(Bm25Index(texts), most=passages)])
    return ToolEnvironment(QuestionAnswering(asked, partial=partial), tools, parser=parser, budget=calls)


def invented_country() -> tuple[list[Passage], list[Question]]:
    """The shipped corpus, always the same: 88 towns, their mayors and crafts, and questions about them."""
    chance = random.Random(20)
    towns = [first + second for first in _PLACE for second in _ENDING]
    people = [f"{first} {last}" for first in _FIRST for last in _LAST]
    chance.shuffle(people)
    passages, questions = [], []
    for town, mayor in zip(towns, people, strict=False):
        founded, craft, birthplace = chance.randint(1100, 1890), chance.choice(_CRAFT), chance.choice(towns)
        passages.append(
            Passage(
                title=town,
                text=f"{town} is a town that was founded in {founded} and is known for its {craft}. "
                f"The mayor of {town} is {mayor}.",
            )
        )
        passages.append(Passage(title=mayor, text=f"{mayor} was born in {birthplace} and is a mayor."))
        questions.append(Question(f"In which year was {town} founded?", [str(founded)]))
        questions.append(Question(f"In which town was the mayor of {town} born?", [birthplace]))
    return passages, questions


def _normalised(text: str) -> str:
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def _overlap(answer: str, wanted: str) -> float:
    """F1 of the words; 1 exactly when both are the same words in the same order."""
    if answer == wanted:
        return 1.0
    ours, theirs = answer.split(), wanted.split()
    common = sum((Counter(ours) & Counter(theirs)).values())
    return min(2 * common / (len(ours) + len(theirs)), 0.99) if common else 0.0
