"""Namespaces around a sandbox: its own users, processes, files, network, IPC and host name.

Run once by a fresh, single-threaded process that becomes the sandbox's process 1. Works for root,
which puts another user inside, and for ordinary users where the kernel lets them have user
namespaces.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from roll_rewards.sandbox.inside import kernel

INSIDE_ID = 1000
"""User and group id inside; nobody is id 0 there, so that no program can ever gain a capability."""

SCRATCH = "/box"
"""The one directory that a program can write to; /tmp, /var/tmp and /dev/shm lead to it."""

DEFAULT_SCRATCH_MB = 64
"""Size of the scratch directory at first."""

_OUTSIDE_ID = 65534
_STAGE = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/nix")
_WRITTEN = {
    "/etc/passwd": "program:x:1000:1000::/box:/bin/sh\n",
    "/etc/group": "program:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def enter(visible: Sequence[str]) -> None:
    """Return as process 1 of new namespaces, with every capability there and none elsewhere.

    The callers of `fork` on the way stay behind as guards: they wait for the sandbox and end with it,
    and it ends with them.

    Args:
        visible: Directories of the host that are shown read-only at the same place, beside the
            system's programs and libraries.

    Raises:
        OSError: The kernel refuses one of the steps.
    """
    root = os.geteuid() == 0
    inner = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
    inner |= kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    if root:
        # Only the real root may look into every directory that is to be shown.
        kernel.unshare(kernel.CLONE_NEWNS)
        _build_view(visible)
        _enter_user_namespace_of_another()
        kernel.unshare(inner)
    else:
        _enter_own_user_namespace()
        kernel.unshare(inner)
        _build_view(visible)
    _fork_and_guard()
    kernel.set_hostname("sandbox")
    size_scratch(DEFAULT_SCRATCH_MB, first=True)
    try:
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV, "hidepid=2")
    except OSError:
        # Refused inside some containers; better no /proc than that of the host.
        kernel.mount("tmpfs", "/proc", "tmpfs", 0, "size=4k")
    kernel.seal_mounts("/", recursive=False)


def size_scratch(size_mb: int, *, first: bool = False) -> None:
    """Give the scratch directory, a file system in memory, another size.

    Args:
        size_mb: Its size in MiB.
        first: Whether none is mounted there yet.

    Raises:
        OSError: The kernel refuses.
    """
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if first else kernel.MS_REMOUNT)
    inodes = max(1024, size_mb * 64)
    options = f"size={size_mb}m,nr_inodes={inodes},mode=700,uid={INSIDE_ID},gid={INSIDE_ID}"
    kernel.mount("tmpfs", SCRATCH, "tmpfs", flags, options)


def _enter_own_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} {group} 1")


def _enter_user_namespace_of_another() -> None:
    """Go on in a child that is another user, also outside; the parent writes who that is."""
    asking, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.unshare(kernel.CLONE_NEWUSER)
        os.write(asking[1], b"?")
        if os.read(told[0], 1) != b"!":
            os._exit(1)
        for handle in (*asking, *told):
            os.close(handle)
        os.setgroups([])
        os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
        os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
        # Changing the user clears it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.close(asking[1])
    if os.read(asking[0], 1) == b"?":
        for kind in ("uid", "gid"):
            Path(f"/proc/{child}/{kind}_map").write_text(f"{INSIDE_ID} {_OUTSIDE_ID} 1")
        os.write(told[1], b"!")
    _guard(child)


def _fork_and_guard() -> None:
    child = os.fork()
    if child == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    _guard(child)


def _guard(child: int) -> NoReturn:
    """Hold nothing, wait, and end as the child ended."""
    os.closerange(0, 2)
    os.closerange(3, 1024)
    _, status = os.waitpid(child, 0)
    os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))


def _build_view(visible: Sequence[str]) -> None:
    """Make `/` a small file system that shows what is allowed, read-only."""
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _STAGE, "tmpfs", 0, "size=1m,mode=755")
    os.mkdir(f"{_STAGE}/old")
    os.chdir(_STAGE)
    kernel.pivot_root(".", "old")
    os.chdir("/")
    for name in (SCRATCH, "/proc", "/dev", "/etc", "/var"):
        os.mkdir(name, 0o755)
    os.symlink(SCRATCH, "/var/tmp")
    if not any(path.startswith("/tmp/") for path in visible):
        os.symlink(SCRATCH, "/tmp")
    for path in _TREES:
        if os.path.islink(f"/old{path}"):
            os.symlink(os.readlink(f"/old{path}"), path)
        elif os.path.isdir(f"/old{path}"):
            _show(path)
    for path in _FILES:
        if os.path.exists(f"/old{path}"):
            _show(path)
    for path in sorted(set(visible)):
        # What lies below something shown before is there already.
        if not os.path.exists(path) and os.path.isdir(f"/old{path}"):
            _show(path)
    for name in _DEVICES:
        _show(f"/dev/{name}", seal=False)
    for name, target in {**_LINKS, "shm": SCRATCH}.items():
        os.symlink(target, f"/dev/{name}")
    for path, text in _WRITTEN.items():
        Path(path).write_text(text)
    # Covered later by that of the sandbox itself: the kernel wants one to be in sight until then.
    kernel.mount("/old/proc", "/proc", "none", kernel.MS_BIND | kernel.MS_REC)
    kernel.unmount("/old")
    os.rmdir("/old")


def _show(path: str, *, seal: bool = True) -> None:
    source = os.path.realpath(f"/old{path}") if not os.path.islink(f"/old{path}") else f"/old{path}"
    if os.path.islink(source):
        target = os.readlink(source)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
        return
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).touch()
    kernel.mount(source, path, "none", kernel.MS_BIND | kernel.MS_REC)
    if seal:
        kernel.seal_mounts(path, recursive=True)
