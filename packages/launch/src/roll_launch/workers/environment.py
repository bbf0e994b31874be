"""An environment worker's work: play episodes against replicas, write them down for people."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from roll_agentic import (
    ChatPolicy,
    ChatPolicyConfig,
    ChatTokenizer,
    EnvironmentFault,
    Episode,
    HuggingFaceChat,
    PlainText,
    row_count,
    run_episode,
)

from roll_launch.episode_roles import EnvironmentSpec, EpisodeRecord, EpisodeRequest, PlayedEpisode
from roll_launch.models import load_tokenizer
from roll_launch.workers.environments import WorkerEnvironments
from roll_launch.workers.rollout_lines import finite, write_lines
from roll_launch.workers.turn_engine import Replica, TurnEngine


class EpisodePlayer:
    """Plays any number of episodes at once, as many of each environment as its pool has places."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._chat = _chat(spec)
        self._environments = WorkerEnvironments(spec.environments)
        self._playing: dict[str, asyncio.Task[tuple[PlayedEpisode, Episode | None]]] = {}

    async def start(self) -> None:
        """Connects to what tools need; see `WorkerEnvironments.start`."""
        await self._environments.start()

    async def play(self, request: EpisodeRequest, replica: Replica) -> tuple[PlayedEpisode, Episode | None]:
        """Plays one episode; what the driver holds of it has no handle yet.

        Args:
            request: Which.
            replica: Samples all its turns.
        """
        task = asyncio.get_running_loop().create_task(self._play(request, replica))
        self._playing[request.id] = task
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task.done() and not (current and current.cancelling()):
                return _no_episode("aborted", f"the episode {request.id} was ended early"), None
            task.cancel()
            raise
        finally:
            self._playing.pop(request.id, None)

    async def abort(self, request_id: str) -> None:
        """Ends an episode early; one that is over is no matter."""
        task = self._playing.get(request_id)
        if task is not None:
            task.cancel()

    def record(
        self, path: Path, records: Sequence[EpisodeRecord], episodes: Sequence[Episode], offset: int
    ) -> int:
        """Writes one JSON line an episode, from byte `offset` on; returns the file's new length.

        Raises:
            OSError: The file is shorter than `offset`, or cannot be written.
        """
        rows = (_line(record, episode) for record, episode in zip(records, episodes, strict=True))
        return write_lines(path, rows, offset=offset)

    async def close(self) -> None:
        """Closes environments and connections."""
        for task in list(self._playing.values()):
            task.cancel()
        await self._environments.close()

    async def _play(self, request: EpisodeRequest, replica: Replica) -> tuple[PlayedEpisode, Episode | None]:
        engine = TurnEngine(replica, self._spec.sampling, name=request.id)
        try:
            async with self._environments.pool(request.environment).lease() as lease:
                settings = self._spec.episodes
                episode = await run_episode(
                    lease.environment,
                    ChatPolicy(engine, self._chat, _policy_config(self._spec, request)),
                    seed=request.start,
                    max_turns=settings.max_turns,
                    max_tokens=settings.max_tokens,
                    max_tool_calls=settings.max_tool_calls,
                    seconds=settings.seconds,
                    step_deadline_s=settings.step_deadline_s,
                    act_deadline_s=self._spec.turn_deadline_s,
                )
                if episode.status == "env_error" or episode.status == "time_limit":
                    lease.discard()
        except EnvironmentFault as fault:
            return _no_episode(f"environment_{fault.kind}", fault.message), None
        return _played(episode, engine, self._spec), episode


def _chat(spec: EnvironmentSpec) -> ChatTokenizer:
    tokenizer, episodes = load_tokenizer(spec.tokenizer), spec.episodes
    if episodes.form == "raw":
        return PlainText(tokenizer)
    return HuggingFaceChat(tokenizer, **episodes.template_options)


def _policy_config(spec: EnvironmentSpec, request: EpisodeRequest) -> ChatPolicyConfig:
    episodes = spec.episodes
    return ChatPolicyConfig(
        context_tokens=spec.max_context,
        turn_tokens=spec.sampling.max_tokens,
        history=episodes.history,
        overflow=episodes.overflow,
        observation_chars=episodes.observation_chars,
        system="" if episodes.form == "raw" and episodes.system is None else episodes.system,
        tool_role=episodes.tool_role,
        stops=spec.sampling.stop,
        member=request.seed,
    )


def _played(episode: Episode, engine: TurnEngine, spec: EnvironmentSpec) -> PlayedEpisode:
    failure = engine.failure
    if failure is None and episode.failure is not None:
        side = "environment" if episode.status == "env_error" else "policy"
        failure = (f"{side}_{episode.failure.kind}", episode.failure.message)
    samples = row_count(episode.history, spec.episodes.samples)
    if failure is None and not samples:
        failure = (
            "no_turn",
            f"the episode from start {episode.seed} ended ({episode.status}) before the policy said a "
            "token; a turn needs to fit behind rollout.max_prompt_tokens",
        )
    return PlayedEpisode(
        episode=None,
        status=str(episode.status),
        reward=math.nan if failure else episode.total_reward,
        success=failure is None and episode.success,
        versions=_versions(episode),
        context=len(episode.history),
        samples=samples,
        turns=len(episode.turns),
        tool_calls=episode.tool_calls,
        invalid_actions=episode.invalid_actions,
        engine_s=engine.seconds,
        environment_s=max(0.0, episode.seconds - engine.seconds),
        failure=failure,
    )


def _versions(episode: Episode) -> tuple[tuple[int, int], ...]:
    """Who sampled the episode's tokens, in runs."""
    runs: list[tuple[int, int]] = []
    for turn in episode.turns:
        for version, tokens in turn.segments[-1].versions if turn.segments else ():
            if runs and runs[-1][0] == version:
                runs[-1] = (version, runs[-1][1] + tokens)
            else:
                runs.append((version, tokens))
    return tuple(runs)


def _no_episode(kind: str, message: str) -> PlayedEpisode:
    return PlayedEpisode(
        episode=None,
        status="env_error",
        reward=math.nan,
        success=False,
        versions=(),
        context=0,
        samples=0,
        turns=0,
        tool_calls=0,
        invalid_actions=0,
        engine_s=0.0,
        environment_s=0.0,
        failure=(kind, message),
    )


def _line(record: EpisodeRecord, episode: Episode) -> Mapping[str, object]:
    played = record.played
    return {
        "step": record.step,
        "group": record.group,
        "member": record.member,
        "seed": record.seed,
        "environment": record.environment,
        "start": record.start,
        "status": played.status,
        "score": finite(played.reward),
        "reward": finite(record.reward),
        "success": played.success,
        "turns": played.turns,
        "tool_calls": played.tool_calls,
        "invalid_actions": played.invalid_actions,
        "tokens": played.tokens,
        "context": played.context,
        "messages": [
            {"role": "tool" if message.is_tool else message.role, "text": message.text}
            for message in episode.messages
        ],
        "rewards": episode.rewards.tolist(),
        "logprob": finite(
            float(sum(turn.segments[-1].logprobs.sum() for turn in episode.turns if turn.segments))
        ),
        "versions": list(played.versions),
        "engine_s": round(played.engine_s, 4),
        "environment_s": round(played.environment_s, 4),
    }
