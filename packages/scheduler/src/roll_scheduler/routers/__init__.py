"""Routers: which replica takes the next request. Each satisfies `roll_scheduler.Router`."""

from roll_scheduler.routers.catalogue import ROUTERS
from roll_scheduler.routers.least_loaded import LeastLoaded
from roll_scheduler.routers.power_of_two import PowerOfTwo
from roll_scheduler.routers.prefix_affinity import PrefixAffinity
from roll_scheduler.routers.round_robin import RoundRobin
from roll_scheduler.routers.session_affinity import SessionAffinity

__all__ = [
    "ROUTERS",
    "LeastLoaded",
    "PowerOfTwo",
    "PrefixAffinity",
    "RoundRobin",
    "SessionAffinity",
]
