"""The command that starts a sandbox, and what of the host it shows. Called by `Cell`."""

import functools
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from roll_rewards.sandbox.errors import CellRefusedError
from roll_rewards.sandbox.records import Isolation

_BOOT = """
import sys, types
for name, path in {packages!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [path]
from roll_rewards.sandbox.inside.warden import main
main()
"""
_SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_PACKAGE = Path(__file__).parent.parent


def warden_command() -> list[str]:
    """The interpreter that becomes a sandbox's first process, started without packages of any kind."""
    packages = {"roll_rewards": str(_PACKAGE), "roll_rewards.sandbox": str(_PACKAGE / "sandbox")}
    interpreter = os.path.realpath(sys.executable)
    return [interpreter, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT.format(packages=packages)]


def outer_command(isolation: Isolation) -> list[str]:
    """The tool that puts up the walls, as the beginning of a command; empty if none is used.

    Raises:
        CellRefusedError: The tool is not installed.
    """
    if isolation != "bubblewrap":
        return []
    tool = shutil.which("bwrap")
    if tool is None:
        raise CellRefusedError("the program bwrap is not installed")
    if os.geteuid() == 0:
        # It would leave programs the user id of root, to which files below /proc/sys are open.
        raise CellRefusedError("bwrap is for ordinary users here; root has 'namespaces' and 'rlimits'")
    walls = [tool, "--unshare-all", "--die-with-parent", "--as-pid-1", "--new-session", "--clearenv"]
    walls += ["--setenv", "PYTHONHASHSEED", "0", "--setenv", "LANG", "C.UTF-8", "--hostname", "sandbox"]
    walls += ["--uid", "1000", "--gid", "1000", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/box"]
    walls += ["--symlink", "/box", "/tmp", "--symlink", "/box", "/var/tmp"]
    for path in _SHOWN:
        walls += ["--ro-bind-try", path, path]
    for path in (*visible_directories(), str(_PACKAGE)):
        walls += ["--ro-bind", path, path]
    return [*walls, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/box", "--"]


@functools.cache
def site_directories() -> list[str]:
    """Where installed packages are."""
    paths = sysconfig.get_paths()
    return sorted({os.path.realpath(paths[key]) for key in ("purelib", "platlib")})


@functools.cache
def visible_directories() -> list[str]:
    """What of the host, beside the system's own trees, the interpreter inside needs."""
    interpreter = Path(os.path.realpath(sys.executable)).parent.parent
    return sorted({str(interpreter), os.path.realpath(sys.base_prefix), *site_directories()})
