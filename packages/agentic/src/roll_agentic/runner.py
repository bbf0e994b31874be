"""Playing an episode: policy and environment take turns until something ends it. Called by rollout loops."""

import asyncio
import logging

import numpy as np

from roll_agentic.deadlines import within
from roll_agentic.environment import Environment, Info
from roll_agentic.episode import Episode, Failure, Status
from roll_agentic.errors import (
    AgenticError,
    DeadlineMissed,
    EnvironmentFault,
    Fault,
    PolicyFault,
    TranscriptError,
)
from roll_agentic.policy import EpisodeState, Message, Policy, Turn
from roll_agentic.session import EnvironmentSession
from roll_agentic.transcript import Transcript

_log = logging.getLogger(__name__)
_MESSAGE_CHARS = 2000


async def run_episode(
    environment: Environment,
    policy: Policy,
    *,
    seed: int,
    max_turns: int,
    reset_retries: int = 1,
    step_deadline_s: float = 60.0,
    act_deadline_s: float = 600.0,
) -> Episode:
    """Play one episode; whatever environment or policy do, it ends and says how.

    Args:
        environment: Not used by anyone else meanwhile; not closed afterwards.
        policy: Who acts.
        seed: Given to `Environment.reset`.
        max_turns: How often the policy may act, at least 1.
        reset_retries: How often a failed reset is tried again, at least 0.
        step_deadline_s: Seconds for each call of the environment, above 0.
        act_deadline_s: Seconds for each call of the policy, above 0.

    Raises:
        AgenticError: An argument is out of its range.
        asyncio.CancelledError: The caller was cancelled.
    """
    for name, value, least in (("max_turns", max_turns, 1), ("reset_retries", reset_retries, 0)):
        if value < least:
            raise AgenticError(f"run_episode needs {name} of at least {least}, got {value}")
    for name, seconds in (("step_deadline_s", step_deadline_s), ("act_deadline_s", act_deadline_s)):
        if not seconds > 0:
            raise AgenticError(f"run_episode needs {name} above 0, got {seconds}")
    clock = asyncio.get_running_loop().time
    started = clock()
    session = EnvironmentSession(environment, deadline_s=step_deadline_s)
    play = _Play(session, policy, seed, act_deadline_s)
    failure = None
    try:
        await play.start(reset_retries)
        status = await play.go_on(max_turns)
    except Fault as fault:
        status = "env_error" if isinstance(fault, EnvironmentFault) else "policy_error"
        failure = Failure(kind=fault.kind, message=fault.message)
    finally:
        session.close()
    return play.episode(status, failure, clock() - started)


class _Play:
    """An episode while it goes on."""

    def __init__(self, session: EnvironmentSession, policy: Policy, seed: int, act_deadline_s: float) -> None:
        self._session = session
        self._policy = policy
        self._seed = seed
        self._act_deadline_s = act_deadline_s
        self._turns: list[Turn] = []
        self._rewards: list[float] = []
        self._messages: list[Message] = []
        self._info: Info = {}
        self._transcript = Transcript()
        self._invalid_actions = 0

    async def start(self, retries: int) -> None:
        """Reset the environment, more than once if need be.

        Raises:
            EnvironmentFault: The last attempt failed as well.
        """
        for left in range(retries, -1, -1):
            try:
                observation, self._info = await self._session.reset(seed=self._seed)
            except EnvironmentFault as fault:
                if left == 0:
                    raise
                _log.warning("%s; trying again", fault)
            else:
                self._messages.append(Message(role="environment", text=observation))
                return

    async def go_on(self, max_turns: int) -> Status:
        """Take turns until the episode ends.

        Raises:
            Fault: Environment or policy broke.
        """
        while len(self._turns) < max_turns:
            turn = await self._act()
            self._turns.append(turn)
            self._rewards.append(0.0)
            self._messages.append(Message(role="policy", text=turn.response))
            if turn.finish_reason == "length":
                return "length"
            transition = await self._session.step(turn.response)
            self._rewards[-1] = transition.reward
            self._messages.append(Message(role="environment", text=transition.observation))
            self._info = transition.info
            self._invalid_actions += not transition.info.get("action_is_valid", True)
            if transition.terminated:
                return "done"
            if transition.truncated:
                return "truncated"
        return "max_turns"

    def episode(self, status: Status, failure: Failure | None, seconds: float) -> Episode:
        """The record of what was played so far."""
        return Episode(
            seed=self._seed,
            status=status,
            turns=tuple(self._turns),
            rewards=np.array(self._rewards, dtype=np.float64),
            messages=tuple(self._messages),
            transcript=self._transcript,
            invalid_actions=self._invalid_actions,
            failure=failure,
            seconds=seconds,
        )

    async def _act(self) -> Turn:
        """The policy's next turn, its tokens in the transcript.

        Raises:
            PolicyFault: It raised, missed its deadline, answered in a wrong form or was aborted.
        """
        name, known = type(self._policy).__name__, len(self._transcript.segments)
        state = EpisodeState(
            seed=self._seed,
            turn=len(self._turns),
            messages=tuple(self._messages),
            info=self._info,
            transcript=self._transcript,
        )
        try:
            turn: object = await within(self._policy.act(state), deadline_s=self._act_deadline_s)
        except DeadlineMissed as missed:
            raise PolicyFault("deadline", f"{name}.act: {missed}") from missed
        except Exception as error:
            # Boundary to foreign code: this is where a policy's exception becomes a fault.
            _log.debug("%s.act raised", name, exc_info=error)
            message = f"{name}.act raised {type(error).__name__}: {error}"[:_MESSAGE_CHARS]
            raise PolicyFault("error", message) from error
        if not isinstance(turn, Turn):
            raise PolicyFault(
                "invalid", f"{name}.act must return a Turn, got {type(turn).__name__} {turn!r:.80}"
            )
        if len(self._transcript.segments) != known:
            raise PolicyFault(
                "invalid", f"{name}.act changed the transcript; it must return segments instead"
            )
        if turn.finish_reason == "abort":
            raise PolicyFault("abort", f"turn {len(self._turns)} of {name} was aborted")
        try:
            self._transcript.extend(turn.segments)
        except TranscriptError as error:
            raise PolicyFault("invalid", f"{name}.act: {error}") from error
        return turn
