"""A process group of a learner and its replicas, apart from any that they have for themselves.

The process's default group is left alone: a learner that is spread over ranks has one of its own.
"""

import importlib
import socket
from datetime import timedelta
from typing import Any, Protocol

import numpy as np

from roll_rollout.errors import EngineLibraryError

BACKENDS = ("gloo", "nccl", "hccl")
_DEVICES = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}


class Group(Protocol):
    """Members that take part in one broadcast after the other; the learner has rank 0."""

    def broadcast(self, data: np.ndarray) -> None:
        """Sends uint8[N] from rank 0, or receives it into `data` elsewhere.

        Raises:
            RuntimeError: A member did not take part in time, or is gone; the group cannot be used any more.
        """
        ...


class TorchGroup:
    """A `Group` of torch.distributed.

    Args:
        backend: Of `BACKENDS`.
        store: Where the members find each other.
        rank: Of this member.
        size: Members.
        address: Of this host, by which the others reach it; None takes the host's own name (gloo only).
        timeout_s: Seconds for all members to be there, and for each broadcast.

    Raises:
        EngineLibraryError: The back-end is not in this build of torch.
        RuntimeError: Not all members came in time.
    """

    def __init__(
        self, backend: str, store: Any, *, rank: int, size: int, address: str | None, timeout_s: float
    ) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._device = _DEVICES[backend]
        self._group = _process_group(backend, store, rank, size, address, self._timeout)

    def broadcast(self, data: np.ndarray) -> None:
        """Sends or receives; see `Group`."""
        import torch

        host = torch.from_numpy(data)
        tensor = host if self._device == "cpu" else host.to(self._device)
        options = _distributed().BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([tensor], options).wait(self._timeout)
        if self._device != "cpu":
            host.copy_(tensor)


def host_address() -> str:
    """Returns an address of this host by which others reach it, or the loopback if its name has none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def prefixed(prefix: str, store: Any) -> Any:
    """Returns a part of a store, in which one group finds its members."""
    return _distributed().PrefixStore(prefix, store)


def meeting_point(address: str, port: int, *, serves: bool, timeout_s: float) -> Any:
    """Returns torch.distributed's `TCPStore`: the one that serves, on a free port for 0, or a client of it.

    Raises:
        RuntimeError: Nobody serves there, or the address is not of this host.
    """
    return _distributed().TCPStore(
        address,
        port,
        is_master=serves,
        wait_for_workers=False,
        timeout=timedelta(seconds=max(timeout_s, 0.1)),
    )


def _process_group(
    backend: str, store: Any, rank: int, size: int, address: str | None, timeout: timedelta
) -> Any:
    distributed = _distributed()
    if backend == "gloo":
        if not distributed.is_gloo_available():
            raise EngineLibraryError("broadcast: this build of torch has no gloo")
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address or host_address())]
        options._timeout = timeout
        return distributed.ProcessGroupGloo(store, rank, size, options)
    if backend == "nccl":
        if not distributed.is_nccl_available():
            raise EngineLibraryError("broadcast: this build of torch has no nccl")
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return distributed.ProcessGroupNCCL(store, rank, size, options)
    try:
        npu: Any = importlib.import_module("torch_npu._C._distributed_c10d")
    except ImportError as error:
        raise EngineLibraryError("broadcast: hccl needs torch_npu, which is missing here") from error
    options = npu.ProcessGroupHCCL.Options()
    options._timeout = timeout
    return npu.ProcessGroupHCCL(store, rank, size, options)


def _distributed() -> Any:
    """torch.distributed, whose members its types leave out in part."""
    return importlib.import_module("torch.distributed")
