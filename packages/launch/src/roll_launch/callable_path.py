"""Python callables that a configuration names as `package.module:function`. Used by `data` and `prepare`."""

import importlib
from collections.abc import Callable
from types import ModuleType

from roll_launch.errors import RollLaunchError
from roll_launch.suggestion import did_you_mean


class CallablePathError(RollLaunchError):
    """A callable path is malformed, or nothing that can be called is found there."""


def resolve_callable(path: str) -> Callable[..., object]:
    """The callable that `path` names.

    Args:
        path: `"package.module:function"`; the part after the colon may have dots (`"module:Class.method"`).

    Raises:
        CallablePathError: if the path has another form, the module does not import, or has no such callable.
    """
    module_name, colon, attributes = path.partition(":")
    if not colon or not module_name or not attributes:
        raise CallablePathError(f"got the callable path {path!r}; allowed is 'package.module:function'")
    found: object = _import(module_name, path)
    for name in attributes.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            hint = did_you_mean(name, dir(found))
            raise CallablePathError(f"callable {path!r}: {module_name} has no {name!r}{hint}") from error
    if not callable(found):
        raise CallablePathError(f"callable {path!r}: it is a {type(found).__name__}, which cannot be called")
    return found


def _import(module_name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise CallablePathError(
            f"callable {path!r}: no module named {error.name!r}; it must be installed or on PYTHONPATH"
        ) from error
    # The boundary to a user's module: whatever it raises while being imported becomes one message.
    except (Exception, SystemExit) as error:
        raise CallablePathError(
            f"callable {path!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
