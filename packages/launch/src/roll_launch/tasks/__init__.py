"""Small generated tasks that learn on a laptop CPU; a configuration names them as preparations."""

from roll_launch.tasks import sort_letters

__all__ = ["sort_letters"]
