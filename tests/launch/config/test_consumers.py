"""No key of the schema is without effect: something outside of the configuration reads each."""

import ast
from collections.abc import Iterator
from pathlib import Path

import roll_launch
from pydantic import BaseModel
from roll_launch.config import AlgorithmConfig, KlConfig, OptimizerConfig, RunConfig
from roll_launch.config.annotations import ListShape, ModelShape, Shape, UnionShape, shapes_of_fields
from roll_launch.config.schema.algorithm import CorrectionConfig, CriticRuleConfig
from roll_launch.config.schema.distillation import DistillationConfig
from roll_launch.config.schema.preference import PreferenceConfig

PASSED_ON_WHOLE = {
    AlgorithmConfig,
    CorrectionConfig,
    CriticRuleConfig,
    DistillationConfig,
    KlConfig,
    OptimizerConfig,
    PreferenceConfig,
}
"""Sections whose fields are arguments of roll_learners by the same names, which `test_schema.py` compares."""


def models(shape: Shape) -> Iterator[type[BaseModel]]:
    if isinstance(shape, ModelShape):
        yield shape.model
        for field in shapes_of_fields(shape.model).values():
            yield from models(field)
    elif isinstance(shape, ListShape):
        yield from models(shape.item)
    elif isinstance(shape, UnionShape):
        for member in shape.members:
            yield from models(member)


def attributes_read() -> set[str]:
    """Names of attributes in roll_launch outside of the configuration's own modules, also in patterns."""
    (root,) = roll_launch.__path__
    sources = [path for path in Path(root).rglob("*.py") if "config" not in path.relative_to(root).parts]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sources]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    matched = {name for node in nodes if isinstance(node, ast.MatchClass) for name in node.kwd_attrs}
    return matched | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_every_key_has_a_consumer() -> None:
    read = attributes_read()
    unread = {
        f"{model.__name__}.{name}"
        for model in set(models(ModelShape(model=RunConfig))) - PASSED_ON_WHOLE
        for name, info in model.model_fields.items()
        if name not in read and not _chooses_the_class(info.annotation)
    }
    assert unread == set()


def _chooses_the_class(annotation: object) -> bool:
    """A discriminator such as `source: jsonl` is consumed by becoming a class."""
    return str(annotation).startswith("typing.Literal[") and str(annotation).count(",") == 0
