"""Grader `ifbench`: IFBench's instructions by the checkers of if-verifiable (extra `ifbench`)."""

import importlib.util
from dataclasses import dataclass
from typing import Literal

from roll_rewards.errors import RewardError
from roll_rewards.extraction import Thinking, visible_part
from roll_rewards.graders.ifeval import instructions_of, response_versions
from roll_rewards.scores import Score
from roll_rewards.shared_pools import shared_pool
from roll_rewards.workers import WorkerTimedOut

_FOLLOW = "roll_rewards.instructions.ifbench:follow"
_PRELOAD = ("if_verifiable.ifbench.instructions_registry",)


@dataclass(frozen=True, slots=True, kw_only=True)
class IfBench:
    """Whether the response follows the row's instructions; columns as for `ifeval`, ids as in IFBench.

    The checkers run in a worker process; one that takes longer than `timeout_s` scores 0 with `timed_out`.
    Some need data of NLTK (`punkt`, `stopwords`, taggers): without it their rows are failures, not zeros.

    Attributes:
        mode: See `IfEval`.
        combine: See `IfEval`.
        thinking: What tags of reasoning mean; see `visible_part`.
        timeout_s: Wall seconds for all checks of a response, above 0.

    Raises:
        RewardError: if-verifiable is not installed or `timeout_s` is not above 0; when grading, an id is
            unknown, there is no instruction, or a checker broke.

    Source: Generalizing Verifiable Instruction Following (arXiv 2507.02833).
    """

    mode: Literal["strict", "loose"] = "strict"
    combine: Literal["all", "fraction"] = "all"
    thinking: Thinking = "strip"
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if importlib.util.find_spec("if_verifiable") is None:
            raise RewardError("grader 'ifbench' needs if-verifiable: pip install 'roll-rewards[ifbench]'")
        if not self.timeout_s > 0:
            raise RewardError(f"option 'timeout_s' of grader 'ifbench' must be above 0, got {self.timeout_s}")

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict. See `Grader.grade`."""
        instructions = instructions_of(reference, columns)
        text = visible_part(response, thinking=self.thinking)
        versions = response_versions(text) if self.mode == "loose" else [text]
        try:
            pool = shared_pool("ifbench", workers=1, preload=_PRELOAD)
            followed = await pool.call(
                _FOLLOW,
                (versions, instructions, str(columns.get("prompt", ""))),
                deadline_s=self.timeout_s,
                label=text[:80],
            )
        except WorkerTimedOut:
            return Score(value=0.0, timed_out=True)
        if not isinstance(followed, list):
            raise RewardError(f"grader 'ifbench' knows no instruction {followed!r}")
        value = float(all(followed)) if self.combine == "all" else sum(followed) / len(followed)
        parts: dict[str, float] = {}
        for (name, _), done in zip(instructions, followed, strict=True):
            parts[name] = min(parts.get(name, 1.0), float(done))
        return Score(value=value, parts=parts)
