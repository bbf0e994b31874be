"""The seam that every policy fits: what it is shown, and what it answers. Consumed by the episode runner."""

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from roll_agentic.environment import Info
from roll_agentic.errors import AgenticError
from roll_agentic.segment import FinishReason, Segment
from roll_agentic.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One thing that was said, as text.

    Example: `Message(role="environment", text="<")`.

    Attributes:
        role: Who said it.
        text: What was said.
        is_tool: Whether it is what tools answered, rather than the environment itself.
    """

    role: Literal["environment", "policy"]
    text: str
    is_tool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeState:
    """What a policy is shown when it is its turn.

    Example: the second turn of number guessing has `turn=1` and the texts `?`, `8`, `<`.

    Attributes:
        seed: Seed of the episode.
        turn: How many turns the policy has had: 0, 1, 2, ...
        messages: All that was said, in order; the last one is the observation to answer.
        info: What the environment returned with that observation.
        first_info: What it returned with the first one, such as `instructions`.
        transcript: The tokens so far, to be read only; what a turn adds is returned by the policy.
    """

    seed: int
    turn: int
    messages: tuple[Message, ...]
    info: Info
    transcript: Transcript
    first_info: Info = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """What a policy answers.

    Example: `Turn(response="8")` of a policy without tokens; one that is trained also gives the
    segments, for example the observation's tokens, the template's and the sampled ones.

    Attributes:
        response: The text of the action, cut at a stop sequence if there is one.
        segments: What the turn adds to the transcript, in order: context, then one sampled segment
            last. Empty for a policy that is not trained.
        finish_reason: Why the response ended. `length`: it was cut off, so it is not carried out.
            `abort`: it was given up, so the episode has no verdict.
        branch: Why the segments do not continue the transcript but begin a new one (say, the oldest
            turn was dropped); empty where they continue it.
        out_of_context: The prompt leaves no room for a turn: nothing was sampled, and the episode ends.

    Raises:
        AgenticError: The segments are in another order or contradict the finish reason.
    """

    response: str
    segments: tuple[Segment, ...] = ()
    finish_reason: FinishReason = "stop"
    branch: str = ""
    out_of_context: bool = False

    def __post_init__(self) -> None:
        if self.finish_reason not in get_args(FinishReason):
            allowed = ", ".join(get_args(FinishReason))
            raise AgenticError(f"the finish_reason of a turn is one of {allowed}; got {self.finish_reason!r}")
        if self.out_of_context and (self.response or self.segments):
            raise AgenticError("a turn that is out of context has neither response nor segments")
        if not self.segments:
            return
        sources = [segment.source for segment in self.segments]
        if sources.count("sampled") != 1 or sources[-1] != "sampled":
            raise AgenticError(f"a turn adds context and then one sampled segment, got {', '.join(sources)}")
        if self.segments[-1].finish_reason != self.finish_reason:
            raise AgenticError(
                f"the turn ended with {self.finish_reason!r}, "
                f"its sampled segment with {self.segments[-1].finish_reason!r}"
            )


class Policy(Protocol):
    """Who plays: a model behind an engine, a script, a person."""

    async def act(self, state: EpisodeState) -> Turn:
        """Answer the last observation.

        One policy may play many episodes at once, so all it remembers of one is in `state`. It may
        raise; the episode then ends without a verdict.

        Args:
            state: What happened so far.
        """
        ...
