"""What transformers declares of its language models, read from its source so that torch is not imported.

Importing any configuration class of transformers imports torch where that is installed, which takes
seconds. The check of a configuration needs only names and defaults, and those are literals in the source.
Called by `models`.
"""

import ast
import contextlib
import functools
import importlib.util
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from roll_launch.errors import RollLaunchError
from roll_launch.suggestion import did_you_mean

ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}


class ModelError(RollLaunchError):
    """A model or tokenizer cannot be built or loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A causal language model that transformers has.

    Architecture(name="qwen3", fields=frozenset({"hidden_size", ...}), defaults={"hidden_size": 4096, ...},
    aliases={})

    Attributes:
        name: its `model_type`.
        fields: names that its configuration has, its aliases among them.
        defaults: values of those fields whose default is a constant.
        aliases: other names of fields, as in `{"hidden_size": "n_embd"}` of gpt2.
    """

    name: str
    fields: frozenset[str]
    defaults: Mapping[str, object]
    aliases: Mapping[str, str]

    def check_fields(self, names: Iterable[str]) -> None:
        """Raises ModelError, naming the nearest field, for a name that the configuration does not have."""
        for name in names:
            if name not in self.fields:
                hint = did_you_mean(name, self.fields)
                raise ModelError(f"architecture {self.name!r} has no configuration field {name!r}{hint}")


@functools.cache
def architecture(name: str) -> Architecture:
    """The causal language model `name`, such as `qwen3` or `llama`.

    Raises:
        ModelError: if the installed transformers has none of that name.
    """
    auto = _package() / "models" / "auto"
    models = _table(auto / "modeling_auto.py", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    configurations = _table(auto / "auto_mappings.py", "CONFIG_MAPPING_NAMES")
    if name not in models or name not in configurations:
        known = sorted(models.keys() & configurations.keys())
        raise ModelError(
            f"transformers has no causal language model of architecture {name!r}{did_you_mean(name, known)} "
            f"(it has {len(known)}, such as llama, qwen2, qwen3)"
        )
    folders = _table(auto / "auto_mappings.py", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME")
    folder = folders.get(name, name.replace("-", "_"))
    source = _package() / "models" / folder / f"configuration_{folder}.py"
    own = _class(source, configurations[name])
    common = _class(_package() / "configuration_utils.py", "PreTrainedConfig")
    fields = {**dict(_fields(common)), **dict(_fields(own))}
    aliases = _aliases(own)
    return Architecture(
        name=name,
        fields=frozenset(fields) | frozenset(aliases) | _accepted_besides(fields),
        defaults=_constants(fields),
        aliases=aliases,
    )


def _accepted_besides(fields: Iterable[str]) -> frozenset[str]:
    """Keywords that a configuration takes without declaring them."""
    rotary = {"rope_theta", "rope_scaling"} if "rope_parameters" in fields else set()
    return frozenset({"attn_implementation", *rotary})


@functools.cache
def _package() -> Path:
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise ModelError("transformers is not installed: pip install transformers")
    return Path(spec.origin).parent


@functools.cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"the installed transformers has no {path}: {error.strerror}") from error


@functools.cache
def _table(path: Path, name: str) -> Mapping[str, str]:
    """The dictionary of names that a module assigns as `name = OrderedDict([(key, value), ...])`."""
    for node in _tree(path).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == name
            and isinstance(node.value, ast.Call)
            and node.value.args
        ):
            return dict(ast.literal_eval(node.value.args[0]))
    raise ModelError(f"the installed transformers has no table {name} in {path}")


def _class(path: Path, name: str) -> ast.ClassDef:
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise ModelError(f"the installed transformers has no class {name} in {path}")


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Fields with their default expressions: annotated in the class, or arguments of its own `__init__`."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            if "ClassVar" not in ast.unparse(item.annotation):
                yield item.target.id, item.value
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = item.args
            positional = [argument.arg for argument in arguments.args[1:]]
            required = len(positional) - len(arguments.defaults)
            yield from zip(positional, [None] * required + [*arguments.defaults], strict=True)
            keywords = [argument.arg for argument in arguments.kwonlyargs]
            yield from zip(keywords, arguments.kw_defaults, strict=True)


def _aliases(node: ast.ClassDef) -> dict[str, str]:
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "attribute_map":
            return dict(ast.literal_eval(item.value))
    return {}


def _constants(expressions: Mapping[str, ast.expr | None]) -> dict[str, object]:
    """The values of those expressions that are constants; others are computed when the class is used."""
    values: dict[str, object] = {}
    for name, expression in expressions.items():
        if expression is not None:
            with contextlib.suppress(ValueError):
                values[name] = _constant(expression)
    return values


def _constant(expression: ast.expr) -> object:
    """The value of a literal, of arithmetic (`4096 * 32`) or of a call's `default=`; else ValueError."""
    if isinstance(expression, ast.Call):
        for keyword in expression.keywords:
            if keyword.arg == "default":
                return _constant(keyword.value)
    if isinstance(expression, ast.BinOp) and type(expression.op) in ARITHMETIC:
        left, right = _constant(expression.left), _constant(expression.right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return ARITHMETIC[type(expression.op)](left, right)
    return ast.literal_eval(expression)
