"""Where prompts come from: a seam, a list of prompts, and a log with which a resume gets the same prompts
again."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from roll_scheduler.errors import SchedulerError

__all__ = ["KeyedPrompt", "PromptList", "PromptLog", "PromptSource", "ResultObserver"]

P = TypeVar("P")

FORMAT = 1


class KeyedPrompt(NamedTuple, Generic[P]):
    """A prompt that sources give, for example `KeyedPrompt("math/17", "math", prompt)`.

    Attributes:
        key: Equal for all occurrences of the prompt, unique in its source.
        domain: Where it comes from; "" if there is but one.
        prompt: The prompt.
    """

    key: str
    domain: str
    prompt: P


class PromptSource(Protocol[P]):
    """An iterator of prompts that can go on after a restart."""

    def __iter__(self) -> Iterator[KeyedPrompt[P]]:
        """Itself."""
        ...

    def __next__(self) -> KeyedPrompt[P]:
        """The next prompt; raises StopIteration when there is none."""
        ...

    def prompt(self, key: str) -> KeyedPrompt[P]:
        """The prompt with this key."""
        ...

    def state(self) -> dict[str, Any]:
        """Where it is, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`."""
        ...


@runtime_checkable
class ResultObserver(Protocol):
    """A source whose choice depends on how its prompts did."""

    def observe(self, key: str, value: float, weight: float = 1.0) -> None:
        """`weight` completions of a prompt were graded, of which the share `value` passed."""
        ...


class PromptList(Generic[P]):
    """Prompts of a sequence, again and again, each time in another order.

    Args:
        prompts: At least one.
        seed: Of the orders; None keeps that of the sequence.
        epochs: Times that all are given, >= 1; None is without end.
        domain: What the prompts are marked with.

    Raises:
        SchedulerError: If there is no prompt or no epoch.
    """

    def __init__(
        self, prompts: Sequence[P], *, seed: int | None = None, epochs: int | None = None, domain: str = ""
    ) -> None:
        given: object = prompts  # a data set is one too, though no Sequence
        if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
            raise SchedulerError(f"PromptList: got {prompts!r} for domain {domain!r}, allowed is a sequence")
        if not len(prompts):
            raise SchedulerError(f"PromptList: got no prompt for domain {domain!r}, at least one is needed")
        if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1):
            raise SchedulerError(f"PromptList.epochs: got {epochs!r}, allowed is an integer >= 1 or None")
        self._prompts = prompts
        self._seed = seed
        self._epochs = epochs
        self._domain = domain
        self._given = 0
        self._order: tuple[int, Sequence[int]] = (-1, ())

    def __iter__(self) -> Iterator[KeyedPrompt[P]]:
        return self

    def __next__(self) -> KeyedPrompt[P]:
        epoch, position = divmod(self._given, len(self._prompts))
        if epoch == self._epochs:
            raise StopIteration
        if self._order[0] != epoch:
            self._order = (epoch, self._shuffled(epoch))
        self._given += 1
        return self._keyed(self._order[1][position])

    def prompt(self, key: str) -> KeyedPrompt[P]:
        """The prompt with this key, its index in the sequence; see `PromptSource`.

        Raises:
            SchedulerError: If there is none.
        """
        if not key.isdecimal() or int(key) >= len(self._prompts):
            raise SchedulerError(f"PromptList.prompt: got {key!r}, allowed is 0 to {len(self._prompts) - 1}")
        return self._keyed(int(key))

    def state(self) -> dict[str, Any]:
        """Where it is; see `PromptSource`."""
        return {"format": FORMAT, "prompts": len(self._prompts), "seed": self._seed, "given": self._given}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`; see `PromptSource`.

        Raises:
            SchedulerError: If it is of another sequence or another seed.
        """
        expected = {"format": FORMAT, "prompts": len(self._prompts), "seed": self._seed}
        got = {name: state.get(name) for name in expected}
        given = state.get("given")
        if got != expected or not isinstance(given, int) or given < 0:
            raise SchedulerError(
                f"PromptList.restore: got {dict(state)}, allowed is one with {expected} and given >= 0"
            )
        self._given = given

    def _keyed(self, index: int) -> KeyedPrompt[P]:
        return KeyedPrompt(str(index), self._domain, self._prompts[index])

    def _shuffled(self, epoch: int) -> Sequence[int]:
        if self._seed is None:
            return range(len(self._prompts))
        order = list(range(len(self._prompts)))
        Random(f"{self._seed}/{epoch}").shuffle(order)
        return order


class PromptLog(Generic[P]):
    """The prompts of a source, with those noted that a resume will want again.

    A scheduler that goes on from a snapshot begins with the prompt of its `first_group`, which was drawn some
    time before the snapshot; a source whose choice depends on what was observed could not choose it again.

        log = PromptLog(Curriculum(prompts))
        scheduler = RolloutScheduler(prompts=log, ...)
        ...
        snapshot = scheduler.snapshot()
        log.forget_before(snapshot.first_group)
        state = log.state()
        ...                                                 # after a restart:
        log.restore(state)
        log.rewind(snapshot.first_group)
        scheduler = RolloutScheduler(prompts=log, resume=snapshot, ...)

    Args:
        source: Where prompts come from.
    """

    def __init__(self, source: PromptSource[P]) -> None:
        self._source = source
        self._first = 0
        self._keys: list[str] = []
        self._again = 0

    def __iter__(self) -> Iterator[KeyedPrompt[P]]:
        return self

    def __next__(self) -> KeyedPrompt[P]:
        if self._again < len(self._keys):
            drawn = self._source.prompt(self._keys[self._again])
        else:
            drawn = next(self._source)
            self._keys.append(drawn.key)
        self._again += 1
        return drawn

    def observe(self, key: str, value: float, weight: float = 1.0) -> None:
        """Tells the source how a prompt did, if it is a `ResultObserver`."""
        if isinstance(self._source, ResultObserver):
            self._source.observe(key, value, weight)

    def forget_before(self, draw: int) -> None:
        """Draws before this one (0 is the first) will not be wanted again."""
        count = min(max(0, draw - self._first), self._again)
        del self._keys[:count]
        self._first += count
        self._again -= count

    def state(self) -> dict[str, Any]:
        """The draws that may be wanted again, and the state of the source, as JSON."""
        return {
            "format": FORMAT,
            "first": self._first,
            "keys": list(self._keys),
            "source": self._source.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`, with the first draw that it noted; see `rewind`.

        Raises:
            SchedulerError: If it is no state.
        """
        try:
            known, source = state["format"], state["source"]
            first, keys = int(state["first"]), [str(key) for key in state["keys"]]
        except (KeyError, TypeError, ValueError) as error:
            raise SchedulerError(f"PromptLog.restore: got what is no state of it: {error!r}") from error
        if known != FORMAT or first < 0:
            raise SchedulerError(
                f"PromptLog.restore: got format {known!r} and first {first}, allowed are {FORMAT} and >= 0"
            )
        self._source.restore(source)
        self._first, self._keys, self._again = first, keys, 0

    def rewind(self, draw: int) -> None:
        """Goes on with this draw, 0 being the first that was ever made.

        Raises:
            SchedulerError: If it was forgotten, or not made yet.
        """
        end = self._first + len(self._keys)
        if not self._first <= draw <= end:
            raise SchedulerError(f"PromptLog.rewind: got draw {draw}, allowed is {self._first} to {end}")
        self._again = draw - self._first
