"""In which library's way a reward function wants to be called, by the names of its parameters."""

import inspect
from collections.abc import Callable
from typing import Literal

from roll_rewards.errors import RewardError

Style = Literal[
    "roll",
    "trl",
    "verl",
    "verl_batch",
    "openrlhf",
    "slime",
    "areal",
    "verifiers",
    "verifiers_trace",
    "reasoning_gym",
]

STYLES: dict[Style, str] = {
    "roll": "f(response, reference, **columns)",
    "trl": "f(prompts, completions, **columns)",
    "verl": "f(data_source, solution_str, ground_truth, extra_info)",
    "verl_batch": "f(data_sources, solution_strs, ground_truths, extra_infos)",
    "openrlhf": "f(queries, prompts, labels)",
    "slime": "f(args, sample)",
    "areal": "f(prompt, completions, prompt_ids, completion_ids, **data)",
    "verifiers": "f(prompt, completion, answer, state, info, task)",
    "verifiers_trace": "f(self, trace)",
    "reasoning_gym": "f(answer, entry)",
}
"""The signatures that are understood."""

_VERIFIERS = frozenset(("prompt", "completion", "answer", "state", "info", "task", "parser"))


def parameters_of(function: Callable[..., object], path: str) -> list[inspect.Parameter]:
    """The parameters of a function, in their order.

    Args:
        function: Any callable.
        path: Its name, for messages.

    Raises:
        RewardError: It has no signature, or requires a positional-only parameter.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RewardError(f"cannot read the parameters of {path!r}: {error}") from error
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise RewardError(
                f"{path} is called by name, but its parameter {parameter.name!r} is positional-only"
            )
    return parameters


def detect_style(parameters: list[inspect.Parameter], path: str) -> Style:
    """The style of a function.

    Args:
        parameters: See `parameters_of`.
        path: The function's name, for messages.

    Raises:
        RewardError: No style fits.
    """
    names = {parameter.name for parameter in parameters}
    ordered = [parameter.name for parameter in parameters]
    rules: list[tuple[Style, bool]] = [
        ("roll", "response" in names),
        ("verl", "solution_str" in names),
        ("verl_batch", "solution_strs" in names),
        ("openrlhf", "queries" in names),
        ("slime", ordered[:1] == ["args"] and ordered[1:2] in (["sample"], ["samples"])),
        ("verifiers_trace", "trace" in names),
        ("areal", "completions" in names and bool(names & {"prompt", "prompt_ids"})),
        ("trl", bool(names & {"completions", "completion_ids"})),
        ("verifiers", "completion" in names or ("state" in names and names <= _VERIFIERS)),
        ("reasoning_gym", {"answer", "entry"} <= names),
        ("roll", any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)),
    ]
    for style, fits in rules:
        if fits:
            return style
    raise RewardError(
        f"{path} must take a parameter named 'response', it has {', '.join(ordered) or '(none)'}; "
        f"understood are {'; '.join(f'{style}: {form}' for style, form in STYLES.items())}"
    )
