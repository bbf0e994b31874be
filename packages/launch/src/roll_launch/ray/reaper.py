"""Ends what is left of a private cluster whose driver has gone without closing it.

`cluster.py` runs this file as a process of its own, with the standard library alone. Its standard input ends
when the driver does, however that happens. Ray's own processes mostly notice too; some take a minute.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator

LONGEST_S = 10.0
PAUSE_S = 0.1


def main(scratch: str) -> None:
    """Waits for the driver's end; then kills every process that uses `scratch`, and removes it."""
    sys.stdin.read()
    until = time.monotonic() + LONGEST_S
    while os.path.isdir(scratch) and time.monotonic() < until:
        users = list(processes_using(scratch))
        for process in users:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if not users:
            shutil.rmtree(scratch, ignore_errors=True)
        time.sleep(PAUSE_S)


def processes_using(scratch: str) -> Iterator[int]:
    """Processes other than this one that name `scratch` in their command or have a file below it open."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _uses(f"/proc/{entry}", scratch):
            yield int(entry)


def _uses(process: str, scratch: str) -> bool:
    # A process that is gone by now, or is another user's, is none of this cluster.
    with contextlib.suppress(OSError):
        with open(f"{process}/cmdline", "rb") as file:
            if f"{scratch}/".encode() in file.read():
                return True
        for descriptor in os.listdir(f"{process}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"{process}/fd/{descriptor}").startswith(f"{scratch}/"):
                    return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
