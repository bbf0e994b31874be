"""IFBench's checks, made by if-verifiable in a worker process. `graders.ifbench` calls `follow` there."""

import importlib
import random
from collections.abc import Sequence
from typing import Any


def follow(
    versions: Sequence[str], instructions: Sequence[tuple[str, dict[str, Any]]], prompt: str
) -> list[bool] | str:
    """Whether some version of a response follows each instruction, or the id that is unknown.

    Args:
        versions: The response, and what it is without its first line and the like.
        instructions: Ids and arguments.
        prompt: For instructions that repeat it.
    """
    checkers = importlib.import_module("if_verifiable.ifbench.instructions_registry").INSTRUCTION_DICT
    followed = []
    for name, given in instructions:
        if name not in checkers:
            return str(name)
        # Arguments that a row leaves out are drawn at random by the checker: the same ones each time.
        random.seed(0)
        checker = checkers[name](name)
        checker.build_description(**given)
        if "prompt" in (checker.get_instruction_args() or {}) and "prompt" not in given:
            checker.build_description(prompt=prompt)
        followed.append(any(bool(v.strip()) and bool(checker.check_following(v)) for v in versions))
    return followed
