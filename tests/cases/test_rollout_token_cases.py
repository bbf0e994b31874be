"""Cases on sampled tokens that an engine decides: which ids come back, and where a stop string cuts."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from roll_rollout import (
    Completion,
    GenerateRequest,
    RecordingEngine,
    ReplayEngine,
    SamplingParams,
    ScriptedEngine,
)

PATH = Path(__file__).parents[1] / "data" / "cases" / "rollout_tokens.jsonl"
CASES = {case["id"]: case for case in map(json.loads, PATH.read_text().splitlines())}


def request(prompt_ids: list[int], **sampling) -> GenerateRequest:
    return GenerateRequest(
        id="case",
        prompt_ids=np.array(prompt_ids),
        seed=0,
        sampling=SamplingParams(max_tokens=100, **sampling),
    )


async def drawn(engine: ScriptedEngine, asked: GenerateRequest, path: Path, way: str) -> Completion:
    """The completion as it comes from an engine, in pieces, or from a recording of it."""
    if way == "streamed":
        chunks = [chunk async for chunk in engine.stream(asked)]
        completion = chunks[-1].completion
        assert np.array_equal(np.concatenate([chunk.token_ids for chunk in chunks]), completion.token_ids)
        return completion
    if way == "replayed":
        recorder = RecordingEngine(engine, path / "recording.jsonl")
        await recorder.generate(asked)
        await recorder.close()
        return await ReplayEngine(path / "recording.jsonl").generate(asked)
    return await engine.generate(asked)


WAYS = pytest.mark.parametrize("way", ["generated", "streamed", "replayed"])


def test_every_case_is_bound():
    assert {case["input"]["op"] for case in CASES.values()} == {"next_prompt", "cut_at_stop"}


@WAYS
@pytest.mark.parametrize("case", [CASES["e001"]], ids=lambda case: case["id"])
async def test_sampled_ids_come_back_as_sampled_though_text_goes_through_the_engine(case, way, tmp_path):
    given, expected = case["input"], case["expected"]
    pieces = {index: text for text, index in given["vocab"].items()}
    engine = ScriptedEngine(
        lambda _: given["sampled_ids"], decode=lambda ids: "".join(pieces[each] for each in ids)
    )
    completion = await drawn(engine, request(given["prompt_ids"], stop=("!",)), tmp_path, way)
    assert "".join(pieces[each] for each in completion.token_ids.tolist()) == "hello"
    ids = np.concatenate([completion.prompt_ids, completion.token_ids, given["tool_suffix_ids"]]).tolist()
    assert ids == expected["ids"]
    assert ids != expected["not"]


@pytest.mark.parametrize("case", [CASES["e019"]], ids=lambda case: case["id"])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
@WAYS
async def test_text_from_a_stop_string_on_does_not_come_back(case, width, way, tmp_path):
    given, expected = case["input"], case["expected"]
    stop_at = given["text"].index(given["stop"])
    before, after = given["text"][:stop_at], given["text"][stop_at:]
    pieces = [text[at : at + width] for text in (before, after) for at in range(0, len(text), width)]
    engine = ScriptedEngine(
        lambda _: range(len(pieces)), decode=lambda ids: "".join(pieces[each] for each in ids)
    )
    completion = await drawn(engine, request([0], stop=(given["stop"],)), tmp_path, way)
    kept = "".join(pieces[each] for each in completion.token_ids.tolist())
    assert kept == expected["kept_model_text"]
    assert re.findall(r"Action: (\S+)", kept) == expected["executed"]
    assert completion.finish_reason == "stop"
