"""What reward functions return, as scores: numbers, lists of one, tensors, mappings."""

from collections.abc import Mapping
from typing import Any

from roll_rewards.errors import RewardError
from roll_rewards.scores import REAL_TYPES, Score, failed

_VALUE_KEYS = ("score", "reward", "rewards", "scores", "value")
_NESTED_PARTS = ("extra_logs", "metrics", "reward_extra_info")


def as_score(answer: object, path: str, *, none_is_inapplicable: bool = False) -> Score:
    """The score that an answer is.

    Args:
        answer: What the function returned.
        path: Its name, for messages.
        none_is_inapplicable: Whether None says that the function does not judge this row (TRL).

    Raises:
        RewardError: The answer is nothing that can be read as a score.
    """
    if isinstance(answer, Score):
        return answer
    if none_is_inapplicable and (answer is None or answer == [None]):
        return failed("inapplicable", f"{path} returned None: it does not judge this row")
    number = _number(answer)
    if number is not None:
        return Score(value=number)
    if isinstance(answer, list | tuple) and len(answer) == 1 and isinstance(answer[0], Mapping):
        answer = answer[0]
    if isinstance(answer, Mapping):
        key = next((key for key in _VALUE_KEYS if _number(answer.get(key)) is not None), None)
        if key is not None:
            value = _number(answer[key])
            parsed = answer.get("parsed", answer.get("pred"))
            return Score(
                value=0.0 if value is None else value,
                parts=_parts(answer, key),
                parsed=parsed if isinstance(parsed, str) else None,
            )
    raise RewardError(
        f"{path} must return a number, a bool, a Score or a mapping with a number under 'score', "
        f"got {type(answer).__name__} {answer!r:.80}"
    )


def _parts(answer: Mapping[Any, Any], key: str) -> dict[str, float]:
    """The other numbers of a mapping, and those one level below where libraries put their metrics."""
    parts: dict[str, float] = {}
    for name, value in answer.items():
        if name in _NESTED_PARTS and isinstance(value, Mapping):
            parts |= _parts(value, "")
            continue
        number = _number(value)
        if name != key and number is not None:
            parts[str(name)] = number
    return parts


def _number(value: Any) -> float | None:
    """A number, also as a tensor or array of one element or a list of one."""
    if isinstance(value, REAL_TYPES):
        return float(value)
    if callable(getattr(value, "tolist", None)):
        # Arrays and tensors of any library; they are not imported here.
        value = value.tolist()
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, REAL_TYPES) else None
