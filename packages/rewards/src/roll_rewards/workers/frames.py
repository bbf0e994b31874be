"""Messages between a pool and its workers: a length and a pickle, read back without running code.

A worker chews on hostile text, so what it sends is not trusted: only plain data, arrays and the
dataclasses of this package can come out of it.
"""

import io
import pickle
import struct

from roll_rewards.workers.errors import CallFailed

_LENGTH = struct.Struct(">I")
_PLAIN = frozenset(
    {
        "bytearray",
        "complex",
        "frozenset",
        "list",
        "dict",
        "set",
        "tuple",
        "str",
        "bytes",
        "int",
        "float",
        "bool",
    }
)
_NUMPY = frozenset(
    {
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
    }
)
_OURS = frozenset({("roll_rewards.scores", "Score"), ("roll_rewards.scores", "Failure")})
_OTHER = frozenset({("decimal", "Decimal"), ("fractions", "Fraction"), ("collections", "OrderedDict")})


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        plain = module == "builtins" and name in _PLAIN
        if plain or (module, name) in _NUMPY | _OURS | _OTHER:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is neither plain data nor a Score")


def pack(message: object) -> bytes:
    """A message as length and pickle.

    Args:
        message: Anything that can be pickled.

    Raises:
        Exception: Whatever pickling raises.
    """
    body = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(body)) + body


def unpack_plain(body: bytes) -> object:
    """The message in a pickle that may hold plain data, numpy arrays and `Score`s only.

    Args:
        body: The pickle, without its length.

    Raises:
        CallFailed: The pickle is broken or names anything else.
    """
    try:
        return _PlainUnpickler(io.BytesIO(body)).load()
    except Exception as error:
        # Boundary to untrusted bytes: a broken pickle may raise anything.
        raise CallFailed(f"a worker's answer could not be read: {type(error).__name__}: {error}") from error


class FrameBuffer:
    """Collects bytes and gives out complete bodies; a length above the limit is refused at once."""

    def __init__(self, limit: int) -> None:
        """Args:
        limit: Largest body in bytes.
        """
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are complete now.

        Args:
            data: What was read.

        Raises:
            CallFailed: A frame announces more than the limit.
        """
        self._bytes += data
        bodies = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > self._limit:
                raise CallFailed(f"a message of {length} bytes is above the limit of {self._limit}")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            bodies.append(bytes(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return bodies
