import asyncio
import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
from roll_agentic import (
    AgenticError,
    EpisodeState,
    Message,
    NumberGuessing,
    Segment,
    Turn,
    run_episode,
    summarise_episodes,
)


class Script:
    """A policy that says one text after the other, or whatever a function makes of the state."""

    def __init__(self, *texts: str, act: Callable[[EpisodeState], object] | None = None) -> None:
        self.texts = texts
        self.function = act
        self.states: list[EpisodeState] = []

    async def act(self, state: EpisodeState) -> Turn:
        self.states.append(state)
        if self.function is None:
            return Turn(response=self.texts[state.turn])
        return self.function(state)  # type: ignore[return-value]


class Counter:
    """Counts its steps; ends with reward 1 at the third. `fault` maps a call to what it does instead."""

    def __init__(self, **fault: Callable[[], object]) -> None:
        self.fault = fault
        self.calls: list[str] = []
        self.threads: set[int] = set()

    def reset(self, *, seed: int) -> tuple:
        return self._answer(f"reset{self.calls.count('reset')}", "reset", ("0", {"seed": seed}))

    def step(self, action: str, /) -> tuple:
        done = self.calls.count("step") + 1
        answer = (str(done), float(done == 3), done == 3, False, {"action_is_valid": action != "jump"})
        return self._answer(f"step{done}", "step", answer)

    def _answer(self, moment: str, method: str, answer: tuple) -> tuple:
        self.calls.append(method)
        self.threads.add(threading.get_ident())
        return self.fault[moment]() if moment in self.fault else answer  # type: ignore[return-value]


class AsyncCounter(Counter):
    """The same, with coroutine methods."""

    async def reset(self, *, seed: int) -> tuple:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(seed=seed)

    async def step(self, action: str, /) -> tuple:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


def broken() -> object:
    raise ConnectionError("gone")


def hangs() -> object:
    threading.Event().wait()
    return None


def exits() -> object:
    raise SystemExit(3)


async def test_policy_and_environment_take_turns_until_the_end() -> None:
    policy = Script("a", "b", "c", "d")
    episode = await run_episode(Counter(), policy, seed=7, max_turns=10)
    assert episode.status == "done"
    assert episode.success and episode.terminated and not episode.truncated
    assert episode.rewards.tolist() == [0.0, 0.0, 1.0]
    assert episode.total_reward == 1.0
    assert [message.text for message in episode.messages] == ["0", "a", "1", "b", "2", "c", "3"]
    assert [message.role for message in episode.messages[:2]] == ["environment", "policy"]
    assert episode.seed == 7
    assert episode.failure is None
    assert episode.seconds > 0


async def test_policy_sees_what_happened_so_far() -> None:
    policy = Script("a", "b", "c")
    await run_episode(Counter(), policy, seed=7, max_turns=2)
    first, second = policy.states
    assert (first.turn, first.seed, first.info) == (0, 7, {"seed": 7})
    assert first.messages == (Message(role="environment", text="0"),)
    assert second.turn == 1
    assert second.messages[-1] == Message(role="environment", text="1")
    assert second.info == {"action_is_valid": True}


async def test_async_environment_is_awaited_in_the_loop() -> None:
    environment = AsyncCounter()
    episode = await run_episode(environment, Script("a", "b", "c"), seed=0, max_turns=5)
    assert episode.success
    assert environment.threads == {threading.get_ident()}


async def test_plain_environment_lives_in_one_thread_that_is_not_the_loop() -> None:
    environment = Counter()
    await run_episode(environment, Script("a", "b", "c"), seed=0, max_turns=5)
    assert len(environment.threads) == 1
    assert environment.threads != {threading.get_ident()}
    for thread in threading.enumerate():
        if thread.ident in environment.threads:
            thread.join(timeout=5)
            assert not thread.is_alive()


async def test_turns_fill_the_transcript_token_by_token() -> None:
    def act(state: EpisodeState) -> Turn:
        context = Segment(source="environment", token_ids=np.array([int(state.messages[-1].text)]))
        answer = Segment(
            source="sampled",
            token_ids=np.array([10 + state.turn]),
            logprobs=np.array([-1.0]),
            versions=((state.turn, 1),),
            finish_reason="stop",
        )
        assert len(state.transcript) == 2 * state.turn
        return Turn(response="x", segments=(context, answer))

    episode = await run_episode(Counter(), Script(act=act), seed=0, max_turns=5)
    row = episode.transcript.to_training_row()
    assert row.token_ids.tolist() == [0, 10, 1, 11, 2, 12]
    assert row.response_mask.tolist() == [False, True] * 3
    assert (row.oldest_version, row.newest_version) == (0, 2)


async def test_running_out_of_turns_is_no_success() -> None:
    episode = await run_episode(Counter(), Script("a", "b"), seed=0, max_turns=2)
    assert (episode.status, episode.success, episode.truncated) == ("max_turns", False, True)
    assert episode.total_reward == 0.0


async def test_invalid_actions_use_up_turns_and_are_counted() -> None:
    episode = await run_episode(Counter(), Script("jump", "a", "jump"), seed=0, max_turns=5)
    assert episode.invalid_actions == 2
    assert episode.status == "done"


async def test_environment_may_cut_an_episode_off() -> None:
    environment = Counter(step2=lambda: ("2", 0.5, False, True, {}))
    episode = await run_episode(environment, Script("a", "b"), seed=0, max_turns=5)
    assert (episode.status, episode.total_reward, episode.truncated) == ("truncated", 0.5, True)


async def test_response_that_was_cut_off_is_not_carried_out() -> None:
    environment = Counter()
    policy = Script(act=lambda state: Turn(response="go", finish_reason="length"))
    episode = await run_episode(environment, policy, seed=0, max_turns=5)
    assert (episode.status, episode.truncated, episode.failure) == ("length", True, None)
    assert environment.calls == ["reset"]
    assert episode.rewards.tolist() == [0.0]
    assert len(episode.turns) == 1


@pytest.mark.parametrize("environment_class", [Counter, AsyncCounter])
@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (broken, "error", "step raised ConnectionError: gone"),
        (
            lambda: None,
            "invalid",
            "must return (observation, reward, terminated, truncated, info), got NoneType",
        ),
        (lambda: (1, 0.0, False, False, {}), "invalid", "a str as observation, got int 1"),
        (lambda: ("", math.nan, False, False, {}), "invalid", "a finite number as reward, got float nan"),
        (lambda: ("", "1", False, False, {}), "invalid", "a finite number as reward, got str '1'"),
        (lambda: ("", 0.0, 1, False, {}), "invalid", "a bool as terminated, got int 1"),
        (lambda: ("", 0.0, False, None, {}), "invalid", "a bool as truncated, got NoneType"),
        (lambda: ("", 0.0, False, False, None), "invalid", "a mapping as info, got NoneType"),
    ],
)
async def test_broken_environment_ends_the_episode_without_a_verdict(
    environment_class: type[Counter], fault: Callable[[], object], kind: str, message: str
) -> None:
    episode = await run_episode(environment_class(step2=fault), Script("a", "b", "c"), seed=0, max_turns=5)
    assert episode.status == "env_error"
    assert math.isnan(episode.total_reward)
    assert not episode.success
    assert episode.failure is not None
    assert episode.failure.kind == kind
    assert message in episode.failure.message
    assert len(episode.turns) == 2


async def test_environment_that_hangs_misses_its_deadline() -> None:
    episode = await run_episode(Counter(step1=hangs), Script("a"), seed=0, max_turns=5, step_deadline_s=0.05)
    assert episode.status == "env_error"
    assert episode.failure is not None
    assert episode.failure.kind == "deadline"
    assert episode.failure.message == "Counter.step: no answer within 0.05 s"


async def test_environment_that_exits_takes_only_its_episode_along() -> None:
    episode = await run_episode(Counter(step1=exits), Script("a"), seed=0, max_turns=5)
    assert episode.failure is not None
    assert "SystemExit: 3" in episode.failure.message


async def test_failed_reset_is_tried_again() -> None:
    environment = Counter(reset0=broken)
    episode = await run_episode(environment, Script("a", "b", "c"), seed=0, max_turns=5)
    assert episode.status == "done"
    assert environment.calls[:2] == ["reset", "reset"]


async def test_reset_that_hung_does_not_block_the_next_attempt() -> None:
    environment = Counter(reset0=hangs)
    episode = await run_episode(environment, Script("a", "b", "c"), seed=0, max_turns=5, step_deadline_s=0.05)
    assert episode.status == "done"


async def test_reset_that_keeps_failing_gives_up_after_its_retries() -> None:
    environment = Counter(reset0=broken, reset1=broken, reset2=broken)
    episode = await run_episode(environment, Script("a"), seed=0, max_turns=5, reset_retries=2)
    assert episode.status == "env_error"
    assert environment.calls == ["reset"] * 3
    assert episode.turns == ()
    assert episode.messages == ()


def changes_transcript(state: EpisodeState) -> Turn:
    state.transcript.append(Segment(source="environment", token_ids=np.array([1])))
    return Turn(response="a")


def aborted(state: EpisodeState) -> Turn:
    return Turn(response="", finish_reason="abort")


def without_context(state: EpisodeState) -> Turn:
    said = Segment(
        source="sampled",
        token_ids=np.array([1]),
        logprobs=np.array([0.0]),
        versions=((0, 1),),
        finish_reason="stop",
    )
    return Turn(response="a", segments=(said,))


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (lambda state: 1 / 0, "error", "Script.act raised ZeroDivisionError"),
        (lambda state: "a", "invalid", "Script.act must return a Turn, got str 'a'"),
        (changes_transcript, "invalid", "changed the transcript"),
        (without_context, "invalid", "sampled without any context"),
        (aborted, "abort", "turn 0 of Script was aborted"),
    ],
)
async def test_broken_policy_ends_the_episode_without_a_verdict(
    act: Callable[[EpisodeState], object], kind: str, message: str
) -> None:
    episode = await run_episode(Counter(), Script(act=act), seed=0, max_turns=5)
    assert episode.status == "policy_error"
    assert episode.failure is not None
    assert episode.failure.kind == kind
    assert message in episode.failure.message
    assert math.isnan(episode.total_reward)


class Silent:
    """A policy that never answers; remembers whether it was cancelled."""

    cancelled = False

    async def act(self, state: EpisodeState) -> Turn:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        return Turn(response="")


async def test_policy_that_never_answers_misses_its_deadline() -> None:
    policy = Silent()
    episode = await run_episode(Counter(), policy, seed=0, max_turns=5, act_deadline_s=0.02)
    assert episode.status == "policy_error"
    assert episode.failure is not None
    assert episode.failure.kind == "deadline"
    assert policy.cancelled


async def test_cancelled_episode_cancels_its_policy() -> None:
    policy = Silent()
    entered = asyncio.Event()
    original = policy.act

    async def act(state: EpisodeState) -> Turn:
        entered.set()
        return await original(state)

    policy.act = act  # type: ignore[method-assign]
    playing = asyncio.create_task(run_episode(Counter(), policy, seed=0, max_turns=5))
    await entered.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert policy.cancelled


@pytest.mark.parametrize(
    "options", [{"max_turns": 0}, {"reset_retries": -1}, {"step_deadline_s": 0}, {"act_deadline_s": math.nan}]
)
async def test_arguments_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(AgenticError, match=f"run_episode needs {next(iter(options))}"):
        await run_episode(Counter(), Script("a"), **{"seed": 0, "max_turns": 1} | options)


async def test_many_episodes_play_at_once_and_failures_enter_no_mean() -> None:
    environments = [
        Counter(),
        Counter(),
        Counter(step1=broken),
        Counter(step3=lambda: ("", 0.0, True, False, {})),
    ]
    policy = Script("jump", "b", "c")
    episodes = await asyncio.gather(*(run_episode(e, policy, seed=0, max_turns=5) for e in environments))
    metrics = summarise_episodes(episodes)
    assert metrics["env/episodes"] == 4
    assert metrics["env/reward/mean"] == pytest.approx(2 / 3)
    assert metrics["env/success_rate"] == pytest.approx(2 / 3)
    assert (metrics["env/reward/min"], metrics["env/reward/max"]) == (0.0, 1.0)
    assert metrics["env/turns/mean"] == 3
    assert metrics["env/invalid_actions/mean"] == 1
    assert metrics["env/status/done"] == 3
    assert metrics["env/status/env_error"] == 1
    assert metrics["env/failed/error"] == 1


def test_metrics_of_no_episodes_have_no_mean() -> None:
    metrics = summarise_episodes([])
    assert metrics["env/episodes"] == 0
    assert math.isnan(metrics["env/reward/mean"])


async def test_number_guessing_is_won_by_bisection() -> None:
    def bisect(state: EpisodeState) -> Turn:
        low, high = 0, 15
        texts = [message.text for message in state.messages]
        for guess, answer in zip(map(int, texts[1::2]), texts[2::2], strict=True):
            low, high = (guess + 1, high) if answer == ">" else (low, guess - 1)
        return Turn(response=str((low + high) // 2))

    policy = Script(act=bisect)
    episodes = [await run_episode(NumberGuessing(), policy, seed=seed, max_turns=5) for seed in range(20)]
    assert all(episode.success for episode in episodes)
