"""The errors of this package, with one root; faults classify what foreign code did, once, at its boundary."""


class AgenticError(Exception):
    """Something was asked of this package that it cannot do; the message says what and what is allowed."""


class TranscriptError(AgenticError):
    """Tokens that do not fit a transcript; the message names the position of the first that does not."""


class DeadlineMissed(AgenticError):
    """A wait that ended without an answer."""


class Fault(AgenticError):
    """Foreign code that broke its contract, so that an episode has no verdict.

    Attributes:
        kind: `error` (it raised), `deadline` (no answer in time), `invalid` (an answer of a wrong
            form) or `abort` (the engine gave the turn up).
        message: What happened, for a person.
    """

    def __init__(self, kind: str, message: str) -> None:
        # Both go to Exception, so that unpickling can call the constructor again.
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


class EnvironmentFault(Fault):
    """The environment is at fault."""


class PolicyFault(Fault):
    """The policy is at fault."""
