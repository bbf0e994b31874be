"""Engines of a stage beside the embedded one: a recording, a script, servers; and what is refused."""

import asyncio
import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from roll_launch.cli import main
from roll_launch.config import ConfigError, RunConfig, SglangEngineConfig, check_existence, load_text
from roll_launch.config.schema.engines import OpenaiEngineConfig
from roll_launch.roles import ActorSpec, ModelSpec
from roll_launch.tasks.sort_letters import write_files
from roll_launch.workers.actor import start_engine
from roll_rollout import (
    EngineError,
    EngineUnavailable,
    GenerateRequest,
    SamplingParams,
    UnsupportedRequest,
    WeightUpdate,
    read_recording,
)

CONFIG = """
name: test
runtime: local
directory: {root}/runs
tracking: {{tensorboard: false}}
stages:
  - name: rlvr
    pipeline: rlvr
    model:
      source: random
      architecture: qwen3
      config: {{hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
               head_dim: 8, intermediate_size: 48, max_position_embeddings: 128, tie_word_embeddings: true}}
      tokenizer: {root}/task/tokenizer
    data: {{source: jsonl, path: {root}/task/train.jsonl}}
    algorithm: {{preset: grpo}}
    rollout:
      group_size: 4
      prompts_per_step: 4
      max_prompt_tokens: 32
      sampling: {{max_tokens: 16}}
    rewards: {{grader: {{name: exact, options: {{after: ";"}}}}, overlong: {{buffer_tokens: 14}}}}
    learner: {{threads: 1, mini_batches: 2, optimizer: {{learning_rate: 1.0e-3}}}}
    steps: 3
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "task").mkdir()
    write_files(tmp_path / "task", seed=0, demonstrations=8, train=32, heldout=8)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(root=tmp_path))
    return path


def metrics(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # What does not depend on the time.
    kept = ("actor/", "critic/", "response_length/", "training/rollout_probs")
    return [
        {name: value for name, value in line.items() if name.startswith(kept) and "time" not in name}
        for line in lines
        if "actor/pg_loss" in line
    ]


@pytest.mark.slow
def test_replay_trains_as_the_run_that_was_recorded(config, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["run", str(config), "--run-dir", str(first), "stages.rlvr.rollout.record=true"]) == 0
    recorded = read_recording(first / "recordings" / "rlvr")
    # Three steps of 16 completions, and a probe after each of four weight syncs.
    assert len(recorded) == 3 * 16 + 4
    replay = "stages.rlvr.rollout.engine={kind: replay, path: %s}" % (first / "recordings" / "rlvr")
    assert main(["run", str(config), "--run-dir", str(second), replay]) == 0
    assert metrics(first)
    assert metrics(second) == metrics(first)
    other = tmp_path / "other"
    faster = "stages.rlvr.learner.optimizer.learning_rate=0.01"
    assert main(["run", str(config), "--run-dir", str(other), replay, faster]) == 0
    assert metrics(other)[0]["critic/rewards/mean"] == metrics(first)[0]["critic/rewards/mean"]
    assert metrics(other)[-1] != metrics(first)[-1]


@pytest.mark.slow
def test_replay_of_other_data_names_what_it_lacks(config, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["run", str(config), "--run-dir", str(first), "stages.rlvr.rollout.record=true"]) == 0
    replay = "stages.rlvr.rollout.engine={kind: replay, path: %s}" % (first / "recordings" / "rlvr")
    capsys.readouterr()
    assert main(["run", str(config), "--run-dir", str(second), replay, "seed=5"]) == 1
    assert "has nothing for" in capsys.readouterr().err


def script(request: GenerateRequest) -> list[int]:
    """As many tokens as the prompt has, and the end."""
    return [5 + request.seed % 3] * len(request.prompt_ids)


@pytest.mark.slow
def test_script_generates_for_a_run(config, tmp_path, monkeypatch):
    (tmp_path / "letters_script.py").write_text(
        "def tokens(request):\n    return [5, 6 + request.seed % 3, 1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    scripted = "stages.rlvr.rollout.engine={kind: scripted, callable: letters_script:tokens}"
    assert main(["run", str(config), "--run-dir", str(run), scripted]) == 0
    lines = [json.loads(line) for line in (run / "rollouts" / "rlvr.jsonl").read_text().splitlines()]
    assert len(lines) == 48
    assert {line["tokens"] for line in lines} == {3}


def loaded(path: Path, *overrides: str):
    return load_text(path.read_text(), RunConfig, overrides)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("{kind: replay, path: %s/nothing}", "no such recording"),
        ("{kind: replay, path: %s/task/tokenizer}", "holds no recording"),
        ("{kind: scripted, callable: no_such_module_here:f}", "no module named no_such_module_here"),
    ],
)
def test_what_an_engine_needs_is_looked_for_before_a_run(config, tmp_path, engine, words):
    override = "stages.rlvr.rollout.engine=" + (engine % tmp_path if "%" in engine else engine)
    found = loaded(config, override)
    with pytest.raises(ConfigError, match=words):
        check_existence(found.config, found.document)


@pytest.mark.parametrize("kind", ["sglang", "openai"])
def test_missing_library_is_named_with_its_installation(config, monkeypatch, kind):
    found_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "httpx" else found_spec(name, *rest)
    )
    more = ", model: m" if kind == "openai" else ""
    found = loaded(config, f"stages.rlvr.rollout.engine={{kind: {kind}, address: 'http://h:1'{more}}}")
    with pytest.raises(ConfigError, match=r"needs httpx.*roll-rollout\[http\]"):
        check_existence(found.config, found.document)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["stages.rlvr.rollout.engine={kind: sglang, address: 'localhost:1'}"], "http://"),
        (
            [
                "stages.rlvr.rollout.engine={kind: openai, address: 'http://h:1', model: m}",
                "stages.rlvr.rollout.sampling.temperature=0.7",
            ],
            "before temperature",
        ),
        (["stages.rlvr.rollout.engine={kind: replay, path: x, options: {}}"], "options"),
        (["stages.rlvr.rollout.engine={kind: sgland, address: 'http://h:1'}"], "sglang"),
    ],
)
def test_engine_options_that_cannot_be_are_refused(config, overrides, words):
    with pytest.raises(ConfigError, match=words):
        loaded(config, *overrides)


class Server:
    """`/models` and `/completions` of a server that gives ids and log-probs, or text alone."""

    def __init__(self, *, ids: bool, logprobs: bool = True) -> None:
        self._ids = ids
        self._logprobs = logprobs

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = [line for line in head.split("\r\n") if line.startswith("content-length")]
        body = await reader.readexactly(int(size[0].split(":")[1])) if size else b"{}"
        if "/models" in head:
            answer = b'{"data": []}'
        else:
            count = json.loads(body)["max_tokens"]
            choice: dict[str, object] = {"text": "x" * count, "finish_reason": "length"}
            if self._ids:
                choice["token_ids"] = [5] * count
            if self._logprobs:
                choice["logprobs"] = {"token_logprobs": [-0.5] * count}
            answer = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\ndata: [DONE]\n\n"
        kind = "application/json" if "/models" in head else "text/event-stream"
        writer.write(
            f"HTTP/1.1 200 ok\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode() + answer
        )
        await writer.drain()
        writer.close()


def spec_for(config: Path, engine, **model) -> ActorSpec:
    root = config.parent
    given = {"path": None, "architecture": "qwen3"} | model
    return ActorSpec(
        model=ModelSpec(**given, overrides={}, tokenizer=root / "task/tokenizer", dtype="float32", seed=0),
        engine=engine,
        max_context=64,
        threads=1,
    )


async def start(spec: ActorSpec):
    with ThreadPoolExecutor(1) as executor:
        return await start_engine(spec, executor)


def openai_at(address: str) -> OpenaiEngineConfig:
    return OpenaiEngineConfig(kind="openai", address=address, model="m")


async def test_server_that_gives_text_alone_is_refused_at_the_start(config):
    async with Server(ids=False) as address:
        with pytest.raises(UnsupportedRequest, match="gives no token ids, which training needs"):
            await start(spec_for(config, openai_at(address)))


async def test_server_that_gives_no_logprobs_is_refused_at_the_start(config):
    async with Server(ids=True, logprobs=False) as address:
        with pytest.raises(UnsupportedRequest, match="gives no log-probs"):
            await start(spec_for(config, openai_at(address)))


async def test_server_with_ids_and_logprobs_serves_and_takes_versions(config):
    async with Server(ids=True) as address:
        engine = await start(spec_for(config, openai_at(address)))
        request = GenerateRequest(
            id="r", prompt_ids=np.array([5]), seed=0, sampling=SamplingParams(max_tokens=3)
        )
        assert (await engine.generate(request)).versions == ((0, 3),)
        receipt = await engine.update_weights(WeightUpdate(version=4, buckets=()))
        assert receipt.version == 4
        completion = await engine.generate(request)
        assert completion.versions == ((4, 3),)
        assert completion.token_ids.tolist() == [5, 5, 5]
        assert completion.exact
        await engine.close()


async def test_server_that_is_not_there_is_named(config):
    engine = SglangEngineConfig(kind="sglang", address="http://127.0.0.1:9")
    spec = spec_for(config, engine, path=config.parent, architecture=None)
    with pytest.raises(EngineUnavailable, match=r"http://127\.0\.0\.1:9"):
        await start(spec)
    with pytest.raises(EngineError, match=r"model\.source random"):
        await start(spec_for(config, engine))
