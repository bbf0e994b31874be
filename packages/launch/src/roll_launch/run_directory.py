"""The directory of one run: where each thing a run writes is, by name.

config.yaml        the resolved configuration
environment.json   versions, processors, platform
metrics.jsonl      one line a step and stage
tensorboard/       the same numbers as event files
rollouts/          one JSONL file a stage, for people to read
logs/              run.log, and the logs of Ray workers after a failure
stages/NAME/       checkpoints/step_N and model/ (Hugging Face directory)
summary.json       how it ended
"""

import json
import platform
import sys
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

from roll_launch.errors import RollLaunchError
from roll_launch.processors import processors

REPORTED_PACKAGES = (
    "accelerate", "numpy", "ray", "roll-agentic", "roll-hw", "roll-launch", "roll-learners", "roll-rewards",
    "roll-rollout", "roll-scheduler", "safetensors", "tokenizers", "torch", "transformers",
)  # fmt: skip


class RunDirectoryError(RollLaunchError):
    """The run directory cannot be made or used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """RunDirectory(root=Path("runs/quickstart/20261130-093000"))."""

    root: Path

    @classmethod
    def choose(cls, parent: Path, *, now: datetime, exact: Path | None = None) -> "RunDirectory":
        """A new directory under `parent` named by the time, or the `exact` one. Nothing is made yet.

        Raises:
            RunDirectoryError: `exact` is a file or is not empty.
        """
        if exact is not None:
            if exact.exists() and (not exact.is_dir() or any(exact.iterdir())):
                what = "is not empty" if exact.is_dir() else "is a file"
                raise RunDirectoryError(
                    f"run directory {exact} {what}; a run starts in an empty or new directory"
                )
            return cls(root=exact.absolute())
        root = parent / f"{now:%Y%m%d-%H%M%S}"
        number = 1
        while root.exists():
            number += 1
            root = parent / f"{now:%Y%m%d-%H%M%S}-{number}"
        return cls(root=root.absolute())

    def make(self) -> None:
        """Makes the directory, and points `latest` beside it at it.

        Raises:
            RunDirectoryError: Nothing can be written there.
        """
        try:
            for name in ("rollouts", "logs", "stages"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            _point_latest(self.root.parent / "latest", self.root)
        except OSError as error:
            raise RunDirectoryError(f"run directory {self.root} cannot be written: {error}") from error

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def log(self) -> Path:
        return self.root / "logs" / "run.log"

    @property
    def worker_logs(self) -> Path:
        return self.root / "logs" / "workers"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    def rollouts(self, stage: str) -> Path:
        return self.root / "rollouts" / f"{stage}.jsonl"

    def checkpoints(self, stage: str) -> Path:
        return self.root / "stages" / stage / "checkpoints"

    def model(self, stage: str) -> Path:
        return self.root / "stages" / stage / "model"


def environment_report() -> dict[str, object]:
    """Versions and processors of this process, as written into environment.json."""
    versions: dict[str, str | None] = {}
    for name in REPORTED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processors": processors(),
        "packages": versions,
    }


def write_json(path: Path, value: object) -> None:
    """Writes `value` so that a reader sees the old file or the whole new one."""
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


def _point_latest(link: Path, target: Path) -> None:
    """Points `latest` at the newest run; a file of the user's by that name is left alone."""
    if link.is_symlink() or not link.exists():
        beside = link.with_name(".latest.tmp")
        beside.unlink(missing_ok=True)
        beside.symlink_to(target.name)
        beside.replace(link)
