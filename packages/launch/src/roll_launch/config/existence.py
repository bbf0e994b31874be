"""Whether what a configuration names is there: files, models, modules, devices. No Ray, no torch, no import
of it.

`roll-launch` calls `check_existence` after loading and before anything starts. Paths are relative to the
working directory. What a preparation writes need not be there before it ran.
"""

import difflib
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from roll_hw import HwError, count_devices, detect_platform, parse_device_plan

from roll_launch.architectures import ModelError, architecture
from roll_launch.config.document import Document
from roll_launch.config.nodes import KeyPath
from roll_launch.config.problems import ConfigError, Problem, in_file_order
from roll_launch.config.schema.agentic import AgenticStage, FunctionToolConfig, McpToolConfig
from roll_launch.config.schema.data import (
    HfData,
    JsonlData,
    MixtureData,
    ParquetData,
    PromptDataConfig,
    PythonData,
    ReasoningGymData,
)
from roll_launch.config.schema.distillation import DistillationStage, PolicyTeacherConfig, TeacherConfig
from roll_launch.config.schema.engines import (
    EngineConfig,
    OpenaiEngineConfig,
    ReplayEngineConfig,
    ScriptedEngineConfig,
    SglangEngineConfig,
    TransformersEngineConfig,
)
from roll_launch.config.schema.model import ModelConfig, RandomModel, StageModel
from roll_launch.config.schema.offline import OfflineEvaluationConfig
from roll_launch.config.schema.preference import PreferenceStage
from roll_launch.config.schema.rewards import RewardsConfig
from roll_launch.config.schema.run import RunConfig
from roll_launch.config.schema.stages import RlvrStage, StageConfig

CALLABLE_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Something that is named and not there.

    Absence(path=("stages", 0, "data", "path"), message="no such file", got="runs/data/trian.jsonl")
    """

    path: KeyPath
    message: str
    got: str | None = None
    hint: str | None = None
    allowed: str | None = None


def check_existence(config: RunConfig, document: Document | None = None) -> None:
    """Checks a loaded configuration against this machine.

    Args:
        config: As loaded.
        document: As loaded, so that messages can name lines.

    Raises:
        ConfigError: All that is not there.
    """
    found = list(_absences(config))
    if not found:
        return
    if document is None:
        problems = [_without_document(config, absence) for absence in found]
        raise ConfigError(problems)
    placed = [document.problem(a.path, a.message, got=a.got, allowed=a.allowed, hint=a.hint) for a in found]
    raise ConfigError(in_file_order(placed, document.source))


def _absences(config: RunConfig) -> Iterator[Absence]:
    prepared = [_absolute(preparation.directory) for preparation in config.prepare]
    yield from _directory(config.directory, ("directory",))
    for index, preparation in enumerate(config.prepare):
        yield from _module(preparation.callable, ("prepare", index, "callable"))
        yield from _directory(preparation.directory, ("prepare", index, "directory"))
    limits: dict[str, int | None] = {}
    for index, stage in enumerate(config.stages):
        path: KeyPath = ("stages", index)
        yield from _model(stage.model, (*path, "model"), prepared)
        if isinstance(stage, AgenticStage):
            yield from _environments(stage, (*path, "environments"))
            yield from _engine(stage.rollout.engine, (*path, "rollout", "engine"))
            if stage.critics is not None:
                yield from _model(stage.critics.model, (*path, "critics", "model"), prepared)
        else:
            yield from _data(stage.data, (*path, "data"), prepared)
        limits[stage.name] = _positions(stage.model, limits)
        yield from _sequence(stage, path, limits[stage.name])
        if isinstance(stage, RlvrStage):
            if stage.evaluation is not None:
                yield from _data(stage.evaluation.data, (*path, "evaluation", "data"), prepared)
            if stage.critics is not None:
                yield from _model(stage.critics.model, (*path, "critics", "model"), prepared)
            yield from _rewards(stage.rewards, (*path, "rewards"), prepared)
            yield from _teachers(stage.teachers, (*path, "teachers"), prepared)
            yield from _engine(stage.rollout.engine, (*path, "rollout", "engine"))
        if isinstance(stage, DistillationStage):
            yield from _teachers(stage.teachers, (*path, "teachers"), prepared)
        if isinstance(stage, PreferenceStage | DistillationStage) and stage.evaluation is not None:
            yield from _offline_evaluation(stage.evaluation, (*path, "evaluation"), prepared)
        yield from _device(stage.learner.device, (*path, "learner", "device"))


def _offline_evaluation(
    evaluation: OfflineEvaluationConfig, path: KeyPath, prepared: list[Path]
) -> Iterator[Absence]:
    if evaluation.data is not None:
        yield from _data(evaluation.data, (*path, "data"), prepared)
    sampled = evaluation.generation
    if sampled is not None:
        yield from _data(sampled.data, (*path, "generation", "data"), prepared)
        yield from _rewards(sampled.rewards, (*path, "generation", "rewards"), prepared)
        yield from _engine(sampled.engine, (*path, "generation", "engine"))


def _teachers(
    teachers: Sequence[TeacherConfig | PolicyTeacherConfig], path: KeyPath, prepared: list[Path]
) -> Iterator[Absence]:
    for index, teacher in enumerate(teachers):
        yield from _model(teacher.model, (*path, index, "model"), prepared)
        yield from _device(teacher.device, (*path, index, "device"))


def _directory(directory: Path, path: KeyPath) -> Iterator[Absence]:
    """A directory that cannot be written or made."""
    above = _absolute(directory)
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        yield Absence(path=path, message=f"cannot be made: {above} is a file", got=str(directory))
    elif not os.access(above, os.W_OK | os.X_OK):
        yield Absence(path=path, message=f"cannot be written: no permission in {above}", got=str(directory))


def _model(model: ModelConfig, path: KeyPath, prepared: list[Path]) -> Iterator[Absence]:
    if isinstance(model, StageModel):
        return
    if isinstance(model, RandomModel):
        yield from _architecture(model, path)
        yield from _tokenizer(model.tokenizer, (*path, "tokenizer"), prepared)
        return
    if not _is_prepared(model.path, prepared):
        if not model.path.is_dir():
            yield _missing(model.path, (*path, "path"), "no such model directory")
        elif not (model.path / "config.json").is_file():
            message = "is no Hugging Face model directory: it has no config.json"
            yield Absence(path=(*path, "path"), message=message, got=str(model.path))
    if model.tokenizer is not None:
        yield from _tokenizer(model.tokenizer, (*path, "tokenizer"), prepared)


def _tokenizer(directory: Path, path: KeyPath, prepared: list[Path]) -> Iterator[Absence]:
    if _is_prepared(directory, prepared):
        return
    if not directory.is_dir():
        yield _missing(directory, path, "no such tokenizer directory")
    elif not any((directory / name).is_file() for name in TOKENIZER_FILES):
        message = f"is no tokenizer directory: it has none of {', '.join(TOKENIZER_FILES)}"
        yield Absence(path=path, message=message, got=str(directory))


def _architecture(model: RandomModel, path: KeyPath) -> Iterator[Absence]:
    """An architecture that transformers does not have, or fields that its configuration does not have."""
    try:
        known = architecture(model.architecture)
    except ModelError as error:
        yield Absence(path=(*path, "architecture"), message=str(error))
        return
    for field in model.config:
        try:
            known.check_fields([field])
        except ModelError as error:
            yield Absence(path=(*path, "config", field), message=str(error))


def _data(data: PromptDataConfig, path: KeyPath, prepared: list[Path]) -> Iterator[Absence]:
    if isinstance(data, MixtureData):
        for index, domain in enumerate(data.domains):
            yield from _data(domain.data, (*path, "domains", index, "data"), prepared)
    elif isinstance(data, PythonData):
        yield from _module(data.callable, (*path, "callable"))
    elif isinstance(data, HfData):
        yield from _extra("datasets", "datasets", (*path, "source"))
    elif isinstance(data, ReasoningGymData):
        yield from _extra("reasoning_gym", "reasoning-gym", (*path, "source"))
    elif isinstance(data, JsonlData | ParquetData) and not _is_prepared(data.path, prepared):
        if data.path.is_dir():
            yield Absence(
                path=(*path, "path"), message="is a directory; a file is expected", got=str(data.path)
            )
        elif not data.path.exists():
            yield _missing(data.path, (*path, "path"), "no such file")


def _rewards(rewards: RewardsConfig, path: KeyPath, prepared: list[Path]) -> Iterator[Absence]:
    grader = rewards.grader
    if grader is not None and grader.name == "python":
        yield from _module(str(grader.options["callable"]), (*path, "grader", "options", "callable"))
    elif grader is not None and grader.name == "reasoning_gym":
        yield from _extra("reasoning_gym", "reasoning-gym", (*path, "grader", "name"))
    for index, model in enumerate(rewards.models):
        yield from _model(model.model, (*path, "models", index, "model"), prepared)
        yield from _device(model.device, (*path, "models", index, "device"))


def _environments(stage: AgenticStage, path: KeyPath) -> Iterator[Absence]:
    """Modules of environments and of tools that are named by path."""
    for index, environment in enumerate(stage.environments):
        if CALLABLE_PATH.fullmatch(environment.name):
            yield from _module(environment.name, (*path, index, "name"))
        for place, tool in enumerate(environment.tools.offered if environment.tools is not None else ()):
            if isinstance(tool, FunctionToolConfig):
                yield from _module(tool.callable, (*path, index, "tools", "offered", place, "callable"))
            elif isinstance(tool, McpToolConfig) and importlib.util.find_spec("mcp") is None:
                hint = "pip install 'roll-agentic[mcp]'"
                where = (*path, index, "tools", "offered", place, "tool")
                yield Absence(path=where, message="needs mcp", hint=hint)


def _engine(engine: EngineConfig, path: KeyPath) -> Iterator[Absence]:
    if isinstance(engine, TransformersEngineConfig):
        yield from _device(engine.device, (*path, "device"))
    elif isinstance(engine, SglangEngineConfig | OpenaiEngineConfig):
        if importlib.util.find_spec("httpx") is None:
            hint = "pip install 'roll-rollout[http]'"
            yield Absence(path=(*path, "kind"), message="needs httpx", got=engine.kind, hint=hint)
    elif isinstance(engine, ReplayEngineConfig):
        if not engine.path.exists():
            yield _missing(engine.path, (*path, "path"), "no such recording")
        elif engine.path.is_dir() and not any(engine.path.glob("*.jsonl")):
            message = "holds no recording; a run makes one with rollout.record"
            yield Absence(path=(*path, "path"), message=message, got=str(engine.path))
    elif isinstance(engine, ScriptedEngineConfig):
        yield from _module(engine.callable, (*path, "callable"))
    elif importlib.util.find_spec("vllm") is None:
        hint = "pip install 'roll-rollout[vllm]'; for CPUs: docs/engines.md"
        yield Absence(path=(*path, "kind"), message="needs vLLM", got=engine.kind, hint=hint)


def _module(callable_path: str, path: KeyPath) -> Iterator[Absence]:
    """A module that no import would find. Parent packages are not imported for it."""
    name = callable_path.partition(":")[0]
    places: list[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        module = ".".join(parts[:depth])
        spec = importlib.util.find_spec(module) if depth == 1 else PathFinder.find_spec(module, places)
        if spec is None:
            hint = "it must be installed, or stand in the working directory or on PYTHONPATH"
            yield Absence(path=path, message=f"no module named {module}", got=callable_path, hint=hint)
            return
        places = list(spec.submodule_search_locations or [])


def _extra(module: str, extra: str, path: KeyPath) -> Iterator[Absence]:
    if importlib.util.find_spec(module) is None:
        yield Absence(path=path, message=f"needs {module}", hint=f"pip install 'roll-launch[{extra}]'")


def _device(device: str, path: KeyPath) -> Iterator[Absence]:
    """A device that this machine does not have."""
    if device == "cpu":
        return
    platform = detect_platform()
    try:
        parse_device_plan(device, platform=platform, available=count_devices(platform))
    except HwError as error:
        yield Absence(path=path, message=str(error))


def _positions(model: ModelConfig, limits: dict[str, int | None]) -> int | None:
    """Longest sequence that a model is made for, where its configuration says so."""
    if isinstance(model, StageModel):
        return limits.get(model.stage)
    fields = _declared(model) if isinstance(model, RandomModel) else _json(model.path / "config.json")
    longest = fields.get("max_position_embeddings") if isinstance(fields, dict) else None
    return longest if isinstance(longest, int) else None


def _declared(model: RandomModel) -> dict[str, object]:
    """Fields of a new model, with the architecture's defaults."""
    try:
        known = architecture(model.architecture)
    except ModelError:
        return {}
    given = {known.aliases.get(name, name): value for name, value in model.config.items()}
    return {**known.defaults, **given}


def _sequence(stage: StageConfig, path: KeyPath, limit: int | None) -> Iterator[Absence]:
    """Sequences longer than the model's positions."""
    if isinstance(stage, RlvrStage | AgenticStage):
        key: KeyPath = ("rollout", "sampling", "max_tokens")
        longest = stage.rollout.max_prompt_tokens + stage.rollout.sampling.max_tokens
        got = f"{stage.rollout.max_prompt_tokens} (max_prompt_tokens) + {stage.rollout.sampling.max_tokens}"
    else:
        key, longest, got = ("max_tokens",), stage.max_tokens, str(stage.max_tokens)
    if limit is not None and longest > limit:
        message = f"longer than the model's max_position_embeddings, {limit}"
        yield Absence(path=(*path, *key), message=message, got=got)


def _missing(wanted: Path, path: KeyPath, message: str) -> Absence:
    """A path that is not there, with the sibling that was probably meant."""
    above = wanted
    while not above.exists() and above != above.parent:
        below, above = above, above.parent
    names = sorted(child.name for child in above.iterdir()) if above.is_dir() else []
    near = difflib.get_close_matches(below.name, names, n=3)
    if near:
        hint = f"did you mean {' or '.join(str(above / name) for name in near)}?"
    elif above != wanted.parent:
        hint = f"there is no {below}"
    else:
        hint = f"{above} holds {', '.join(names[:5]) or 'nothing'}"
    return Absence(path=path, message=message, got=str(wanted), hint=hint)


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_prepared(path: Path, prepared: list[Path]) -> bool:
    return any(_absolute(path).is_relative_to(directory) for directory in prepared)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _without_document(config: RunConfig, absence: Absence) -> Problem:
    words = [
        config.stages[word].name if isinstance(word, int) and absence.path[0] == "stages" else str(word)
        for word in absence.path
    ]
    return Problem(
        source="configuration",
        path=".".join(words),
        message=absence.message,
        got=absence.got,
        allowed=absence.allowed,
        hint=absence.hint,
    )
