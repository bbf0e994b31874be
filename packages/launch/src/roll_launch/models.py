"""Models and tokenizers of a run. Called by the workers, by the plan and by `PromptEncoder`.

A model comes from a Hugging Face directory or is drawn anew from a seed. Importing this module imports
neither torch nor transformers; `load_tokenizer` and `model_config_mapping` do without torch wherever there
is a `tokenizer.json`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from roll_launch.architectures import ModelError, architecture

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

DTYPES = ("float32", "bfloat16", "float16")


class ModelSource(Protocol):
    """Where a model comes from; `roll_launch.roles.ModelSpec` is one."""

    @property
    def path(self) -> Path | None:
        """A Hugging Face directory to load, or None for new weights."""

    @property
    def architecture(self) -> str | None:
        """The `model_type` of new weights, such as `qwen3`."""

    @property
    def overrides(self) -> Mapping[str, object]:
        """Fields of the architecture's configuration, such as `{"hidden_size": 128}`."""

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's directory."""

    @property
    def dtype(self) -> str:
        """`float32`, `bfloat16` or `float16`."""

    @property
    def seed(self) -> int:
        """Of new weights, >= 0."""


def load_model(source: ModelSource) -> "PreTrainedModel":
    """The model of `source`, on the CPU and in evaluation mode.

    It is loaded where `source` has a path; otherwise its weights are drawn from the seed.

    Raises:
        ModelError: if there is no such directory or architecture, a configuration field is unknown or
            refused, weights are missing, or the tokenizer has more tokens than the model.
    """
    if source.path is not None:
        model = pretrained_model(source.path, dtype=source.dtype)
    else:
        model = random_model(
            source.architecture or "",
            source.overrides,
            tokenizer=load_tokenizer(source.tokenizer),
            dtype=source.dtype,
            seed=source.seed,
        )
    tokens, rows = _token_count(load_tokenizer(source.tokenizer)), _embedding_rows(model)
    if tokens > rows:
        raise ModelError(f"tokenizer {source.tokenizer} has {tokens} tokens, but the model only {rows}")
    return model


def random_model(
    name: str,
    overrides: Mapping[str, object],
    *,
    tokenizer: "PreTrainedTokenizerFast",
    dtype: str = "float32",
    seed: int = 0,
) -> "PreTrainedModel":
    """A model of architecture `name` with new weights; the same arguments give the same weights.

    Vocabulary size and the ids of special tokens are the tokenizer's, unless `overrides` has them. The
    global random state is left as it was.

    Raises:
        ModelError: if the architecture or a field of `overrides` is unknown, or the configuration is refused.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    architecture(name).check_fields(overrides)
    values = {**_token_fields(tokenizer), **overrides}
    torch_dtype = _torch_dtype(dtype)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            build: Any = AutoModelForCausalLM.from_config
            model: PreTrainedModel = build(AutoConfig.for_model(name, **values), dtype=torch_dtype)
    # The boundary to transformers: a refused configuration raises whatever the architecture's code runs into.
    except Exception as error:
        raise ModelError(
            f"architecture {name!r} refuses {dict(overrides)}: {type(error).__name__}: {error}"
        ) from error
    model.train(False)
    return model


def pretrained_model(path: Path, *, dtype: str = "float32") -> "PreTrainedModel":
    """The model in a Hugging Face directory, on the CPU.

    Raises:
        ModelError: if the directory is missing or incomplete, or does not hold all weights.
    """
    from transformers import AutoModelForCausalLM

    _read_config(path)
    torch_dtype = _torch_dtype(dtype)
    try:
        load: Any = AutoModelForCausalLM.from_pretrained
        model: PreTrainedModel
        model, report = load(path, dtype=torch_dtype, local_files_only=True, output_loading_info=True)
    # The boundary to transformers: a broken directory raises whatever the loader of its format runs into.
    except Exception as error:
        raise ModelError(f"cannot load the model in {path}: {type(error).__name__}: {error}") from error
    absent = sorted(report["missing_keys"])
    if absent:
        raise ModelError(f"the model in {path} lacks {len(absent)} weights, such as {', '.join(absent[:3])}")
    model.train(False)
    return model


def adapted_model(path: Path) -> "PreTrainedModel":
    """The model that the adapter in a directory was trained beside, with the adapter in its weights.

    Args:
        path: In PEFT's layout, such as a checkpoint of a stage with `learner.lora`.

    Raises:
        ModelError: if there is no adapter, its model is not where its configuration says, or they do not fit.
    """
    from roll_learners.errors import LearnerError
    from roll_learners.lora import load_adapter

    file = _directory(path, "adapter") / "adapter_config.json"
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file}: {error}") from error
    if not base:
        raise ModelError(f"{file} names no model (base_model_name_or_path): it has new weights beside it")
    dtype = str(_read_config(Path(base)).get("dtype") or "float32")
    model = pretrained_model(Path(base), dtype=dtype)
    try:
        merged: PreTrainedModel = load_adapter(model, path).merged_model()
    except LearnerError as error:
        raise ModelError(str(error)) from error
    return merged


def load_value_model(source: ModelSource) -> "PreTrainedModel":
    """The model of `source` with one number for each token as its output, drawn from the seed of `source`.

    Raises:
        ModelError: As `load_model`, or the architecture has no such form.
    """
    import torch
    from transformers import AutoModelForTokenClassification

    backbone = load_model(source)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(source.seed)
            config = type(backbone.config).from_dict({**backbone.config.to_dict(), "num_labels": 1})
            build: Any = AutoModelForTokenClassification.from_config
            model: PreTrainedModel = build(config, dtype=_torch_dtype(source.dtype))
    # The boundary to transformers: what an architecture lacks is found in its own code.
    except Exception as error:
        raise ModelError(
            f"architecture {backbone.config.model_type!r} has no form with values: "
            f"{type(error).__name__}: {error}"
        ) from error
    model.base_model.load_state_dict(backbone.base_model.state_dict())
    model.train(False)
    return model


def model_config_mapping(source: ModelSource) -> dict[str, object]:
    """What config.json has or would have, without torch: for estimates of memory and for checking names.

    Where an architecture is given its declared defaults are filled in; values that it derives from others
    may be None.

    Raises:
        ModelError: if there is no such directory, architecture or configuration field.
    """
    if source.architecture is None:
        if source.path is None:
            raise ModelError("got a model with neither path nor architecture; allowed is one of them")
        return _read_config(source.path)
    declared = architecture(source.architecture)
    declared.check_fields(source.overrides)
    values = {**_token_fields(load_tokenizer(source.tokenizer)), **source.overrides}
    named = {declared.aliases.get(name, name): value for name, value in values.items()}
    return {**declared.defaults, **named, "model_type": source.architecture}


def load_tokenizer(path: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer in a directory, from its `tokenizer.json` or converted from an older format.

    Raises:
        ModelError: if the directory is missing or holds no tokenizer that can be loaded.
    """
    path = _directory(path, "tokenizer")
    from transformers import PreTrainedTokenizerFast

    try:
        if (path / "tokenizer.json").is_file():
            tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
                path, local_files_only=True
            )
            return tokenizer
        from transformers import AutoTokenizer

        converted = AutoTokenizer.from_pretrained(path, local_files_only=True)
    # The boundary to transformers: a broken directory raises whatever the loader of its format runs into.
    except Exception as error:
        raise ModelError(f"cannot load a tokenizer from {path}: {type(error).__name__}: {error}") from error
    if not isinstance(converted, PreTrainedTokenizerFast):
        raise ModelError(f"the tokenizer in {path} cannot be converted to a tokenizer.json")
    return converted


def save_pretrained(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", directory: Path) -> None:
    """Writes a Hugging Face directory: config.json, safetensors, generation_config.json and the tokenizer."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _token_fields(tokenizer: "PreTrainedTokenizerFast") -> dict[str, object]:
    return {
        "vocab_size": _token_count(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _token_count(tokenizer: "PreTrainedTokenizerFast") -> int:
    """Rows that an embedding needs: ids may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def _embedding_rows(model: "PreTrainedModel") -> int:
    weight: Any = model.get_input_embeddings().weight
    return int(weight.shape[0])


def _torch_dtype(name: str) -> "torch.dtype":
    import torch

    if name not in DTYPES:
        raise ModelError(f"got dtype {name!r}; allowed are {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _read_config(path: Path) -> dict[str, object]:
    file = _directory(path, "model") / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"model directory {path} has no config.json") from None
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} holds a {type(config).__name__}; allowed is an object")
    return config


def _directory(path: Path, what: str) -> Path:
    if not Path(path).is_dir():
        raise ModelError(
            f"{what} directory {path} does not exist; models of the hub are fetched with "
            "`hf download NAME --local-dir DIRECTORY`"
        )
    return Path(path)
