import asyncio
import contextlib
import os

import pytest
from roll_agentic import (
    AgenticError,
    EnvironmentFault,
    ProcessEnvironment,
    ScriptedPolicy,
    check_environment,
    run_episode,
)

pytestmark = pytest.mark.timeout(120)


async def play(environment: ProcessEnvironment, *texts: str, deadline_s: float = 60.0):
    return await run_episode(
        environment, ScriptedPolicy(texts), seed=3, max_turns=len(texts), step_deadline_s=deadline_s
    )


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_process_answers_survives_prints_and_raises_and_is_replaced_when_it_hangs_or_dies() -> None:
    environment = ProcessEnvironment("fragile:Fragile", greeting="hi")
    try:
        first = await play(environment, "print", "é\ud800 ok", "stop")
        assert first.status == "done"
        assert [message.text for message in first.messages[::2]] == ["hi 3", "print", "é\ud800 ok", "stop"]
        _, info = await environment.reset(seed=4)
        pid = info["pid"]
        assert (pid != os.getpid(), info["pair"]) == (True, [1, 2])
        raised = await play(environment, "raise")
        assert raised.failure is not None
        assert "Fragile.step raised ValueError: told to" in raised.failure.message
        assert (await environment.reset(seed=5))[1]["pid"] == pid

        hung = await play(environment, "hang", deadline_s=2.0)
        assert (hung.status, hung.failure and hung.failure.kind) == ("env_error", "deadline")
        for _ in range(100):
            if not is_alive(pid):
                break
            await asyncio.sleep(0.05)
        second = (await environment.reset(seed=6))[1]["pid"]
        assert second != pid
        died = await play(environment, "exit")
        assert died.failure is not None
        assert "ended with code 7" in died.failure.message
        assert (await environment.reset(seed=7))[0] == "hi 7"
    finally:
        await environment.close()
        await environment.close()
    with pytest.raises(AgenticError, match="call reset before step"):
        await environment.step("a")


async def test_process_that_starts_too_slowly_does_not_answer_the_next_call() -> None:
    environment = ProcessEnvironment("fragile:Fragile")
    episode = await run_episode(
        environment, ScriptedPolicy(["a"]), seed=1, max_turns=1, reset_retries=0, step_deadline_s=0.01
    )
    assert episode.status == "env_error"
    assert (await environment.reset(seed=2))[0] == "hello 2"
    await environment.close()


async def test_environment_that_cannot_be_made_says_why() -> None:
    environment = ProcessEnvironment("no_such_environment")
    with pytest.raises(EnvironmentFault, match="there is no environment 'no_such_environment'"):
        await environment.reset(seed=0)
    await environment.close()
    with pytest.raises(AgenticError, match="must be JSON"):
        ProcessEnvironment("fragile:Fragile", greeting=object())


@pytest.mark.slow
async def test_environment_in_a_process_keeps_its_promises() -> None:
    results = await check_environment(
        lambda: ProcessEnvironment("number_guessing"), actions=["3", "8"], seeds=range(2)
    )
    assert [result for result in results if not result.passed] == []
