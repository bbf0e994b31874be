"""The arguments of one call in each library's way. Called by `adapters.function`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from roll_rewards.adapters.styles import Style
from roll_rewards.errors import RewardError

REFERENCE_NAMES = (
    "reference", "answer", "ground_truth", "solution", "label", "target", "gold", "expected", "final_answer",
    "reference_answer",
)  # fmt: skip
"""Columns that the reference usually comes from: functions of other libraries ask for it by these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one call is about.

    Example: `Row(response="4", reference="4", columns={"prompt": "2+2="})`.

    Attributes:
        response: The text the policy produced.
        reference: What the data set says is right.
        columns: The other columns of the row; `prompt` is a text or a list of messages.
        metrics: What the function logged while it ran, by name.
    """

    response: str
    reference: object
    columns: Mapping[str, object]
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def prompt(self) -> object:
        """The row's prompt, empty when it has none."""
        return self.columns.get("prompt", "")

    @property
    def prompt_text(self) -> str:
        """The prompt as text; of messages, their contents one below the other."""
        if isinstance(self.prompt, list):
            return "\n".join(str(message.get("content", "")) for message in self.prompt)
        return str(self.prompt)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The response as the assistant's message."""
        return [{"role": "assistant", "content": self.response}]


def arguments_for(
    style: Style, parameters: list[inspect.Parameter], row: Row, path: str
) -> dict[str, object]:
    """Arguments by name for one call.

    Args:
        style: The function's style.
        parameters: The function's parameters.
        row: What the call is about.
        path: The function's name, for messages.

    Raises:
        RewardError: A required parameter is nothing that the row or the style has.
    """
    offered = _OFFERS[style](row, {parameter.name: parameter for parameter in parameters})
    batched = style in ("trl", "openrlhf", "verl_batch")
    arguments = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.name in offered:
            arguments[parameter.name] = offered[parameter.name]
            continue
        if parameter.name in row.columns:
            value = row.columns[parameter.name]
        elif style != "roll" and parameter.name in REFERENCE_NAMES:
            value = row.reference
        else:
            continue
        arguments[parameter.name] = [value] if batched else value
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        extra = dict(row.columns)
        if style != "roll":
            extra = {**dict.fromkeys(REFERENCE_NAMES, row.reference), **extra}
        wrapped = {name: [value] if batched else value for name, value in extra.items()}
        arguments = {**({} if style in ("slime", "verl") else wrapped), **offered, **arguments}
    _check_required(parameters, arguments, row, path)
    return arguments


def _check_required(
    parameters: list[inspect.Parameter], arguments: Mapping[str, object], row: Row, path: str
) -> None:
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.default is parameter.empty
        and parameter.name not in arguments
    ]
    if missing:
        raise RewardError(
            f"{path} requires {', '.join(missing)}, but the row has only the columns "
            f"{', '.join(sorted(row.columns)) or '(none)'} besides response and reference"
        )


Parameters = Mapping[str, inspect.Parameter]


def _roll(row: Row, parameters: Parameters) -> dict[str, object]:
    return {"response": row.response, "reference": row.reference}


def _trl(row: Row, parameters: Parameters) -> dict[str, object]:
    spoken = isinstance(row.prompt, list)
    offered: dict[str, object] = {
        "prompts": [row.prompt],
        "completions": [row.messages if spoken else row.response],
        "completion_ids": [row.columns.get("completion_ids", [])],
        "trainer_state": None,
        "log_metric": _metric_logger(row),
        "log_extra": lambda name, values: None,
    }
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {name: value for name, value in offered.items() if name in parameters}
    return offered


def _metric_logger(row: Row) -> Callable[[str, Any], None]:
    def log(name: str, value: Any) -> None:
        row.metrics[str(name)] = float(value)

    return log


def _verl(row: Row, parameters: Parameters) -> dict[str, object]:
    return {
        "data_source": row.columns.get("data_source", ""),
        "solution_str": row.response,
        "ground_truth": row.columns.get("ground_truth", row.reference),
        "extra_info": row.columns.get("extra_info", dict(row.columns)),
    }


def _verl_batch(row: Row, parameters: Parameters) -> dict[str, object]:
    single = _verl(row, parameters)
    return {
        "data_sources": [single["data_source"]],
        "solution_strs": [single["solution_str"]],
        "ground_truths": [single["ground_truth"]],
        "extra_infos": [single["extra_info"]],
    }


def _openrlhf(row: Row, parameters: Parameters) -> dict[str, object]:
    prompt = row.prompt_text
    return {"queries": [prompt + row.response], "prompts": [prompt], "labels": [row.reference]}


def _slime(row: Row, parameters: Parameters) -> dict[str, object]:
    sample = SimpleNamespace(
        prompt=row.prompt,
        response=row.response,
        label=row.reference,
        metadata=dict(row.columns),
        tokens=row.columns.get("completion_ids", []),
        response_length=row.columns.get("tokens", 0),
        status="completed",
        index=0,
        reward=None,
    )
    return {"args": SimpleNamespace(reward_key=None), "sample": sample, "samples": [sample]}


def _areal(row: Row, parameters: Parameters) -> dict[str, object]:
    return {
        "prompt": row.prompt,
        "prompts": row.prompt,
        "completions": row.response,
        "prompt_ids": row.columns.get("prompt_ids", []),
        "completion_ids": row.columns.get("completion_ids", []),
    }


def _verifiers(row: Row, parameters: Parameters) -> dict[str, object]:
    as_text = "completion" in parameters and parameters["completion"].annotation in (str, "str")
    completion: object = row.response if as_text else row.messages
    prompt = (
        row.prompt if isinstance(row.prompt, list) or as_text else [{"role": "user", "content": row.prompt}]
    )
    info = row.columns.get("info", dict(row.columns))
    task = row.columns.get("task", "default")
    answer = row.columns.get("answer", row.reference)
    state = {
        "prompt": prompt,
        "completion": completion,
        "answer": answer,
        "info": info,
        "task": task,
        "turn": 1,
    }
    return {**state, "state": state}


def _verifiers_trace(row: Row, parameters: Parameters) -> dict[str, object]:
    data = SimpleNamespace(**{"answer": row.reference, "prompt": row.prompt, **row.columns})
    message = SimpleNamespace(role="assistant", content=row.response)
    task = SimpleNamespace(data=data, key=None, type="Task")
    trace = SimpleNamespace(
        task=task,
        last_reply=row.response.strip(),
        root_reply=row.response,
        assistant_messages=[message],
        messages=[message],
        info={},
        state=SimpleNamespace(),
        metrics={},
        rewards={},
        errors=[],
    )
    return {"trace": trace, "task": task, "self": task, "runtime": None}


def _reasoning_gym(row: Row, parameters: Parameters) -> dict[str, object]:
    entry = row.columns.get("entry", row.reference)
    before, closed, _ = row.response.rpartition("</answer>")
    answer = before.rpartition("<answer>")[2] if closed and "<answer>" in before else row.response
    return {"answer": answer.strip(), "entry": entry}


_OFFERS: Mapping[Style, Callable[[Row, Parameters], dict[str, object]]] = {
    "roll": _roll,
    "trl": _trl,
    "verl": _verl,
    "verl_batch": _verl_batch,
    "openrlhf": _openrlhf,
    "slime": _slime,
    "areal": _areal,
    "verifiers": _verifiers,
    "verifiers_trace": _verifiers_trace,
    "reasoning_gym": _reasoning_gym,
}
