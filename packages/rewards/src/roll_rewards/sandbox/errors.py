"""A sandbox that could not do its work; never a program that did wrong."""

from roll_rewards.errors import RewardError


class SandboxError(RewardError):
    """No sandbox can be had as asked, or two broke under the same program."""


class CellBrokenError(SandboxError):
    """One sandbox is gone or does not answer; the pool replaces it."""


class CellRefusedError(SandboxError):
    """The kernel, or the tool in its place, does not let one kind of isolation be set up."""
