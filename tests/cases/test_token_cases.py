"""Token cases of multi-turn transcripts, bound to the public functions of roll_agentic."""

import asyncio
import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from roll_agentic import (
    ScriptedPolicy,
    Segment,
    Transcript,
    TranscriptError,
    Turn,
    cut_at_stop,
    first_ids,
    fit_history,
    following_ids,
    run_episode,
)
from roll_agentic.tools import Toolbox, ToolEnvironment, parse_hermes

PATH = Path(__file__).parent.parent / "data" / "cases" / "tokens.jsonl"
CASES = [json.loads(line) for line in PATH.read_text().splitlines()]


def sampled(ids: list[int]) -> Segment:
    return Segment(
        source="sampled",
        token_ids=np.array(ids),
        logprobs=np.full(len(ids), -0.5),
        versions=((0, len(ids)),),
        finish_reason="stop",
    )


def context(source: str, ids: list[int]) -> Segment:
    return Segment(source=source, token_ids=np.array(ids))  # type: ignore[arg-type]


def next_prompt(given: dict, expected: dict) -> None:
    transcript = Transcript([context("template", given["prompt_ids"]), sampled(given["sampled_ids"])])
    with pytest.raises(TranscriptError, match="at position 1 it has token 3"):
        transcript.continue_with(expected["not"])
    transcript.continue_with([*transcript.token_ids, *given["tool_suffix_ids"]])
    assert transcript.token_ids.tolist() == expected["ids"]


def segment_masks(given: dict, expected: dict) -> None:
    sources = {"user": "environment", "tool": "environment"}
    transcript = Transcript(
        sampled([7] * size) if role == "model" else context(sources[role], [7] * size)
        for role, size in given["segments"]
    )
    assert transcript.to_training_row().response_mask.tolist() == [bool(bit) for bit in expected["loss_mask"]]


def loss_mask(given: dict, expected: dict) -> None:
    inserted, said = [*map(ord, given["template_inserts"])], [*map(ord, given["assistant"]), 2]
    transcript = Transcript([context("environment", [1]), context("template", inserted), sampled(said)])
    mask = transcript.to_training_row().response_mask[1:]
    assert set(mask[: len(inserted)]) == {bool(expected["mask_on_inserted_tokens"])}
    assert set(mask[len(inserted) :]) == {bool(expected["mask_on_code_and_end_token"])}


def training_row(given: dict, expected: dict) -> None:
    """A template that drops old thinking rewrites history: refused, so each turn makes a row of its own."""
    words = [word for turn in given["turns"] for word in turn]
    ids = {word: index for index, word in enumerate(["ask", *words], start=1)}
    rows, prompt, history = [], [ids["ask"]], Transcript()
    for thinking, answer in given["turns"]:
        if rows:
            with pytest.raises(TranscriptError, match="must start with the"):
                history.continue_with(prompt)
        history = Transcript([context("environment", prompt), sampled([ids[thinking], ids[answer]])])
        rows.append((prompt, history.to_training_row()))
        prompt = [*prompt, ids[answer]]
    assert "one row per turn" in expected["allowed"]
    for at_sampling, row in rows:
        assert row.token_ids[~row.response_mask].tolist() == at_sampling
        assert row.response_mask.tolist() == [False] * len(at_sampling) + [True, True]
    assert all(len(one) < len(other) for (one, _), (other, _) in pairwise(rows))


def stop_cut(given: dict, expected: dict) -> None:
    pieces = re.findall(r"\w+|\W", given["text"])
    cut = cut_at_stop(pieces, [given["stop"]])
    assert cut.text == expected["kept_model_text"]
    assert "".join(pieces[: cut.tokens]) == expected["kept_model_text"]
    assert re.findall(r"Action: (.*)\n", cut.text) == expected["executed"]
    turn = sampled([len(piece) for piece in pieces]).head(cut.tokens)
    transcript = Transcript([context("template", [1]), turn])
    transcript.append(context(expected["real_observation_from"], [42]))
    assert len(transcript.to_training_row().token_ids) == 1 + cut.tokens + 1


class OneTemplate:
    """A chat template whose messages end with one end token; a token for each other character."""

    def __init__(self, template: str, end: str) -> None:
        self.template, self.end = template, end
        self.end_token_id = 1

    def encode(self, text: str) -> list[int]:
        return [
            1 if part == self.end else ord(part) + 9
            for part in re.findall(re.escape(self.end) + "|.|\n", text)
        ]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(self.end if token == 1 else chr(token - 9) for token in token_ids)

    def render(self, messages: list, *, tools: list, generation_prompt: bool) -> list[int]:
        ids = [token for message in messages for token in self.encode(self.template.format(**message))]
        start, _, _ = self.template.partition("{content}")
        return ids + (self.encode(start.format(role="assistant")) if generation_prompt else [])


def render_turns(given: dict, expected: dict) -> None:
    turns = [dict(zip(("role", "content"), turn.split(": "), strict=True)) for turn in given["turns"]]
    at = [turn["role"] for turn in turns].index(given["incremental_from"])
    chat = OneTemplate(given["template"], "<|end|>")
    sampled_ids = [*chat.encode(turns[at]["content"]), chat.end_token_id]
    so_far = [*first_ids(chat, turns[:at]), *sampled_ids]
    whole = [*so_far, *following_ids(chat, turns[at + 1 :], generation_prompt=False)]
    assert chat.decode(whole) == expected["text"]


def tool_call(given: dict, expected: dict) -> None:
    dispatched: list[str] = []

    def f(x: int = 0) -> str:
        """A tool."""
        dispatched.append("f")
        return ""

    def g() -> str:
        """Another tool."""
        dispatched.append("g")
        return ""

    class Says(ScriptedPolicy):
        async def act(self, state) -> Turn:  # type: ignore[no-untyped-def]
            return Turn(response=given["text"], finish_reason=given.get("finish_reason", "stop"))

    class World:
        def reset(self, *, seed: int) -> tuple:
            return "", {}

        def step(self, action: str, /) -> tuple:
            raise AssertionError(f"{action!r} is not for the environment")

    environment = ToolEnvironment(World(), Toolbox([f, g], parallel=1))
    played = asyncio.run(run_episode(environment, Says(["-"]), seed=0, max_turns=1))
    assert dispatched == (expected["dispatched"] or [])
    if "status" in expected:
        assert (played.status, played.truncated) == ("length", True)
    if "not" in expected:
        assert len(parse_hermes(given["text"]).mistakes) == 1
        assert played.invalid_actions == 1


def history(given: dict, expected: dict) -> None:
    messages = [{"role": role, "content": role} for role, _ in given["messages"]]
    sizes = {id(message): size for message, (_, size) in zip(messages, given["messages"], strict=True)}
    kept = fit_history(messages, [size for _, size in given["messages"]], budget=given["budget_tokens"])
    assert kept is not None
    assert kept[0]["role"] == expected["kept_roles_first"]
    assert expected["last_kept"] == "the last user message"
    assert kept[-1] is messages[-1]
    assert sum(sizes[id(message)] for message in kept) <= expected["total_at_most"]


OPERATIONS: dict[str, Callable[[dict, dict], None]] = {
    "next_prompt": next_prompt,
    "masks": segment_masks,
    "loss_mask": loss_mask,
    "training_row": training_row,
    "cut_at_stop": stop_cut,
    "render_turns": render_turns,
    "tool_call": tool_call,
    "fit_history": history,
}
# Padding a row with the end token is the learner's business; the other operations are bound elsewhere.
BOUND = [case for case in CASES if case["input"]["op"] in OPERATIONS and "pad" not in case["input"]]


@pytest.mark.parametrize("case", BOUND, ids=lambda case: f"{case['id']} {case['why']}")
def test_case(case: dict) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"])


def test_every_operation_has_a_case() -> None:
    assert {case["input"]["op"] for case in BOUND} == set(OPERATIONS)
