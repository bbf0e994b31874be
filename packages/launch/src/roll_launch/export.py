"""`roll-launch export` and `convert`: checkpoints as Hugging Face directories, and these as shards.

What is written is loaded again and must give the logits of what it was made from.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roll_launch import checkpoint_store as store
from roll_launch.errors import RollLaunchError
from roll_launch.run_directory import RunDirectory

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

SHARDS = "fsdp2"
"""Directory of a checkpoint's shards, as the ranks of a trainer write it."""

Form = Literal["huggingface", "fsdp2"]

PROBE_TOKENS = 16
"""Tokens whose logits are compared."""


class ExportError(RollLaunchError):
    """A model cannot be found, read or written, or what was written computes something else."""


def export(source: Path, target: Path, *, stage: str | None = None) -> int:
    """Writes the newest model of a run, or that of a checkpoint, as a Hugging Face directory.

    Args:
        source: A run's directory, or a checkpoint.
        target: A directory that is not there yet.
        stage: Of a run; None is the last one that has anything.

    Raises:
        ExportError: There is no model, the target is there, or what was written is not equal.
    """
    found = model_of(source, stage=stage)
    return convert(found, target, to="huggingface")


def convert(source: Path, target: Path, *, to: Form) -> int:
    """Writes a model in another form.

    Args:
        source: A Hugging Face directory, or a checkpoint with shards.
        target: A directory that is not there yet.
        to: "huggingface", or "fsdp2": shards that any layout loads.

    Raises:
        ExportError: As `export`.
    """
    if target.exists():
        raise ExportError(f"{target} is there already: name a directory that is not")
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
    model = _loaded(source)
    beside = store.prepare(target)
    try:
        _write(model, source, beside, to)
        difference = _difference(model, _loaded(beside))
        if difference != 0.0:
            raise ExportError(f"{target}: logits of what was written differ by {difference:g} from {source}")
        store.commit(beside, target)
    except BaseException:
        store.discard(beside)
        raise
    print(f"{source} -> {target} ({to}): loaded again, logits of {PROBE_TOKENS} tokens are equal")
    return 0


def model_of(source: Path, *, stage: str | None = None) -> Path:
    """The directory of the newest model in a run: of its last stage the model, or else its newest checkpoint.

    Args:
        source: A run's directory, or a directory of a model, which is given back.
        stage: The stage to look at.

    Raises:
        ExportError: There is none.
    """
    if _holds_model(source):
        return source
    directory = RunDirectory(root=source.resolve())
    if not directory.stages.is_dir():
        raise ExportError(f"{source} is neither a run's directory nor that of a model")
    names = [path.name for path in directory.stages.iterdir() if stage in (None, path.name)]
    found = []
    for name in names:
        model = directory.model(name)
        newest = model if _holds_model(model) else store.newest(directory.checkpoints(name))
        found += [newest] if newest is not None else []
    if not found:
        asked = "no stage" if stage is None else f"no stage {stage}"
        raise ExportError(f"{source}: {asked} has a model or a checkpoint")
    return max(found, key=lambda path: path.stat().st_mtime)


def _holds_model(directory: Path) -> bool:
    return any((directory / name).is_file() for name in ("config.json", "adapter_config.json"))


def _loaded(source: Path) -> "PreTrainedModel":
    """The model of a directory, on the host, with an adapter merged into it."""
    from roll_learners.errors import LearnerError
    from roll_learners.fsdp2 import full_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    from roll_launch.architectures import ModelError
    from roll_launch.models import adapted_model, pretrained_model

    adapter = (source / "adapter_config.json").is_file()
    if not adapter and not (source / "config.json").is_file():
        raise ExportError(f"{source} has no config.json: it holds no model")
    try:
        if adapter:
            return adapted_model(source)
        if not (source / SHARDS).is_dir():
            dtype = str(AutoConfig.from_pretrained(source, local_files_only=True).dtype or "float32")
            return pretrained_model(source, dtype=dtype.removeprefix("torch."))
        weights = full_weights(source / SHARDS)
    except (LearnerError, ModelError) as error:
        raise ExportError(f"{source} cannot be read: {error}") from error
    config = AutoConfig.from_pretrained(source, local_files_only=True)
    build: Any = AutoModelForCausalLM.from_config
    model: PreTrainedModel = build(config, dtype=config.dtype)
    absent = model.load_state_dict(weights, strict=False).missing_keys
    tied = model.all_tied_weights_keys
    if missing := [name for name in absent if name not in tied]:
        raise ExportError(f"{source}: the shards lack {len(missing)} weights, such as {missing[0]}")
    model.train(False)
    return model


def _write(model: "PreTrainedModel", source: Path, beside: Path, to: Form) -> None:
    if to == "huggingface":
        model.save_pretrained(beside)
    else:
        from roll_learners.fsdp2 import save_full_weights

        model.config.save_pretrained(beside)
        save_full_weights(_untied(model), beside / SHARDS)
    for pattern in ("tokenizer*", "special_tokens_map.json", "chat_template*", "vocab*", "merges.txt"):
        for path in source.glob(pattern):
            shutil.copy(path, beside / path.name)


def _untied(model: "PreTrainedModel") -> "dict[str, Tensor]":
    """The state dict, tied tensors once, as a learner's checkpoint has it."""
    named: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        named.setdefault(id(tensor), (name, tensor.detach()))
    return dict(named.values())


def _difference(model: "PreTrainedModel", other: "PreTrainedModel") -> float:
    """The greatest |difference| of logits."""
    import torch

    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = (torch.arange(PROBE_TOKENS) * 7919 % vocabulary).unsqueeze(0)
    with torch.no_grad():
        mine, others = (each(input_ids=ids, use_cache=False).logits.double() for each in (model, other))
    return float((mine - others).abs().max())
