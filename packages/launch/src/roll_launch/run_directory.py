"""The directory of one run: where each thing a run writes is, by name.

config.yaml        the resolved configuration
environment.json   versions, processors, platform
metrics.jsonl      one line a step and stage
tensorboard/       the same numbers as event files
rollouts/          one JSONL file a stage, for people to read
recordings/NAME/   every completion of a stage, for a replay, if rollout.record
logs/              run.log, and those of the workers of a private Ray cluster
stages/NAME/       checkpoints/step_N, model/ (Hugging Face directory), finished/ (what the stage came to)
summary.json       how it ended
"""

import contextlib
import fcntl
import itertools
import json
import logging
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

from roll_launch.errors import RollLaunchError
from roll_launch.processors import processors

logger = logging.getLogger(__name__)

REPORTED_PACKAGES = (
    "accelerate", "numpy", "ray", "roll-agentic", "roll-hw", "roll-launch", "roll-learners", "roll-rewards",
    "roll-rollout", "roll-scheduler", "safetensors", "tokenizers", "torch", "transformers",
)  # fmt: skip


METRICS_FILE = "metrics.jsonl"

PARTS = ("rollouts", "logs", "stages")
"""Directories that every run has from the beginning."""


class RunDirectoryError(RollLaunchError):
    """The run directory cannot be made or used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """RunDirectory(root=Path("runs/quickstart/20261130-093000"))."""

    root: Path

    @classmethod
    def claim(cls, parent: Path, *, now: datetime, exact: Path | None = None) -> "RunDirectory":
        """Makes a new directory under `parent` named by the time, or takes the `exact` one.

        Raises:
            RunDirectoryError: `exact` is a file or not empty, or nothing can be written there. What a start
                that was killed has left behind counts as empty.
        """
        root = _dated(parent, now) if exact is None else _exact(exact)
        try:
            for name in PARTS:
                (root / name).mkdir(exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"run directory {root} cannot be written: {error}") from error
        return cls(root=root.absolute())

    @classmethod
    def reopen(cls, root: Path) -> "RunDirectory":
        """The directory of a run that was started before; what it lost of its empty parts is made again.

        Raises:
            RunDirectoryError: There is none, its configuration was not written yet, or nothing can be
                written there.
        """
        directory = cls(root=root.resolve())
        if not directory.config.is_file():
            raise RunDirectoryError(
                f"{root} holds no run: there is no {directory.config.name}; start one with `roll-launch run`"
            )
        try:
            for name in PARTS:
                (directory.root / name).mkdir(exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"run directory {root} cannot be written: {error}") from error
        return directory

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other process may write into the directory while the body runs. The lock ends with the process.

        Raises:
            RunDirectoryError: Another process does, or the file system has no locks or cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self.lock.open("a+"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirectoryError(
                    f"run directory {self.root} is in use by another process, which has to end first"
                ) from None
            except OSError as error:
                raise RunDirectoryError(f"run directory {self.root} cannot be locked: {error}") from error
            yield

    def origin(self) -> tuple[Path, list[str]]:
        """Where the run was started, which relative paths of its configuration are meant from, and the keys
        that were masked in it.

        Raises:
            RunDirectoryError: environment.json does not tell.
        """
        try:
            report = json.loads(self.environment.read_text(encoding="utf-8"))
            return Path(report["working_directory"]), [str(key) for key in report["masked"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(
                f"{self.environment} does not tell where the run was started "
                f"({type(error).__name__}: {error}); start another run, "
                "if there is a checkpoint from its weights (model.source pretrained)"
            ) from error

    def describe(self, config: str, *, masked: Sequence[str]) -> None:
        """Writes config.yaml and environment.json.

        Args:
            config: The YAML text.
            masked: Keys whose values are masked in it, and have to be given again for a resume.

        Raises:
            RunDirectoryError: They cannot be written.
        """
        try:
            write_json(self.environment, environment_report() | {"masked": list(masked)})
            # Last: with it the directory holds a run.
            _write_whole(self.config, config)
        except OSError as error:
            raise RunDirectoryError(f"run directory {self.root} cannot be written: {error}") from error

    def become_latest(self) -> None:
        """Points `latest` beside the directory at it, if it can; a user's file of that name is left alone."""
        link = self.root.parent / "latest"
        if link.exists() and not link.is_symlink():
            return
        beside = link.with_name(f".{self.root.name}.latest")
        try:
            beside.symlink_to(self.root.name)
            beside.replace(link)
        except OSError as error:
            logger.warning("%s does not point at %s: %s", link, self.root, error)

    @contextlib.contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Removes the directory, with nothing in it yet, if the body raises."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                for name in PARTS:
                    (self.root / name).rmdir()
                self.root.rmdir()
                self.root.parent.rmdir()
            raise

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.root / METRICS_FILE

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

    @property
    def stages(self) -> Path:
        return self.root / "stages"

    def rollouts(self, stage: str) -> Path:
        return self.root / rollouts_file(stage)

    def recordings(self, stage: str) -> Path:
        return self.root / "recordings" / stage

    def checkpoints(self, stage: str) -> Path:
        return self.stages / stage / "checkpoints"

    def model(self, stage: str) -> Path:
        return self.stages / stage / "model"

    def finished(self, stage: str) -> Path:
        return self.stages / stage / "finished"


def rollouts_file(stage: str) -> str:
    """The path of a stage's rollouts, from the run directory."""
    return f"rollouts/{stage}.jsonl"


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
        "working_directory": str(Path.cwd()),
        "packages": versions,
    }


def write_json(path: Path, value: object) -> None:
    """Writes `value` so that a reader sees the old file or the whole new one.

    Raises:
        ValueError: A number in it is not finite, which JSON cannot say.
    """
    _write_whole(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def _write_whole(path: Path, text: str) -> None:
    beside = _beside(path)
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".tmp")


def _dated(parent: Path, now: datetime) -> Path:
    """Makes the first of parent/TIME, parent/TIME-2, ... that is not there yet."""
    for number in itertools.count(1):
        root = parent / (f"{now:%Y%m%d-%H%M%S}" + (f"-{number}" if number > 1 else ""))
        try:
            root.mkdir(parents=True)
            return root
        except FileExistsError as error:
            if not root.exists():
                raise RunDirectoryError(f"run directory {root} cannot be made: {error}") from error
        except OSError as error:
            raise RunDirectoryError(f"run directory {root} cannot be made: {error}") from error
    raise AssertionError("itertools.count ended")


def _exact(root: Path) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not _is_left_by_a_start(root):
            raise RunDirectoryError(
                f"run directory {root} is not empty; a run starts in an empty or new directory"
            )
    except OSError as error:
        raise RunDirectoryError(f"run directory {root} cannot be used: {error}") from error
    return root


def _is_left_by_a_start(root: Path) -> bool:
    """Whether there is nothing but what is made before a run's first file, its configuration, is complete."""
    directory = RunDirectory(root=root)
    files = {directory.environment, _beside(directory.environment), _beside(directory.config), directory.lock}
    parts = {root / name for name in PARTS}
    return all(path in files or (path in parts and not any(path.iterdir())) for path in root.iterdir())
