"""Countdown, mathematics and question answering against their rules."""

import re
from fractions import Fraction
from itertools import permutations

import pytest
from roll_agentic import AgenticError, ScriptedPolicy, Turn, check_environment, run_episode
from roll_agentic.environments import Countdown, Maths, marked_answer, maths_with_python, retrieval_qa
from roll_agentic.environments.retrieval import Question, QuestionAnswering, invented_country
from roll_agentic.tools import ProgramResult


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>3</think><answer> 5 </answer> and <answer>6</answer>", "6"),
        ("so \\boxed{\\frac{1}{2}} it is", "\\frac{1}{2}"),
        ("so \\boxed{12", "12"),
        (" up ", "up"),
        ("", ""),
    ],
)
def test_answer_is_found_by_its_mark(response: str, answer: str) -> None:
    assert marked_answer(response) == answer


def expressions(numbers: list[Fraction]) -> dict[Fraction, str]:
    """All values of expressions that use the numbers in this order, with one expression each."""
    if len(numbers) == 1:
        return {numbers[0]: str(numbers[0])}
    found: dict[Fraction, str] = {}
    for cut in range(1, len(numbers)):
        for one, left in expressions(numbers[:cut]).items():
            for other, right in expressions(numbers[cut:]).items():
                found[one + other] = f"({left}+{right})"
                found[one - other] = f"({left}-{right})"
                found[one * other] = f"({left}*{right})"
                if other:
                    found[one / other] = f"({left}/{right})"
    return found


@pytest.mark.parametrize("seed", range(15))
def test_every_countdown_has_a_solution_that_is_accepted(seed: int) -> None:
    environment = Countdown(numbers=4)
    observation, _ = environment.reset(seed=seed)
    *numbers, target = [int(word) for word in re.findall(r"\d+", observation)]
    for order in permutations(numbers):
        found = expressions([Fraction(number) for number in order])
        if Fraction(target) in found:
            _, reward, terminated, _, _ = environment.step(f"<answer>{found[Fraction(target)]}</answer>")
            assert (reward, terminated) == (1.0, True)
            return
    raise AssertionError(f"{observation} cannot be solved")


@pytest.mark.parametrize(
    ("expression", "reply"),
    [
        ("1 +", "no expression"),
        ("__import__('os')", "no expression"),
        ("2 ** 99", "no expression"),
        ("1/0", "divides by zero"),
        ("1", "each be used exactly once"),
        ("", "is needed"),
        ("(" * 250, "no expression"),
        ("9" * 301, "is needed"),
    ],
)
def test_countdown_answers_what_is_no_solution(expression: str, reply: str) -> None:
    environment = Countdown()
    environment.reset(seed=3)
    observation, reward, terminated, _, _ = environment.step(expression)
    assert reply in observation
    assert (reward, terminated) == (0.0, True)


def test_countdown_allows_another_attempt() -> None:
    environment = Countdown(numbers=2, attempts=2)
    observation, _ = environment.reset(seed=0)
    one, other, target = [int(word) for word in re.findall(r"\d+", observation)]
    wrong = f"{one} - {other}" if target != one - other else f"{one} * {other}"
    observation, reward, terminated, _, info = environment.step(wrong)
    assert observation.startswith("That makes")
    assert (reward, terminated, info["action_is_valid"]) == (0.0, False, True)


@pytest.mark.parametrize(
    ("said", "right"), [("0.5", True), ("\\boxed{1/2}", True), ("2/4", True), ("0.51", False)]
)
def test_maths_compares_exactly(said: str, right: bool) -> None:
    environment = Maths(problems=[{"question": "half?", "answer": "1/2"}])
    assert environment.reset(seed=0)[0] == "half?"
    assert environment.step(said)[1] == float(right)


@pytest.mark.parametrize("said", ["1e999999", "9" * 5000, "1/0", "", "nan", "١"])
def test_maths_survives_numbers_that_are_none(said: str) -> None:
    environment = Maths()
    environment.reset(seed=0)
    assert environment.step(said)[1] == 0.0


def test_maths_refuses_problems_without_a_number() -> None:
    with pytest.raises(AgenticError, match="problem 0 needs"):
        Maths(problems=[{"question": "why?", "answer": "because"}])
    with pytest.raises(AgenticError, match="at least one problem"):
        Maths(problems=[])


class Evaluates:
    """A sandbox for sums and products only."""

    async def run_python(self, code: str, *, seconds: float) -> ProgramResult:
        expression = re.fullmatch(r"print\(([\d+*% -]+)\)\s*", code)
        assert expression, code
        return ProgramResult(output=str(eval(expression[1])), exit_code=0)


async def test_problem_is_solved_with_the_python_tool() -> None:
    for seed in range(30):
        question = Maths().reset(seed=seed)[0]
        numbers = re.fullmatch(r"What is (\d+) \* (\d+) - (\d+)\?", question)
        if numbers:
            break
    assert numbers
    one, other, third = numbers.groups()

    class Solver:
        async def act(self, state):
            if state.turn == 0:
                return Turn(response=f"```python\nprint({one} * {other} - {third})\n```")
            return Turn(response=f"\\boxed{{{state.messages[-1].text}}}")

    environment = maths_with_python(sandbox=Evaluates())
    episode = await run_episode(environment, Solver(), seed=seed, max_turns=4)
    assert episode.success
    assert episode.tool_calls == 1


async def test_two_searches_answer_a_question_about_the_invented_country() -> None:
    class Searcher:
        async def act(self, state):
            last = state.messages[-1].text
            if state.turn == 0:
                return Turn(response=tool_call(found(r"mayor of (\w+) born", last)))
            if state.turn == 1:
                town = found(r"mayor of (\w+) born", state.messages[0].text)
                mayor = found(rf"The mayor of {town} is (\w+ \w+)\.", last)
                return Turn(response=tool_call(f"{mayor} was born"))
            mayor = found(r"\"query\": \"(\w+ \w+) was", state.messages[-2].text)
            return Turn(response="<answer>" + found(rf"{mayor} was born in (\w+)", last) + "</answer>")

    def found(pattern: str, text: str) -> str:
        match = re.search(pattern, text)
        assert match, (pattern, text)
        return match[1]

    def tool_call(query: str) -> str:
        return f'<tool_call>{{"name": "search", "arguments": {{"query": "{query}"}}}}</tool_call>'

    environment, solved, asked = retrieval_qa(), 0, 0
    for seed in range(24):
        if "born" in (await environment.reset(seed=seed))[0]:
            asked += 1
            solved += (await run_episode(environment, Searcher(), seed=seed, max_turns=5)).success
    assert solved == asked >= 3


def test_answers_are_compared_like_squad_does() -> None:
    environment = QuestionAnswering([Question("where?", ["The Black Forest"])])
    environment.reset(seed=0)
    assert environment.step("<answer>black forest!</answer>")[1] == 1.0
    partly = QuestionAnswering([Question("where?", ["The Black Forest"])], partial=True)
    partly.reset(seed=0)
    assert partly.step("in the forest")[1] == pytest.approx(0.5)


def test_the_shipped_corpus_is_always_the_same_and_given_ones_are_checked() -> None:
    passages, questions = invented_country()
    assert (len(passages), len(questions)) == (176, 176)
    assert invented_country()[1][5].text == questions[5].text
    with pytest.raises(AgenticError, match="both corpus and questions"):
        retrieval_qa(corpus=[])
    with pytest.raises(AgenticError, match="'title' and 'text'"):
        retrieval_qa(corpus=[{"title": "a"}], questions=[])


@pytest.mark.parametrize("make", [Countdown, Maths, retrieval_qa])
async def test_puzzles_keep_their_promises(make) -> None:
    results = await check_environment(make, actions=["5", "<answer>1</answer>"])
    assert [result for result in results if not result.passed] == []


async def test_wrong_configuration_and_steps_without_reset_are_refused() -> None:
    with pytest.raises(AgenticError, match="numbers of at least 2, got 1"):
        Countdown(numbers=1)
    for environment in (Countdown(), Maths()):
        with pytest.raises(AgenticError, match="call reset before step"):
            environment.step("1")
    assert (await run_episode(Countdown(), ScriptedPolicy(["?"]), seed=0, max_turns=1)).status == "done"
