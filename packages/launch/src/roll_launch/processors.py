"""How many processors this process may use."""

import os


def processors() -> int:
    """Processors of this process's affinity, not of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
