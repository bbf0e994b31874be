"""Graders inside graders: an option that is a grader, or says by name and options which one to make."""

from collections.abc import Mapping

from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader

GraderOption = Grader | Mapping[str, object]
"""A grader, or `{"name": "math", "options": {...}}` as a configuration file writes it."""


def nested_grader(option: GraderOption, *, where: str) -> Grader:
    """The grader that an option stands for.

    Args:
        option: A grader, which is returned as it is, or a mapping with `name` and, if wanted, `options`.
        where: Which option of which grader this is, for the message.

    Raises:
        RewardError: The mapping has other keys, or its grader cannot be made.
    """
    if not isinstance(option, Mapping):
        return option
    # The registry's table holds the classes whose options come here.
    from roll_rewards.registry import make_grader

    name, options = option.get("name"), option.get("options", {})
    unknown = sorted(map(str, set(option) - {"name", "options"}))
    if unknown or not isinstance(name, str) or not isinstance(options, Mapping):
        raise RewardError(
            f"{where} must be a grader or a mapping with 'name' and 'options', got {option!r:.200}"
        )
    try:
        return make_grader(name, **{str(key): value for key, value in options.items()})
    except RewardError as error:
        raise RewardError(f"{where}: {error}") from error
