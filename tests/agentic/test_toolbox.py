import asyncio
import threading

import pytest
from roll_agentic import AgenticError, EnvironmentFault, ScriptedPolicy, check_environment, run_episode
from roll_agentic.tools import (
    Bm25Index,
    Passage,
    ProgramResult,
    PythonTool,
    SearchTool,
    Toolbox,
    ToolCall,
    ToolEnvironment,
    ToolUnavailable,
)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, id=f"id_{name}")


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "awake"


def hang() -> str:
    """Hang."""
    threading.Event().wait()
    return ""


async def test_results_come_in_order_as_text() -> None:
    box = Toolbox([add, nap])
    results = await box.call_all([call("nap", seconds=0.01), call("add", a=2), call("add", a=2, b=5)])
    assert [result.text for result in results] == ["awake", "3", "7"]
    assert all(result.was_made and not result.is_error for result in results)
    assert box.names == ("add", "nap")


async def test_calls_of_one_response_run_at_the_same_time() -> None:
    clock = asyncio.get_running_loop().time
    started = clock()
    await Toolbox([nap]).call_all([call("nap", seconds=0.2)] * 5)
    assert clock() - started < 0.8


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (call("sub", a=1), "Error: there is no tool 'sub'; there are add, fail, hang"),
        (call("add"), "Error: missing argument a"),
        (call("add", a="x"), "Error: argument a must be integer, got 'x'"),
        (call("fail", text="no"), "Error: ValueError: no"),
        (call("hang"), "Error: hang gave no answer within 0.05 s"),
    ],
)
async def test_what_goes_wrong_is_told_to_the_model(made: ToolCall, text: str) -> None:
    (result,) = await Toolbox([add, fail, hang], deadline_s=0.05).call_all([made])
    assert (result.text, result.is_error, result.was_made) == (text, True, True)


async def test_calls_beyond_the_budget_are_refused_and_not_made() -> None:
    results = await Toolbox([add]).call_all([call("add", a=n) for n in range(3)], budget=2)
    assert [result.was_made for result in results] == [True, True, False]
    assert "no tool calls are left" in results[2].text


async def test_long_result_is_cut_in_the_middle() -> None:
    def long() -> str:
        """Say much."""
        return "a" * 500 + "b" * 500

    (result,) = await Toolbox([long], longest_text=100).call_all([call("long")])
    assert result.text.startswith("a" * 50)
    assert result.text.endswith("b" * 50)
    assert "[... 900 characters left out ...]" in result.text


def test_toolbox_refuses_two_tools_of_one_name() -> None:
    with pytest.raises(AgenticError, match="two tools are named 'add'"):
        Toolbox([add, add])


class Riddle:
    """Wants the word `12` in one turn."""

    def reset(self, *, seed: int) -> tuple:
        return "what is 7 + 5?", {"instructions": "answer"}

    def step(self, action: str, /) -> tuple:
        return "", float(action == "12"), True, False, {"action_is_valid": True}


CALL = '<tool_call>{"name": "add", "arguments": {"a": 7, "b": 5}}</tool_call>'


async def test_tools_answer_before_the_environment_does() -> None:
    environment = ToolEnvironment(Riddle(), Toolbox([add]), budget=2)
    episode = await run_episode(environment, ScriptedPolicy([CALL, CALL + CALL, "12"]), seed=0, max_turns=9)
    assert episode.success
    assert [message.text for message in episode.messages[::2]] == [
        "what is 7 + 5?",
        "12",
        "[call_0 add] 12\n[call_1 add] Error: no tool calls are left; answer with what you know",
        "",
    ]
    assert episode.tool_calls == 2
    assert episode.invalid_actions == 0


async def test_mistake_goes_back_to_the_model_with_its_penalty() -> None:
    environment = ToolEnvironment(Riddle(), Toolbox([add]), mistake_reward=-0.5)
    bad = '<tool_call>{"name": "add", "arguments": "7"}</tool_call>'
    episode = await run_episode(environment, ScriptedPolicy([bad, "12"]), seed=0, max_turns=9)
    assert episode.rewards.tolist() == [-0.5, 1.0]
    assert "must be an object" in episode.messages[2].text
    assert (episode.invalid_actions, episode.tool_calls) == (1, 0)


async def test_limit_of_tool_calls_ends_the_episode() -> None:
    environment = ToolEnvironment(Riddle(), Toolbox([add]))
    episode = await run_episode(environment, ScriptedPolicy([CALL]), seed=0, max_turns=99, max_tool_calls=3)
    assert episode.status == "max_tool_calls"
    assert (len(episode.turns), episode.truncated) == (3, True)


async def test_broken_infrastructure_is_a_fault_not_an_answer() -> None:
    class Down:
        async def run_python(self, code: str, *, seconds: float) -> ProgramResult:
            raise ToolUnavailable("no sandbox is left")

    environment = ToolEnvironment(Riddle(), Toolbox([PythonTool(Down())]), parser="python")
    policy = ScriptedPolicy(["```python\nprint(1)\n```"])
    episode = await run_episode(environment, policy, seed=0, max_turns=9)
    assert episode.status == "env_error"
    assert episode.failure is not None
    assert "no sandbox is left" in episode.failure.message
    await environment.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="not available"):
        await environment.step("```python\nprint(1)\n```")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ProgramResult(output="4\n", exit_code=0), "4\n"),
        (ProgramResult(output="", exit_code=0), "(no output)"),
        (ProgramResult(output="Traceback", exit_code=1), "Traceback\nError: exit code 1"),
        (ProgramResult(output="1", exit_code=None, timed_out=True), "1\nError: stopped after 5 s"),
    ],
)
async def test_python_tool_describes_how_a_program_went(result: ProgramResult, text: str) -> None:
    class Fixed:
        async def run_python(self, code: str, *, seconds: float) -> ProgramResult:
            assert (code, seconds) == ("print(4)", 5.0)
            return result

    assert await PythonTool(Fixed()).call({"code": "print(4)"}) == text


async def test_wrapped_environment_keeps_its_promises() -> None:
    results = await check_environment(
        lambda: ToolEnvironment(Riddle(), Toolbox([add]), budget=3), actions=[CALL, "12", "5"], seeded=False
    )
    assert {result.name for result in results if not result.passed} <= {"step_after_done"}


async def test_search_finds_by_words_and_says_when_there_is_nothing() -> None:
    index = Bm25Index(
        [
            Passage(title="Rhine", text="A river through Basel and Cologne."),
            Passage(title="Etna", text="A volcano in Sicily."),
            Passage(title="Elbe", text="A river through Dresden."),
        ]
    )
    tool = SearchTool(index, most=2)
    assert (await tool.call({"query": "volcano"})).startswith("(1) Etna: A volcano")
    assert [hit.passage.title for hit in index.find("river Cologne")] == ["Rhine", "Elbe"]
    assert await tool.call({"query": "zzz ???"}) == "Nothing was found."
    with pytest.raises(AgenticError, match="at least one passage"):
        Bm25Index([])


async def test_wrapped_environment_that_hung_once_answers_the_next_episode() -> None:
    class Slow(Riddle):
        def step(self, action: str, /) -> tuple:
            if action == "hang":
                threading.Event().wait()
            return super().step(action)

    environment = ToolEnvironment(Slow(), Toolbox([add]))
    hung = await run_episode(environment, ScriptedPolicy(["hang"]), seed=0, max_turns=1, step_deadline_s=0.1)
    assert hung.status == "env_error"
    fine = await run_episode(environment, ScriptedPolicy(["12"]), seed=0, max_turns=1, step_deadline_s=5.0)
    assert fine.success
