"""Who may import whom."""

import json
import subprocess
import sys

import pytest
from package_trees import HEAVY_MODULES, LIGHT, PACKAGES, ROOT, imported_modules, modules, source

STDLIB = sys.stdlib_module_names

ALLOWED_AT_BASE = {
    "agentic": {"numpy"},
    "hw": set(),
    "rewards": {"numpy"},
    "rollout": {"numpy"},
    "scheduler": {"numpy"},
}
"""What the base install of a light package may import at module level, beyond the standard library."""


def _loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    script = (
        f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=50
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "launch"])
def test_only_launch_imports_a_sibling(package: str) -> None:
    siblings = {f"roll_{name}" for name in PACKAGES if name != package}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, tree in modules(package)
        for line, name in imported_modules(tree)
        if name.split(".")[0] in siblings
    ]
    assert not found


def test_ray_is_imported_only_below_roll_launch_ray() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in PACKAGES
        for path, tree in modules(package)
        for line, name in imported_modules(tree)
        if name.split(".")[0] == "ray" and source("launch") / "ray" not in path.parents
    ]
    assert not found


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "launch"])
def test_nothing_imports_the_inside_of_its_own_package_by_a_private_name(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, tree in modules(package)
        for line, name in imported_modules(tree)
        if any(part.startswith("_") and part != "__future__" for part in name.split("."))
    ]
    assert not found


@pytest.mark.parametrize("package", LIGHT)
def test_light_package_loads_no_heavy_module_in_a_fresh_interpreter(package: str) -> None:
    loaded = _loaded_by(f"import roll_{package}")
    assert loaded.isdisjoint(HEAVY_MODULES)


@pytest.mark.parametrize("package", LIGHT)
def test_light_package_loads_only_what_its_base_install_brings(package: str) -> None:
    loaded = _loaded_by(f"import roll_{package}")
    plain = _loaded_by("import numpy") if "numpy" in ALLOWED_AT_BASE[package] else _loaded_by("pass")
    beyond = {name for name in loaded - plain if name not in STDLIB and not name.startswith("_")}
    assert beyond <= ALLOWED_AT_BASE[package] | {f"roll_{package}"}


def test_names_and_presets_of_learners_load_no_torch() -> None:
    assert "torch" not in _loaded_by("import roll_learners\nfrom roll_learners.algorithm import PRESETS")


def test_the_configuration_loads_no_heavy_module() -> None:
    assert _loaded_by("import roll_launch.config").isdisjoint(HEAVY_MODULES)


def test_the_command_line_answers_help_without_loading_heavy_modules() -> None:
    loaded = _loaded_by(
        "import contextlib, io\n"
        "from roll_launch.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])"
    )
    assert loaded.isdisjoint({*HEAVY_MODULES, "numpy", "pydantic", "yaml"})


def test_the_check_command_loads_no_torch_and_no_ray(tmp_path, monkeypatch) -> None:
    loaded = _loaded_by(
        "import contextlib, io, os\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "from roll_launch.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    assert main(['check', {str(ROOT / 'examples' / 'quickstart.yaml')!r}]) == 0"
    )
    assert loaded.isdisjoint({"ray", "torch", "vllm", "sglang"})
