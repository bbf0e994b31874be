"""Grader `layout`: the response consists of the asked sections, each in its tags, once and in order."""

import re
from dataclasses import dataclass

from roll_rewards.errors import RewardError
from roll_rewards.scores import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """1 if the tags stand as asked, else 0; with `partial` the fraction of tags that stand once.

    Example: `Layout(tags=("think", "answer"))` wants `<think>...</think><answer>...</answer>`.

    Attributes:
        tags: Names in their order.
        opened: Whether the prompt already has the first opening tag, so that the response must not.
        outside: Whether other text than white space may stand outside the tags.
        filled: Whether each section must have something in it.
        partial: Whether tags that stand exactly once count when the whole is not right.

    Raises:
        RewardError: There is no tag, or one is no name.
    """

    tags: tuple[str, ...] = ("think", "answer")
    opened: bool = False
    outside: bool = False
    filled: bool = True
    partial: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tuple(self.tags))
        if not self.tags or not all(re.fullmatch(r"[\w.-]+", tag) for tag in self.tags):
            raise RewardError(f"option 'tags' of grader 'layout' must be names of tags, got {self.tags!r}")

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; the part `once` is the fraction of tags that stand once. See `Grader.grade`."""
        text = f"<{self.tags[0]}>{response}" if self.opened else response
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        once = sum(text.count(mark) == 1 for mark in marks) / len(marks)
        right = once == 1 and self._in_order(text)
        value = 1.0 if right else once if self.partial and once < 1 else 0.0
        return Score(value=value, parts={"once": once})

    def _in_order(self, text: str) -> bool:
        rest = text
        for tag in self.tags:
            before, opening, rest = rest.partition(f"<{tag}>")
            inside, closing, rest = rest.partition(f"</{tag}>")
            if not (opening and closing) or (self.filled and not inside.strip()):
                return False
            if not self.outside and before.strip():
                return False
        return self.outside or not rest.strip()
