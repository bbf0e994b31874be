"""The seven packages and their source trees, for the architecture tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agentic", "hw", "launch", "learners", "rewards", "rollout", "scheduler")
LIGHT = ("agentic", "hw", "rewards", "rollout", "scheduler")
HEAVY_MODULES = ("ray", "sglang", "torch", "transformers", "vllm")


def source(package: str) -> Path:
    """The import root of a package."""
    return ROOT / "packages" / package / "src" / f"roll_{package}"


def modules(package: str) -> Iterator[tuple[Path, ast.Module]]:
    """Each module of a package with its syntax tree."""
    for path in sorted(source(package).rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of each absolute import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module
