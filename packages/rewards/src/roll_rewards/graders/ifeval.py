"""Grader `ifeval`: the verifiable instructions of a prompt, checked one by one (extra `language`)."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, visible_part
from roll_rewards.instructions import arrangement, wording
from roll_rewards.scores import Score
from roll_rewards.threads import call_in_thread

CHECKS: Mapping[str, Callable[..., bool]] = {
    "change_case:capital_word_frequency": wording.capital_word_frequency,
    "change_case:english_capital": wording.english_capital,
    "change_case:english_lowercase": wording.english_lowercase,
    "combination:repeat_prompt": arrangement.repeat_prompt,
    "combination:two_responses": arrangement.two_responses,
    "detectable_content:number_placeholders": arrangement.number_placeholders,
    "detectable_content:postscript": arrangement.postscript,
    "detectable_format:constrained_response": arrangement.constrained_response,
    "detectable_format:json_format": arrangement.json_format,
    "detectable_format:multiple_sections": arrangement.multiple_sections,
    "detectable_format:number_bullet_lists": arrangement.number_bullet_lists,
    "detectable_format:number_highlighted_sections": arrangement.number_highlighted_sections,
    "detectable_format:title": arrangement.title,
    "keywords:existence": wording.keywords_exist,
    "keywords:forbidden_words": wording.no_forbidden_words,
    "keywords:frequency": wording.keyword_frequency,
    "keywords:letter_frequency": wording.letter_frequency,
    "language:response_language": wording.response_language,
    "length_constraints:nth_paragraph_first_word": wording.nth_paragraph_first_word,
    "length_constraints:number_paragraphs": wording.number_paragraphs,
    "length_constraints:number_sentences": wording.number_sentences,
    "length_constraints:number_words": wording.number_words,
    "punctuation:no_comma": wording.no_comma,
    "startend:end_checker": arrangement.end_checker,
    "startend:quotation": arrangement.quotation,
}
"""The 25 instructions of IFEval by their ids."""

_MAX_CHARS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IfEval:
    """Whether the response follows the row's instructions.

    Rows have IFEval's columns `instruction_id_list` and `kwargs` (a mapping for each instruction; None
    values are left out), directly or in the reference. Every instruction is a part of the score by its id.

    Example: `IfEval(mode="loose", combine="fraction")`.

    Attributes:
        mode: `strict` checks the response as it is; `loose` also without its first line, its last line, both,
            and without stars.
        combine: `all` scores 1 when every instruction is followed, `fraction` the part that is.
        thinking: What tags of reasoning mean; see `visible_part`.

    Raises:
        RewardError: When grading: an id is unknown, an argument is missing, or there is no instruction.

    Source: Instruction-Following Evaluation for Large Language Models (arXiv 2311.07911).
    Differs: Sentences are counted by their closing marks, without NLTK's model; languages with a script of
        their own are told by it.
    """

    mode: Literal["strict", "loose"] = "strict"
    combine: Literal["all", "fraction"] = "all"
    thinking: Thinking = "strip"

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; `parsed` stays empty, as there is no answer to read. See `Grader.grade`."""
        checks = _row_checks(reference, columns)
        text = visible_part(response, thinking=self.thinking)[:_MAX_CHARS]
        versions = response_versions(text) if self.mode == "loose" else [text]
        followed = await call_in_thread(
            lambda: {name: _follows(check, versions) for name, check in checks}, name="grader ifeval"
        )
        values = list(followed.values())
        value = float(all(values)) if self.combine == "all" else sum(values) / len(values)
        return Score(value=value, parts={name: float(done) for name, done in followed.items()})


Check = Callable[[str], bool]


def instructions_of(reference: object, columns: Mapping[str, object]) -> list[tuple[str, dict[str, object]]]:
    """Ids and arguments of a row's instructions.

    Raises:
        RewardError: The row has none, or not as many argument mappings as ids.
    """
    row = {**columns, **(reference if isinstance(reference, Mapping) else {})}
    names, arguments = row.get("instruction_id_list"), row.get("kwargs")
    if arguments is None and isinstance(names, Sequence):
        arguments = [{}] * len(names)
    if (
        not isinstance(names, list | tuple)
        or not names
        or not isinstance(arguments, list | tuple)
        or len(arguments) != len(names)
    ):
        raise RewardError(
            "instructions need the columns 'instruction_id_list' (ids) and 'kwargs' (as many mappings), "
            f"got {names!r:.80} and {arguments!r:.80}"
        )
    return [
        (str(name), {str(k): v for k, v in (given or {}).items() if v is not None})
        for name, given in zip(names, arguments, strict=True)
    ]


def _row_checks(reference: object, columns: Mapping[str, object]) -> list[tuple[str, Check]]:
    return [
        (name if place == 0 else f"{name}#{place + 1}", _bound(name, given))
        for name, given, place in _numbered(instructions_of(reference, columns))
    ]


def _numbered(
    instructions: list[tuple[str, dict[str, object]]],
) -> list[tuple[str, dict[str, object], int]]:
    """With each instruction how many of the same id came before."""
    seen: dict[str, int] = {}
    numbered = []
    for name, given in instructions:
        numbered.append((name, given, seen.get(name, 0)))
        seen[name] = seen.get(name, 0) + 1
    return numbered


def _bound(name: str, given: Mapping[str, object]) -> Check:
    if name not in CHECKS:
        near = get_close_matches(name, CHECKS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RewardError(f"grader 'ifeval' knows no instruction {name!r}{hint}")
    check = CHECKS[name]
    wanted = [p.name for p in inspect.signature(check).parameters.values() if p.kind is p.KEYWORD_ONLY]
    missing = [argument for argument in wanted if argument not in given]
    if missing:
        raise RewardError(
            f"instruction {name!r} needs {', '.join(missing)} in 'kwargs', got {dict(given)!r:.120}"
        )
    arguments = {argument: given[argument] for argument in wanted}
    return lambda text: check(text, **arguments)


def _follows(check: Check, versions: list[str]) -> bool:
    return any(version.strip() and check(version) for version in versions)


def response_versions(text: str) -> list[str]:
    """A response as it is, without its first line, its last line, both, and each without stars."""
    lines = text.split("\n")
    cuts = [text, "\n".join(lines[1:]).strip(), "\n".join(lines[:-1]).strip(), "\n".join(lines[1:-1]).strip()]
    return [*cuts, *(cut.replace("*", "") for cut in cuts)]
