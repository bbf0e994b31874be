"""Graders of plain text: choices, overlap, JSON, layout, language, repetition, length."""

import time

import numpy as np
import pytest
from roll_rewards import GradeItem, RewardError, check_grader, cosine_length_reward, make_grader
from roll_rewards.text.overlap import f1, rouge_l, rouge_n, word_error_rate, words

CHOICES = [
    ("C", "C"),
    ("(c)", "C"),
    ("C.", "C"),
    ("The answer is (C).", "C"),
    (r"so \boxed{\text{(C)}}", "C"),
    (r"\boxed{C. twelve}", "C"),
    ("**C**", "C"),
    ("C is correct", "C"),
    ("<think>A</think>C", "C"),
    ("twelve", "C"),
    ("<answer>C</answer>", "C"),
    ("Answer: A, no, wait. Answer: C", "C"),
    ("The correct answer is **C**.", "C"),
    (r"\boxed{B or C}", None),
    ("A cat sat", None),
    ("I cannot say", None),
    (r"\boxed{C", None),
    ("", None),
    ("The answer is a matter of taste", None),
    ("<think>C", None),
    (r"\boxed{K}", None),
]


@pytest.mark.parametrize(("response", "letter"), CHOICES)
async def test_choice_is_read_from_what_the_response_commits_to(response: str, letter: str | None) -> None:
    score = await make_grader("choice").grade(response, "C", choices=["one", "two", "twelve", "zero"])
    assert (score.parsed, score.value) == (letter, float(letter == "C"))


async def test_right_choice_scores_above_wrong_above_none_in_every_way_of_reading() -> None:
    for read in ("boxed", "stated", "any"):
        grader = make_grader("choice", read=read, right=1.0, wrong=-0.5, unparsed=-1)
        values = [(await grader.grade(r, "B")).value for r in (r"\boxed{B}", r"\boxed{A}", "hm")]
        assert values == [1.0, -0.5, -1.0]


async def test_strict_reading_takes_a_box_alone_and_loose_reading_a_letter_anywhere() -> None:
    response = "I weigh (A) against B; it must be B then"
    parsed = [
        (await make_grader("choice", read=r).grade(response, "B")).parsed for r in ("boxed", "stated", "any")
    ]
    assert parsed == [None, None, "B"]


@pytest.mark.parametrize("reference", ["B", "(B)", "b.", 1, "two", r"\text{(B)}"])
async def test_reference_names_the_choice_by_letter_number_or_text(reference: object) -> None:
    assert (await make_grader("choice").grade("B", reference, options=["one", "two"])).value == 1.0


@pytest.mark.parametrize("reference", [None, "Z", "three", 10, -1, True, ""])
async def test_reference_that_is_no_choice_is_a_failure(reference: object) -> None:
    score = await make_grader("choice").grade("B", reference)
    assert score.failure is not None and score.failure.kind == "reference"


def test_overlap_measures_equal_hand_computed_values() -> None:
    found, wanted = ["the", "quick", "fox", "ran"], ["a", "quick", "brown", "fox", "ran", "away"]
    assert f1(found, wanted) == pytest.approx(2 * 3 / 10)
    assert rouge_n(found, wanted, 2) == pytest.approx(2 * 1 / (3 + 5))
    assert rouge_l(found, wanted) == pytest.approx(2 * 3 / 10)
    assert word_error_rate(found, wanted) == pytest.approx(3 / 6)
    assert word_error_rate([], wanted) == 1.0
    assert word_error_rate(wanted, []) == 6.0
    assert word_error_rate(["a", "b", "c"], ["x", "y"]) == 1.5
    assert words("日本 is 日") == ["日", "本", "is", "日"]


def test_edit_distance_equals_the_textbook_recursion_on_random_texts() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        one, other = ([str(w) for w in random.integers(0, 3, random.integers(1, 9))] for _ in range(2))
        table = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
        table[:, 0], table[0, :] = range(len(one) + 1), range(len(other) + 1)
        longest = np.zeros_like(table)
        for i in range(1, len(one) + 1):
            for j in range(1, len(other) + 1):
                same = one[i - 1] == other[j - 1]
                table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (not same))
                longest[i, j] = (
                    longest[i - 1, j - 1] + 1 if same else max(longest[i - 1, j], longest[i, j - 1])
                )
        assert word_error_rate(one, other) == pytest.approx(table[-1, -1] / len(other))
        assert rouge_l(one, other) == pytest.approx(2 * longest[-1, -1] / (len(one) + len(other)))


@pytest.mark.parametrize(
    ("metric", "response", "value"),
    [
        ("exact", "The Poodle!", 1.0),
        ("exact", "poodles", 0.0),
        ("exact", "<answer></answer>", 0.0),
        ("exact", "I say <answer>poodle</answer>", 1.0),
        ("contains", "It is a poodle, I think", 1.0),
        ("contains", "cockapoodle", 0.0),
        ("f1", "a big poodle", 2 / 3),
        ("wer", "poodle", 1.0),
        ("wer", "x y z poodle", 0.0),
        ("rouge_l", "", 0.0),
    ],
)
async def test_text_match_scores_by_its_metric(metric: str, response: str, value: float) -> None:
    score = await make_grader("text_match", metric=metric).grade(response, ["poodle", "xyz"])
    assert score.value == pytest.approx(value)


async def test_threshold_makes_a_verdict_and_keeps_the_metric() -> None:
    score = await make_grader("text_match", metric="f1", threshold=0.6).grade("a big poodle", "poodle")
    assert (score.value, score.parts["f1"]) == (1.0, pytest.approx(2 / 3))


async def test_overlap_of_long_texts_ends() -> None:
    score = await make_grader("text_match", metric="rouge_l").grade("a b " * 200_000, "b c " * 1000)
    assert 0 < score.value < 1


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("response", "parts"),
    [
        ('{"n": 1}', {"valid": 1.0, "schema": 1.0}),
        ('Here:\n```json\n{"n": 1}\n```\nDone.', {"valid": 1.0, "schema": 1.0}),
        ('{"n": "1"}', {"valid": 1.0, "schema": 0.0}),
        ('{"n": 1, "m": 2}', {"valid": 1.0, "schema": 0.0}),
        ('{"n": 1', {"valid": 0.0}),
        ('{"n": NaN}', {"valid": 0.0}),
        ('{"n": 1, "n": 2}', {"valid": 0.0}),
        ("[" * 100_000, {"valid": 0.0}),
        ("9" * 10_000, {"valid": 0.0}),
        ("", {"valid": 0.0}),
    ],
)
async def test_json_is_checked_against_the_schema(response: str, parts: dict[str, float]) -> None:
    score = await make_grader("json", schema=SCHEMA).grade(response, None)
    assert (score.parts, score.value, score.failure) == (parts, min(parts.values()), None)


@pytest.mark.parametrize(("response", "same"), [("[1, 2.0]", True), ("[2, 1]", False), ("[true, 2]", False)])
async def test_json_can_be_compared_with_the_reference(response: str, same: bool) -> None:
    assert (await make_grader("json", equal=True).grade(response, "[1, 2]")).value == float(same)


async def test_schema_may_come_with_the_row_and_a_wrong_one_is_an_error() -> None:
    grader = make_grader("json")
    assert (await grader.grade("3", None, schema='{"type": "string"}')).value == 0.0
    with pytest.raises(RewardError, match="is no JSON Schema"):
        await grader.grade("3", None, schema={"type": "strang"})


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>a</think>\n<answer>b</answer>\n", 1.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a</think><answer> </answer>", 0.0),
        ("<think>a</think>so<answer>b</answer>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<think>a<answer>b</answer></think>", 0.0),
        ("", 0.0),
    ],
)
async def test_layout_wants_each_section_once_in_order(response: str, value: float) -> None:
    assert (await make_grader("layout").grade(response, None)).value == value


async def test_layout_options_open_the_first_tag_and_give_partial_credit() -> None:
    opened = make_grader("layout", opened=True)
    assert (await opened.grade("a</think><answer>b</answer>", None)).value == 1.0
    partial = make_grader("layout", partial=True)
    assert (await partial.grade("<think>a</think>b", None)).value == 0.5
    assert (await partial.grade("<answer>b</answer><think>a</think>", None)).value == 0.0


@pytest.mark.parametrize(
    ("language", "text", "share"),
    [
        ("en", "All English words", 1.0),
        ("en", "ab 你好", 0.5),
        ("zh", "你好 $x^2$ \\frac `code`", 1.0),
        ("ja", "日本語のテキスト", 1.0),
        ("ru", "Привет", 1.0),
        ("en", "12 + 30", 1.0),
    ],
)
async def test_language_share_is_that_of_its_script(language: str, text: str, share: float) -> None:
    assert (await make_grader("language").grade(text, None, language=language)).value == pytest.approx(share)


async def test_languages_of_one_script_are_told_apart_when_asked() -> None:
    french = "Je ne sais pas pourquoi il est parti sans nous dire au revoir hier soir."
    assert (await make_grader("language", language="en", detect=True).grade(french, None)).value == 0.0
    assert (await make_grader("language", language="fr", detect=True).grade(french, None)).value == 1.0


async def test_repetition_is_the_share_of_repeated_phrases() -> None:
    grader = make_grader("repetition", ngram=2, scale=0.5)
    assert (await grader.grade("one two three four", None)).value == 0.0
    assert (await grader.grade("x y x y x", None)).value == pytest.approx(-0.5 * 2 / 4)
    assert (await grader.grade("", None)).value == 0.0
    assert (await make_grader("repetition", ngram=2, allowed=0.5).grade("x y x y x", None)).value == 0.0


async def test_length_falls_off_on_both_sides() -> None:
    grader = make_grader("length", shortest=10, longest=20, margin=10)
    values = [(await grader.grade("w " * n, None)).value for n in (0, 5, 10, 20, 25, 40)]
    assert values == [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]
    with pytest.raises(RewardError, match="column 'tokens'"):
        await make_grader("length", unit="tokens").grade("x", None)


def test_cosine_reward_equals_its_definition() -> None:
    lengths, right = np.array([0, 50, 99, 100, 0, 50]), np.array([1, 1, 1, 1, 0, 0], dtype=bool)
    rewards = cosine_length_reward(lengths, right, max_length=100)
    assert rewards[[0, 1, 4, 5]] == pytest.approx([2.0, 1.5, -10.0, -5.0])
    assert rewards[2] == pytest.approx(1 + 0.5 * (1 + np.cos(np.pi * 0.99))) and rewards[3] == -10.0


async def test_cosine_length_grader_shapes_another_graders_verdict() -> None:
    grader = make_grader("cosine_length", grader={"name": "exact"}, max_length=100, unit="tokens")
    score = await grader.grade("7", "7", tokens=50)
    assert (score.value, score.parts["verdict"]) == (pytest.approx(1.5), 1.0)
    assert (await grader.grade("8", "7", tokens=100)).value == -10.0


SEAMS = {
    "choice": GradeItem(response="B", reference="B"),
    "text_match": GradeItem(response="a b", reference="a b"),
    "json": GradeItem(response="{}", reference=None),
    "layout": GradeItem(response="<think>a</think><answer>b</answer>", reference=None),
    "language": GradeItem(response="hello", reference=None, columns={"language": "en"}),
    "repetition": GradeItem(response="a a a a", reference=None),
    "length": GradeItem(response="a", reference=None),
    "detection": GradeItem(response="[[0, 0, 1, 1]]", reference=[[0, 0, 1, 1]]),
    "video_question": GradeItem(
        response="<answer>B</answer>", reference="B", columns={"problem_type": "choice"}
    ),
    "ifeval": GradeItem(
        response="no",
        reference=None,
        columns={"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    ),
}


@pytest.mark.parametrize("name", SEAMS)
async def test_graders_keep_the_promises_of_the_seam(name: str) -> None:
    results = await check_grader(make_grader(name), SEAMS[name])
    assert [result for result in results if not result.passed] == []


HOSTILE = [
    "[" * 300_000,
    "{" * 300_000,
    "```json\n" * 50_000,
    "answer is" + " " * 300_000,
    "answer is" + "(" * 300_000,
    "a " * 200_000,
    "\\boxed{" * 50_000,
    "<answer>" * 50_000,
    "$" * 300_001,
    "`" * 300_001,
    "C " * 100_000,
]


@pytest.mark.parametrize("name", [name for name in SEAMS if name != "ifeval"])
async def test_hostile_texts_are_judged_in_moments(name: str) -> None:
    for text in HOSTILE:
        started = time.process_time()
        await make_grader(name).grade(text, SEAMS[name].reference, **SEAMS[name].columns)
        assert time.process_time() - started < 5, text[:20]
