"""What a live scheduler holds for its caller: prompts, completions, scores. Used by the driver."""

from collections.abc import Callable
from typing import Generic, TypeVar

from roll_scheduler.lifecycle.command import Deliver
from roll_scheduler.live.part import Part
from roll_scheduler.partial import VersionSpan, joined_spans
from roll_scheduler.rounds.batch import Generated, Graded, Group, Member
from roll_scheduler.ticket import Ticket

__all__ = ["GroupStore"]

P = TypeVar("P")
C = TypeVar("C")
S = TypeVar("S")


class GroupStore(Generic[P, C, S]):
    """Groups that were admitted and have not ended, by id.

    Attributes:
        observe: Called with the prompt and the rewards of each group that ends with some.
    """

    def __init__(self) -> None:
        self.observe: Callable[[P, list[float]], None] | None = None
        self._prompts: dict[int, P] = {}
        self._generated: dict[int, dict[int, Generated[C]]] = {}
        self._graded: dict[int, dict[int, Graded[S]]] = {}
        self._parts: dict[int, dict[int, tuple[Generated[C], tuple[VersionSpan, ...]]]] = {}

    def open(self, group: int, prompt: P) -> None:
        """A group was admitted."""
        self._prompts[group] = prompt
        self.begin_anew(group)

    def begin_anew(self, group: int) -> None:
        """Of a group the prompt is needed still, and nothing else."""
        self._generated[group], self._graded[group] = {}, {}
        self._parts.pop(group, None)

    def drop(self, group: int) -> None:
        """A group ended."""
        prompt, graded = self._prompts.pop(group), self._graded.pop(group)
        del self._generated[group]
        self._parts.pop(group, None)
        if self.observe is not None and graded:
            self.observe(prompt, [graded[member].value for member in sorted(graded)])

    def deliver(self, delivery: Deliver) -> Group[P, C, S]:
        """A group ended with a batch: what is delivered of it."""
        group = delivery.group
        generated, graded = self._generated[group], self._graded[group]
        spans = delivery.spans or ((),) * len(delivery.members)
        members = tuple(
            Member(ticket=ticket, generated=generated[ticket.member], graded=graded[ticket.member], spans=of)
            for ticket, of in zip(delivery.members, spans, strict=True)
        )
        prompt = self._prompts[group]
        self.drop(group)
        return Group(id=group, prompt=prompt, members=members)

    def prompt(self, group: int) -> P:
        """The prompt of a group."""
        return self._prompts[group]

    def completion(self, ticket: Ticket) -> C:
        """What was generated for a ticket."""
        return self._generated[ticket.group][ticket.member].completion

    def keep_generated(self, ticket: Ticket, result: Generated[C]) -> None:
        """A generation finished."""
        self._generated[ticket.group][ticket.member] = result

    def keep_graded(self, ticket: Ticket, result: Graded[S]) -> None:
        """A grading finished."""
        self._graded[ticket.group][ticket.member] = result

    def keep_part(self, ticket: Ticket, result: Generated[C]) -> None:
        """A generation was stopped with this."""
        before = self.part(ticket)
        new = result.tokens - before.tokens
        plain = (VersionSpan(version=result.oldest_version, tokens=new),) if new > 0 else ()
        spans = joined_spans(before.spans, result.spans or plain)
        self._parts.setdefault(ticket.group, {})[ticket.member] = result, spans

    def part(self, ticket: Ticket) -> Part[C]:
        """What the generation of an attempt goes on from."""
        kept = self._parts.get(ticket.group, {}).get(ticket.member)
        if kept is None or ticket.continues == 0:
            return Part(None, 0, ())
        result, spans = kept
        return Part(result.completion, result.tokens, spans)
