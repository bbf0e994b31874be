"""One replica of an inference engine as a discrete-event model. Driven by `Fleet`.

The engine batches continuously: it decodes in iterations, each gives every active sequence one token, and
sequences join and leave between two iterations only. Between two changes of the batch all iterations cost the
same, so the model jumps over them: an event costs O(log slots), whatever the number of tokens.
"""

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, fields
from typing import NamedTuple

from roll_scheduler.simulator.errors import SimulationError

__all__ = ["EngineModel", "Replica", "Sequence", "Span", "Usage"]

ROUNDING = 1e-6
"""Part of an iteration that counts as none: times are sums of floats."""

SERIAL_BITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """What one replica can do, for example `EngineModel(slots=64, base_s=0.010, sequence_s=50e-6)`.

    A decode iteration with b active sequences takes `base_s + b * sequence_s` seconds. A prefill holds up the
    decoding. The prompt of a group is computed and kept once, as long as a member of the group is active.

    Attributes:
        slots: Sequences that decode at a time, >= 1; more wait in order of arrival.
        base_s: Seconds of an iteration apart from its sequences, >= 0.
        sequence_s: Seconds that a sequence adds to an iteration, >= 0; not both are 0.
        prefill_token_s: Seconds per token to compute the KV of, >= 0.
        kv_tokens: Tokens whose KV fits, >= 1; None is unlimited. When the next iteration does not fit, the
            sequence that started last is preempted: its KV is dropped and later computed again.
        kv_reserve: Share of `kv_tokens` that has to stay free for a sequence to start beside others, 0 to 1.
        sync_recomputes: Whether the KV of active sequences is computed again after a weight sync.
    """

    slots: int
    base_s: float
    sequence_s: float
    prefill_token_s: float = 0.0
    kv_tokens: int | None = None
    kv_reserve: float = 0.01
    sync_recomputes: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name in ("slots", "kv_tokens") else 0
            if value is not None and (not math.isfinite(value) or value < least):
                raise SimulationError(f"EngineModel.{field.name}: got {value!r}, allowed is >= {least}")
        if self.base_s + self.sequence_s == 0:
            raise SimulationError("EngineModel: base_s and sequence_s are both 0, an iteration takes no time")
        if self.kv_reserve > 1:
            raise SimulationError(f"EngineModel.kv_reserve: got {self.kv_reserve!r}, allowed is 0 to 1")

    def iteration_s(self, active: float) -> float:
        """Seconds of a decode iteration with that many sequences."""
        return self.base_s + active * self.sequence_s

    def token_s(self, active: float) -> float:
        """Engine seconds per token at that batch size; lowest with all slots busy."""
        return self.base_s / active + self.sequence_s


class Sequence:
    """A completion on its way through a replica.

    Attributes:
        key: What the caller knows it by; unique in a fleet.
        group: Members of a group share the prompt's KV.
        prompt: Tokens of the prompt.
        tokens: Tokens that it will have generated when it finishes, >= 1.
        done: Tokens that it has generated; exact while it is not active.
        started_at: Time of its first iteration here, None while it has never been active.
        slot: Which slot it has, while it is active and spans are recorded.
    """

    __slots__ = (
        "done",
        "finish",
        "group",
        "key",
        "prompt",
        "serial",
        "since",
        "slot",
        "started_at",
        "tokens",
    )

    def __init__(self, key: int, *, group: int, tokens: int, prompt: int = 0, done: int = 0) -> None:
        self.key = key
        self.group = group
        self.prompt = prompt
        self.tokens = tokens
        self.done = done
        self.started_at: float | None = None
        self.slot = 0
        self.since = 0.0
        self.finish = 0
        self.serial = -1


class Span(NamedTuple):
    """A stretch of time in which a sequence had a slot.

    Attributes:
        key: The sequence's.
        slot: 0 to slots - 1.
        start: Seconds.
        end: Seconds.
    """

    key: int
    slot: int
    start: float
    end: float


class Usage:
    """What a replica has done so far.

    Attributes:
        busy_s: Seconds in which it decoded or prefilled.
        stalled_s: Seconds in which it was held up from outside (weight sync, training on its devices).
        slot_s: Sum over busy seconds of the active sequences.
        tokens: Tokens decoded.
        prefilled: Tokens whose KV was computed other than by decoding.
        recomputed: Those of `prefilled` whose KV had been there before.
        preemptions: Sequences preempted.
    """

    __slots__ = ("busy_s", "preemptions", "prefilled", "recomputed", "slot_s", "stalled_s", "tokens")

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.stalled_s = 0.0
        self.slot_s = 0.0
        self.tokens = 0
        self.prefilled = 0
        self.recomputed = 0
        self.preemptions = 0


class Replica:
    """The state of one replica.

    Time is passed in and never goes back. What happens in the middle of an iteration takes effect at its end.

    Args:
        model: What it can do.
        index: Its number in the fleet.
        now: When it comes up.
        usage: What to add to; None begins at zero.
        spans: Where to record which sequence had which slot; None records nothing.
    """

    def __init__(
        self,
        model: EngineModel,
        *,
        index: int = 0,
        now: float = 0.0,
        usage: Usage | None = None,
        spans: list[Span] | None = None,
    ) -> None:
        self.model = model
        self.usage = Usage() if usage is None else usage
        self._spans = spans
        self._free_slots = list(range(model.slots)) if spans is not None else []
        self._clock = now
        self._iteration = 0
        self._kv = 0
        # No two replicas give the same serial: a sequence that has moved must not look as if it were here.
        self._serial = index << SERIAL_BITS
        self._active: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._finished: list[Sequence] = []
        self._finished_at = 0.0
        self._finishes: list[tuple[int, int, Sequence]] = []
        self._sharing: Counter[int] = Counter()
        self._base_s = model.base_s
        self._sequence_s = model.sequence_s
        self._slots = model.slots
        self._kv_limit = math.inf if model.kv_tokens is None else model.kv_tokens
        self._start_limit = self._kv_limit * (1 - model.kv_reserve)

    @property
    def load(self) -> int:
        """Sequences that are active or wait."""
        return len(self._active) + len(self._waiting)

    def next_at(self) -> float:
        """When something happens here by itself, infinity if nothing does."""
        if self._finished:
            return self._finished_at
        if not self._active:
            return math.inf
        seconds = self._base_s + len(self._active) * self._sequence_s
        return self._clock + self._iterations_to_event() * seconds

    def submit(self, sequence: Sequence, now: float) -> None:
        """A sequence arrives; it starts at the end of the current iteration, if there is a slot and KV.

        Raises:
            SimulationError: If its KV can never fit, or it has nothing to generate.
        """
        if sequence.prompt + sequence.tokens > self._kv_limit:
            raise SimulationError(
                f"sequence {sequence.key}: needs KV for {sequence.prompt} + {sequence.tokens} tokens, a "
                f"replica has room for {self.model.kv_tokens} (EngineModel.kv_tokens)"
            )
        if sequence.tokens <= sequence.done:
            raise SimulationError(
                f"sequence {sequence.key}: got {sequence.tokens} tokens of which {sequence.done} are done, "
                "allowed is at least one to generate"
            )
        self._catch_up(now)
        self._waiting.append(sequence)
        self._start_waiting()

    def advance(self, now: float) -> list[Sequence]:
        """Runs up to `now` and returns the sequences that have finished since the last call."""
        self._catch_up(now)
        if not self._finished or self._finished_at > now + ROUNDING * (self._base_s + self._sequence_s):
            return []
        finished, self._finished = self._finished, []
        return finished

    def settle(self, now: float) -> None:
        """Brings `usage` up to `now`."""
        self._catch_up(now)

    def remove(self, sequence: Sequence, now: float) -> int:
        """Takes a sequence out, if it is here still; returns the tokens that it has generated."""
        self._catch_up(now)
        if sequence.key in self._active:
            self._leave(sequence)
            self._start_waiting()
        elif sequence in self._finished:
            self._finished.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        return sequence.done

    def stops_at(self, now: float) -> float:
        """When it can be held up: the end of the current iteration."""
        self._catch_up(now)
        return max(self._clock, now)

    def stall(self, now: float, until: float, *, sync: bool = False) -> None:
        """Nothing is decoded from the end of the current iteration on; KV stays.

        Args:
            now: When it is asked for.
            until: Up to when, at least `stops_at`.
            sync: Whether weights change meanwhile; active sequences may then need their KV again.
        """
        before = self.stops_at(now)
        self._clock = until
        for sequence in self._active.values():
            if sequence.started_at == before:
                sequence.started_at = until
        self.usage.stalled_s += until - before
        if sync and self.model.sync_recomputes and self._active:
            self._prefill(self._kv, again=self._kv)

    def drain(self, now: float) -> list[Sequence]:
        """Takes everything out, for example because the replica died; in order of arrival."""
        self._catch_up(now)
        out = [*self._active.values(), *self._waiting, *self._finished]
        for sequence in list(self._active.values()):
            self._leave(sequence)
        self._waiting.clear()
        self._finished.clear()
        return out

    def _iterations_to_event(self) -> int:
        """Iterations until a sequence finishes or the KV is full; 0 if the next one does not fit."""
        finishes = self._finishes
        while finishes[0][1] != finishes[0][2].serial:
            heapq.heappop(finishes)
        to_finish = finishes[0][0] - self._iteration
        if self._kv_limit == math.inf:
            return to_finish
        return min(to_finish, int(self._kv_limit - self._kv) // len(self._active))

    def _catch_up(self, now: float) -> None:
        """Runs whole iterations until none that begins before `now` is left."""
        while self._clock < now and self._active:
            seconds = self._base_s + len(self._active) * self._sequence_s
            wanted = math.ceil((now - self._clock) / seconds - ROUNDING)
            if wanted <= 0:
                return
            possible = self._iterations_to_event()
            self._decode(min(wanted, possible), seconds)
            if wanted >= possible:
                self._end_iteration()
        if not self._active:
            self._clock = max(self._clock, now)

    def _decode(self, iterations: int, seconds: float) -> None:
        active = len(self._active)
        usage = self.usage
        self._clock += iterations * seconds
        self._iteration += iterations
        self._kv += iterations * active
        usage.busy_s += iterations * seconds
        usage.slot_s += iterations * seconds * active
        usage.tokens += iterations * active

    def _end_iteration(self) -> None:
        finishes = self._finishes
        while finishes and (finishes[0][1] != finishes[0][2].serial or finishes[0][0] <= self._iteration):
            _, serial, sequence = heapq.heappop(finishes)
            if serial == sequence.serial:
                self._leave(sequence)
                self._finished.append(sequence)
                self._finished_at = self._clock
        while self._kv + len(self._active) > self._kv_limit:
            victim = self._active[next(reversed(self._active))]
            self._leave(victim)
            self._waiting.appendleft(victim)
            self.usage.preemptions += 1
        self._start_waiting()

    def _start_waiting(self) -> None:
        active, waiting = self._active, self._waiting
        while waiting and len(active) < self._slots:
            sequence = waiting[0]
            needed = sequence.done
            if sequence.prompt and sequence.group not in self._sharing:
                needed += sequence.prompt
            # What is alone starts in any case: submit has checked that it fits.
            if active and self._kv + needed + len(active) + 1 > self._start_limit:
                return
            waiting.popleft()
            self._enter(sequence, needed)

    def _enter(self, sequence: Sequence, needed: int) -> None:
        again = needed if sequence.serial >= 0 else sequence.done
        self._serial += 1
        sequence.serial = self._serial
        sequence.since = self._clock
        if sequence.started_at is None:
            sequence.started_at = self._clock
        sequence.finish = self._iteration + sequence.tokens - sequence.done
        self._active[sequence.key] = sequence
        if sequence.prompt:
            self._sharing[sequence.group] += 1
        self._kv += needed
        heapq.heappush(self._finishes, (sequence.finish, self._serial, sequence))
        if self._spans is not None:
            sequence.slot = heapq.heappop(self._free_slots)
        if needed:
            self._prefill(needed, again=again)

    def _leave(self, sequence: Sequence) -> None:
        del self._active[sequence.key]
        sequence.done = sequence.tokens - (sequence.finish - self._iteration)
        sequence.serial = 0
        if self._spans is not None:
            heapq.heappush(self._free_slots, sequence.slot)
            self._spans.append(Span(sequence.key, sequence.slot, sequence.since, self._clock))
        self._kv -= sequence.done
        if sequence.prompt:
            self._sharing[sequence.group] -= 1
            if not self._sharing[sequence.group]:
                del self._sharing[sequence.group]
                self._kv -= sequence.prompt

    def _prefill(self, tokens: int, *, again: int) -> None:
        seconds = tokens * self.model.prefill_token_s
        self._clock += seconds
        self.usage.busy_s += seconds
        self.usage.slot_s += seconds * len(self._active)
        self.usage.prefilled += tokens
        self.usage.recomputed += again
