"""The only place that knows Ray: cluster, actors, and the handles that pipelines see."""

# First of all, because Ray reads its settings when it is imported.
from roll_launch.ray.settings import RAY_SETTINGS

__all__ = ["RAY_SETTINGS"]
