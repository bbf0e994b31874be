"""What a worker does all its life: read a call, make it, answer. Runs in processes of the nursery."""

import contextlib
import importlib
import os
import pickle
import resource
import signal
import struct
import time
from collections.abc import Callable

from roll_rewards.workers.frames import pack

_LENGTH = struct.Struct(">I")
_MESSAGE_CHARS = 2000


def serve_calls(handle: int, *, memory_bytes: int, cpu_s: int, result_bytes: int) -> None:
    """Answer calls until the pool closes the connection.

    Args:
        handle: File descriptor of the connected stream socket.
        memory_bytes: Address space of this process.
        cpu_s: Processor seconds of one call; 0 has no limit.
        result_bytes: Largest answer.
    """
    _settle(handle, memory_bytes)
    functions: dict[str, Callable[..., object]] = {}
    _write(handle, pack(("ready", os.getpid(), 0.0)))
    while (body := _read_body(handle)) is not None:
        started = time.monotonic()
        if cpu_s:
            _renew_cpu(cpu_s)
        answer = _answer(body, functions)
        seconds = time.monotonic() - started
        try:
            frame = pack((*answer, seconds))
            if len(frame) > result_bytes:
                frame = pack(("failed", f"the result has {len(frame)} bytes, above {result_bytes}", seconds))
        except Exception as error:
            # Boundary to foreign code: a result may refuse to be pickled in any way.
            frame = pack(("failed", f"the result cannot be sent: {type(error).__name__}: {error}", seconds))
        _write(handle, frame)


def _settle(handle: int, memory_bytes: int) -> None:
    """Limits, and standard streams that lead nowhere: a call that prints must not fill anything."""
    for number in (resource.RLIMIT_CORE, resource.RLIMIT_AS):
        limit = memory_bytes if number == resource.RLIMIT_AS else 0
        hard = resource.getrlimit(number)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, (limit, limit))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.closerange(3, handle)
    os.closerange(handle + 1, 1024)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _renew_cpu(cpu_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    # One second more than asked, because the kernel counts whole seconds.
    soft = int(used.ru_utime + used.ru_stime) + cpu_s + 1
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def _answer(body: bytes, functions: dict[str, Callable[..., object]]) -> tuple[str, object]:
    try:
        path, args, kwargs = pickle.loads(body)
        if path not in functions:
            functions[path] = _resolve(path)
        return "ok", functions[path](*args, **kwargs)
    except MemoryError:
        return "failed", "MemoryError: the call needs more memory than a worker may use"
    except BaseException as error:
        # Boundary to foreign code: whatever the function raises, SystemExit too, is its caller's.
        with contextlib.suppress(Exception):
            return "failed", f"{type(error).__name__}: {error}"[:_MESSAGE_CHARS]
        return "failed", type(error).__name__


def _resolve(path: str) -> Callable[..., object]:
    module, separator, attributes = path.partition(":")
    if not (module and separator and attributes):
        raise ValueError(f"a function is named as 'module:function', got {path!r}")
    found: object = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    if not callable(found):
        raise TypeError(f"{path!r} is a {type(found).__name__}, which cannot be called")
    return found


def _read_body(handle: int) -> bytes | None:
    header = _read_exactly(handle, _LENGTH.size)
    return None if header is None else _read_exactly(handle, _LENGTH.unpack(header)[0])


def _read_exactly(handle: int, count: int) -> bytes | None:
    chunks = bytearray()
    while len(chunks) < count:
        data = os.read(handle, min(count - len(chunks), 1 << 20))
        if not data:
            return None
        chunks += data
    return bytes(chunks)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
