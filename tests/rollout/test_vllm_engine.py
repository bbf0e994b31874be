"""`VLLMEngine` on a stand-in for vLLM's `AsyncLLM`: what a CPU cannot show, and what goes wrong.

The real one is tested by `test_vllm_environment.py`.
"""

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from roll_rollout import (
    EngineError,
    EngineLibraryError,
    EngineUnavailable,
    Media,
    UnsupportedRequest,
    WeightMismatch,
    WeightUpdate,
)
from roll_rollout.vllm_engine import VLLMEngine
from safetensors.numpy import load_file


class VLLMClientError(Exception):
    pass


class EngineDeadError(Exception):
    pass


@dataclass
class InitRequest:
    init_info: dict


@dataclass
class UpdateRequest:
    update_info: dict


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """As much of the package `vllm` as the adapter imports."""
    contents = {
        "vllm": {"SamplingParams": lambda **given: SimpleNamespace(**given), "__version__": "0.32.0"},
        "vllm.exceptions": {"VLLMClientError": VLLMClientError},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA="delta")},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {},
        "vllm.distributed.weight_transfer.base": {
            "WeightTransferInitRequest": InitRequest,
            "WeightTransferUpdateRequest": UpdateRequest,
        },
    }
    for name, members in contents.items():
        module = ModuleType(name)
        for member, value in members.items():
            setattr(module, member, value)
        monkeypatch.setitem(sys.modules, name, module)


class FakeLLM:
    """An `AsyncLLM` that draws the ids 1, 2, 3... and notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.prompts: list[dict] = []
        self.fail: dict[str, Exception] = {}
        self.label = "none"
        self.experts: np.ndarray | None = None
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                max_model_len=64, get_vocab_size=lambda: 32, skip_tokenizer_init=True, dtype="torch.float32"
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=8),
            cache_config=SimpleNamespace(num_gpu_blocks=10, block_size=16),
        )
        self._open = asyncio.Event()
        self._open.set()
        self._aborted: set[str] = set()

    def _note(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        if name in self.fail:
            raise self.fail[name]

    async def generate(self, prompt, params, request_id, *, lora_request=None):
        self.prompts.append(prompt)
        if "generate" in self.fail:
            raise self.fail["generate"]
        spans: list[SimpleNamespace] = []
        for index in range(params.max_tokens):
            await asyncio.sleep(0)
            while not self._open.is_set() and request_id not in self._aborted:
                await asyncio.sleep(0)
            if request_id in self._aborted:
                yield self._output([], "abort", spans)
                return
            if not spans or spans[-1].version != self.label:
                spans.append(SimpleNamespace(version=self.label, start=index))
            yield self._output([index % 31 + 1], "length" if index == params.max_tokens - 1 else None, spans)

    def _output(self, tokens, reason, spans):
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in tokens]
        completion = SimpleNamespace(
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=reason,
            weight_versions=spans if reason else None,
            routed_experts=self.experts if reason else None,
        )
        return SimpleNamespace(outputs=[completion], num_cached_tokens=0)

    async def abort(self, request_ids):
        self._aborted.update(request_ids)

    async def pause_generation(self, *, mode, clear_cache):
        self._note("pause", mode)
        self._open.clear()

    async def resume_generation(self):
        self._note("resume")
        self._open.set()

    async def reset_prefix_cache(self, *, reset_running_requests):
        self._note("reset", reset_running_requests)

    async def update_weight_version(self, label):
        self._note("label")
        self.label = label

    async def collective_rpc(self, method, kwargs=None):
        self._note(method)
        if method == "reload_weights":
            directory = Path(kwargs["weights_path"])
            self.loaded = {
                k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()
            }

    async def sleep(self, *, level, mode):
        self._note("sleep", level)
        self._open.clear()

    async def wake_up(self):
        self._note("wake")
        self._open.set()

    async def init_weight_transfer_engine(self, request):
        self._note("init", request.init_info)

    async def start_weight_update(self):
        self._note("start")

    async def update_weights(self, request):
        self._note("part", request.update_info)

    async def finish_weight_update(self):
        self._note("finish")

    async def check_health(self):
        self._note("health")

    def shutdown(self):
        self._note("shutdown")


@pytest.fixture
def llm() -> FakeLLM:
    return FakeLLM()


@pytest.fixture
def directory(tmp_path, model_maker):
    model_maker(0).save_pretrained(tmp_path)
    return tmp_path


def engine_on(llm, directory, **options) -> VLLMEngine:
    return VLLMEngine(llm, path=directory, options=options, version=3)


async def started(engine: VLLMEngine) -> VLLMEngine:
    await engine._weights.publish_label()
    return engine


async def test_update_pauses_reloads_forgets_and_labels_in_that_order(
    llm, directory, model_maker, buckets_of, make_request
):
    engine = await started(engine_on(llm, directory))
    task = asyncio.create_task(engine.generate(make_request(max_tokens=30)))
    while (await engine.load()).kv_tokens < 8:
        await asyncio.sleep(0)
    llm.calls.clear()
    other = model_maker(1)
    await engine.update_weights(WeightUpdate(version=4, buckets=buckets_of(other)))
    assert [call[0] for call in llm.calls] == ["pause", "reload_weights", "label", "reset", "resume"]
    assert llm.calls[0] == ("pause", "keep")
    assert llm.calls[3] == ("reset", True)
    for name, array in llm.loaded.items():
        assert np.array_equal(array, other.state_dict()[name].numpy())
    completion = await task
    assert [version for version, _ in completion.versions] == [3, 4]
    assert len(completion) == 30
    await engine.close()
    assert llm.calls[-1] == ("shutdown",)


async def test_update_that_does_not_fit_never_reaches_vllm(
    llm, directory, model_maker, buckets_of, make_request
):
    engine = await started(engine_on(llm, directory))
    llm.calls.clear()
    with pytest.raises(WeightMismatch, match="is missing"):
        await engine.update_weights(WeightUpdate(version=4, buckets=buckets_of(model_maker(1))[1:]))
    assert llm.calls == []
    assert (await engine.generate(make_request(max_tokens=2))).versions == ((3, 2),)
    await engine.close()


async def test_update_that_breaks_half_way_ends_the_service(
    llm, directory, model_maker, buckets_of, make_request
):
    engine = await started(engine_on(llm, directory))
    llm.fail["reload_weights"] = RuntimeError("worker 1 is gone")
    with pytest.raises(EngineUnavailable, match="version 4 and may hold a mixture: worker 1 is gone"):
        await engine.update_weights(WeightUpdate(version=4, buckets=buckets_of(model_maker(1))))
    assert llm.calls[-1] == ("resume",)
    for call in (engine.generate(make_request()), engine.check_health()):
        with pytest.raises(EngineUnavailable, match="mixture"):
            await call
    await engine.close()


async def test_transfer_goes_through_vllms_own_engine_all_or_nothing(llm, directory, make_request):
    engine = await started(engine_on(llm, directory))
    await engine.open_transfer({"master_port": 1234})
    llm.calls.clear()
    await engine.transfer_weights(5, [{"names": ["a"]}, {"names": ["b"]}])
    assert [call[0] for call in llm.calls] == [
        *("pause", "start", "part", "part", "finish", "label", "reset", "resume")
    ]
    assert llm.calls[2] == ("part", {"names": ["a"]})
    assert (await engine.generate(make_request(max_tokens=1))).versions == ((5, 1),)
    llm.fail["part"] = RuntimeError("no such handle")
    with pytest.raises(EngineUnavailable, match="no such handle"):
        await engine.transfer_weights(6, [{"names": ["a"]}])
    await engine.close()


async def test_sleep_ends_requests_and_level_2_waits_for_weights(
    llm, directory, model_maker, buckets_of, make_request
):
    engine = await started(engine_on(llm, directory, enable_sleep_mode=True))
    task = asyncio.create_task(engine.generate(make_request(max_tokens=60)))
    while not (await engine.load()).kv_tokens:
        await asyncio.sleep(0)
    sleeping = asyncio.create_task(engine.sleep(2))
    await asyncio.sleep(0)
    await llm.abort(list(engine._live))
    await sleeping
    assert (await task).finish_reason == "abort"
    assert ("sleep", 2) in llm.calls
    waiting = asyncio.create_task(engine.generate(make_request(max_tokens=2)))
    with pytest.raises(EngineError, match="asleep"):
        await engine.update_weights(WeightUpdate(version=4, buckets=()))
    await engine.wake()
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await engine.update_weights(WeightUpdate(version=4, buckets=buckets_of(model_maker(1))))
    assert (await waiting).versions == ((4, 2),)
    await engine.close()
    awake = engine_on(FakeLLM(), directory)
    with pytest.raises(EngineError, match="start with the option enable_sleep_mode"):
        await awake.sleep(1)


async def test_media_and_experts_go_through_where_vllm_was_started_for_them(llm, directory, make_request):
    options = {"limit_mm_per_prompt": {"image": 2, "audio": 1}, "enable_return_routed_experts": True}
    engine = await started(engine_on(llm, directory, **options))
    assert engine.capabilities.media == ("image", "audio")
    image = Media(kind="image", data=np.zeros((4, 4, 3), np.uint8))
    sound = Media(kind="audio", data=np.zeros(8, np.float32), sampling_rate=16000)
    llm.experts = np.ones((4, 2, 2), np.int64)
    request = replace(make_request(max_tokens=2), media=(image, sound, image), routed_experts=True)
    completion = await engine.generate(request)
    assert completion.routed_experts.dtype == np.int16
    data = llm.prompts[0]["multi_modal_data"]
    assert data["image"] == [image.data, image.data]
    assert data["audio"] == [(sound.data, 16000)]
    video = Media(kind="video", data=np.zeros((1, 4, 4, 3), np.uint8))
    with pytest.raises(UnsupportedRequest, match="'video'"):
        await engine.generate(replace(make_request(), media=(video,)))
    await engine.close()


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (EngineDeadError("core died"), EngineUnavailable, "vLLM is dead: core died"),
        (VLLMClientError("bad seed"), EngineError, "vLLM refused it: bad seed"),
    ],
)
async def test_errors_of_vllm_name_the_request(error, kind, said, llm, directory, make_request):
    engine = await started(engine_on(llm, directory))
    llm.fail["generate"] = error
    with pytest.raises(kind, match=f"request 'q': {said}"):
        await engine.generate(make_request(id="q"))
    assert (await engine.load()).waiting == 0
    await engine.close()


async def test_cancelled_call_frees_its_place(llm, directory, make_request):
    engine = await started(engine_on(llm, directory))
    task = asyncio.create_task(engine.generate(make_request(id="q", max_tokens=50)))
    while not (await engine.load()).kv_tokens:
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    load = await engine.load()
    assert (load.running, load.waiting, load.kv_tokens, load.kv_capacity) == (0, 0, 0, 160)
    assert len(await engine.generate(make_request(id="q", max_tokens=2))) == 2
    await engine.close()


@pytest.mark.parametrize("version", ["0.31.1", "0.34.0"])
async def test_other_versions_are_refused_by_number(version, directory, monkeypatch):
    monkeypatch.setattr(sys.modules["vllm"], "__version__", version)
    with pytest.raises(EngineLibraryError, match=rf"vLLM 0.32 to before 0.34, installed is {version}"):
        await VLLMEngine.start(directory)


async def test_missing_library_is_named(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineLibraryError, match=r"pip install \"roll-rollout\[vllm\]\""):
        await VLLMEngine.start(directory)
