"""What a set of engines can do: what all of them can."""

from collections.abc import Sequence
from dataclasses import fields

from roll_rollout.capabilities import Continuation, EngineCapabilities, capabilities_of
from roll_rollout.engine import Engine
from roll_rollout.errors import EngineError

_CONTINUATIONS: tuple[Continuation, ...] = ("none", "fresh", "exact")


def shared_capabilities(engines: Sequence[Engine]) -> EngineCapabilities:
    """Returns what all engines can do. A set of them can always be asked for its health."""
    each = [capabilities_of(engine) for engine in engines]
    first = each[0]
    return EngineCapabilities(
        logprobs=all(one.logprobs for one in each),
        seeds=all(one.seeds for one in each),
        weight_updates=all(one.weight_updates for one in each),
        refreshes_kv=all(one.refreshes_kv for one in each),
        stop_strings=all(one.stop_strings for one in each),
        shared_prefill=all(one.shared_prefill for one in each),
        continuation=min((one.continuation for one in each), key=_CONTINUATIONS.index),
        streaming=all(one.streaming for one in each),
        pause_modes=tuple(mode for mode in first.pause_modes if all(mode in one.pause_modes for one in each)),
        sleep_levels=tuple(
            level for level in first.sleep_levels if all(level in one.sleep_levels for one in each)
        ),
        prefix_cache=all(one.prefix_cache for one in each),
        adapters=all(one.adapters for one in each),
        media=tuple(kind for kind in first.media if all(kind in one.media for one in each)),
        routed_experts=all(one.routed_experts for one in each),
        health=True,
    )


def require_covered(name: str, engine: Engine, needed: EngineCapabilities) -> None:
    """Returns if an engine can do what a set promises.

    Raises:
        EngineError: It cannot; names what it lacks.
    """
    with_it = shared_capabilities([engine])
    for field in fields(EngineCapabilities):
        promised, has = getattr(needed, field.name), getattr(with_it, field.name)
        if field.name == "continuation":
            covered = _CONTINUATIONS.index(has) >= _CONTINUATIONS.index(promised)
        elif isinstance(promised, tuple):
            covered = set(promised) <= set(has)
        else:
            covered = has or not promised
        if not covered:
            raise EngineError(f"replica {name!r}: {field.name} is {has!r}, the set needs {promised!r}")
