"""Partial rollouts: completions that are stopped and go on later, and which versions sampled their tokens.

The policy holds `PartialRollouts`; the core keeps the spans; the driver hands both to the caller's function.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roll_scheduler.errors import SchedulerError
from roll_scheduler.numbers import is_finite
from roll_scheduler.ticket import as_integer

__all__ = ["PartialRollouts", "VersionSpan", "joined_spans", "versions_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """A run of tokens that one policy version sampled, for example `VersionSpan(version=3, tokens=120)`.

    Attributes:
        version: Policy version.
        tokens: How many tokens in a row, >= 1.

    Raises:
        SchedulerError: If there is no token, or a number is no integer.
    """

    version: int
    tokens: int

    def __post_init__(self) -> None:
        if type(self.tokens) is not int or type(self.version) is not int:
            for name in ("version", "tokens"):
                object.__setattr__(self, name, as_integer(getattr(self, name), f"VersionSpan.{name}"))
        if self.tokens < 1:
            raise SchedulerError(f"VersionSpan.tokens: got {self.tokens}, allowed is >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRollouts:
    """Running completions may be stopped; their tokens are kept and they go on later, for example

        PartialRollouts(max_versions=2)

    Who generates has to be able to go on with a completion: `RolloutScheduler(generate_part=...)`.

    Attributes:
        max_versions: Versions that one completion may span, >= 1. One that would span more is begun anew:
            what it had is given up and counted (`scheduler/begun_anew`, `scheduler/discarded_tokens`). An
            engine that takes in weights while it generates may still exceed it within one part.
        stop_at_cut: True: when a batch is complete everything that runs is stopped, and goes on when the next
            batch is asked for, so that trainer and engines may share devices. That needs max_staleness > 0.
            False: completions are stopped only by `pause("stop")` and where a replica leaves as planned.
        stop_deadline_s: Seconds in which a generation that is to stop has to return what it has, > 0. One
            that does not is aborted, which is a failure of kind `"stop"`.

    Raises:
        SchedulerError: If a value is out of its range.

    Source: Kimi k1.5, arXiv 2501.12599, section 3.4.1 (partial rollouts); ROLL Flash, arXiv 2510.11345.
    """

    max_versions: int = 2
    stop_at_cut: bool = True
    stop_deadline_s: float = 30.0

    def __post_init__(self) -> None:
        most = self.max_versions
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise SchedulerError(f"PartialRollouts.max_versions: got {most!r}, allowed is an integer >= 1")
        if not isinstance(self.stop_at_cut, bool):
            raise SchedulerError(
                f"PartialRollouts.stop_at_cut: got {self.stop_at_cut!r}, allowed is True or False"
            )
        seconds = self.stop_deadline_s
        if not (is_finite(seconds) and seconds > 0):
            raise SchedulerError(
                f"PartialRollouts.stop_deadline_s: got {seconds!r}, allowed is a finite number > 0"
            )


def joined_spans(first: Sequence[VersionSpan], then: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Run-length code of the tokens of `first` followed by those of `then`.

    Args:
        first: Spans of the tokens so far.
        then: Spans of the tokens after them.
    """
    joined = list(first)
    for span in then:
        if joined and joined[-1].version == span.version:
            joined[-1] = VersionSpan(version=span.version, tokens=joined[-1].tokens + span.tokens)
        else:
            joined.append(span)
    return tuple(joined)


def versions_of(spans: Iterable[VersionSpan]) -> list[int]:
    """The version of each token, as a list as long as there are tokens.

    Args:
        spans: In the order of the tokens.
    """
    return [span.version for span in spans for _ in range(span.tokens)]
