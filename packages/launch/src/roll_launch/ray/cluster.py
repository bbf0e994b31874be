"""Joining or starting a Ray cluster, and leaving it without a trace."""

import contextlib
import logging
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import ray

from roll_launch.errors import RollLaunchError

logger = logging.getLogger(__name__)

SOCKET_PATH_BYTES = 84
"""Of `/roll-12345678/session_2026-01-31_23-59-59_123456_1234567/sockets/plasma_store`, rounded up."""

STARTS = 3
BUSY = ("timed out during startup", "GCS")
"""How Ray says that its processes were not there within its own limits (30 s), which cannot be set."""


class ClusterError(RollLaunchError):
    """The Ray cluster cannot be started, joined, or does not have what the run needs."""


class Cluster:
    """A Ray cluster for the length of one run.

    Args:
        address: Of a running cluster ("auto" or host:port); None starts a private one, which ends with the
            run and shares neither ports nor files with any other cluster on the machine.
        needs: Resources that the roles take together, by Ray's names.
        worker_environment: Environment variables of every worker.
    """

    def __init__(
        self, *, address: str | None, needs: Mapping[str, float], worker_environment: Mapping[str, str]
    ) -> None:
        self._private = address is None
        self._scratch: Path | None = None
        self._reaper: subprocess.Popen[bytes] | None = None
        for attempts_left in reversed(range(STARTS)):
            try:
                self._start(address, needs, worker_environment)
                break
            except ClusterError as error:
                if not (self._private and attempts_left and any(sign in str(error) for sign in BUSY)):
                    raise
                logger.warning("Ray did not start on a busy machine, which is tried again: %s", error)
        try:
            self._check(needs)
        except ClusterError:
            self.close()
            raise

    def copy_logs(self, destination: Path) -> None:
        """Copies the worker logs of a private cluster, before `close` removes them."""
        if self._scratch is None:
            return
        source = self._scratch / "session_latest" / "logs"
        destination.mkdir(parents=True, exist_ok=True)
        for log in [*source.glob("worker-*"), *source.glob("raylet.*")]:
            with contextlib.suppress(OSError):
                shutil.copy(log, destination / log.name)

    def close(self) -> None:
        """Leaves the cluster; a private one ends with all its processes and files."""
        ray.shutdown()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if self._reaper is not None:
            # It sees the end of its input, finds nothing left, and ends too.
            self._reaper.communicate()

    def _start(self, address: str | None, needs: Mapping[str, float], environment: Mapping[str, str]) -> None:
        if self._private:
            self._scratch = Path(tempfile.mkdtemp(prefix="roll-", dir=_short_directory()))
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).with_name("reaper.py")), str(self._scratch)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        # Ray warns that it takes no signal handlers here, which is what is wanted, and of its own defaults.
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            if self._private:
                ray.init(
                    address="local",
                    num_cpus=max(1, math.ceil(needs.get("CPU", 1))),
                    include_dashboard=False,
                    log_to_driver=False,
                    configure_logging=False,
                    runtime_env={"env_vars": dict(environment)},
                    _temp_dir=str(self._scratch),
                )
            else:
                ray.init(
                    address=address,
                    log_to_driver=False,
                    configure_logging=False,
                    runtime_env={"env_vars": dict(environment)},
                )
        # The boundary to Ray's start: whatever it raises, the run cannot begin, and the user learns why.
        except Exception as error:
            self.close()
            where = "a private Ray cluster" if self._private else f"the Ray cluster at {address}"
            raise ClusterError(
                f"{where} could not be {'started' if self._private else 'joined'}: {error}"
            ) from error

    def _check(self, needs: Mapping[str, float]) -> None:
        has = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray leaves it without annotations
        short = [
            f"{name}: needs {amount:g}, has {has.get(name, 0):g}"
            for name, amount in needs.items()
            if amount > has.get(name, 0)
        ]
        if short:
            raise ClusterError("the Ray cluster is too small for this run: " + "; ".join(short))


def _short_directory() -> str:
    """The first temporary directory that leaves room for Ray's Unix sockets: their paths end at 107 bytes."""
    directories = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    return next((each for each in directories if len(each) + SOCKET_PATH_BYTES <= 107), directories[0])
