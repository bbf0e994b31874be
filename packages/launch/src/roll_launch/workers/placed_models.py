"""Placed reward models as a reward worker sees them: who answers now, and what happens when one dies.

The driver replaces models that die and tells every worker who serves. A score that was lost is asked for
again, once elsewhere; what kills two models in a row has no score.
"""

import asyncio
from collections.abc import Mapping, Sequence

from roll_rewards import ConversationScorer

from roll_launch.failures import RoleDied

MOST_DEATHS = 2


class PlacedModels:
    """The reward models of a stage that are roles of their own."""

    def __init__(self) -> None:
        self._live: dict[str, list[ConversationScorer]] = {}
        self._changed = asyncio.Event()
        self._turn = 0

    def serve(self, models: Mapping[str, Sequence[ConversationScorer]]) -> None:
        """Those that answer from now on, by name."""
        self._live = {name: list(scorers) for name, scorers in models.items()}
        self._changed.set()
        self._changed = asyncio.Event()

    def scorer(self, name: str) -> "PlacedScorer":
        """What a grader asks for scores of the model."""
        return PlacedScorer(self, name)

    async def next(self, name: str) -> ConversationScorer:
        """One that answers, in turn; waits until there is one."""
        while not self._live.get(name):
            await self._changed.wait()
        self._turn += 1
        return self._live[name][self._turn % len(self._live[name])]

    def died(self, name: str, scorer: ConversationScorer) -> None:
        """It does not answer any more; the driver finds out by itself and replaces it."""
        self._live[name] = [each for each in self._live[name] if each is not scorer]


class PlacedScorer:
    """`roll_rewards.ConversationScorer` of a role."""

    def __init__(self, models: PlacedModels, name: str) -> None:
        self._models, self._name = models, name

    async def score(self, conversation: Sequence[Mapping[str, str]]) -> float:
        """The score, from whichever process serves the model.

        Raises:
            RoleDied: Two processes died while they had this conversation.
        """
        deaths = 0
        while True:
            scorer = await self._models.next(self._name)
            try:
                return await scorer.score(conversation)
            except RoleDied:
                self._models.died(self._name, scorer)
                deaths += 1
                if deaths == MOST_DEATHS:
                    raise
