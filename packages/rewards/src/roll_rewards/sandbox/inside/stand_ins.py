"""Stand-ins for a program's functions, objects and exceptions. Used by `judging`."""

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import Any

from roll_rewards.sandbox.inside import wire
from roll_rewards.sandbox.inside.messages import Peer

_SECRET = ("_program", "_number")


# An object could have a `startswith` that always says True.
_PLAIN = (str, bytes, int, float, list, tuple, dict, set)
_OF_PLAIN_VALUES = frozenset(name for kind in _PLAIN for name in dir(kind))


class ProgramEndedError(Exception):
    """The program's process is gone, or talks nonsense."""


class Program:
    """The program at the other end."""

    def __init__(self, peer: Peer, *, operators: bool) -> None:
        """Args:
        peer: The connection.
        operators: Whether an object of the program may be asked to add, subtract or compare itself to a
            plain value, or be used by methods that plain values have. Only for tests that name classes
            of the program: an object in the place of a number could say of every difference that it is 0.
        """
        self._peer = peer
        self.operators = operators
        self._callbacks: list[Callable[..., object]] = []
        self._errors: dict[tuple[str, ...], type[BaseException]] = {}
        self.names: list[str] = []

    def load(self) -> str | None:
        """Wait until the program's module is loaded; why it could not be, if so."""
        try:
            names = wire.decode(self._result())
        except Exception as error:
            # Boundary to the program: it may raise anything while it is loaded.
            return f"{type(error).__name__}: {error}"
        self.names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        return None

    def attribute(self, name: str) -> object:
        """A global name of the program.

        Raises:
            AttributeError: It has none of that name.
        """
        return self.ask("get", 0, name)

    def set_attribute(self, name: str, value: object) -> None:
        """Set a global name of the program."""
        self.ask("set", 0, name, self._encode(value))

    def ask(self, operation: str, number: int, *rest: object) -> Any:
        """What an operation on one of the program's objects gives.

        Raises:
            Exception: What it raises there, as a class of the same name.
            ProgramEndedError: The program is gone.
        """
        return self._decode(self._exchange([operation, number, *rest]))

    def call(self, number: int, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """What a call of one of the program's objects returns; changed arguments change here too.

        Raises:
            Exception: What it raises there, as a class of the same name.
            ProgramEndedError: The program is gone.
        """
        answer = self._exchange(["call", number, self._encode(list(args)), self._encode(kwargs)])
        if not (isinstance(answer, list) and len(answer) == 2):
            raise ProgramEndedError("the program answers nonsense")
        value, changed = self._decode(answer[0]), self._decode(answer[1])
        if isinstance(changed, list) and len(changed) == 2 and isinstance(changed[0], list):
            for mine, theirs in zip(args, changed[0], strict=False):
                _take_over(mine, theirs)
        return value

    def operate(self, operation: str, number: int, *args: object) -> Any:
        """What an operator gives on one of the program's objects. See `ask`."""
        return self.ask(operation, number, self._encode(list(args)))

    def _exchange(self, message: list[Any]) -> Any:
        try:
            self._peer.send(message)
        except OSError as error:
            raise ProgramEndedError("the program ended") from error
        return self._result()

    def _result(self) -> Any:
        while True:
            try:
                message = self._peer.receive()
            except (OSError, ValueError, RecursionError) as error:
                raise ProgramEndedError("the program ended or talks nonsense") from error
            match message:
                case ["ok", value, str() as printed]:
                    sys.stdout.write(printed)
                    return value
                case ["raise", [list() as names, args, str() as text], str() as printed]:
                    sys.stdout.write(printed)
                    raise self._error(names, args, text)
                case ["back", int() as number, args] if 0 <= number < len(self._callbacks):
                    self._call_back(number, args)
                case _:
                    raise ProgramEndedError("the program ended or talks nonsense")

    def _call_back(self, number: int, args: Any) -> None:
        try:
            value = self._callbacks[number](*self._decode(args))
        except Exception as error:
            # Boundary to the test's own function, called by the program: the program gets the error.
            self._peer.send(["raised", type(error).__name__, str(error)[:1000]])
        else:
            self._peer.send(["returned", self._encode(value)])

    def _error(self, names: list[Any], args: Any, text: str) -> BaseException:
        kind = self._error_class(tuple(str(name) for name in names))
        try:
            return kind(*wire.decode(args))
        except (TypeError, wire.NotPlainError):
            return RuntimeError(f"{names[:1]}: {text}")

    def _error_class(self, names: tuple[str, ...]) -> type[BaseException]:
        """The built-in exception of that name, or a stand-in that derives from the nearest one."""
        for index, name in enumerate(names):
            kind = getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, Exception):
                if index == 0:
                    return kind
                base = self._errors.get(names[1:]) or kind if index == 1 else self._error_class(names[1:])
                if names not in self._errors:
                    self._errors[names] = type(names[0], (base,), {})
                return self._errors[names]
        return ProgramEndedError

    def _encode(self, value: object) -> list[Any]:
        return wire.encode(value, self._export)

    def _export(self, value: object) -> list[Any] | None:
        if isinstance(value, Remote):
            return ["o", value._number]
        if callable(value):
            self._callbacks.append(value)
            return ["f!", len(self._callbacks) - 1]
        if hasattr(value, "__iter__"):
            return wire.encode(list(value), self._export)
        return None

    def _decode(self, data: Any) -> Any:
        try:
            return wire.decode(data, self._import)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise ProgramEndedError(f"the program talks nonsense: {error}") from error

    def _import(self, data: list[Any]) -> object:
        match data:
            case ["o", int() as number]:
                return Remote(self, number)
            case ["x", list() as names]:
                return self._error_class(tuple(str(name) for name in names))
        raise wire.NotPlainError("not a plain value")


class Remote:
    """An object of the program. Two are equal if they are the same, or alike in class and fields."""

    __slots__ = _SECRET

    def __init__(self, program: Program, number: int) -> None:
        """Args:
        program: Where it lives.
        number: Its number there.
        """
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    _program: Program
    _number: int

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._program.call(self._number, args, kwargs)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _OF_PLAIN_VALUES and not self._program.operators:
            raise AttributeError(f"{name}: an object of the program stands where a plain value is expected")
        return self._program.ask("get", self._number, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._program.ask("set", self._number, name, self._program._encode(value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return False
        if self._number == other._number:
            return True
        mine = self._program.ask("fields", self._number)
        theirs = self._program.ask("fields", other._number)
        return bool(mine == theirs) and bool(mine[1])

    def __hash__(self) -> int:
        return hash(self._number)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and bool(self._program.ask("is", instance._number, self._number))

    def __iter__(self) -> Iterator[object]:
        iterator = self._program.operate("iter", self._number)
        while found := self._program.operate("next", iterator._number):
            yield found[0]

    def __next__(self) -> object:
        found = self._program.operate("next", self._number)
        if not found:
            raise StopIteration
        return found[0]

    def __repr__(self) -> str:
        return str(self._program.operate("repr", self._number))

    def __str__(self) -> str:
        return str(self._program.operate("str", self._number))


def _asked(operation: str, kind: type | None = None) -> Callable[..., Any]:
    """A method whose answer the object gives without being told what a test expects."""

    def method(self: Remote, *args: object) -> Any:
        answer = self._program.operate(operation, self._number, *args)
        return answer if kind is None else kind(answer)

    return method


def _operator(operation: str) -> Callable[[Remote, object], Any]:
    """A method that hands the object the other operand, which may be what a test expects."""

    def method(self: Remote, other: object) -> Any:
        if not (isinstance(other, Remote) or self._program.operators):
            return NotImplemented
        return self._program.operate(operation, self._number, other)

    return method


for _name in ("getitem", "setitem", "delitem", "neg", "abs"):
    setattr(Remote, f"__{_name}__", _asked(_name))
_ARITHMETIC = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "floordiv", "mod", "pow", "matmul")
for _name in (*_ARITHMETIC, "lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _operator(_name))
for _name, _kind in {"len": int, "bool": bool, "int": int, "float": float}.items():
    setattr(Remote, f"__{_name}__", _asked(_name, _kind))
Remote.__enter__ = _asked("enter")  # type: ignore[attr-defined]
Remote.__exit__ = lambda self, *_: bool(self._program.operate("exit", self._number))  # type: ignore[attr-defined]


def _take_over(mine: object, theirs: object) -> None:
    """Give a mutable argument the contents that the program left in its copy."""
    if isinstance(mine, list) and isinstance(theirs, list):
        mine[:] = theirs
        return
    for kind in (dict, set):
        if isinstance(mine, kind) and isinstance(theirs, kind):
            mine.clear()
            mine.update(theirs)
