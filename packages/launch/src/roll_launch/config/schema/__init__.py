"""The models of roll-launch's configuration file, a file a noun; `roll_launch.config` re-exports them."""
