"""IFEval's instructions: by hand, and against the checkers of if-verifiable on many texts."""

import importlib
import itertools
import time
from typing import Any

import pytest
from roll_rewards import RewardError, make_grader
from roll_rewards.graders.ifeval import CHECKS

FOLLOWED: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["sun", "Moon"]}, "SUN and moon", "sun alone"),
    ("keywords:frequency", {"keyword": "go", "frequency": 2, "relation": "at least"}, "go go", "go"),
    ("keywords:frequency", {"keyword": "go", "frequency": 2, "relation": "less than"}, "go", "Go go"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "concatenate", "A Cat."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "zZ", "z"),
    ("language:response_language", {"language": "ru"}, "Привет, как дела сегодня?", "Hello there, my friend"),
    ("language:response_language", {"language": "th"}, "สวัสดีครับ", "Hello there, my friend"),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        "Dr. A. Yes!",
        "One.",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "less than"},
        "It is 3.5 m",
        "A. B.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "a b c", "a b"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "a\n\nThen, b",
        "a\n\nb then",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b]", "[a]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye\nP.S. more", "Bye"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye\nP. P. S more", "Bye\nP.S."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "*a* b"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\na\nSECTION 2\nb",
        "SECTION 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<a title>>\nb", "<<>>\nb"),
    ("combination:two_responses", {}, "a******b", "a******a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "say hi. Hi.", "Hi."),
    ("startend:end_checker", {"end_phrase": "The end."}, "x the END.", "The end. x"),
    ("startend:quotation", {}, '"all of it"', '"a" and b'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "A BIG x",
        "Ab",
    ),
    ("change_case:english_capital", {}, "ALL OF THIS TEXT IS WRITTEN IN ENGLISH", "All of this"),
    ("change_case:english_lowercase", {}, "all of this text is written in english", "All of this"),
    ("punctuation:no_comma", {}, "a b", "a, b"),
]


def test_every_instruction_of_ifeval_is_there() -> None:
    assert len(CHECKS) == 25 and {name for name, *_ in FOLLOWED} == set(CHECKS)


@pytest.mark.parametrize(("name", "given", "good", "bad"), FOLLOWED)
async def test_instruction_is_followed_or_not(name: str, given: dict[str, Any], good: str, bad: str) -> None:
    row = {"instruction_id_list": [name], "kwargs": [{**given, "unused": None}]}
    grader = make_grader("ifeval")
    assert (await grader.grade(good, None, **row)).value == 1.0
    assert (await grader.grade(bad, None, **row)).value == 0.0
    assert (await grader.grade("", None, **row)).value == 0.0


TEXTS = [
    "Hello, world. My answer is yes.",
    "ALL CAPS HERE IN ENGLISH TEXT",
    "all lower case english text is here",
    "* a\n* b\n- c\n** d",
    "*x* **y** * * ***z***",
    "a\n***\nb\n***\nc",
    "***a***b",
    "One\n\ntwo\n\nthree",
    "<<t>>",
    "<< >>",
    '{"a": [1]}',
    "```json\n[]\n```",
    "[x] [y z] [[w]]",
    "SECTION 1 a SECTION 2 b",
    "a******b",
    "a******b******c",
    "******a******b",
    "P.S. bye",
    "p.p.s. bye",
    '"quoted"',
    '"',
    "x The end.",
    "zebra zoo ZZZ",
    "Then, a\n\n'then' b",
    "go GO gone",
    "1 2 3 BIG-TIME O'NEIL",
    "word " * 40,
    "a. b! c? d",
    "\n\n\n",
    "- \n-a\n *b",
    "Say hi. ok",
]


LONG = [
    "[" * 200_000,
    "<" * 200_000,
    "." * 199_999 + "x",
    " " * 200_000 + "p",
    "\n" * 200_000,
    "*" * 200_000,
    "`$" * 90_000,
]


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
@pytest.mark.parametrize(("name", "given"), [(name, given) for name, given, *_ in FOLLOWED])
def test_checks_of_hostile_texts_take_moments(name: str, given: dict[str, Any], text: str) -> None:
    started = time.process_time()
    CHECKS[name](text, **given)
    assert time.process_time() - started < 5


@pytest.mark.slow
def test_checks_agree_with_if_verifiable_on_many_texts() -> None:
    registry = importlib.import_module("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT
    # Sentences and words in capitals need NLTK's data there; languages are told by another rule here.
    apart = ("length_constraints:number_sentences", "change_case:", "language:")
    differing = []
    for (name, given, *_), text in itertools.product(FOLLOWED, TEXTS):
        if name.startswith(apart):
            continue
        theirs = registry[name](name)
        theirs.build_description(**given)
        if bool(text.strip() and theirs.check_following(text)) != bool(
            text.strip() and CHECKS[name](text, **given)
        ):
            differing.append((name, text))
    assert differing == []


async def test_parts_name_each_instruction_and_a_fraction_can_be_asked_for() -> None:
    row = {
        "instruction_id_list": ["punctuation:no_comma", "detectable_format:title", "punctuation:no_comma"],
        "kwargs": [{}, None, {}],
    }
    score = await make_grader("ifeval", combine="fraction").grade("no title", None, **row)
    assert score.value == pytest.approx(2 / 3)
    assert score.parts["detectable_format:title"] == 0.0 and score.parts["punctuation:no_comma#2"] == 1.0


async def test_loose_mode_forgives_a_first_line_and_stars() -> None:
    row = {"instruction_id_list": ["startend:quotation"], "kwargs": [{}]}
    text = 'Sure, here it is:\n**"quoted"**'
    assert (await make_grader("ifeval").grade(text, None, **row)).value == 0.0
    assert (await make_grader("ifeval", mode="loose").grade(text, None, **row)).value == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "'instruction_id_list'"),
        (
            {"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]},
            "did you mean 'punctuation:no_comma'",
        ),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{}]}, "needs keywords"),
        ({"instruction_id_list": ["a", "b"], "kwargs": [{}]}, "as many mappings"),
    ],
)
async def test_row_without_usable_instructions_is_an_error(row: dict[str, object], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        await make_grader("ifeval").grade("x", None, **row)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_ifbench_runs_the_library_and_refuses_unknown_ids() -> None:
    grader = make_grader("ifbench", timeout_s=60)
    row = {"instruction_id_list": ["count:word_count_range"], "kwargs": [{"min_words": 2, "max_words": 3}]}
    assert (await grader.grade("two words", None, **row)).parts == {"count:word_count_range": 1.0}
    assert (await grader.grade("one two three four", None, **row)).value == 0.0
    with pytest.raises(RewardError, match="knows no instruction 'count:nothing'"):
        await grader.grade("x", None, instruction_id_list=["count:nothing"], kwargs=[{}])
