"""The Python of the environment that has vLLM, for the tests that run in it."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def vllm_python() -> Path:
    """Where it is; skips the test if there is none, or fails it where ROLL_REQUIRE_VLLM is 1."""
    python = Path(os.environ.get("ROLL_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
    if not python.exists():
        reason = f"no vLLM at {python} (ROLL_VLLM_PYTHON): python scripts/make_vllm_env.py makes it"
        if os.environ.get("ROLL_REQUIRE_VLLM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return python
