"""An engine and the end of the transport that brings its weights: what a rollout actor is made of."""

import asyncio
from dataclasses import replace

from roll_rollout import Completion, Engine, GenerateRequest, WeightReceipt, WeightUpdate
from roll_rollout.adapter import AdapterUpdate
from roll_rollout.sync import Arrival, InProcessReceiver, Publication, Receiver, load_arrival


class Replica:
    """Generates with the weights, or the adapter, that were published last.

    Args:
        engine: Belongs to the replica.
        receiver: Of the transport of its stage.
        deadline_s: Seconds that it may take to fetch a publication.
    """

    def __init__(self, engine: Engine, receiver: Receiver, *, deadline_s: float) -> None:
        self.engine = engine
        self._receiver = receiver
        self._deadline_s = deadline_s
        self._adapter: str | None = None

    async def generate(self, request: GenerateRequest, partial: Completion | None) -> Completion:
        """One completion, or the rest of one."""
        if self._adapter is not None:
            request = replace(request, adapter=self._adapter)
        if partial is not None:
            request = request.resumed(partial)
        return await self.engine.generate(request)

    async def update_weights(self, published: object) -> WeightReceipt:
        """Fetches a publication and loads it; an update that is here already is loaded as it is.

        Raises:
            EngineError: It cannot be had, does not fit, or was overwritten meanwhile.
        """
        if isinstance(published, WeightUpdate):
            return await self.engine.update_weights(published)
        if not isinstance(published, Publication):
            raise TypeError(f"published weights are a {type(published).__name__}, not a Publication")
        # Of a publication in one process the handle is the update itself, whichever way it came here.
        receiver = InProcessReceiver() if isinstance(published.handle, Arrival) else self._receiver
        arrival = await asyncio.to_thread(receiver.fetch, published, deadline_s=self._deadline_s)
        receipt = await load_arrival(self.engine, arrival)
        adapter = arrival.name if isinstance(arrival, AdapterUpdate) else None
        del arrival
        receiver.release(published)
        self._adapter = adapter
        return receipt
