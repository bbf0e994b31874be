"""What samples of a batch are called in messages: where each is in rollouts/ or in the data."""

from collections.abc import Callable

from roll_launch.pipelines.collection import RolloutBatch, members_of
from roll_launch.prompts import Prompt

HEAD, TAIL = 40, 20
"""Characters of a prompt that are shown; prompts of one template differ at the end."""


def rollout_names(batch: RolloutBatch) -> Callable[[int], str]:
    """The name of the sample at a position of the batch: `group 181 member 4 (train.jsonl:12 'hcfa=')`."""

    def name(position: int) -> str:
        ticket = members_of(batch)[position].ticket
        prompt: Prompt = next(group.prompt for group in batch.groups if group.id == ticket.group)
        return (
            f"group {ticket.group} member {ticket.member} "
            f"({prompt.row.origin} {shortened(prompt.row.text)!r})"
        )

    return name


def shortened(text: str) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} ... {text[-TAIL:]}"
