"""Settings that Ray reads from the environment at import; the package imports them before anything of Ray."""

import os

RAY_SETTINGS = {
    # No report to Ray's makers.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run`, workers stay in this environment and directory; Ray would copy both for each run.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Actors that reserve no device still see all of them, as colocated roles need.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray sends results below 100 KiB back to the caller: the driver would hold most completions whole.
    # What is larger than this stays in the object store; facts, scores and metrics are smaller.
    "RAY_max_direct_call_object_size": "4096",
}
"""Names and values; a value that the user has set already wins."""

for _name, _value in RAY_SETTINGS.items():
    os.environ.setdefault(_name, _value)
