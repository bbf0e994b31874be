"""An environment worker: episodes token by token, what breaks and whose fault that is, and tools."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from roll_launch.config import (
    EnvironmentConfig,
    EpisodesConfig,
    FunctionToolConfig,
    PythonToolConfig,
    ToolsConfig,
)
from roll_launch.episode_roles import EnvironmentSpec, EpisodeRecord, EpisodeRequest
from roll_launch.failures import RoleDied, RoleError
from roll_launch.tasks.number_guessing import write_files
from roll_launch.workers.environment import EpisodePlayer
from roll_rollout import Completion, EngineError, GenerateRequest, SamplingParams

EOS = 1
Say = Callable[[GenerateRequest], list[int]]


def doubled(number: int) -> int:
    """Twice a number.

    Args:
        number: Any.
    """
    return 2 * number


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guesses")
    write_files(directory, seed=0, demonstrations=0)
    return directory / "tokenizer"


class Scripted:
    """A replica that says what it is told to."""

    def __init__(self, say: Say, *, versions: tuple[int, ...] = (3,)) -> None:
        self._say = say
        self._versions = versions
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        ids = np.array(self._say(request), np.int32)
        version = self._versions[min(len(self.requests), len(self._versions)) - 1]
        return Completion(
            request_id=request.id,
            prompt_ids=request.prompt_ids,
            token_ids=ids,
            logprobs=np.full(len(ids), -0.5, np.float32),
            versions=((version, len(ids)),),
            finish_reason="stop" if ids[-1:] == [EOS] else "length",
            seed=request.seed,
        )

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


def spec(tokenizer: Path, **options: object) -> EnvironmentSpec:
    environment = {"name": "number_guessing", "isolation": "none", **options.pop("environment", {})}  # type: ignore[dict-item]
    return EnvironmentSpec(
        tokenizer=tokenizer,
        environments=(EnvironmentConfig(**environment),),  # type: ignore[arg-type]
        episodes=EpisodesConfig(max_turns=5, form="raw", **options),  # type: ignore[arg-type]
        sampling=SamplingParams(max_tokens=4, stop_token_ids=(EOS,)),
        max_context=64,
        turn_deadline_s=5.0,
    )


async def player(tokenizer: Path, **options: object) -> EpisodePlayer:
    made = EpisodePlayer(spec(tokenizer, **options))
    await made.start()
    return made


REQUEST = EpisodeRequest(id="7", environment="number_guessing", start=12, seed=99)


def number(value: int) -> int:
    """Token of a number: three special ones and four signs come before."""
    return 7 + value


def guessing(*guesses: int) -> Say:
    said = iter(guesses)
    return lambda request: [number(next(said)), EOS]


async def test_an_episode_holds_the_ids_that_were_sampled_and_each_prompt_begins_with_all_before(
    tokenizer: Path,
) -> None:
    replica = Scripted(guessing(0, 15, 1, 14, 2), versions=(3, 3, 4))
    worker = await player(tokenizer)
    played, episode = await worker.play(REQUEST, replica)
    assert episode is not None and played.failure is None
    assert (played.status, played.turns, played.tokens, played.samples) == ("done", 5, 10, 1)
    assert played.versions == ((3, 4), (4, 6)) and played.oldest_version == 3
    ids = episode.transcript.token_ids
    for request in replica.requests:
        assert request.prompt_ids.tolist() == ids[: len(request.prompt_ids)].tolist()
    assert played.context == len(ids)
    assert len({request.seed for request in replica.requests}) == 5


async def test_sampling_follows_from_the_seed_of_the_ticket_alone(tokenizer: Path) -> None:
    worker = await player(tokenizer)
    replicas = [Scripted(guessing(0, 1, 2, 3, 4)) for _ in range(3)]
    for replica, request in zip(
        replicas,
        [REQUEST, REQUEST, EpisodeRequest(id="8", environment="number_guessing", start=12, seed=98)],
        strict=True,
    ):
        await worker.play(request, replica)
    seeds = [[request.seed for request in replica.requests] for replica in replicas]
    assert seeds[0] == seeds[1] and not set(seeds[0]) & set(seeds[2])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RoleDied("actor-0", "generate", "killed"), "replica"),
        (RoleError("actor-0", "generate", "lost"), "engine"),
        (EngineError("the prompt is too long"), "engine"),
        (ValueError("a bug"), "policy_error"),
    ],
)
async def test_a_replica_that_fails_is_told_from_an_environment_that_does(
    tokenizer: Path, error: Exception, kind: str
) -> None:
    def fail(request: GenerateRequest) -> list[int]:
        raise error

    played, _ = await (await player(tokenizer)).play(REQUEST, Scripted(fail))
    assert played.failure is not None and played.failure[0] == kind
    assert np.isnan(played.reward) and not played.success


async def test_ids_that_were_not_sampled_are_refused(tokenizer: Path) -> None:
    class Inexact(Scripted):
        async def generate(self, request: GenerateRequest) -> Completion:
            from dataclasses import replace

            return replace(await super().generate(request), exact=False)

    played, _ = await (await player(tokenizer)).play(REQUEST, Inexact(guessing(0)))
    assert played.failure is not None and "not sampled" in played.failure[1]


async def test_an_environment_that_hangs_costs_its_episode_and_its_place_is_free_again(
    tokenizer: Path,
) -> None:
    worker = await player(
        tokenizer,
        environment={"name": f"{__name__}:Slow", "isolation": "thread", "concurrency": 1, "label": "slow"},
        step_deadline_s=0.1,
    )
    request = EpisodeRequest(id="1", environment="slow", start=1, seed=1)
    for _ in range(2):
        played, _ = await worker.play(request, Scripted(guessing(0)))
        assert played.failure is not None and played.failure[0] == "environment_deadline"


class Slow:
    """Does not answer."""

    def reset(self, *, seed: int) -> tuple[str, dict[str, object]]:
        import time

        time.sleep(1.0)
        return "", {}

    def step(self, action: str, /) -> tuple[str, float, bool, bool, dict[str, object]]:
        raise AssertionError


async def test_an_aborted_episode_ends_and_so_does_what_its_replica_computes(tokenizer: Path) -> None:
    class Never(Scripted):
        async def generate(self, request: GenerateRequest) -> Completion:
            self.requests.append(request)
            await asyncio.Event().wait()
            raise AssertionError

    replica, worker = Never(guessing()), await player(tokenizer)
    playing = asyncio.create_task(worker.play(REQUEST, replica))
    while not replica.requests:
        await asyncio.sleep(0)
    await worker.abort(REQUEST.id)
    await worker.abort("one that is over")
    played, episode = await playing
    await asyncio.sleep(0)
    assert played.failure is not None and played.failure[0] == "aborted" and episode is None
    assert replica.aborted == [replica.requests[0].id]


async def test_more_episodes_than_places_wait_for_their_turn(tokenizer: Path) -> None:
    worker = await player(tokenizer, environment={"concurrency": 2})
    running = most = 0

    class Counting(Scripted):
        async def generate(self, request: GenerateRequest) -> Completion:
            nonlocal running, most
            running, most = running + 1, max(most, running + 1)
            await asyncio.sleep(0.02)
            running -= 1
            return await super().generate(request)

    requests = [EpisodeRequest(id=f"{n}", environment="number_guessing", start=n, seed=n) for n in range(6)]
    done = await asyncio.gather(*(worker.play(each, Counting(guessing(*range(5)))) for each in requests))
    assert len(done) == 6 and most == 2


async def test_a_function_and_a_program_are_called_as_tools(tokenizer: Path) -> None:
    answers = iter(
        [
            '<tool_call>{"name": "doubled", "arguments": {"number": 21}}</tool_call>',
            '<tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>',
            '<tool_call>{"name": "python", "arguments": {"code": "while True: pass"}}</tool_call>',
        ]
    )
    tools = ToolsConfig(
        offered=(
            FunctionToolConfig(tool="function", callable=f"{__name__}:doubled"),
            PythonToolConfig(tool="python", seconds=1.0, sandboxes=1),
        ),
        calls=3,
    )
    from roll_launch.workers.environments import WorkerEnvironments

    environments = WorkerEnvironments([EnvironmentConfig(name="number_guessing", tools=tools)])
    await environments.start()
    try:
        async with environments.pool("number_guessing").lease() as lease:
            await lease.environment.reset(seed=1)  # type: ignore[misc]
            observed = [(await lease.environment.step(answer))[0] for answer in answers]  # type: ignore[misc]
    finally:
        await environments.close()
    assert observed[:2] == ["42", "42\n"]
    assert observed[2].startswith("Error: stopped after 1 s")


async def test_episodes_are_written_down_at_their_place(tokenizer: Path, tmp_path: Path) -> None:
    worker = await player(tokenizer)
    played, episode = await worker.play(REQUEST, Scripted(guessing(0, 1, 2, 3, 4)))
    assert episode is not None
    record = EpisodeRecord(
        step=2, group=5, member=1, seed=99, environment="number_guessing", start=12, played=played, reward=0.0
    )
    path = tmp_path / "rl.jsonl"
    end = worker.record(path, [record], [episode], 0)
    assert worker.record(path, [record, record], [episode, episode], end) == path.stat().st_size
    assert worker.record(path, [record], [episode], end) == path.stat().st_size == 2 * end
    line = json.loads(path.read_text().splitlines()[1])
    assert (line["step"], line["group"], line["member"], line["turns"]) == (2, 5, 1, 5)
    assert [message["text"] for message in line["messages"][:2]] == ["?", "0"]
    assert line["logprob"] == pytest.approx(-5.0)
    with pytest.raises(OSError, match="bytes"):
        worker.record(path, [record], [episode], 10**6)
