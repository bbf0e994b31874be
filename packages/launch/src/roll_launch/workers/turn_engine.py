"""A rollout replica as the engine of an episode's turns: the seam `TokenEngine` of roll_agentic."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Protocol

import numpy as np
from roll_agentic import Sampled
from roll_rollout import Completion, EngineError, GenerateRequest, SamplingParams

from roll_launch.detached import detach
from roll_launch.episode_roles import ENGINE, REPLICA
from roll_launch.failures import RoleDied, RoleError


class Replica(Protocol):
    """A rollout replica, called by an environment worker itself: tokens do not pass the driver."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """One completion.

        Raises:
            EngineError: The engine refused or lost the request.
            RoleDied: The replica is gone.
        """
        ...

    def abort(self, request_id: str) -> Coroutine[object, object, None]:
        """Ends a request early."""
        ...


class TurnEngine:
    """Samples the turns of one episode.

    Args:
        replica: Where; the whole episode stays there.
        sampling: Of a turn.
        name: Of the episode; requests are named after it.

    Attributes:
        seconds: In which the replica was waited for.
        failure: Kind and message of what went wrong on the replica's side, or None.
    """

    def __init__(self, replica: Replica, sampling: SamplingParams, *, name: str) -> None:
        self._replica = replica
        self._sampling = sampling
        self._name = name
        self._turns = 0
        self.seconds = 0.0
        self.failure: tuple[str, str] | None = None

    async def sample(self, prompt_ids: np.ndarray, *, max_tokens: int, seed: int) -> Sampled:
        """Samples a turn.

        Args:
            prompt_ids: int32[N], all before it.
            max_tokens: Tokens at most.
            seed: Of this turn.

        Raises:
            EngineError: The engine refused or lost the request, or gave ids that it did not sample.
            RoleDied: The replica is gone.
        """
        self._turns += 1
        request = GenerateRequest(
            id=f"{self._name}/{self._turns}",
            prompt_ids=prompt_ids,
            seed=seed,
            sampling=replace(self._sampling, max_tokens=max_tokens),
        )
        now = asyncio.get_running_loop().time
        began = now()
        try:
            completion = await self._replica.generate(request)
            if not completion.exact:
                raise EngineError(
                    f"the turn {request.id} holds ids that were not sampled: its engine gave text"
                )
        except RoleError as error:
            self.failure = (REPLICA if isinstance(error, RoleDied) else ENGINE, str(error))
            raise
        except EngineError as error:
            self.failure = (ENGINE, str(error))
            raise
        except asyncio.CancelledError:
            # The engine must not go on with what nobody waits for; the abort itself is not waited for.
            detach(self._replica.abort(request.id))
            raise
        finally:
            self.seconds += now() - began
        return Sampled(
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            versions=tuple((version, tokens) for version, tokens in completion.versions if tokens),
            finish_reason=completion.finish_reason,
        )
