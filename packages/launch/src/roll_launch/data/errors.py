"""What goes wrong between a data file and a prompt."""

from roll_launch.errors import RollLaunchError


class DataError(RollLaunchError):
    """A data source cannot be read, or a row of it cannot be used; the message names file and line."""


class EmptyResponseError(DataError):
    """A row for supervised training has nothing to imitate."""
