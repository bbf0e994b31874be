"""Long-tail-aware scheduling of rollouts: which prompt runs when and where, and which groups make a batch.

What the core does not need is imported when it is asked for; that which runs it live needs asyncio.
"""

import importlib
from typing import TYPE_CHECKING

from roll_scheduler.adaptive_deadline import AdaptiveDeadline
from roll_scheduler.batch import Batch, Generated, Graded, Group, Member
from roll_scheduler.command import Abort, Command, Cut, Defer, Deliver, Drop, Generate, Grade, Stop
from roll_scheduler.core import SchedulerCore
from roll_scheduler.errors import (
    DeadlineExceeded,
    SchedulerError,
    StarvationError,
    TicketFailed,
    TooManyFailures,
)
from roll_scheduler.group_filter import (
    BatchFilter,
    GroupFilter,
    MeanOutside,
    MostUncertain,
    TruncatedShare,
    ZeroSpread,
)
from roll_scheduler.length_predictor import LengthPredictor, LengthPrior
from roll_scheduler.longest_first import LengthEstimator
from roll_scheduler.partial import PartialRollouts, VersionSpan, joined_spans, versions_of
from roll_scheduler.policy import OverProvision, SchedulerPolicy
from roll_scheduler.prompt_traits import PromptTraits
from roll_scheduler.replica_health import ReplicaHealth
from roll_scheduler.router import Request, Router
from roll_scheduler.routers import (
    ROUTERS,
    LeastLoaded,
    PowerOfTwo,
    PrefixAffinity,
    RoundRobin,
    SessionAffinity,
)
from roll_scheduler.snapshot import SchedulerSnapshot, StatefulPart
from roll_scheduler.staleness import admissible, choose_groups, may_train, staleness
from roll_scheduler.ticket import PendingTicket, Ticket, TicketState, ticket_seed

if TYPE_CHECKING:
    from roll_scheduler.adaptive_over_provision import AdaptiveOverProvision, RoundModel
    from roll_scheduler.conformance import check_batch_filter, check_filter, check_part
    from roll_scheduler.conformance_router import check_router
    from roll_scheduler.curriculum import Curriculum
    from roll_scheduler.driver import RolloutScheduler
    from roll_scheduler.elastic import ElasticCommand, ElasticLoad, ElasticPlan, ElasticPolicy, Lend, Reclaim
    from roll_scheduler.length_fit import LengthFit, fit_lengths
    from roll_scheduler.mixture import Mixture, MixtureDomain
    from roll_scheduler.part import Part
    from roll_scheduler.prompt_source import KeyedPrompt, PromptList, PromptLog, PromptSource, ResultObserver
    from roll_scheduler.routes import Move, Routes
    from roll_scheduler.stream_trigger import StreamRule, StreamTrigger, sample_weights
    from roll_scheduler.tp_planner import TpPlanner, TpRule, planned_tp

__all__ = [
    "ROUTERS",
    "Abort",
    "AdaptiveDeadline",
    "AdaptiveOverProvision",
    "Batch",
    "BatchFilter",
    "Command",
    "Curriculum",
    "Cut",
    "DeadlineExceeded",
    "Defer",
    "Deliver",
    "Drop",
    "ElasticCommand",
    "ElasticLoad",
    "ElasticPlan",
    "ElasticPolicy",
    "Generate",
    "Generated",
    "Grade",
    "Graded",
    "Group",
    "GroupFilter",
    "KeyedPrompt",
    "LeastLoaded",
    "Lend",
    "LengthEstimator",
    "LengthFit",
    "LengthPredictor",
    "LengthPrior",
    "MeanOutside",
    "Member",
    "Mixture",
    "MixtureDomain",
    "MostUncertain",
    "Move",
    "OverProvision",
    "Part",
    "PartialRollouts",
    "PendingTicket",
    "PowerOfTwo",
    "PrefixAffinity",
    "PromptList",
    "PromptLog",
    "PromptSource",
    "PromptTraits",
    "Reclaim",
    "ReplicaHealth",
    "Request",
    "ResultObserver",
    "RolloutScheduler",
    "RoundModel",
    "RoundRobin",
    "Router",
    "Routes",
    "SchedulerCore",
    "SchedulerError",
    "SchedulerPolicy",
    "SchedulerSnapshot",
    "SessionAffinity",
    "StarvationError",
    "StatefulPart",
    "Stop",
    "StreamRule",
    "StreamTrigger",
    "Ticket",
    "TicketFailed",
    "TicketState",
    "TooManyFailures",
    "TpPlanner",
    "TpRule",
    "TruncatedShare",
    "VersionSpan",
    "ZeroSpread",
    "admissible",
    "check_batch_filter",
    "check_filter",
    "check_part",
    "check_router",
    "choose_groups",
    "fit_lengths",
    "joined_spans",
    "may_train",
    "planned_tp",
    "sample_weights",
    "staleness",
    "ticket_seed",
    "versions_of",
]

_MODULES = {
    "adaptive_over_provision": "AdaptiveOverProvision RoundModel",
    "conformance": "check_batch_filter check_filter check_part",
    "conformance_router": "check_router",
    "curriculum": "Curriculum",
    "driver": "RolloutScheduler",
    "elastic": "ElasticCommand ElasticLoad ElasticPlan ElasticPolicy Lend Reclaim",
    "length_fit": "LengthFit fit_lengths",
    "mixture": "Mixture MixtureDomain",
    "part": "Part",
    "prompt_source": "KeyedPrompt PromptList PromptLog PromptSource ResultObserver",
    "routes": "Move Routes",
    "stream_trigger": "StreamRule StreamTrigger sample_weights",
    "tp_planner": "TpPlanner TpRule planned_tp",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'roll_scheduler' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roll_scheduler.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
