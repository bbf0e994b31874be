"""Pictures of states, and replays of episodes as HTML."""

from roll_agentic.pictures.grid import grid_png
from roll_agentic.pictures.replay import picture_frames, replay_html

__all__ = ["grid_png", "picture_frames", "replay_html"]
