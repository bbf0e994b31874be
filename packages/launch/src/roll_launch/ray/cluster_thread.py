"""A thread that starts a cluster, keeps it, and ends it. `runtime.py` opens and closes through it.

Ray's start and end block. They also tie Ray's processes to the thread that started them: the kernel ends
those when that thread ends, so it has to live as long as the cluster. As a daemon it keeps neither a
deadline nor the exit of the driver waiting.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from roll_launch.ray.cluster import Cluster


class ClusterThread:
    """Holds one cluster.

    Args:
        start: Makes the cluster.
        keep_logs: Where the logs of its workers are copied when it ends.
    """

    def __init__(self, start: Callable[[], Cluster], *, keep_logs: Path) -> None:
        self._start = start
        self._keep_logs = keep_logs
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._unwanted = threading.Event()
        threading.Thread(target=self._run, name="Ray cluster", daemon=True).start()

    async def open(self) -> None:
        """Waits for the cluster. Cancelled, it leaves the thread to end the cluster as soon as it is there.

        Raises:
            ClusterError: It did not start.
        """
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._unwanted.set()
            raise

    async def close(self) -> None:
        """Ends the cluster and waits for that."""
        self._unwanted.set()
        await asyncio.shield(self._closed)

    def _run(self) -> None:
        # The boundary to a thread: what it meets belongs to the coroutine that waits.
        try:
            cluster = self._start()
        except Exception as error:
            self._tell(self._opened, error)
            return
        self._tell(self._opened, None)
        self._unwanted.wait()
        try:
            with contextlib.suppress(OSError):
                cluster.copy_logs(self._keep_logs)
            cluster.close()
        except Exception as error:
            self._tell(self._closed, error)
            return
        self._tell(self._closed, None)

    def _tell(self, future: "asyncio.Future[None]", error: Exception | None) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        # A loop that is closed by now has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle)
