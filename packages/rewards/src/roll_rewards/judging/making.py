"""Judges from configuration: an endpoint's fields, or a function that is there already."""

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches

from roll_rewards.errors import RewardError
from roll_rewards.judging.endpoint import ChatEndpoint, Generate
from roll_rewards.remote.patience import Patience
from roll_rewards.remote.rate import RateLimit

_OWN = ("attempts", "first_wait_s", "concurrency", "per_minute")


def judge_of(judge: Generate | Mapping[str, object], *, logprobs: bool = False) -> Generate:
    """The judge that an option stands for.

    Args:
        judge: An async function, returned as it is, or fields of `ChatEndpoint`, with `attempts` and
            `first_wait_s` for its patience, `concurrency` and `per_minute` for its rate.
        logprobs: Whether a new endpoint asks for log-probabilities.

    Raises:
        RewardError: A field is unknown, or its value is none.
    """
    if not isinstance(judge, Mapping):
        if not callable(judge):
            raise RewardError(f"a judge is an endpoint's fields or an async function, got {judge!r:.80}")
        return judge
    known = [
        field.name for field in dataclasses.fields(ChatEndpoint) if field.name not in ("patience", "rate")
    ]
    for name in judge:
        if name not in known and name not in _OWN:
            near = get_close_matches(str(name), [*known, *_OWN], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise RewardError(f"a judge has no field {name!r}{hint}; it has {', '.join([*known, *_OWN])}")
    fields = {str(name): value for name, value in judge.items() if name in known}
    fields.setdefault("logprobs", logprobs)
    try:
        return ChatEndpoint(
            **fields,  # type: ignore[arg-type]  # its own checks say what is wrong
            patience=Patience(
                attempts=int(str(judge.get("attempts", 4))),
                first_s=float(str(judge.get("first_wait_s", 0.5))),
            ),
            rate=RateLimit(
                concurrency=int(str(judge.get("concurrency", 16))),
                per_minute=None if judge.get("per_minute") is None else float(str(judge["per_minute"])),
            ),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise RewardError(f"a judge cannot be made of {dict(judge)!r:.200}: {error}") from error
