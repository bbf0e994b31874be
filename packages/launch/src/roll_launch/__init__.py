"""One YAML file to a run; the parts are in `roll_launch.config`, `.data`, `.plan` and `.run`."""

from roll_launch.errors import RollLaunchError

__all__ = ["RollLaunchError"]
