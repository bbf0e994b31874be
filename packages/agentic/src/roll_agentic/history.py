"""The transcripts of an episode: one, or several where history was rewritten. Kept by the episode runner."""

from collections.abc import Sequence
from dataclasses import dataclass

from roll_agentic.errors import TranscriptError
from roll_agentic.segment import Segment
from roll_agentic.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """A transcript, and where it comes from.

    Example: the branch that begins when an old turn is dropped has
    `reason="overflow: truncate_oldest"`, `first_turn=6`, `inherited=0`.

    Attributes:
        transcript: The tokens.
        reason: Why it began; empty for the first one.
        first_turn: The first turn that was sampled in it.
        inherited: How many tokens at its start are those of another branch, tokens that were sampled
            included; they are context here and trained there.
    """

    transcript: Transcript
    reason: str
    first_turn: int
    inherited: int


class History:
    """Branches in the order in which they began; only the newest grows."""

    def __init__(self) -> None:
        self._branches = [Branch(transcript=Transcript(), reason="", first_turn=0, inherited=0)]

    @property
    def branches(self) -> tuple[Branch, ...]:
        """All branches, in order."""
        return tuple(self._branches)

    @property
    def current(self) -> Transcript:
        """The newest branch's transcript."""
        return self._branches[-1].transcript

    def start(self, reason: str, *, first_turn: int, inherited: Sequence[Segment] = ()) -> Transcript:
        """A new branch, which is current from now on.

        Args:
            reason: Why the history was rewritten, not empty.
            first_turn: Number of the turn that is to be sampled next.
            inherited: Segments that stay exactly as they are in an earlier branch.

        Raises:
            TranscriptError: The reason is empty, or the inherited segments do not fit one another.
        """
        if not reason:
            raise TranscriptError("a branch needs the reason for which the history was rewritten")
        transcript = Transcript(inherited)
        branch = Branch(
            transcript=transcript, reason=reason, first_turn=first_turn, inherited=len(transcript)
        )
        self._branches.append(branch)
        return transcript

    def __len__(self) -> int:
        """Tokens in all branches, inherited ones counted once."""
        return sum(len(branch.transcript) - branch.inherited for branch in self._branches)
