"""Playing an episode: policy and environment take turns until something ends it. Called by rollout loops."""

import logging

import numpy as np

from roll_agentic.deadlines import within
from roll_agentic.environment import Environment, Info
from roll_agentic.episode import Episode, Failure, StopReason
from roll_agentic.errors import (
    AgenticError,
    DeadlineMissed,
    EnvironmentFault,
    Fault,
    PolicyFault,
    TranscriptError,
)
from roll_agentic.history import History
from roll_agentic.limits import Clock, Limits
from roll_agentic.policy import EpisodeState, Message, Policy, Turn
from roll_agentic.prefix import Prefix, replay
from roll_agentic.session import EnvironmentSession

_log = logging.getLogger(__name__)
_MESSAGE_CHARS = 2000


async def run_episode(
    environment: Environment,
    policy: Policy,
    *,
    seed: int,
    max_turns: int,
    prefix: Prefix | None = None,
    max_tokens: int | None = None,
    max_tool_calls: int | None = None,
    seconds: float | None = None,
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
        prefix: The episode's beginning, taken from another one; its turns count against the limits.
        max_tokens: No turn begins once the history has that many tokens; None for any number.
        max_tool_calls: No turn begins once that many calls were made; None for any number.
        seconds: The episode is cut off after that time, a turn that goes on then is lost; None for
            no such limit.
        reset_retries: How often a failed reset is tried again, at least 0.
        step_deadline_s: Seconds for each call of the environment, above 0.
        act_deadline_s: Seconds for each call of the policy, above 0.

    Raises:
        AgenticError: An argument is out of its range.
        asyncio.CancelledError: The caller was cancelled.
    """
    limits = Limits(
        max_turns=max_turns, max_tokens=max_tokens, max_tool_calls=max_tool_calls, seconds=seconds
    )
    if prefix is not None and prefix.seed != seed:
        raise AgenticError(f"the prefix has seed {prefix.seed}, the episode {seed}; they must be equal")
    if reset_retries < 0:
        raise AgenticError(f"run_episode needs reset_retries of at least 0, got {reset_retries}")
    for name, value in (("step_deadline_s", step_deadline_s), ("act_deadline_s", act_deadline_s)):
        if not value > 0:
            raise AgenticError(f"run_episode needs {name} above 0, got {value}")
    clock = Clock(limits.seconds)
    session = EnvironmentSession(environment, deadline_s=step_deadline_s)
    play = _Play(session, policy, seed, limits, clock, act_deadline_s, prefix)
    failure = None
    try:
        await play.start(reset_retries)
        status = await play.go_on()
    except Fault as fault:
        status, failure = _verdict(fault, clock)
    finally:
        session.close()
    return play.episode(status, failure)


def _verdict(fault: Fault, clock: Clock) -> tuple[StopReason, Failure | None]:
    """How an episode with a fault ended; a call cut short by the episode's own limit is no fault."""
    if fault.kind == "deadline" and clock.is_over:
        return StopReason.TIME_LIMIT, None
    blamed = StopReason.ENV_ERROR if isinstance(fault, EnvironmentFault) else StopReason.POLICY_ERROR
    return blamed, Failure(kind=fault.kind, message=fault.message)


class _Play:
    """An episode while it goes on."""

    def __init__(
        self,
        session: EnvironmentSession,
        policy: Policy,
        seed: int,
        limits: Limits,
        clock: Clock,
        act_deadline_s: float,
        prefix: Prefix | None,
    ) -> None:
        self._session = session
        self._policy = policy
        self._seed = seed
        self._limits = limits
        self._clock = clock
        self._act_deadline_s = act_deadline_s
        self._prefix = prefix
        self._turns: list[Turn] = []
        self._rewards: list[float] = []
        self._messages: list[Message] = []
        self._info: Info = {}
        self._first_info: Info = {}
        self._history = History()
        self._anchors: list[str] = []
        self._tool_calls = 0
        self._invalid_actions = 0

    async def start(self, retries: int) -> None:
        """Reset the environment, more than once if need be.

        Raises:
            EnvironmentFault: The last attempt failed as well.
        """
        for left in range(retries, -1, -1):
            try:
                if self._prefix is not None:
                    await self._resume(self._prefix)
                    return
                observation, self._info = await self._session.reset(
                    seed=self._seed, within_s=self._clock.left
                )
            except EnvironmentFault as fault:
                if left == 0:
                    raise
                _log.warning("%s; trying again", fault)
            else:
                self._first_info = self._info
                self._messages.append(Message(role="environment", text=observation))
                return

    async def _resume(self, prefix: Prefix) -> None:
        """Stand where the prefix ends."""
        if prefix.info is not None:
            self._info = self._first_info = prefix.info
        else:
            self._first_info, self._info = await replay(self._session, prefix, within_s=self._clock.left)
        self._turns, self._rewards = list(prefix.turns), list(prefix.rewards)
        self._messages, self._anchors = list(prefix.messages), list(prefix.anchors)
        if prefix.segments:
            turns = len(prefix.turns)
            self._history.start(f"fork: turn {turns}", first_turn=turns, inherited=prefix.segments)

    async def go_on(self) -> StopReason:
        """Take turns until the episode ends.

        Raises:
            Fault: Environment or policy broke, or the time is up in the middle of a call.
        """
        while True:
            if reached := self._limit_reached():
                return reached
            anchor = str(self._info.get("state", self._messages[-1].text))
            turn = await self._act()
            if turn.out_of_context:
                return StopReason.CONTEXT
            self._turns.append(turn)
            self._anchors.append(anchor)
            self._rewards.append(0.0)
            self._messages.append(Message(role="policy", text=turn.response))
            if turn.finish_reason == "length":
                return StopReason.LENGTH
            transition = await self._session.step(turn.response, within_s=self._clock.left)
            self._rewards[-1] = transition.reward
            is_tool = "tool_results" in transition.info
            self._messages.append(Message(role="environment", text=transition.observation, is_tool=is_tool))
            self._info = transition.info
            self._tool_calls += _count(transition.info.get("tool_calls", 0))
            self._invalid_actions += not transition.info.get("action_is_valid", True)
            if transition.terminated:
                return StopReason.DONE
            if transition.truncated:
                return StopReason.TRUNCATED

    def _limit_reached(self) -> StopReason | None:
        limits = self._limits
        if len(self._turns) >= limits.max_turns:
            return StopReason.MAX_TURNS
        if limits.max_tokens is not None and len(self._history) >= limits.max_tokens:
            return StopReason.MAX_TOKENS
        if limits.max_tool_calls is not None and self._tool_calls >= limits.max_tool_calls:
            return StopReason.MAX_TOOL_CALLS
        return StopReason.TIME_LIMIT if self._clock.is_over else None

    def episode(self, status: StopReason, failure: Failure | None) -> Episode:
        """The record of what was played so far."""
        return Episode(
            seed=self._seed,
            status=status,
            turns=tuple(self._turns),
            rewards=np.array(self._rewards, dtype=np.float64),
            messages=tuple(self._messages),
            history=self._history,
            anchors=tuple(self._anchors),
            tool_calls=self._tool_calls,
            invalid_actions=self._invalid_actions,
            failure=failure,
            seconds=self._clock.elapsed,
        )

    async def _act(self) -> Turn:
        """The policy's next turn, its tokens in the transcript.

        Raises:
            PolicyFault: It raised, missed its deadline, answered in a wrong form or was aborted.
        """
        name, transcript = type(self._policy).__name__, self._history.current
        known = len(transcript.segments)
        state = EpisodeState(
            seed=self._seed,
            turn=len(self._turns),
            messages=tuple(self._messages),
            info=self._info,
            transcript=transcript,
            first_info=self._first_info,
        )
        deadline_s = min(self._act_deadline_s, self._clock.left)
        try:
            turn: object = await within(self._policy.act(state), deadline_s=deadline_s)
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
        if len(transcript.segments) != known:
            raise PolicyFault(
                "invalid", f"{name}.act changed the transcript; it must return segments instead"
            )
        if turn.finish_reason == "abort":
            raise PolicyFault("abort", f"turn {len(self._turns)} of {name} was aborted")
        try:
            if turn.branch:
                transcript = self._history.start(turn.branch, first_turn=len(self._turns))
            transcript.extend(turn.segments)
        except TranscriptError as error:
            raise PolicyFault("invalid", f"{name}.act: {error}") from error
        return turn


def _count(value: object) -> int:
    """A number of tool calls from an environment's info; anything else counts as none."""
    return value if isinstance(value, int) and value > 0 else 0
