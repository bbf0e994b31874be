"""References of graders that compare text: one accepted string or several. Called by graders."""

from roll_rewards.errors import RewardError


def accepted_texts(reference: object, *, grader: str) -> tuple[str, ...]:
    """The strings that count as right.

    Args:
        reference: A string, or a list or tuple of at least one string.
        grader: Name of the asking grader, for the message.

    Raises:
        RewardError: The reference is something else.
    """
    if isinstance(reference, str):
        return (reference,)
    if isinstance(reference, list | tuple) and reference and all(isinstance(item, str) for item in reference):
        return tuple(reference)
    raise RewardError(
        f"the reference of grader {grader!r} must be a string or a non-empty list of strings, "
        f"got {type(reference).__name__} {reference!r:.80}"
    )
