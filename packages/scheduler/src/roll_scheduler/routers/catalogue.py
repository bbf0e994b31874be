"""Routers by name, for `SchedulerPolicy.router`."""

from collections.abc import Callable, Mapping

from roll_scheduler.routers.least_loaded import LeastLoaded
from roll_scheduler.routers.power_of_two import PowerOfTwo
from roll_scheduler.routers.prefix_affinity import PrefixAffinity
from roll_scheduler.routers.round_robin import RoundRobin
from roll_scheduler.routers.router import Router
from roll_scheduler.routers.session_affinity import SessionAffinity

__all__ = ["ROUTERS"]

ROUTERS: Mapping[str, Callable[[int, int | None], Router]] = {
    "least_loaded": lambda seed, kv_tokens: LeastLoaded(kv_tokens=kv_tokens),
    "least_tokens": lambda seed, kv_tokens: LeastLoaded(by_tokens=True, kv_tokens=kv_tokens),
    "power_of_two": lambda seed, kv_tokens: PowerOfTwo(seed=seed, kv_tokens=kv_tokens),
    "prefix_affinity": lambda seed, kv_tokens: PrefixAffinity(kv_tokens=kv_tokens),
    "round_robin": lambda seed, kv_tokens: RoundRobin(kv_tokens=kv_tokens),
    "session_affinity": lambda seed, kv_tokens: SessionAffinity(kv_tokens=kv_tokens),
}
"""Called with the run's seed and the KV that fits on a replica."""
