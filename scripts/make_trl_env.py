"""Makes an environment with TRL, against which `benchmarks/learner_speed.py trl` measures a training step.

    python scripts/make_trl_env.py [directory, by default .venv-trl]

It is apart from the workspace's, since TRL pins versions of its own.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = "3.11"
PACKAGES = ("trl==1.16.0", "transformers", "torch", "numpy")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv-trl").absolute()
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("make_trl_env: needs uv on the PATH (pip install uv)")
    python = directory / "bin" / "python"
    run([uv, "venv", "--quiet", "--allow-existing", "--python", PYTHON, str(directory)])
    run([uv, "pip", "install", "--quiet", "--python", str(python), *PACKAGES])
    print(f"TRL: {python}")


def run(command: list[str]) -> None:
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise SystemExit(f"make_trl_env: failed with code {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    main()
