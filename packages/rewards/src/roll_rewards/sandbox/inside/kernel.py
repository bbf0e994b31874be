"""System calls that the standard library does not offer, for Linux on x86-64 and AArch64."""

import ctypes
import os
import platform
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)

MACHINE = platform.machine()

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_NOSUID, MS_NODEV = 2, 4
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36

_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63


def call(number: int, *args: object) -> int:
    """The result of a system call.

    Args:
        number: Its number on this machine.
        *args: Integers, bytes or ctypes values.

    Raises:
        OSError: The kernel refused.
    """
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_LIBC.syscall(ctypes.c_long(number), *converted), f"system call {number}")


def unshare(flags: int) -> None:
    """Move this process (for PID: its children) into new namespaces.

    Raises:
        OSError: The kernel refused.
    """
    _checked(_LIBC.unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system. See mount(2).

    Raises:
        OSError: The kernel refused.
    """
    done = _LIBC.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    _checked(done, f"mount({source!r}, {target!r}, {kind!r})")


def unmount(target: str) -> None:
    """Detach what is mounted at a path.

    Raises:
        OSError: The kernel refused.
    """
    _checked(_LIBC.umount2(target.encode(), MNT_DETACH), f"umount({target!r})")


def seal_mounts(target: str, *, recursive: bool) -> None:
    """Make a mount read-only, without devices and set-uid programs.

    Args:
        target: A mount point.
        recursive: Whether everything mounted below is meant too.

    Raises:
        OSError: The kernel refused, or is older than 5.12.
    """
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    call(_SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), flags, attributes, len(attributes))


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root directory and put the former one at `old`.

    Raises:
        OSError: The kernel refused.
    """
    call(_SYS_PIVOT_ROOT[MACHINE], new.encode(), old.encode())


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process.

    Raises:
        OSError: The kernel refused.
    """
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl({option}, {value})")


def set_hostname(name: str) -> None:
    """Name this UTS namespace.

    Raises:
        OSError: The kernel refused.
    """
    _checked(_LIBC.sethostname(name.encode(), len(name)), "sethostname")


def bar_new_capabilities() -> None:
    """See that no program started from here on can gain a capability that this process lacks by then."""
    for number in range(_LAST_CAPABILITY + 1):
        # Refused without CAP_SETPCAP and for numbers beyond the last; no-new-privileges holds there too.
        _LIBC.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability for good.

    Raises:
        OSError: The kernel refused.
    """
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    call(_SYS_CAPSET[MACHINE], header, struct.pack("6I", 0, 0, 0, 0, 0, 0))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
