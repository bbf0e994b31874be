"""The SGLang engine: its messages against SGLang's recorded signatures, and its ways with a fake SGLang."""

import ast
import asyncio
import base64
import inspect
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from roll_rollout import (
    AdapterConfig,
    AdapterUpdate,
    EngineError,
    EngineLibraryError,
    EngineUnavailable,
    PromptTooLong,
    UnsupportedRequest,
    WeightMismatch,
    WeightUpdate,
)
from roll_rollout.conformance import CHECKS, Policy, check_engine
from roll_rollout.sglang_engine import RetryPolicy, SGLangEngine
from roll_rollout.sglang_engine import engine as engine_module
from roll_rollout.sglang_engine.dialect import SGLangDialect
from roll_rollout.sglang_engine.transport import CALLS
from roll_rollout.token_run import TokenRun
from roll_rollout.transformers_engine import TransformersEngine
from safetensors.numpy import load_file

SIGNATURES = json.loads((Path(__file__).parents[1] / "data" / "sglang_signatures.json").read_text())
QUICK = RetryPolicy(attempts=3, first_wait_s=0.01, longest_wait_s=0.05, idle_s=10.0, deadline_s=30.0)
LORA = AdapterConfig(rank=2, alpha=4.0, target_modules=("q_proj",))


class FakeSGLang:
    """As much of SGLang as the engine needs, on a transformers engine that reads the same directories.

    It aborts every request whose id begins with the one it is told, as SGLang does.
    """

    def __init__(self, engine: TransformersEngine, make_request, *, incremental: bool) -> None:
        self.calls: list[tuple[str, dict]] = []
        self._engine = engine
        self._make_request = make_request
        self._incremental = incremental
        self._labels = {0: "default"}
        self._rids: dict[str, str] = {}

    async def outputs(self, body):
        sampling = body["sampling_params"]
        assert sampling["ignore_eos"]
        request = self._make_request(
            body["input_ids"],
            seed=sampling["sampling_seed"],
            max_tokens=sampling["max_new_tokens"],
            temperature=sampling["temperature"],
            stop_token_ids=tuple(sampling["stop_token_ids"] or ()),
            stop=tuple(sampling["stop"] or ()),
        )
        self._rids[body["rid"]] = request.id
        entries = []
        async for chunk in self._engine.stream(request):
            new = [[float(p), int(t), None] for p, t in zip(chunk.logprobs, chunk.token_ids, strict=True)]
            entries += new
            info = {
                "id": body["rid"],
                "finish_reason": None,
                "output_token_logprobs": new if self._incremental else list(entries),
                "output_token_logprobs_length": len(entries),
            }
            if chunk.completion is not None:
                start, spans = 0, []
                for version, length in chunk.completion.versions:
                    label = self._labels[version]
                    spans.append({"version": label, "start": start, "end": start + length})
                    start += length
                info |= {"finish_reason": {"type": chunk.completion.finish_reason}, "weight_versions": spans}
            yield {"text": "?", "meta_info": info}

    async def call(self, name, body) -> dict:
        self.calls.append((name, body))
        if name == "abort":
            rids = [each for each in self._rids if each.startswith(body["rid"])]
            await self._engine.abort([self._rids[each] for each in rids])
        elif name == "pause":
            await self._engine.pause("keep")
        elif name == "continue":
            await self._engine.resume()
        elif name == "update_weights":
            return await self._reload(Path(body["model_path"]), body["weight_version"])
        return {"success": True, "message": "done"}

    async def _reload(self, directory: Path, label: str) -> dict:
        from roll_rollout import pack_buckets

        assert (directory / "config.json").is_file()
        version = len(self._labels)
        tensors = [
            (name, str(array.dtype), array.shape, np.frombuffer(array.tobytes(), np.uint8))
            for file in sorted(directory.glob("*.safetensors"))
            for name, array in load_file(file).items()
        ]
        buckets = tuple(pack_buckets(tensors, max_bytes=20_000))
        self._labels[version] = label
        await self._engine.update_weights(WeightUpdate(version=version, buckets=buckets))
        return {"success": True, "message": "loaded", "num_paused_requests": 0}


def server_of(sglang: FakeSGLang):
    name_of = {call.path: name for name, call in CALLS.items()}

    async def handler(path, body, reply):
        if path == "/health":
            return await reply.json({})
        if path != "/generate":
            return await reply.json(await sglang.call(name_of[path], body))
        await reply.start_events()
        async for output in sglang.outputs(body):
            await reply.event(output)
        await reply.event("[DONE]")

    return handler


@pytest.fixture
def directory(tmp_path, model_maker):
    model_maker(0).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.timeout(300)
@pytest.mark.parametrize("incremental", [False, True])
async def test_sglang_engine_conforms_before_a_fake_server(
    incremental, fake_server, directory, model_maker, score, buckets_of, make_request, letter_tokenizer
):
    models = [model_maker(seed) for seed in (0, 1)]
    policies = tuple(
        Policy(buckets=buckets_of(model), score=lambda *args, model=model: score(model, *args))
        for model in models
    )
    behind = TransformersEngine(model_maker(0), tokenizer=letter_tokenizer)
    sglang = FakeSGLang(behind, make_request, incremental=incremental)
    async with fake_server(server_of(sglang)) as server:

        async def make_engine() -> SGLangEngine:
            return SGLangEngine.at(
                server.address,
                retry=QUICK,
                path=directory,
                dtype="float32",
                decode=letter_tokenizer.decode,
                max_context=300,
                deterministic=True,
            )

        results = await check_engine(
            make_engine,
            policies=policies,
            prompts=[np.array([3, 4, 5]), np.array([9, 8]), np.array([4, 4, 7, 1, 2])],
            max_context=300,
            tolerance=2e-5,
            deadline_s=50,
            decode=letter_tokenizer.decode,
        )
    await behind.close()
    assert {each.name: each.detail for each in results if not each.passed} == {}
    left_out = {*CHECKS} - {each.name for each in results}
    assert left_out == {
        "groups_share_their_prefill",
        "sleeping_engines_wake",
        "adapters_draw_their_own",
        "running_requests_cross_swaps",
        "adapters_are_unloaded",
    }


def test_every_message_has_only_fields_that_sglang_knows(make_request):
    dialect = SGLangDialect(SimpleNamespace(), version=0, experts_shape=(2, 2))
    request = make_request(top_k=4, stop=("x",), stop_token_ids=(3,))
    request = replace(request, adapter="a", routed_experts=True)
    body = dialect.body(TokenRun(request, 8, library="SGLang"))
    assert set(body) <= set(SIGNATURES["messages"]["GenerateReqInput"])
    assert set(body["sampling_params"]) <= set(SIGNATURES["sampling_params"])
    for name, fields in bodies_in_the_source().items():
        message = CALLS[name].message
        assert fields <= set(SIGNATURES["messages"][message] if message else ()), name


def bodies_in_the_source() -> dict[str, set[str]]:
    """The keys of the dictionaries that the engine and its dialect pass to `call`."""
    found: dict[str, set[str]] = {}
    functions = [
        node
        for module in (engine_module, sys.modules[SGLangDialect.__module__])
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.AsyncFunctionDef)
    ]
    for function in functions:
        nodes = list(ast.walk(function))
        named = {
            node.targets[0].id: node.value
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        }
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_transport.call"):
                name, body = node.args
                body = body if isinstance(body, ast.Dict) else named["body"]
                keys = {ast.literal_eval(key) for key in body.keys}
                found.setdefault(ast.literal_eval(name), set()).update(keys)
    return found


def test_every_call_is_made_somewhere_and_exists_in_sglang():
    assert set(bodies_in_the_source()) == set(CALLS)
    for call in CALLS.values():
        assert call.path in SIGNATURES["routes"]
        arguments = SIGNATURES["methods"][call.method]
        takes_message = call.message and call.method != "abort_request"
        assert len(arguments) >= bool(takes_message) + call.with_request
    assert SIGNATURES["methods"]["abort_request"] == ["rid", "abort_all"]
    assert SIGNATURES["methods"]["generate_request"][:2] == ["obj", "request"]
    assert {"/generate", "/health"} <= set(SIGNATURES["routes"])


def test_words_that_outputs_are_read_by_are_sglangs():
    source = inspect.getsource(sys.modules[SGLangDialect.__module__])
    read = {each for each in SIGNATURES["strings"] if f'"{each}"' in source}
    assert read == set(SIGNATURES["strings"])
    assert len(read) == 9


async def test_abort_does_not_reach_a_request_whose_id_begins_alike(
    fake_server, directory, model_maker, make_request
):
    behind = TransformersEngine(model_maker(0))
    sglang = FakeSGLang(behind, make_request, incremental=False)
    async with fake_server(server_of(sglang)) as server:
        engine = SGLangEngine.at(server.address, retry=QUICK, path=directory, dtype="float32")
        tasks = {
            name: asyncio.create_task(engine.generate(make_request(id=name, max_tokens=200)))
            for name in ("7/1", "7/10", "7/1/2")
        }
        while (await engine.load()).kv_tokens < 12:
            await asyncio.sleep(0)
        await engine.abort(["7/1"])
        reasons = {name: (await task).finish_reason for name, task in tasks.items()}
        await engine.close()
    await behind.close()
    assert reasons == {"7/1": "abort", "7/10": "length", "7/1/2": "length"}


async def test_failed_update_ends_the_service_and_says_so(
    fake_server, directory, model_maker, buckets_of, make_request
):
    async def handler(path, body, reply):
        failed = path == "/update_weights_from_disk"
        await reply.json({"success": not failed, "message": "no such shape"}, status=400 if failed else 200)

    async with fake_server(handler) as server:
        engine = SGLangEngine.at(server.address, retry=QUICK, path=directory, dtype="float32")
        buckets = buckets_of(model_maker(1))
        with pytest.raises(WeightMismatch, match="is missing"):
            await engine.update_weights(WeightUpdate(version=3, buckets=buckets[:-1]))
        assert server.bodies("/update_weights_from_disk") == []
        with pytest.raises(
            EngineUnavailable, match=r"update to version 3 and may hold a mixture.*no such shape"
        ):
            await engine.update_weights(WeightUpdate(version=3, buckets=buckets))
        with pytest.raises(EngineUnavailable, match="mixture"):
            await engine.generate(make_request())
        with pytest.raises(EngineUnavailable, match="mixture"):
            await engine.check_health()
        (body,) = server.bodies("/update_weights_from_disk")
        assert not Path(body["model_path"]).exists()
        assert server.requests[-1][0] == "/continue_generation"
        await engine.close()


async def test_adapter_and_sleep_calls_are_those_of_sglang(
    fake_server, directory, adapter_maker, make_request
):
    async def handler(path, body, reply):
        if path == "/generate":
            await reply.start_events()
            info = {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-1.0, 4, None]]}
            experts = np.arange(8, dtype=np.int32).reshape(2, 2, 2)
            info["routed_experts"] = base64.b64encode(experts.tobytes()).decode()
            await reply.event({"meta_info": info})
            return
        if path == "/load_lora_adapter":
            files = {each.name for each in Path(body["lora_path"]).iterdir()}
            assert files == {"adapter_config.json", "adapter_model.safetensors"}
        await reply.json({"success": True})

    async with fake_server(handler) as server:
        engine = SGLangEngine.at(
            server.address,
            retry=QUICK,
            path=directory,
            dtype="float32",
            adapters=True,
            memory_saver=True,
            experts_shape=(2, 2),
        )
        buckets, _ = adapter_maker(LORA, 1)
        await engine.load_adapter(AdapterUpdate(name="a", version=4, config=LORA, buckets=buckets))
        request = replace(make_request(max_tokens=1), adapter="a", routed_experts=True)
        completion = await engine.generate(request)
        assert completion.versions == ((4, 1),)
        assert completion.routed_experts.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
        assert server.bodies("/generate")[0]["lora_path"] == "a"
        await engine.load_adapter(AdapterUpdate(name="a", version=5, config=LORA, buckets=buckets))
        assert await engine.adapters() == {"a": 5}
        await engine.unload_adapter("a")
        with pytest.raises(UnsupportedRequest, match="'a' is unknown"):
            await engine.generate(request)
        with pytest.raises(EngineError, match=r"level is 1, allowed is \(2,\)"):
            await engine.sleep(1)
        await engine.sleep(2)
        assert server.bodies("/release_memory_occupation") == [{"tags": ["kv_cache", "weights"]}]
        with pytest.raises(EngineError, match="asleep"):
            await engine.update_weights(WeightUpdate(version=6, buckets=()))
        await engine.wake()
        assert server.requests[-1][0] == "/resume_memory_occupation"
        await engine.close()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("The input (9 tokens) is longer than the model's context length (8 tokens).", PromptTooLong),
        ("sampling_seed must be an integer", EngineError),
    ],
)
async def test_refusal_in_the_stream_is_not_retried(message, error, fake_server, directory, make_request):
    async def handler(path, body, reply):
        await reply.start_events()
        await reply.event({"error": {"message": message, "code": 400, "retryable": False}})

    async with fake_server(handler) as server:
        engine = SGLangEngine.at(server.address, retry=QUICK, path=directory)
        with pytest.raises(error, match=re.escape(message)):
            await engine.generate(make_request())
        assert len(server.bodies("/generate")) == 1
        await engine.close()


async def test_filters_without_logprobs_of_the_kept_set_are_refused(fake_server, directory, make_request):
    async def handler(path, body, reply):
        if path == "/abort_request":
            return await reply.json({})
        assert body["return_sampling_mask"]
        await reply.start_events()
        info = {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-1.0, 4, None]]}
        if len(server.bodies("/generate")) == 2:
            info["output_token_sampling_logprobs"] = [-0.25]
        await reply.event({"meta_info": info})

    async with fake_server(handler) as server:
        engine = SGLangEngine.at(server.address, retry=QUICK, path=directory)
        with pytest.raises(UnsupportedRequest, match="no log-probs of the kept set"):
            await engine.generate(make_request(top_p=0.9))
        assert (await engine.generate(make_request(top_p=0.9))).logprobs.tolist() == [-0.25]
        await engine.close()


def fake_library(monkeypatch, version: str) -> None:
    """A package `sglang` whose messages have the recorded fields."""
    names = ("sglang", "sglang.version", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.io_struct")
    modules = {name: ModuleType(name) for name in names}
    modules["sglang.version"].__version__ = version
    for name, fields in SIGNATURES["messages"].items():

        def make(name=name, fields=tuple(fields), **given):
            assert set(given) <= set(fields)
            return SimpleNamespace(kind=name, **given)

        setattr(modules["sglang.srt.managers.io_struct"], name, make)
    modules["sglang.srt.managers"].io_struct = modules["sglang.srt.managers.io_struct"]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


class FakeManager:
    """`TokenizerManager` with methods that take what the recorded ones take."""

    gracefully_exit = False

    def __init__(self, sglang: FakeSGLang) -> None:
        self._sglang = sglang

    async def generate_request(self, obj, request=None):
        assert request is None
        async for output in self._sglang.outputs(vars(obj)):
            yield output

    def abort_request(self, rid="", abort_all=False):
        self._aborting = asyncio.ensure_future(self._sglang.call("abort", {"rid": rid}))

    async def pause_generation(self, obj):
        await self._sglang.call("pause", vars(obj))

    async def continue_generation(self, obj):
        await self._sglang.call("continue", vars(obj))

    async def flush_cache(self):
        return SimpleNamespace(success=True)

    async def update_weights_from_disk(self, obj, request=None):
        answer = await self._sglang.call("update_weights", vars(obj))
        return answer["success"], answer["message"], 0


async def test_in_process_engine_makes_the_same_calls_through_the_manager(
    monkeypatch, directory, model_maker, buckets_of, score, make_request
):
    fake_library(monkeypatch, SIGNATURES["version"])
    behind = TransformersEngine(model_maker(0))
    sglang = FakeSGLang(behind, make_request, incremental=False)
    stopped = []
    library = SimpleNamespace(tokenizer_manager=FakeManager(sglang), shutdown=lambda: stopped.append(True))
    engine = SGLangEngine.around(library, path=directory, dtype="float32")
    await engine.check_health()
    other = model_maker(1)
    task = asyncio.create_task(engine.generate(make_request(id="a", max_tokens=200)))
    while (await engine.load()).kv_tokens < 6:
        await asyncio.sleep(0)
    await engine.update_weights(WeightUpdate(version=7, buckets=buckets_of(other)))
    await engine.reset_prefix_cache()
    completion = await task
    before = completion.versions[0][1]
    assert [version for version, _ in completion.versions] == [0, 7]
    expected = score(other, completion.prompt_ids, completion.token_ids, 1.0)
    np.testing.assert_allclose(completion.logprobs[before:], expected[before:], atol=2e-5, rtol=0)
    task = asyncio.create_task(engine.generate(make_request(id="b", max_tokens=400)))
    while (await engine.load()).kv_tokens < 6:
        await asyncio.sleep(0)
    await engine.abort(["b"])
    assert (await task).finish_reason == "abort"
    await engine.close()
    await behind.close()
    assert stopped == [True]


@pytest.mark.parametrize("version", ["0.5.22", "0.6.0"])
def test_other_versions_of_the_library_are_refused_by_number(version, monkeypatch, directory):
    fake_library(monkeypatch, version)
    with pytest.raises(EngineLibraryError, match=f"0.5.23 to before 0.6, installed is {version}"):
        SGLangEngine.around(SimpleNamespace(tokenizer_manager=None), path=directory)


def test_missing_library_is_named(directory):
    with pytest.raises(EngineLibraryError, match=r"needs SGLang 0.5.23"):
        SGLangEngine.around(SimpleNamespace(tokenizer_manager=None), path=directory)
