"""The `math` grader on whole responses: where answers stand, what tags mean, whose fault a limit is."""

import asyncio
import time

import pytest
from roll_rewards import GradeItem, RewardError, check_grader, grade_batch, make_grader

RESPONSES = [
    ("<think>I get \\boxed{7}</think>The answer is \\boxed{8}", "8", True),
    ("<think>I get \\boxed{7}</think>The answer is \\boxed{8}", "7", False),
    ("<think>... \\boxed{8}", "8", False),
    ("reasoning \\boxed{7}</think> \\boxed{8}", "8", True),
    ("<think>x</think> no answer here", "8", False),
    ("<think>x</think>8", "8", True),
    ("<think>a</think><think>b</think>\\boxed{3}", "3", True),
    ("\\boxed{5", "5", False),
    ("\\boxed{\\frac{1}{2}}", "1/2", True),
    ("\\boxed 5", "5", True),
    ("\\boxed{x=5}", "5", True),
    ("$\\boxed{5}$.", "5", True),
    ("The answer is 5.", "5", True),
    ("The answer is $5$.", "5", True),
    ("The answer is **5**.", "5", True),
    ("The final answer is: $\\frac{1}{2}$. I hope it is correct.", "0.5", True),
    ("#### 1,234", "1234", True),
    ("so 3 + 4 = 7 apples in total.", "7", True),
    ("A total of 7 apples.", "7", True),
    ("The answer is 3.14.", "3.14", True),
    ("The answer is (C).", "C", True),
    ("The correct answer is C", "C", True),
    ("Answer: B", "B", True),
    ("<answer>42</answer>", "42", True),
    ("<answer>\\boxed{42}</answer>", "42", True),
    ("<answer>42</answer> or <answer>43</answer>", "42", False),
    ("\\boxed{\\text{no}}", "no", True),
    ("\\boxed{(1, 2)}", "(1,2)", True),
    ("x=\\boxed{1} and y=\\boxed{2}", "2", True),
    ("\\boxed{5\\text{ cm}}", "5", True),
    ("\\boxed{42}\\boxed{}", "42", False),
    ("\\boxed{1}, \\boxed{2}", "1,2", False),
    ("The value of x is $\\frac{3}{4}$", "3/4", True),
    ("I think 5 or 6", "5", False),
    ("$$x = \\frac{-b}{2}$$", "-b/2", True),
    ("答案是 5", "5", True),
    ("", "5", False),
    ("**Final Answer**\n\n\\[\n\\boxed{12}\n\\]", "12", True),
    ("**Answer:** 12", "12", True),
    ("Answer:\n12", "12", True),
    ("The answer is approximately 3.14", "3.14", True),
    ("\\boxed{5, 6}", "5", False),
    ("\\boxed{\\{5\\}}", "5", True),
    ("\\boxed{5}6", "5", True),
    ("\\boxed{ 5 }", "5", True),
    ("\\boxed{\\$5}", "5", True),
    ("\\boxed{\\text{Answer: }5}", "5", True),
    ("\\boxed{\\mathbf{5}}", "5", True),
    ("\\boxed{\\displaystyle \\frac{5}{1}}", "5", True),
    ("\\boxed{5}\n\\boxed{5}", "5", True),
    ("It is \\boxed{A}", "A", True),
    ("\\boxed{A. 12}", "A", True),
    ("\\boxed{A) 12 \\text{cm}}", "A", True),
    ("\\boxed{\\textbf{(A)}\\ 12}", "A", True),
    ("\\boxed{12}", "12\\text{ cm}", True),
    ("\\boxed{[1,2]}", "[1,2]", True),
    ("\\boxed{y = 3x - 2}", "3x-2", True),
    ("The answer is 1/2, because of x.", "1/2", True),
    ("Answer: x = 3, y = 4", "(3,4)", True),
    ("\\boxed{6.02\\times10^{23}}", "6.02e23", True),
    ("\\boxed{1\\frac{1}{2}}", "3/2", True),
    ("\\boxed{-\\infty}", "-\\infty", True),
    ("\\boxed{0.\\overline{3}}", "1/3", True),
    ("\\boxed{1/3}", "0.\\overline{3}", True),
    ("\\boxed{2^{1/2}}", "\\sqrt{2}", True),
    ("\\boxed{100^\\circ}", "100", True),
    ("\\boxed{10\\%}", "10", True),
    ("\\boxed{\\text{Tuesday}}", "Tuesday", True),
    ("\\boxed{\\text{(E) none}}", "E", True),
    ("\\boxed{3,\\!000}", "3000", True),
    ("\\boxed{3\\,000}", "3000", True),
    ("\\boxed{12:30}", "12:30", True),
    ("\\boxed{12\\text{ and }30}", "12,30", True),
    ("\\boxed{\\text{12 and 30}}", "30,12", True),
    ("\\boxed{(3,\\infty)}", "x>3", True),
    ("\\boxed{x>3}", "(3,\\infty)", True),
    ("\\boxed{x \\in (-\\infty, -1) \\cup (1,\\infty)}", "(-\\infty,-1)\\cup(1,\\infty)", True),
    ("\\boxed{|x|>1}", "|x|>1", True),
    ("\\boxed{n = 2k, k\\in\\mathbb{Z}}", "2k", False),
    ("\\boxed{a_n = 2n+1}", "2n+1", True),
    ("\\boxed{\\angle ABC = 30^\\circ}", "30", True),
    ("\\boxed{AB = 5}", "5", True),
    ("\\boxed{\\frac{dy}{dx}=2x}", "2x", True),
    ("\\boxed{f'(x)=2x}", "2x", True),
    ("\\boxed{P(A)=\\frac12}", "\\frac12", True),
    ("\\boxed{\\cos\\theta=\\frac12}", "\\frac12", True),
    ("\\boxed{x^2 = 4}", "4", False),
    ("\\boxed{x+1=5}", "5", False),
    ("\\boxed{\\sqrt{x} = 4}", "4", False),
    ("\\boxed{1+1=2}", "2", True),
    ("\\boxed{\\text{Area} = 12 \\text{ cm}^2}", "12", True),
    ("\\boxed{2x+1}", "y=2x+1", True),
]


@pytest.mark.timeout(180)
async def test_answers_are_found_and_judged() -> None:
    items = [GradeItem(response=response, reference=gold) for response, gold, _ in RESPONSES]
    scores = await grade_batch(make_grader("math"), items, deadline_s=120, concurrency=8)
    wrong = [
        (response, gold, score)
        for (response, gold, right), score in zip(RESPONSES, scores, strict=True)
        if score.failure is not None or (score.value == 1.0) is not right
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("thinking", "response", "value", "parsed"),
    [
        ("strip", r"<think>\boxed{1}</think>\boxed{2}", 1.0, "2"),
        ("strip", r"<think>\boxed{2}</think>", 0.0, None),
        ("strip", r"<think>\boxed{2}", 0.0, None),
        ("strip", r"\boxed{2}", 1.0, "2"),
        ("ignore", r"<think>\boxed{2}</think>", 1.0, "2"),
        ("ignore", r"<think>\boxed{2}", 1.0, "2"),
        ("require", r"\boxed{2}", 0.0, None),
        ("require", r"x</think>\boxed{2}", 1.0, "2"),
        ("require", r"x</think>y</think>\boxed{2}", 0.0, None),
    ],
)
async def test_reasoning_tags_mean_what_the_option_says(
    thinking: str, response: str, value: float, parsed: str | None
) -> None:
    score = await make_grader("math", thinking=thinking).grade(response, "2")
    assert (score.value, score.parsed) == (value, parsed)


async def test_only_the_listed_sources_are_read() -> None:
    grader = make_grader("math", sources=["box"])
    assert (await grader.grade("The answer is 5.", "5")).parsed is None
    assert (await grader.grade(r"\boxed{5}", "5")).value == 1.0


@pytest.mark.parametrize("reference", [5, 5.0, "5", r"\boxed{5}", "2 + 3 = 5\n#### 5", ["4", 5], ("5",)])
async def test_references_of_many_forms_are_read(reference: object) -> None:
    assert (await make_grader("math").grade("5", reference)).value == 1.0


@pytest.mark.parametrize("reference", [None, "", "  ", [], ["5", ""], True, {"answer": "5"}, r"\text{ }"])
async def test_reference_without_an_answer_is_a_failure_of_its_own_kind(reference: object) -> None:
    score = await make_grader("math").grade(r"\boxed{x}", reference)
    assert score.failure is not None and score.failure.kind == "reference"


@pytest.mark.timeout(120)
async def test_answer_beyond_the_limit_is_a_verdict_and_the_others_go_on() -> None:
    grader = make_grader("math")
    await grader.grade("x", "y")
    slow = asyncio.ensure_future(
        make_grader("math", timeout_s=1.0).grade(r"\boxed{\int 9^{9^{9^{9}}} dx}", "5")
    )
    others = [
        await grader.grade(rf"\boxed{{\frac{{{n}}}{{3}}}}", rf"\frac{{{2 * n}}}{{6}}") for n in range(20)
    ]
    assert [score.value for score in others] == [1.0] * 20
    score = await slow
    assert (score.value, score.timed_out, score.failure) == (0.0, True, None)


@pytest.mark.timeout(120)
async def test_reference_beyond_the_limit_is_a_failure() -> None:
    score = await make_grader("math", timeout_s=1.0).grade("5", r"\int 9^{9^{9^{9}}} dx")
    assert score.failure is not None and score.failure.kind == "reference"


@pytest.mark.timeout(120)
async def test_megabytes_of_text_are_judged_in_moments() -> None:
    grader = make_grader("math")
    await grader.grade("x", "y")
    started = time.process_time()
    for text in ("a" * 5_000_000, r"\boxed{" * 500_000, "$" * 2_000_000, "5 " * 1_000_000, "\n" * 3_000_000):
        assert (await grader.grade(text, "7")).value == 0.0
    assert (await grader.grade("a" * 5_000_000 + r"\boxed{7}", "7")).value == 1.0
    assert time.process_time() - started < 20


@pytest.mark.timeout(120)
async def test_grader_keeps_the_promises_of_the_seam() -> None:
    results = await check_grader(
        make_grader("math"), GradeItem(response=r"\boxed{7}", reference="7"), deadline_s=60
    )
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "'timeout_s' above 0"),
        ({"sources": []}, "must not be empty"),
        ({"sources": ["boxes"]}, "'sources'.*'box' or 'tag'"),
        ({"thinking": "keep"}, "'strip' or 'ignore' or 'require'"),
        ({"rel_tolerance": -1}, "rel_tolerance"),
        ({"percent": "both"}, "'either' or 'hundredth' or 'ignore'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RewardError, match=message):
        make_grader("math", **options)
