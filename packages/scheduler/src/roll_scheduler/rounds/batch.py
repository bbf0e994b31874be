"""What travels through the scheduler: results of callers' functions, complete groups, batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from roll_scheduler.errors import SchedulerError
from roll_scheduler.partial import VersionSpan
from roll_scheduler.ticket import Ticket, as_integer

__all__ = ["Batch", "Generated", "Graded", "Group", "Member"]

P = TypeVar("P")
C = TypeVar("C")
S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated(Generic[C]):
    """Result of a `generate` function, for example 71 tokens of which the oldest was sampled at version 4.

    Attributes:
        completion: The completion or a reference to it; the scheduler does not look inside.
        tokens: Number of sampled tokens, with partial rollouts those of earlier parts included.
        oldest_version: Oldest policy version that sampled one of the tokens of this call.
        truncated: Whether it ended at the length limit.
        spans: With partial rollouts: the versions of the tokens of this call, in their order; () stands for
            all of them at `oldest_version`.
        finished: False, with partial rollouts only: it was stopped and is to go on later. An unfinished call
            that was not asked to stop has to have sampled a token.

    Raises:
        SchedulerError: If a number is no integer >= 0, a flag no bool, or a span no `VersionSpan`.
    """

    completion: C
    tokens: int
    oldest_version: int
    truncated: bool
    spans: tuple[VersionSpan, ...] = ()
    finished: bool = True

    def __post_init__(self) -> None:
        plain = type(self.tokens) is type(self.oldest_version) is int
        if not (plain and type(self.truncated) is type(self.finished) is bool and not self.spans):
            self._check_types()
        if self.tokens < 0:
            raise SchedulerError(f"Generated.tokens: got {self.tokens}, allowed is >= 0")
        if self.oldest_version < 0:
            raise SchedulerError(f"Generated.oldest_version: got {self.oldest_version}, allowed is >= 0")

    def _check_types(self) -> None:
        """Makes numbers and flags of other libraries Python's; refuses everything else."""
        for name, number in (("tokens", self.tokens), ("oldest_version", self.oldest_version)):
            if type(number) is not int:
                object.__setattr__(self, name, as_integer(number, f"Generated.{name}"))
        if not all(isinstance(span, VersionSpan) for span in self.spans):
            raise SchedulerError(f"Generated.spans: got {self.spans!r}, allowed are VersionSpan")
        flags: dict[str, Any] = {"truncated": self.truncated, "finished": self.finished}
        for name, flag in flags.items():
            if type(flag) is not bool:
                if flag not in (True, False):  # numpy's are
                    raise SchedulerError(f"Generated.{name}: got {flag!r}, allowed is True or False")
                object.__setattr__(self, name, bool(flag))


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded(Generic[S]):
    """Result of a `grade` function, for example `Graded(score=score, value=1.0)`.

    Attributes:
        score: The score; the scheduler does not look inside.
        value: The scalar reward that group filters see. A value that is not finite is a failure of kind
            `"value"`, because it is no verdict.

    Raises:
        SchedulerError: If the value is no number.
    """

    score: S
    value: float

    def __post_init__(self) -> None:
        value: Any = self.value
        if type(value) is float:
            return
        try:
            if isinstance(value, str | bytes):  # float() would take some
                raise TypeError("text")
            object.__setattr__(self, "value", float(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise SchedulerError(f"Graded.value: got {value!r}, allowed is a number") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Generic[C, S]):
    """One graded completion of a group.

    Attributes:
        ticket: That of the attempt that succeeded.
        generated: As the last call returned it.
        graded: Its score.
        spans: Versions of all its tokens, run-length encoded, with partial rollouts; otherwise empty.
    """

    ticket: Ticket
    generated: Generated[C]
    graded: Graded[S]
    spans: tuple[VersionSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Generic[P, C, S]):
    """The graded completions of one prompt occurrence.

    Attributes:
        id: Occurrence number of the prompt in the run.
        prompt: The prompt as the caller's iterator gave it.
        members: Sorted by member index; fewer than the group size where tickets failed.
    """

    id: int
    prompt: P
    members: tuple[Member[C, S], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Generic[P, C, S]):
    """What one training step consumes.

    Attributes:
        groups: Sorted by id.
        version: Policy version at delivery.
        failures: Failed attempts since the last batch, by kind, for example `{"deadline": 1}`.
        dropped: Groups dropped since the last batch, by reason: `"failed"`, `"stale"`, `"filter:<name>"`,
            `"surplus"`, `"quarantined"`.
    """

    groups: tuple[Group[P, C, S], ...]
    version: int
    failures: Mapping[str, int]
    dropped: Mapping[str, int]
