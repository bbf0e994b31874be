"""What became of one test."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a program passed a test, and why not.

    Example: `Verdict(passed=False, why="exit code 1", seconds=0.02, isolation="namespaces")`.

    Attributes:
        passed: Whether it did.
        why: Why not, for people; empty if it passed.
        timed_out: Whether it ran past its time.
        seconds: Wall time of the program.
        isolation: What stood around it.
    """

    passed: bool
    why: str = ""
    timed_out: bool = False
    seconds: float = 0.0
    isolation: str = ""


class CompileError(Exception):
    """A program that does not compile: a verdict on all of its tests."""

    def __init__(self, message: str, *, timed_out: bool, isolation: str) -> None:
        """Args:
        message: What the compiler said.
        timed_out: Whether it ran past its time.
        isolation: What stood around it.
        """
        super().__init__(message)
        self.timed_out = timed_out
        self.parts = {f"isolation/{isolation}": 1.0}
