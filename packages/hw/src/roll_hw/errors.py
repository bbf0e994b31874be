"""The error of this package."""

__all__ = ["HwError"]


class HwError(Exception):
    """A device, plan, model configuration or size that cannot be; the message says what is allowed."""
