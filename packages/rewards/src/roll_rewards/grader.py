"""The seam that every grader fits, ours and third parties'; `check_grader` tests an implementation."""

from typing import Protocol

from roll_rewards.scores import Score


class Grader(Protocol):
    """Turns a response into a score."""

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict on one response.

        An implementation must not block the event loop: what may take long runs in a thread or a
        process. It may raise; `grade_with_deadline` turns that into a failure.

        Args:
            response: The text the policy produced, without the prompt.
            reference: What the data set says is right; its type is the grader's own matter.
            **columns: The other columns of the data set's row, by name; unknown ones are ignored.
        """
        ...
