"""The doctor names each fault that is put between an engine and a learner, and none where there is none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from roll_launch.doctor.diagnosis import Diagnosis, Examination
from roll_launch.doctor.report import as_json, print_report
from roll_launch.doctor.subject import Subject
from roll_launch.doctor.witness import Witness
from roll_learners import LocalLearner, OptimizerSettings
from roll_learners.sample import Sample
from roll_rollout import (
    Completion,
    GenerateRequest,
    SamplingParams,
    WeightReceipt,
    WeightUpdate,
    weights_checksum,
)
from roll_rollout.transformers_engine import TransformersEngine
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import decoders as token_decoders
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEMPLATE = (
    "{% for m in messages %}<u>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<g>{% endif %}"
)
SAMPLING = SamplingParams(max_tokens=10, temperature=0.7)


def make_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=48, tie_word_embeddings=True, max_position_embeddings=256,
        initializer_range=0.15,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(dtype).eval()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Letters a to h, of which some pairs are tokens too: sampled letters may be encoded otherwise."""
    letters = "abcdefgh"
    pairs = ["ab", "cd", "ef", "gh", "aa", "ba"]
    vocabulary = {"<s>": 0, "</s>": 1, "<u>": 2, "<g>": 3}
    for token in [*letters, *pairs]:
        vocabulary[token] = len(vocabulary)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in pairs]))
    made.add_special_tokens(["<s>", "</s>", "<u>", "<g>"])
    made.pre_tokenizer = pre_tokenizers.Split("~", behavior="isolated")
    made.decoder = token_decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    return fast


class Wrapped:
    """An engine that changes what it is asked and what it answers."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        ask: Callable[[GenerateRequest], GenerateRequest] = lambda request: request,
        deaf: bool = False,
    ) -> None:
        self._engine = TransformersEngine(model)
        self._ask = ask
        self._deaf = deaf

    @property
    def capabilities(self):
        return self._engine.capabilities

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await self._engine.generate(self._ask(request))
        return replace(completion, prompt_ids=request.prompt_ids)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        if self._deaf:
            return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))
        return await self._engine.update_weights(update)

    async def abort(self, request_ids) -> None:
        await self._engine.abort(request_ids)

    async def load(self):
        return await self._engine.load()

    async def close(self) -> None:
        await self._engine.close()


def learner_of(model: PreTrainedModel, temperature: float = 0.7, **options) -> LocalLearner:
    return LocalLearner(
        model,
        optimizer=OptimizerSettings(learning_rate=1e-3, total_steps=1),
        temperature=temperature,
        **options,
    )


class Leaking:
    """A learner whose sequences see those before them in the batch."""

    def __init__(self, learner: LocalLearner) -> None:
        self._learner = learner

    def logprobs(self, samples):
        rows, before = [], np.zeros(0, np.int32)
        for sample in samples:
            joined = Sample(
                token_ids=np.concatenate([before, sample.token_ids]),
                response_mask=np.concatenate([np.zeros(len(before), bool), sample.response_mask]),
            )
            rows.append(self._learner.logprobs([joined])[0][len(before) :])
            before = sample.token_ids
        return rows

    def export_weights(self):
        return self._learner.export_weights()


PROMPTS = [[0, 4, 5, 6, 7], [0, 8, 9, 4, 5, 3], [0, 10, 11, 4, 4], [0, 5, 4, 9, 8, 7, 6, 3]]


async def diagnose(tokenizer, engine, learner, *, tolerance=1e-3, version=0, float32=None, sampling=SAMPLING):
    subject = Subject(
        engine=engine,
        learner=learner,
        witness=Witness(make_model()),
        tokenizer=tokenizer,
        directory=Path("nowhere"),
        prompts=[np.array(prompt, np.int32) for prompt in PROMPTS],
        sampling=sampling,
        tolerance=tolerance,
        version=version,
        float32=float32,
    )
    diagnosis = await Examination(subject).run()
    await engine.close()
    return diagnosis


def reading(change: Callable[[list[int]], list[int]]) -> Callable[[GenerateRequest], GenerateRequest]:
    return lambda request: replace(request, prompt_ids=np.array(change(request.prompt_ids.tolist())))


async def test_nothing_is_found_where_nothing_is_wrong(tokenizer):
    diagnosis = await diagnose(tokenizer, Wrapped(make_model()), learner_of(make_model()))
    assert diagnosis.cause is None
    assert {check.verdict for check in diagnosis.checks} == {"agrees", "yes"}
    drifting, completions = diagnosis.drift
    assert 0 < drifting <= completions == 10


async def test_prompt_that_is_tokenised_again_is_found(tokenizer):
    def again(ids: list[int]) -> list[int]:
        return tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)

    engine = Wrapped(make_model(), ask=reading(again))
    diagnosis = await diagnose(tokenizer, engine, learner_of(make_model()))
    assert (diagnosis.cause, diagnosis.side) == ("tokenisation", "engine")


def as_turn(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[int]:
    said = tokenizer.decode([token for token in ids if token > 3])
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": said}], tokenize=False, add_generation_prompt=True
    )
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tokenizer, ids: [0, *ids], "one more beginning"),
        (lambda tokenizer, ids: ids[1:], "without its beginning"),
        (lambda tokenizer, ids: [*ids, 1], "an end token after"),
        (as_turn, "user's turn"),
        (lambda tokenizer, ids: ids[:-1] if ids[-1] == 3 else ids, "generation prompt"),
    ],
)
async def test_other_template_is_found(tokenizer, change, words):
    engine = Wrapped(make_model(), ask=reading(lambda ids: change(tokenizer, ids)))
    diagnosis = await diagnose(tokenizer, engine, learner_of(make_model()))
    assert (diagnosis.cause, diagnosis.side) == ("chat template", "engine")
    assert words in diagnosis.statement


@pytest.mark.parametrize("other", [1.0, 0.5])
async def test_other_temperature_of_the_engine_is_found(tokenizer, other):
    def hotter(request: GenerateRequest) -> GenerateRequest:
        return replace(request, sampling=replace(request.sampling, temperature=other))

    diagnosis = await diagnose(tokenizer, Wrapped(make_model(), ask=hotter), learner_of(make_model()))
    assert (diagnosis.cause, diagnosis.side) == ("temperature", "engine")
    assert f"temperature {other:g}" in diagnosis.statement


async def test_other_temperature_of_the_learner_is_found(tokenizer):
    diagnosis = await diagnose(tokenizer, Wrapped(make_model()), learner_of(make_model(), temperature=1.0))
    assert (diagnosis.cause, diagnosis.side) == ("temperature", "learner")
    assert "before temperature" in diagnosis.statement


@pytest.mark.parametrize(("filters", "words"), [({"top_k": 5}, "top_k 5"), ({"top_p": 0.8}, "top_p 0.8")])
async def test_filters_of_the_engine_are_found(tokenizer, filters, words):
    def filtered(request: GenerateRequest) -> GenerateRequest:
        return replace(request, sampling=replace(request.sampling, **filters))

    diagnosis = await diagnose(tokenizer, Wrapped(make_model(), ask=filtered), learner_of(make_model()))
    assert (diagnosis.cause, diagnosis.side) == ("sampling filters", "engine")
    assert words in diagnosis.statement


async def test_engine_with_other_weights_is_found(tokenizer):
    diagnosis = await diagnose(tokenizer, Wrapped(make_model(1)), learner_of(make_model()), version=7)
    assert (diagnosis.cause, diagnosis.side) == ("weights", "engine")
    assert "version 7" in diagnosis.statement


@pytest.mark.parametrize("seed", [0, 1])
async def test_engine_that_ignores_weights_is_found(tokenizer, seed):
    engine = Wrapped(make_model(seed), deaf=True)
    diagnosis = await diagnose(tokenizer, engine, learner_of(make_model()))
    assert (diagnosis.cause, diagnosis.side) == ("weights", "engine")
    assert "goes on with those of before" in diagnosis.statement


async def test_learner_whose_batch_leaks_is_found(tokenizer):
    diagnosis = await diagnose(tokenizer, Wrapped(make_model()), Leaking(learner_of(make_model())))
    assert (diagnosis.cause, diagnosis.side) == ("packing", "learner")


async def test_rounding_of_the_dtype_is_found(tokenizer):
    async def float32():
        return Wrapped(make_model()), learner_of(make_model())

    engine = Wrapped(make_model(dtype=torch.bfloat16))

    class InBfloat16(LocalLearner):
        def export_weights(self):
            return ((name, tensor.bfloat16()) for name, tensor in super().export_weights())

    learner = InBfloat16(
        make_model(), optimizer=OptimizerSettings(learning_rate=1e-3, total_steps=1), temperature=0.7
    )
    diagnosis = await diagnose(tokenizer, engine, learner, float32=float32)
    assert diagnosis.cause == "dtype"


async def test_difference_that_nothing_explains_is_said_to_be_unknown(tokenizer):
    class Noisy(Wrapped):
        async def generate(self, request):
            completion = await super().generate(request)
            noise = np.random.default_rng(0).normal(0.0, 0.3, len(completion)).astype(np.float32)
            return replace(completion, logprobs=completion.logprobs + noise)

    diagnosis = await diagnose(tokenizer, Noisy(make_model()), learner_of(make_model()))
    assert (diagnosis.cause, diagnosis.side) == ("unknown", "")


async def test_text_that_was_tokenised_again_is_found(tokenizer):
    class Inexact(Wrapped):
        async def generate(self, request):
            return replace(await super().generate(request), exact=False)

    diagnosis = await diagnose(tokenizer, Inexact(make_model()), learner_of(make_model()))
    assert diagnosis.cause == "tokenisation"


async def test_missing_logprobs_are_named(tokenizer):
    class Silent(Wrapped):
        async def generate(self, request):
            completion = await super().generate(request)
            return replace(completion, logprobs=np.full(len(completion), np.nan, np.float32))

    diagnosis = await diagnose(tokenizer, Silent(make_model()), learner_of(make_model()))
    assert (diagnosis.cause, diagnosis.side) == ("log-probs", "engine")


async def test_report_has_every_check_and_finite_json(tokenizer):
    import io

    from rich.console import Console

    def filtered(request: GenerateRequest) -> GenerateRequest:
        return replace(request, sampling=replace(request.sampling, top_k=5))

    diagnosis: Diagnosis = await diagnose(
        tokenizer, Wrapped(make_model(), ask=filtered), learner_of(make_model())
    )
    screen = io.StringIO()
    print_report(diagnosis, Console(file=screen, width=160))
    for check in diagnosis.checks:
        assert check.name in screen.getvalue()
    assert "cause: sampling filters" in screen.getvalue()
    found = as_json(diagnosis)
    assert found["cause"] == "sampling filters"
    assert len(found["checks"]) == len(diagnosis.checks)
