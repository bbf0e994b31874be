import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from roll_launch.architectures import ModelError
from roll_launch.models import (
    load_model,
    load_tokenizer,
    model_config_mapping,
    pretrained_model,
    save_pretrained,
)
from roll_launch.tasks import sort_letters
from safetensors.torch import load_file, save_file

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: Path | None = None
    architecture: str | None = None
    overrides: Mapping[str, object]
    tokenizer: Path
    dtype: str = "float32"
    seed: int = 0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    sort_letters.write_tokenizer(directory)
    return directory


@pytest.fixture
def source(tokenizer: Path) -> Source:
    return Source(architecture="qwen3", overrides=TINY, tokenizer=tokenizer)


@pytest.fixture
def saved(source: Source, tmp_path: Path) -> Path:
    save_pretrained(load_model(source), load_tokenizer(source.tokenizer), tmp_path / "model")
    return tmp_path / "model"


def test_new_weights_have_the_tokenizers_vocabulary_and_special_tokens(source: Source) -> None:
    model = load_model(source)
    config = model.config
    assert (config.vocab_size, config.pad_token_id, config.eos_token_id) == (25, 0, 1)
    assert config.hidden_size == 16
    assert not model.training
    assert next(model.parameters()).dtype == torch.float32


def test_new_weights_depend_on_the_seed_alone(source: Source) -> None:
    first, second, third = (load_model(replace(source, seed=seed)).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], third["model.embed_tokens.weight"])


def test_the_global_random_state_is_left_alone(source: Source) -> None:
    before = torch.get_rng_state()
    load_model(source)
    assert torch.equal(before, torch.get_rng_state())


def test_the_dtype_is_kept_through_saving_and_loading(source: Source, tmp_path: Path) -> None:
    model = load_model(replace(source, dtype="bfloat16"))
    save_pretrained(model, load_tokenizer(source.tokenizer), tmp_path)
    loaded = pretrained_model(tmp_path, dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert pretrained_model(tmp_path).dtype == torch.float32


def test_a_saved_model_loads_with_the_same_weights(source: Source, saved: Path) -> None:
    loaded = load_model(replace(source, path=saved, seed=99))
    new = load_model(source).state_dict()
    assert all(torch.equal(new[name], weight) for name, weight in loaded.state_dict().items())
    assert not loaded.training
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in saved.iterdir()}


def test_a_saved_model_brings_its_tokenizer(saved: Path) -> None:
    assert load_tokenizer(saved).encode("ab=") == [3, 4, 23]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "qwen33"}, "architecture 'qwen33'; did you mean 'qwen3'"),
        (
            {"overrides": {"hidden_sizes": 8}},
            "no configuration field 'hidden_sizes'; did you mean 'hidden_size'",
        ),
        ({"overrides": {"hidden_size": "wide"}}, "architecture 'qwen3' refuses .*hidden_size"),
        ({"overrides": {**TINY, "vocab_size": 20}}, "has 25 tokens, but the model only 20"),
        ({"dtype": "int8"}, "got dtype 'int8'; allowed are float32, bfloat16, float16"),
    ],
)
def test_new_weights_that_cannot_be_built_say_why(
    source: Source, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(replace(source, **change))  # type: ignore[arg-type]


def test_a_larger_vocabulary_than_the_tokenizers_is_allowed(source: Source) -> None:
    model = load_model(replace(source, overrides={**TINY, "vocab_size": 32}))
    assert model.state_dict()["model.embed_tokens.weight"].shape[0] == 32


def test_a_missing_directory_says_how_to_fetch_a_model(source: Source, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model directory .*gone does not exist; .*hf download"):
        load_model(replace(source, path=tmp_path / "gone"))
    with pytest.raises(ModelError, match=r"tokenizer directory .*gone does not exist"):
        load_tokenizer(tmp_path / "gone")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "has no config.json"), ("{", "is not JSON"), ("[]", "holds a list; allowed is an object")],
)
def test_a_directory_without_a_configuration_is_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message):
        pretrained_model(tmp_path)


def test_a_directory_without_weights_is_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot load the model in"):
        pretrained_model(saved)


def test_missing_weights_are_not_drawn_at_random(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 weights, such as model\.layers\.1\.mlp\.up_proj\.weight"):
        pretrained_model(saved)


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": "{}"}])
def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match="cannot load a tokenizer from"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "make", [lambda s, saved: s, lambda s, saved: replace(s, path=saved, architecture=None)]
)
def test_the_config_mapping_is_what_the_model_has(
    source: Source, saved: Path, make: Callable[[Source, Path], Source]
) -> None:
    mapping = model_config_mapping(make(source, saved))
    config = json.loads((saved / "config.json").read_text())
    for name in (*TINY, "model_type", "vocab_size", "eos_token_id", "pad_token_id"):
        assert mapping[name] == config[name]


def test_the_config_mapping_uses_the_names_of_the_configuration(source: Source) -> None:
    mapping = model_config_mapping(replace(source, architecture="gpt2", overrides={"hidden_size": 24}))
    assert mapping["n_embd"] == 24
    assert "hidden_size" not in mapping
    assert mapping["n_layer"] == 12


def test_the_config_mapping_checks_names(source: Source) -> None:
    with pytest.raises(ModelError, match="did you mean 'num_hidden_layers'"):
        model_config_mapping(replace(source, overrides={"num_hidden_layer": 2}))
    with pytest.raises(ModelError, match="neither path nor architecture"):
        model_config_mapping(replace(source, architecture=None))


def test_planning_does_without_torch(saved: Path) -> None:
    (saved / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}=;{% endfor %}")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from roll_launch.data import PromptEncoder, Row\n"
        "from roll_launch.models import model_config_mapping\n"
        f"saved = Path({str(saved)!r})\n"
        f"new = dict(tokenizer=saved, overrides={TINY!r}, dtype='float32', seed=0)\n"
        "mapping = model_config_mapping(SimpleNamespace(path=None, architecture='qwen3', **new))\n"
        "assert mapping['vocab_size'] == 25\n"
        "model_config_mapping(SimpleNamespace(path=saved, architecture=None, **new))\n"
        "encoder = PromptEncoder(saved)\n"
        "row = dict(response='b', reference=None, columns={}, origin='x:1')\n"
        "encoder.supervised_tokens(Row(prompt='a', messages=None, **row))\n"
        "encoder.supervised_tokens(Row(prompt=None, messages=({'role': 'user', 'content': 'a'},), **row))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(ModelError("no such model")))
    assert isinstance(error, ModelError)
    assert str(error) == "no such model"
