import inspect
import subprocess
import sys

import pytest
from roll_launch.architectures import ModelError, architecture


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma3_text"])
def test_what_is_read_from_the_source_is_what_transformers_does(name: str) -> None:
    from transformers import AutoConfig

    config = type(AutoConfig.for_model(name))
    declared = architecture(name)
    arguments = inspect.signature(config).parameters
    fields = {
        argument: value.default for argument, value in arguments.items() if value.kind is value.KEYWORD_ONLY
    }
    assert set(fields) <= declared.fields
    assert dict(declared.aliases) == dict(config.attribute_map)
    assert {"vocab_size", "tie_word_embeddings"} <= fields.keys()
    assert {field: declared.defaults.get(field) for field in fields} == fields


def test_fields_and_their_other_names_are_allowed() -> None:
    architecture("gpt2").check_fields(["n_embd", "hidden_size", "pad_token_id", "attn_implementation"])
    architecture("qwen3").check_fields(["rope_theta", "head_dim"])


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(
        ModelError, match="'qwen3' has no configuration field 'hiden_size'; did you mean 'hidden_size'"
    ):
        architecture("qwen3").check_fields(["hidden_size", "hiden_size"])


def test_an_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(ModelError, match="architecture 'quen3'; did you mean 'qwen3'"):
        architecture("quen3")


def test_an_architecture_that_is_no_language_model_is_unknown() -> None:
    with pytest.raises(ModelError, match="no causal language model of architecture 'vit'"):
        architecture("vit")


def test_reading_the_source_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys\n"
        "from roll_launch.architectures import architecture\n"
        "assert architecture('qwen3').defaults['head_dim'] == 128\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)
