"""Long-tail-aware scheduling of rollouts: which prompt runs when and where, and which groups make a batch.

Each name is imported when it is asked for: what runs a scheduler live needs asyncio, what adapts numpy.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roll_scheduler.conformance.filters import check_batch_filter, check_filter, check_part
    from roll_scheduler.conformance.router import check_router
    from roll_scheduler.errors import (
        DeadlineExceeded,
        SchedulerError,
        StarvationError,
        TicketFailed,
        TooManyFailures,
    )
    from roll_scheduler.health.replica_health import ReplicaHealth
    from roll_scheduler.health.stragglers import Stragglers
    from roll_scheduler.lengths.fit import LengthFit, fit_lengths
    from roll_scheduler.lengths.predictor import LengthPredictor, LengthPrior
    from roll_scheduler.lifecycle.adaptive_deadline import AdaptiveDeadline
    from roll_scheduler.lifecycle.command import (
        Abort,
        Command,
        Cut,
        Defer,
        Deliver,
        Drop,
        Generate,
        Grade,
        Stop,
    )
    from roll_scheduler.lifecycle.core import SchedulerCore
    from roll_scheduler.live.driver import RolloutScheduler
    from roll_scheduler.live.part import Part
    from roll_scheduler.partial import PartialRollouts, VersionSpan, joined_spans, versions_of
    from roll_scheduler.planning.elastic import (
        ElasticCommand,
        ElasticLoad,
        ElasticPlan,
        ElasticPolicy,
        Lend,
        Reclaim,
    )
    from roll_scheduler.planning.stream_trigger import StreamRule, StreamTrigger, sample_weights
    from roll_scheduler.planning.tp_planner import TpPlanner, TpRule, planned_tp
    from roll_scheduler.policy import OverProvision, SchedulerPolicy
    from roll_scheduler.prompts.curriculum import Curriculum
    from roll_scheduler.prompts.mixture import Mixture, MixtureDomain
    from roll_scheduler.prompts.source import KeyedPrompt, PromptList, PromptLog, PromptSource, ResultObserver
    from roll_scheduler.prompts.traits import PromptTraits
    from roll_scheduler.queueing.longest_first import LengthEstimator
    from roll_scheduler.reports.diagnosis import Diagnosis, LateTicket
    from roll_scheduler.rounds.adaptive_over_provision import AdaptiveOverProvision, RoundModel
    from roll_scheduler.rounds.batch import Batch, Generated, Graded, Group, Member
    from roll_scheduler.rounds.group_filter import (
        BatchFilter,
        GroupFilter,
        MeanOutside,
        MostUncertain,
        TruncatedShare,
        ZeroSpread,
    )
    from roll_scheduler.rounds.staleness import admissible, choose_groups, may_train, staleness
    from roll_scheduler.routers import (
        ROUTERS,
        LeastLoaded,
        PowerOfTwo,
        PrefixAffinity,
        RoundRobin,
        SessionAffinity,
    )
    from roll_scheduler.routers.router import Request, Router
    from roll_scheduler.routers.routes import Move, Routes
    from roll_scheduler.snapshot import SchedulerSnapshot, StatefulPart
    from roll_scheduler.ticket import PendingTicket, Ticket, TicketState, ticket_seed

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
    "Diagnosis",
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
    "LateTicket",
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
    "Stragglers",
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
    "conformance.filters": "check_batch_filter check_filter check_part",
    "conformance.router": "check_router",
    "errors": "DeadlineExceeded SchedulerError StarvationError TicketFailed TooManyFailures",
    "lengths.fit": "LengthFit fit_lengths",
    "lengths.predictor": "LengthPredictor LengthPrior",
    "lifecycle.adaptive_deadline": "AdaptiveDeadline",
    "lifecycle.command": "Abort Command Cut Defer Deliver Drop Generate Grade Stop",
    "lifecycle.core": "SchedulerCore",
    "live.driver": "RolloutScheduler",
    "live.part": "Part",
    "partial": "PartialRollouts VersionSpan joined_spans versions_of",
    "planning.elastic": "ElasticCommand ElasticLoad ElasticPlan ElasticPolicy Lend Reclaim",
    "planning.stream_trigger": "StreamRule StreamTrigger sample_weights",
    "planning.tp_planner": "TpPlanner TpRule planned_tp",
    "policy": "OverProvision SchedulerPolicy",
    "prompts.curriculum": "Curriculum",
    "prompts.mixture": "Mixture MixtureDomain",
    "prompts.source": "KeyedPrompt PromptList PromptLog PromptSource ResultObserver",
    "prompts.traits": "PromptTraits",
    "queueing.longest_first": "LengthEstimator",
    "health.replica_health": "ReplicaHealth",
    "health.stragglers": "Stragglers",
    "reports.diagnosis": "Diagnosis LateTicket",
    "rounds.adaptive_over_provision": "AdaptiveOverProvision RoundModel",
    "rounds.batch": "Batch Generated Graded Group Member",
    "rounds.group_filter": "BatchFilter GroupFilter MeanOutside MostUncertain TruncatedShare ZeroSpread",
    "rounds.staleness": "admissible choose_groups may_train staleness",
    "routers": "ROUTERS LeastLoaded PowerOfTwo PrefixAffinity RoundRobin SessionAffinity",
    "routers.router": "Request Router",
    "routers.routes": "Move Routes",
    "snapshot": "SchedulerSnapshot StatefulPart",
    "ticket": "PendingTicket Ticket TicketState ticket_seed",
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'roll_scheduler' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roll_scheduler.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
