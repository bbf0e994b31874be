"""Long-tail-aware scheduling of rollouts: which prompt runs when and where, and which groups make a batch."""

from roll_scheduler.batch import Batch, Generated, Graded, Group, Member
from roll_scheduler.command import Abort, Command, Cut, Defer, Deliver, Drop, Generate, Grade
from roll_scheduler.conformance import check_filter
from roll_scheduler.core import SchedulerCore
from roll_scheduler.driver import RolloutScheduler
from roll_scheduler.errors import (
    DeadlineExceeded,
    SchedulerError,
    StarvationError,
    TicketFailed,
    TooManyFailures,
)
from roll_scheduler.group_filter import GroupFilter, MeanOutside, ZeroSpread
from roll_scheduler.policy import OverProvision, SchedulerPolicy
from roll_scheduler.snapshot import SchedulerSnapshot
from roll_scheduler.staleness import admissible, choose_groups, may_train, staleness
from roll_scheduler.ticket import PendingTicket, Ticket, TicketState, ticket_seed

__all__ = [
    "Abort",
    "Batch",
    "Command",
    "Cut",
    "DeadlineExceeded",
    "Defer",
    "Deliver",
    "Drop",
    "Generate",
    "Generated",
    "Grade",
    "Graded",
    "Group",
    "GroupFilter",
    "MeanOutside",
    "Member",
    "OverProvision",
    "PendingTicket",
    "RolloutScheduler",
    "SchedulerCore",
    "SchedulerError",
    "SchedulerPolicy",
    "SchedulerSnapshot",
    "StarvationError",
    "Ticket",
    "TicketFailed",
    "TicketState",
    "TooManyFailures",
    "ZeroSpread",
    "admissible",
    "check_filter",
    "choose_groups",
    "may_train",
    "staleness",
    "ticket_seed",
]
