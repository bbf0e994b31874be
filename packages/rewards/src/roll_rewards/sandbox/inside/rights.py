"""What a program gives up before its first instruction: limits, capabilities, system calls, files."""

import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from roll_rewards.sandbox.inside import kernel, landlock, seccomp

_MIB = 2**20
_STACK = 64 * _MIB
_OPEN_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What one program may use.

    Example: `Rights(cpu_s=5, memory_mb=512, processes=32, file_mb=64)`.

    Attributes:
        cpu_s: Processor seconds of one process.
        memory_mb: Address space of one process in MiB.
        processes: Processes and threads at once, the program's first one included.
        file_mb: Largest file in MiB.
    """

    cpu_s: int
    memory_mb: int
    processes: int
    file_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where a program stands; decided once for a sandbox.

    Attributes:
        walled: Whether namespaces (own ones, or those of an outer tool) surround the sandbox.
        scratch: The directory that may be written.
        company: Processes besides its own that count with its user: the warden, and a guard.
        user: User id to become; None keeps the present one.
        rules: Where there are no namespaces: which files may be used, as `landlock.ruleset` says it.
    """

    walled: bool
    scratch: str
    company: int = 0
    user: int | None = None
    rules: int | None = None


def give_up(rights: Rights, ground: Ground) -> None:
    """Confine this process and all that it will start, for good.

    Args:
        rights: What is left.
        ground: Where it runs.

    Raises:
        OSError: The kernel refused a step that the sandbox relies on.
    """
    os.umask(0o077)
    spare = ground.company
    if not ground.walled and ground.user is None:
        spare = _tasks_of_this_user()
    for number, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, rights.cpu_s),
        (resource.RLIMIT_FSIZE, rights.file_mb * _MIB),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_STACK, _STACK),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_NPROC, rights.processes + spare),
        (resource.RLIMIT_AS, rights.memory_mb * _MIB),
    ):
        hard = resource.getrlimit(number)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        # The first second too much is announced by a signal that says which limit it was.
        grace = 1 if number == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else 0
        resource.setrlimit(number, (limit, limit + grace))
    if ground.user is not None:
        os.setgroups([])
        os.setresgid(ground.user, ground.user, ground.user)
        os.setresuid(ground.user, ground.user, ground.user)
    # Otherwise /proc/self would be closed to the program, and its memory to the one who watches it.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    if not ground.walled:
        # Process 1 of a namespace takes all others with it; here the first process at least ends.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(ground.scratch)
    kernel.drop_capabilities()
    if ground.rules is not None:
        landlock.restrict(ground.rules)


def bar(ground: Ground) -> None:
    """Take from this process and all that it will start what neither needs: once, for all programs.

    Args:
        ground: Where programs run.

    Raises:
        OSError: The kernel refused.
    """
    kernel.bar_new_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    fenced = ground.walled or ground.user is not None or landlock.version() >= landlock.FENCES_SIGNALS
    program = seccomp.filter_program(
        network_namespace=ground.walled, protected=() if fenced else (os.getpid(), os.getppid())
    )
    if program is not None:
        seccomp.install(program)


def reset_signals() -> None:
    """Every signal as a fresh program finds it."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _tasks_of_this_user() -> int:
    """Other threads of this user on the whole machine, which its limit of processes counts too."""
    me, count = os.getuid(), -1
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == me:
                    count += len(os.listdir(entry / "task"))
            except OSError:
                continue
    return count
