"""Which releases of an engine's library an adapter was written for."""

from roll_rollout.errors import EngineLibraryError

__all__ = ["check_release", "spelled"]

Releases = tuple[tuple[int, ...], tuple[int, ...]]
"""From the first on, and before the second."""


def spelled(supported: Releases) -> str:
    """For messages: "0.32 to before 0.34"."""
    return " to before ".join(".".join(map(str, version)) for version in supported)


def check_release(engine: str, installed: str, supported: Releases) -> None:
    """Returns if the installed release is one of those supported.

    Args:
        engine: Its name, for messages.
        installed: The library's version, such as "0.32.0".
        supported: The range.

    Raises:
        EngineLibraryError: It is not; names both.
    """
    parts = len(supported[0])
    release = tuple(int(part) for part in installed.split(".")[:parts] if part.isdigit())
    if not supported[0] <= release < supported[1]:
        raise EngineLibraryError(
            f"the {engine} engine is written for {engine} {spelled(supported)}, installed is {installed}"
        )
