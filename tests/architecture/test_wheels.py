"""Each wheel stands alone: built, installed into an empty environment, imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from package_trees import LIGHT, ROOT

LARGEST_WHEEL_BYTES = {"scheduler": 240_000}
OTHERS_BYTES = 400_000


def _uv(*arguments: str) -> str:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    done = subprocess.run(["uv", *arguments], capture_output=True, text=True, timeout=550, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _import_alone(package: str, folder: Path) -> None:
    _uv(
        "build", "--wheel", "--package", f"roll-{package}", "--directory", str(ROOT), "--out-dir", str(folder)
    )
    wheel = next(folder.glob(f"roll_{package}-*.whl"))
    environment = folder / "environment"
    _uv("venv", "--quiet", "--python", sys.executable, str(environment))
    python = environment / "bin" / "python"
    _uv("pip", "install", "--quiet", "--python", str(python), str(wheel))
    statement = f"import roll_{package} as p; assert [n for n in p.__all__ if getattr(p, n) is None] == []"
    done = subprocess.run([str(python), "-I", "-c", statement], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if package in LIGHT:
        assert wheel.stat().st_size < LARGEST_WHEEL_BYTES.get(package, OTHERS_BYTES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("package", LIGHT)
def test_light_wheel_installs_alone_and_imports(package: str, tmp_path: Path) -> None:
    _import_alone(package, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_learners_wheel_installs_alone_and_imports(tmp_path: Path) -> None:
    _import_alone("learners", tmp_path)
