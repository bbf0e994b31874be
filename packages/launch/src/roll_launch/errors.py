"""The root of the errors that this package raises."""


class RollLaunchError(Exception):
    """A run that cannot start or go on, said in words for the person who started it."""
