"""Token cases of multi-turn transcripts, bound to the public functions of roll_agentic."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from roll_agentic import Segment, Transcript, TranscriptError, cut_at_stop

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


OPERATIONS: dict[str, Callable[[dict, dict], None]] = {
    "next_prompt": next_prompt,
    "masks": segment_masks,
    "loss_mask": loss_mask,
    "training_row": training_row,
    "cut_at_stop": stop_cut,
}
# Padding a row with the end token is the learner's business; the other operations are bound elsewhere.
BOUND = [case for case in CASES if case["input"]["op"] in OPERATIONS and "pad" not in case["input"]]


@pytest.mark.parametrize("case", BOUND, ids=lambda case: f"{case['id']} {case['why']}")
def test_case(case: dict) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"])


def test_every_operation_has_a_case() -> None:
    assert {case["input"]["op"] for case in BOUND} == set(OPERATIONS)
