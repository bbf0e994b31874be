"""Configuration cases, bound to the public functions of roll_launch.config and roll_hw."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model
from roll_hw import worker_environment
from roll_launch.config import ConfigError, Section, dump_data, load_text

PATH = Path(__file__).parent.parent / "data" / "cases" / "config.jsonl"
CASES = [json.loads(line) for line in PATH.read_text().splitlines()]

TYPES: dict[str, Any] = {
    "bool": bool,
    "float": float,
    "int": int,
    "path": Path,
    "str": str,
    "list[float]": tuple[float, ...],
    "list[int]": tuple[int, ...],
    "list[str]": tuple[str, ...],
}


class Fsdp2Options(Section):
    reshard: bool = True


class MegatronOptions(Section):
    pipeline_parallel: int = 1
    tensor_parallel: int = 1


class Fsdp2Learner(Section):
    backend: Literal["fsdp2"]
    learning_rate: float = 1e-6
    fsdp2: Fsdp2Options = Fsdp2Options()


class MegatronLearner(Section):
    backend: Literal["megatron"]
    learning_rate: float = 1e-6
    megatron: MegatronOptions = MegatronOptions()


class TwoBackends(Section):
    model: str
    learner: Fsdp2Learner | MegatronLearner = Field(discriminator="backend")


def schema_of(declared: dict[str, str], name: str = "Schema") -> type[BaseModel]:
    """A model for `{"learner.group_size": "int", "x.flag": "bool, default true", ...}`."""
    sections: dict[str, dict[str, str]] = {}
    fields: dict[str, Any] = {}
    for key, kind in declared.items():
        head, _, rest = key.partition(".")
        if rest:
            sections.setdefault(head, {})[rest] = kind
        else:
            fields[key] = _field(kind)
    for head, inside in sections.items():
        model = schema_of(inside, head)
        needed = any("required" in kind for kind in inside.values())
        fields[head] = (model, Field() if needed else Field(default_factory=model))
    return create_model(name, __base__=Section, **fields)


def _field(kind: str) -> tuple[Any, Any]:
    words = [word.strip() for word in kind.split(",")]
    if "required" in words:
        return TYPES[words[0]], Field()
    defaults = [word.removeprefix("default ") for word in words if word.startswith("default ")]
    return TYPES[words[0]], Field(default=json.loads(defaults[0]) if defaults else None)


def value_at(config: BaseModel, key: str) -> object:
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return str(value) if isinstance(value, Path) else value


def load(given: dict, expected: dict) -> None:
    schema = schema_of(given["schema"]) if "schema" in given else TwoBackends
    overrides = [*given.get("cli", [])]
    if "backend" in given:
        overrides.append(f"learner.backend={given['backend']}")
    try:
        config = load_text(
            given["yaml"], schema, overrides, "case.yaml", environment=given.get("env", {})
        ).config
    except ConfigError as error:
        assert expected.get("error") or expected.get("or") == "error", str(error)
        for name in expected.get("error_names", []):
            assert name in str(error)
        return
    assert not expected.get("error"), f"{config} was accepted"
    for key, value in expected["value"].items():
        got = value_at(config, key)
        assert got == value and type(got) is type(value)


def worker_env(given: dict, expected: dict) -> None:
    got = worker_environment(given["driver_env"], given["package_defaults"])
    assert expected["worker_env"].items() <= got.items()


def dump_config(given: dict, expected: dict) -> None:
    text = dump_data(given["config"])
    for part in expected["text_contains"]:
        assert part in text
    for part in expected["text_lacks"]:
        assert part not in text


OPERATIONS = {"dump_config": dump_config, "load": load, "worker_env": worker_env}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['why']}")
def test_configuration_case(case: dict) -> None:
    OPERATIONS[case["input"]["op"]](case["input"], case["expected"])
