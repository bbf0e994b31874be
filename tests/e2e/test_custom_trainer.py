"""The page-long trainer of the examples trains."""

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from launched_run import ROOT

EXAMPLE = ROOT / "examples" / "custom_trainer.py"
LONGEST = 82
"""Lines with something on them."""


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("custom_trainer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(120)
def test_a_few_steps_of_it_run_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = asyncio.run(_example().train(tmp_path, supervised_steps=40, policy_steps=2))
    assert 0 <= before <= 1
    assert 0 <= after <= 1
    assert "step 2  reward" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_learns_what_the_quickstart_learns(tmp_path: Path) -> None:
    before, after = asyncio.run(_example().train(tmp_path, policy_steps=50))
    assert 0.30 <= before <= 0.60
    assert after >= 0.85


def test_it_fits_on_a_page_and_uses_neither_ray_nor_yaml() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LONGEST
    assert "import ray" not in text
    assert ".yaml" not in text
