"""What packages show: `__all__`, typing markers, sizes."""

import ast
import importlib
import tomllib

import pytest
from package_trees import PACKAGES, ROOT, modules, source

LONGEST_FILE = 400
LONGEST_FUNCTION = 60
NAMES_THAT_SAY_NOTHING = {
    "base",
    "common",
    "functional",
    "helper",
    "helpers",
    "manager",
    "misc",
    "util",
    "utils",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_sorted_and_every_name_in_it_exists(package: str) -> None:
    module = importlib.import_module(f"roll_{package}")
    assert list(module.__all__) == sorted(set(module.__all__), key=_import_order)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    module = importlib.import_module(f"roll_{package}")
    public = [getattr(module, name) for name in module.__all__]
    bare = [
        item.__name__ for item in public if callable(item) and hasattr(item, "__name__") and not item.__doc__
    ]
    assert not bare


@pytest.mark.parametrize("package", PACKAGES)
def test_init_files_hold_only_reexports(package: str) -> None:
    tree = ast.parse((source(package) / "__init__.py").read_text(encoding="utf-8"))
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.If)
    other = [
        node for node in tree.body if not isinstance(node, allowed) and not (isinstance(node, ast.FunctionDef)
        and node.name in LAZY_HOOKS)
    ]  # fmt: skip
    assert not other


LAZY_HOOKS = {"__getattr__", "__dir__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_marked_typed_and_has_its_own_static_version(package: str) -> None:
    project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert (source(package) / "py.typed").is_file()
    assert project["name"] == f"roll-{package}"
    assert project["version"].count(".") == 2
    assert project["license"] == "Apache-2.0"
    assert (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8").count("```python") >= 1


def test_no_file_and_no_function_is_too_long(record_property) -> None:
    sizes = {
        str(path.relative_to(ROOT)): _lines(path) for package in PACKAGES for path, _ in modules(package)
    }
    functions = {
        f"{path.relative_to(ROOT)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for package in PACKAGES
        for path, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    record_property("longest_files", sorted(sizes.items(), key=lambda item: -item[1])[:10])
    record_property("longest_functions", sorted(functions.items(), key=lambda item: -item[1])[:10])
    assert {name: size for name, size in sizes.items() if size > LONGEST_FILE} == {}
    assert {name: size for name, size in functions.items() if size > LONGEST_FUNCTION} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_files_are_named_by_nouns_of_the_field(package: str) -> None:
    assert [path.name for path, _ in modules(package) if path.stem in NAMES_THAT_SAY_NOTHING] == []


def _import_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order that ruff keeps imports in."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _lines(path) -> int:
    return path.read_text(encoding="utf-8").count("\n")
