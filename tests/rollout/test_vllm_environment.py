"""`VLLMEngine` on a real vLLM: the tests of `inside_vllm.py`, run by the environment that has it.

`python scripts/make_vllm_env.py` makes it. Without it the tests are skipped, unless ROLL_REQUIRE_VLLM is 1.
"""

import os
import subprocess
from pathlib import Path

import pytest
from vllm_environment import ROOT, vllm_python

INSIDE = Path(__file__).with_name("inside_vllm.py")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_vllm_on_cpu_conforms_and_honours_what_its_adapter_promises():
    python = vllm_python()
    settings = [
        "-o",
        "addopts=--import-mode=importlib",
        "-o",
        "filterwarnings=default",
        "-p",
        "no:cacheprovider",
    ]
    command = [str(python), "-m", "pytest", str(INSIDE), "-q", "-s", "--timeout=1500", *settings]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
