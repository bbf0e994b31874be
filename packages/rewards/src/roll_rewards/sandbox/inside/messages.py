"""Messages of JSON on a stream socket between two sandboxed processes that do not trust each other."""

import json
import os
import struct
from typing import Any

_LENGTH = struct.Struct(">I")
_LARGEST = 64 * 2**20


class Peer:
    """One end of a conversation."""

    def __init__(self, handle: int) -> None:
        """Args:
        handle: File descriptor of a connected stream socket.
        """
        self._handle = handle

    def send(self, message: Any) -> None:
        """Send one message.

        Args:
            message: Anything JSON can hold.

        Raises:
            OSError: The other side is gone.
            ValueError: The message is larger than the other side accepts.
        """
        body = json.dumps(message).encode("ascii")
        if len(body) > _LARGEST:
            raise ValueError(f"a message of {len(body)} bytes is too large")
        view = memoryview(_LENGTH.pack(len(body)) + body)
        while view:
            view = view[os.write(self._handle, view) :]

    def receive(self) -> Any:
        """The next message; None at the end of the conversation.

        Raises:
            ValueError: What came is no message.
        """
        header = self._exactly(_LENGTH.size)
        if header is None:
            return None
        (length,) = _LENGTH.unpack(header)
        if length > _LARGEST:
            raise ValueError(f"a message of {length} bytes is too large")
        body = self._exactly(length)
        return None if body is None else json.loads(body)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            chunk = os.read(self._handle, min(1 << 20, count - len(data)))
            if not chunk:
                return None
            data += chunk
        return bytes(data)
