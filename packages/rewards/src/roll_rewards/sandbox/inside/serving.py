"""A program as a module whose functions and objects a judge in another process uses. See `judging`."""

import builtins
import contextlib
import importlib.machinery
import io
import sys
import types
from collections.abc import Callable
from typing import Any

from roll_rewards.sandbox.inside import wire
from roll_rewards.sandbox.inside.messages import Peer

_PRINTED_CHARS = 100_000


def load(name: str, path: str) -> types.ModuleType:
    """The module that a file is, executed; it is not `__main__`.

    Args:
        name: Its name.
        path: The file.

    Raises:
        BaseException: Whatever the program raises.
    """
    with open(path, "rb") as file:
        source = file.read()
    module = types.ModuleType(name)
    module.__file__ = path
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[name] = module
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    return module


def entry(module: types.ModuleType, name: str) -> Callable[..., object]:
    """The function to call: `f`, `Class.method` (on a fresh instance), or a method of class `Solution`.

    Args:
        module: The program.
        name: See above.

    Raises:
        AttributeError: There is none.
    """
    owner, _, method = name.rpartition(".")
    if not owner and not hasattr(module, name) and hasattr(module, "Solution"):
        owner = "Solution"
    found: object = getattr(getattr(module, owner)(), method or name) if owner else getattr(module, name)
    if not callable(found):
        raise AttributeError(f"{name} of the program is not callable")
    return found


def serve(handle: int, path: str) -> None:
    """Load the program and answer its judge until the judge hangs up.

    Args:
        handle: A connected socket.
        path: The program's file.
    """
    _Server(Peer(handle)).run(path)


class _Server:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def run(self, path: str) -> None:
        self._objects.append(None)
        self._reply(lambda: self._load(path))
        while (message := self._peer.receive()) is not None:
            self._reply(lambda: self._answer(message))

    def _load(self, path: str) -> list[Any]:
        module = load("solution", path)
        self._objects[0] = module
        return wire.encode([name for name in vars(module) if not name.startswith("__")])

    def _answer(self, message: Any) -> list[Any]:
        operation, target, *rest = message
        subject = self._objects[target]
        if operation == "call":
            args, kwargs = (wire.decode(part, self._import) for part in rest)
            value = subject(*args, **kwargs)
            # What the call did to its arguments, for the caller's own copies.
            changed = [list(args), kwargs]
            return [wire.encode(value, self._export), wire.encode(changed, self._export)]
        if operation == "get":
            return wire.encode(getattr(subject, rest[0]), self._export)
        if operation == "set":
            setattr(subject, rest[0], wire.decode(rest[1], self._import))
            return ["n"]
        if operation == "is":
            return wire.encode(isinstance(subject, self._objects[rest[0]]))
        if operation == "fields":
            return wire.encode([type(subject).__qualname__, self._fields(subject)], self._export)
        args = wire.decode(rest[0], self._import)
        return wire.encode(_OPERATIONS[operation](subject, *args), self._export)

    @staticmethod
    def _fields(subject: object) -> dict[str, object]:
        fields = dict(getattr(subject, "__dict__", {}))
        for kind in type(subject).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(subject, name):
                    fields[name] = getattr(subject, name)
        return fields

    def _reply(self, work: Callable[[], list[Any]]) -> None:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                answer: list[Any] = ["ok", work(), printed.getvalue()[:_PRINTED_CHARS]]
        except BaseException as error:
            answer = ["raise", self._described(error), printed.getvalue()[:_PRINTED_CHARS]]
        self._peer.send(answer)

    def _described(self, error: BaseException) -> list[Any]:
        """The exception's class and those it derives from, its arguments and its text."""
        names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, BaseException)]
        try:
            args = wire.encode(list(error.args))
        except wire.NotPlainError:
            args = ["l", []]
        return [names, args, str(error)[:2000]]

    def _export(self, value: object) -> list[Any]:
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["x", [kind.__name__ for kind in value.__mro__ if issubclass(kind, BaseException)]]
        key = id(value)
        if key not in self._numbers:
            self._numbers[key] = len(self._objects)
            self._objects.append(value)
        return ["o", self._numbers[key]]

    def _import(self, data: list[Any]) -> object:
        match data:
            case ["o", int() as number]:
                return self._objects[number]
            case ["f!", int() as number]:
                return lambda *args: self._call_back(number, args)
        raise wire.NotPlainError(f"the judge sent {str(data)[:80]}")

    def _call_back(self, number: int, args: tuple[object, ...]) -> object:
        """Call a function that the judge passed as an argument."""
        self._peer.send(["back", number, wire.encode(list(args), self._export)])
        while (message := self._peer.receive()) is not None:
            if message[0] == "returned":
                return wire.decode(message[1], self._import)
            if message[0] == "raised":
                raise getattr(builtins, message[1], RuntimeError)(message[2])
            self._reply(lambda: self._answer(message))
        raise EOFError("the judge hung up")


def _next(subject: Any) -> list[object]:
    try:
        return [next(subject)]
    except StopIteration:
        return []


_OPERATIONS: dict[str, Callable[..., object]] = {
    "len": len,
    "iter": iter,
    "next": _next,
    "str": str,
    "repr": repr,
    "bool": bool,
    "int": int,
    "float": float,
    "abs": abs,
    "getitem": lambda subject, key: subject[key],
    "setitem": lambda subject, key, value: subject.__setitem__(key, value),
    "delitem": lambda subject, key: subject.__delitem__(key),
    "add": lambda a, b: a + b,
    "radd": lambda a, b: b + a,
    "sub": lambda a, b: a - b,
    "rsub": lambda a, b: b - a,
    "mul": lambda a, b: a * b,
    "rmul": lambda a, b: b * a,
    "truediv": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "matmul": lambda a, b: a @ b,
    "neg": lambda a: -a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "enter": lambda a: a.__enter__(),
    "exit": lambda a: a.__exit__(None, None, None),
    "list": list,
}
