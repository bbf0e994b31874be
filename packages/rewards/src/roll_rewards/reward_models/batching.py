"""Single requests put together into batches, one batch at a time. Used by graders that run a model."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from roll_rewards.errors import RewardError
from roll_rewards.threads import call_in_thread

T = TypeVar("T")
R = TypeVar("R")


class BatchQueue(Generic[T, R]):
    """Runs a blocking function on batches of what callers submit, in a thread, never twice at a time."""

    def __init__(
        self, run: Callable[[Sequence[T]], Sequence[R]], *, batch_size: int, wait_s: float, name: str
    ) -> None:
        """A queue.

        Args:
            run: From a batch to as many results, in its order.
            batch_size: Largest batch, at least 1.
            wait_s: How long a batch that is not full waits for more, at least 0.
            name: Of the thread.
        """
        self._run, self._batch_size, self._wait_s, self._name = run, batch_size, wait_s, name
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """The result for one item.

        Raises:
            Exception: What the function raised for its batch.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if self._worker is None or self._worker.done() or self._worker.get_loop() is not loop:
            self._waiting = [entry for entry in self._waiting if entry[1].get_loop() is loop]
            self._worker = loop.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            if len(self._waiting) < self._batch_size and self._wait_s:
                await asyncio.sleep(self._wait_s)
            batch = [entry for entry in self._waiting[: self._batch_size] if not entry[1].done()]
            del self._waiting[: self._batch_size]
            if batch:
                await self._answer(batch)

    async def _answer(self, batch: "list[tuple[T, asyncio.Future[R]]]") -> None:
        try:
            results = await call_in_thread(lambda: self._run([item for item, _ in batch]), name=self._name)
            if len(results) != len(batch):
                raise RewardError(f"{self._name} gave {len(results)} results for a batch of {len(batch)}")
        except Exception as error:
            # Boundary to a model's code: its error belongs to everyone in the batch, not to the queue.
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
