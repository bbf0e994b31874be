"""Grader `pattern`: the response matches a regular expression, optionally capturing the reference."""

import asyncio
import json
import re
import signal
import sys
from dataclasses import dataclass
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.graders import regex_match
from roll_rewards.reference import accepted_texts
from roll_rewards.scores import Score

# A child that has not answered by now, with ten times its processor time on top, is not running at all.
_WALL_S = 10.0
# Steps of the matcher that may hold up the event loop: about a tenth of a second.
_INLINE_STEPS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """1 if the pattern matches and, with a group, the captured text equals the reference; else 0.

    Safe against patterns that take very long: a response longer than `max_chars` is refused with a
    score of 0 and the part `too_long`; a pair of pattern and response that could take more than a
    moment is matched in a child process, which gets `timeout_s` of processor time and then a score of 0
    and `timed_out`.

    Example: `Pattern(pattern=r"<answer>(.*?)</answer>", group=1)`.

    Attributes:
        pattern: Python regular expression; flags are written into it, as in `(?is)yes`.
        match: `search` takes the last match anywhere in the response, `full` matches all of it.
        group: Number or name of the group to compare with the reference, white space around both
            ignored; None ignores the reference.
        max_chars: Longest response that is looked at, above 0.
        timeout_s: Longest processor time for one match, in seconds, above 0.

    Raises:
        RewardError: The pattern does not compile, has no such group, or a limit is not above 0; when
            grading, the reference is not text, or the child process broke.
    """

    pattern: str
    match: Literal["search", "full"] = "search"
    group: int | str | None = None
    max_chars: int = 200_000
    timeout_s: float = 2.0

    def __post_init__(self) -> None:
        try:
            compiled = re.compile(self.pattern)
        except re.error as error:
            raise RewardError(
                f"option 'pattern' of grader 'pattern' does not compile: {error}, in {self.pattern!r:.200}"
            ) from error
        groups: list[int | str] = [*range(compiled.groups + 1), *compiled.groupindex]
        if self.group is not None and self.group not in groups:
            raise RewardError(
                f"option 'group' of grader 'pattern' is {self.group!r}, but the pattern has only {groups}"
            )
        if not (self.max_chars > 0 and self.timeout_s > 0):
            raise RewardError(
                "options 'max_chars' and 'timeout_s' of grader 'pattern' must be above 0, "
                f"got {self.max_chars} and {self.timeout_s}"
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict; `parsed` is the group's text, without a group the match. See `Grader.grade`."""
        accepted = () if self.group is None else accepted_texts(reference, grader="pattern")
        if len(response) > self.max_chars:
            return Score(value=0.0, parts={"too_long": 1.0})
        found = await self._find(response)
        if not found:
            return Score(value=0.0, timed_out=found is None)
        if self.group is None:
            return Score(value=1.0, parsed=found[0])
        captured = None if found[1] is None else found[1].strip()
        right = captured is not None and captured in {text.strip() for text in accepted}
        return Score(value=float(right), parsed=captured)

    async def _find(self, text: str) -> list[str | None] | None:
        """See `regex_match.last_match`; None when the time is up."""
        full, group = self.match == "full", self.group or 0
        if _worst_steps(self.pattern, len(text)) <= _INLINE_STEPS:
            return regex_match.last_match(self.pattern, text, full=full, group=group)
        request = {"pattern": self.pattern, "text": text, "full": full, "group": group}
        return await _find_in_child(request | {"timeout_s": self.timeout_s}, _WALL_S + 10 * self.timeout_s)


def _worst_steps(pattern: str, length: int) -> float:
    """An upper bound of the matcher's steps, generous: each quantifier multiplies by the length.

    Characters that only look like quantifiers (escaped, in a class) are counted as well; that costs
    time, not safety. A repeated group may take exponential time.
    """
    if re.search(r"\)[*+{]", pattern):
        return float("inf")
    quantifiers = len(re.findall(r"(?<!(?<!\\)\()[*+?{][+?]?|\|", pattern))
    backreferences = len(re.findall(r"\\[1-9]|\(\?P=", pattern))
    return float(max(length, len(pattern), 2)) ** min(quantifiers + backreferences + 1, 64)


async def _find_in_child(request: dict[str, object], wall_s: float) -> list[str | None] | None:
    """The last match, computed by `regex_match.py` as a script; None when its processor time is up.

    Raises:
        RewardError: The child failed, or did not answer within `wall_s`.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        regex_match.__file__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(wall_s):
            output, errors = await child.communicate(json.dumps(request).encode("ascii"))
    except TimeoutError as error:
        raise RewardError(f"grader 'pattern': its child gave no answer within {wall_s:g} s") from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == -signal.SIGVTALRM:
        return None
    if child.returncode != 0:
        raise RewardError(f"grader 'pattern': its child failed: {errors.decode(errors='replace')[-500:]}")
    found: list[str | None] = json.loads(output)
    return found
