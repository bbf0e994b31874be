"""Files that a program may see, where it has no mount namespace of its own. Needs Linux 5.13."""

import os
import struct
from collections.abc import Iterable

from roll_rewards.sandbox.inside import kernel

FENCES_SIGNALS = 6
"""First version that keeps signals inside."""

_SYS_CREATE, _SYS_ADD_RULE, _SYS_RESTRICT = 444, 445, 446
_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FIRST_VERSION_RIGHTS = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE


def version() -> int:
    """The kernel's version of Landlock, 0 where there is none."""
    try:
        return kernel.call(_SYS_CREATE, None, 0, _CREATE_VERSION)
    except OSError:
        return 0


def ruleset(*, readable: Iterable[str], writable: Iterable[str]) -> int:
    """A set of rules, as a file descriptor, that processes can put on themselves with `restrict`.

    From version 6 on they cannot signal processes outside either.

    Args:
        readable: Files and directories that may be read and executed; missing ones are left out.
        writable: Files and directories where everything is allowed.

    Raises:
        OSError: The kernel has no Landlock or refused.
    """
    number = version()
    handled = _FIRST_VERSION_RIGHTS
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        handled |= right if number >= since else 0
    network = _BIND_TCP | _CONNECT_TCP if number >= 4 else 0
    scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if number >= FENCES_SIGNALS else 0
    attributes = struct.pack("QQQ", handled, network, scoped)
    size = 24 if number >= FENCES_SIGNALS else 16 if number >= 4 else 8
    handle = kernel.call(_SYS_CREATE, attributes, size, 0)
    for paths, rights in ((readable, _EXECUTE | _READ_FILE | _READ_DIR), (writable, handled)):
        for path in paths:
            _allow(handle, path, rights & handled)
    return handle


def restrict(rules: int) -> None:
    """Limit this process and its children to what a set of rules allows, for good.

    Args:
        rules: What `ruleset` made.

    Raises:
        OSError: The kernel refused; for example, this process may still gain privileges.
    """
    kernel.call(_SYS_RESTRICT, rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        kernel.call(_SYS_ADD_RULE, rules, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, handle), 0)
    finally:
        os.close(handle)
