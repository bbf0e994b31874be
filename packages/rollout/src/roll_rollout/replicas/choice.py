"""Which replica a request goes to."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roll_rollout.errors import EngineError
from roll_rollout.request import GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica that a request may go to: `ReplicaView(name="b", requests=3, outstanding=420, version=7)`.

    Attributes:
        name: Of the replica.
        requests: In flight there.
        outstanding: Tokens that these may still have to read and to draw, at most.
        version: Of its weights.
    """

    name: str
    requests: int
    outstanding: int
    version: int


class Chooser(Protocol):
    """Chooses among the replicas that serve. It may remember what it chose."""

    def __call__(self, request: GenerateRequest, replicas: Sequence[ReplicaView]) -> str:
        """Returns the name of one of `replicas`, of which there is at least one."""
        ...


class LeastOutstanding:
    """The replica with the fewest outstanding tokens, unless another one has read the prompt's beginning.

    A prompt's home is the replica that was last given the longest prefix of it, so that groups and the turns
    of an episode meet the keys and values of what came before. It keeps them as long as it has at most
    `slack` tokens more to do than the least busy one.

    Args:
        slack: Outstanding tokens that a home may have beyond the least busy replica.
        block: Tokens; prefixes are remembered at multiples of it, and whole prompts.
        remembered: Prefixes, those that were used last.

    Raises:
        EngineError: An argument is out of range.
    """

    def __init__(self, *, slack: int = 8192, block: int = 256, remembered: int = 65_536) -> None:
        if slack < 0 or block < 1 or remembered < 1:
            got = f"slack={slack}, block={block}, remembered={remembered}"
            raise EngineError(f"LeastOutstanding: got {got}, allowed are 0 or more, 1 or more, 1 or more")
        self._slack = slack
        self._block = block
        self._remembered = remembered
        self._homes: OrderedDict[bytes, str] = OrderedDict()

    def __call__(self, request: GenerateRequest, replicas: Sequence[ReplicaView]) -> str:
        """Returns the name of the replica. See `Chooser`."""
        least = min(replicas, key=lambda each: (each.outstanding, each.requests))
        prefixes = self._prefixes(request.context_ids)
        by_name = {each.name: each for each in replicas}
        homes = (by_name.get(self._homes.get(prefix, "")) for prefix in prefixes)
        home = next((each for each in homes if each is not None), None)
        chosen = least
        if home is not None and home.outstanding <= least.outstanding + self._slack:
            chosen = home
        self._remember(prefixes, chosen.name)
        return chosen.name

    def _prefixes(self, ids: np.ndarray) -> list[bytes]:
        """Returns digests of the prompt and of its prefixes, the longest first."""
        digest, digests = hashlib.blake2b(digest_size=16), []
        for start in range(0, len(ids), self._block):
            digest.update(np.ascontiguousarray(ids[start : start + self._block]).data)
            digests.append(digest.digest())
        return digests[::-1]

    def _remember(self, prefixes: Sequence[bytes], name: str) -> None:
        for prefix in reversed(prefixes):
            self._homes[prefix] = name
            self._homes.move_to_end(prefix)
        while len(self._homes) > self._remembered:
            self._homes.popitem(last=False)
