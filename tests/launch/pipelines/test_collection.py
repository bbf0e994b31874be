"""Single tickets: what an engine or a grader does with them becomes a result or a failure, never a hang."""

import asyncio
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from roll_launch.config import HealthConfig, RunConfig
from roll_launch.local_runtime import LocalActor
from roll_launch.pipelines.collection import RolloutWork
from roll_launch.pipelines.rollout_clock import RolloutClock
from roll_launch.plan import Prompt, RlvrPlan, StagePlan
from roll_launch.role_group import RoleGroup
from roll_launch.roles import Handle, Pulse
from roll_launch.waits import Waits
from roll_rewards import Failure, Score
from roll_rollout import SamplingParams, ScriptedEngine
from roll_scheduler import Ticket, TicketFailed

TICKET = Ticket(id=1, group=0, member=0, attempt=0, seed=7)
SAMPLING = SamplingParams(max_tokens=4, stop_token_ids=(1,))


class _Worker:
    """A reward worker that always gives the same score."""

    def __init__(self, score: Score) -> None:
        self._score = score

    async def grade(self, completion: Handle, reference: object, columns: Mapping[str, object]) -> Score:
        return self._score

    async def record(self, path, records, *, offset) -> int:
        raise AssertionError("nothing is recorded here")

    async def pulse(self) -> Pulse:
        return Pulse(busy=False, progress=0)


@pytest.fixture
def prompt(planned: Callable[..., tuple[RunConfig, list[StagePlan]]]) -> Prompt:
    (plan,) = planned()[1]
    assert isinstance(plan, RlvrPlan)
    return plan.prompts.prompts[0]


def _work(engine: ScriptedEngine, score: Score | None = None) -> RolloutWork:
    worker = _Worker(score or Score(value=1.0))
    return RolloutWork(
        _group({"actor-0": LocalActor(engine)}),
        _group({"reward-0": worker}),
        sampling=SAMPLING,
        clock=RolloutClock(rows=4),
    )


def _group(workers):
    async def never(name: str):
        raise AssertionError("nothing is replaced here")

    group = RoleGroup("worker", start=never, health=HealthConfig(), waits=Waits(), start_deadline_s=1.0)
    group.live = workers
    return group


async def test_a_completion_tells_its_length_version_and_whether_it_was_cut(prompt: Prompt) -> None:
    ended = await _work(ScriptedEngine(lambda request: [5, 1], version=3)).generate(TICKET, prompt, "actor-0")
    assert (ended.tokens, ended.oldest_version, ended.truncated) == (2, 3, False)
    cut = await _work(ScriptedEngine(lambda request: [5] * 9)).generate(TICKET, prompt, "actor-0")
    assert (cut.tokens, cut.truncated) == (4, True)


async def test_an_engines_error_fails_the_ticket_alone(prompt: Prompt) -> None:
    def broken(request: object) -> list[int]:
        raise ValueError("no such token")

    with pytest.raises(TicketFailed) as caught:
        await _work(ScriptedEngine(broken)).generate(TICKET, prompt, "actor-0")
    assert caught.value.kind == "engine"


async def test_a_cancelled_ticket_is_aborted_in_its_engine(prompt: Prompt) -> None:
    engine = ScriptedEngine(lambda request: iter(lambda: 5, None), seconds_per_token=lambda request: 30.0)
    task = asyncio.create_task(_work(engine).generate(TICKET, prompt, "actor-0"))
    while (await engine.load()).running == 0:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(20):
        await asyncio.sleep(0)
    assert (await engine.load()).running == 0


async def test_a_score_without_a_verdict_fails_the_ticket_and_is_never_zero(prompt: Prompt) -> None:
    missing = Score(value=float("nan"), failure=Failure(kind="deadline", message="2 s"))
    engine = ScriptedEngine(lambda request: [1])
    with pytest.raises(TicketFailed) as caught:
        await _work(engine, missing).grade(TICKET, prompt, np.array([1]))
    assert caught.value.kind == "reward_deadline"
