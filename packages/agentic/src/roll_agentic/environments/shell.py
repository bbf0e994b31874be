"""Where terminal tasks run: the seam of a sandboxed shell, and one whose files exist in memory only.

The shell in memory knows a dozen commands and runs no program, so a terminal task can be trained on
any machine; a container (`roll_agentic.adapters.rock`) takes its place where real programs are needed.
"""

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Protocol

from roll_agentic.tools.python import ProgramResult

_HOME = "/work"
_LARGEST_FILE = 100_000
_MOST_FILES = 1000


class Shell(Protocol):
    """A sandbox with files and a command line, used by one episode at a time."""

    async def start(self, files: Mapping[str, str]) -> None:
        """Begin anew with these files and nothing else, in the working directory.

        Args:
            files: Text by relative path.

        Raises:
            ToolUnavailable: The sandbox broke.
        """
        ...

    async def run(self, command: str, *, seconds: float) -> ProgramResult:
        """Run a command line.

        Args:
            command: For a POSIX shell.
            seconds: Time limit, above 0.

        Raises:
            ToolUnavailable: The sandbox broke.
        """
        ...

    async def read(self, path: str) -> str | None:
        """The text of a file, None if there is none.

        Raises:
            ToolUnavailable: The sandbox broke.
        """
        ...

    async def close(self) -> None:
        """Let go of the sandbox."""
        ...


class CommandError(Exception):
    """A command of the shell in memory failed; its message is what the command prints."""


class MemoryShell:
    """A shell without programs: files in a dictionary, and the commands cat, echo, grep, head, ls, mkdir, mv,
    cp, pwd, rm, sort, tail, uniq and wc, with pipes, `>`, `>>` and `&&`.
    """

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders = {_HOME}

    async def start(self, files: Mapping[str, str]) -> None:
        """Begin anew with these files."""
        self._files = {_path(name): text for name, text in files.items()}
        self._folders = {_HOME}
        for name in self._files:
            self._add_folders(posixpath.dirname(name))

    async def run(self, command: str, *, seconds: float) -> ProgramResult:
        """Run a command line; nothing here takes long enough for a time limit."""
        output = ""
        try:
            for part in _split(command, "&&"):
                output += self._pipeline(part)
        except CommandError as error:
            return ProgramResult(output=f"{output}{error}\n", exit_code=1)
        return ProgramResult(output=output, exit_code=0)

    async def read(self, path: str) -> str | None:
        """The text of a file, None if there is none."""
        return self._files.get(_path(path))

    async def close(self) -> None:
        """Forget all files."""
        self._files = {}

    def _pipeline(self, line: list[str]) -> str:
        target, append = None, False
        for index, word in enumerate(line):
            if word in (">", ">>"):
                if index + 2 != len(line):
                    raise CommandError("syntax error: one file name must follow > at the end")
                target, append, line = line[index + 1], word == ">>", line[:index]
                break
        text = ""
        for words in _split(line, "|"):
            text = self._command(words, text)
        if target is None:
            return text
        path = _path(target)
        self._write(path, (self._files.get(path, "") if append else "") + text)
        return ""

    def _command(self, words: list[str], given: str) -> str:
        if not words:
            raise CommandError("syntax error: a command is missing")
        name, flags = words[0], ""
        operands: list[str] = []
        for word in words[1:]:
            if name != "echo" and re.fullmatch("-[A-Za-z]+", word):
                flags += word[1:]
            else:
                operands += self._expanded(word) if name not in ("echo", "grep") or operands else [word]
        commands: Mapping[str, Callable[[str, list[str], str], str]] = {
            "cat": lambda f, a, t: self._input(a, t),
            "cp": self._copy,
            "echo": lambda f, a, t: " ".join(a) + "\n",
            "grep": self._grep,
            "head": lambda f, a, t: self._ends(a, t, first=True),
            "ls": self._list,
            "mkdir": self._make_folder,
            "mv": lambda f, a, t: self._copy(f, a, t) + self._remove("", a[:-1], ""),
            "pwd": lambda f, a, t: _HOME + "\n",
            "rm": self._remove,
            "sort": _sort,
            "tail": lambda f, a, t: self._ends(a, t, first=False),
            "uniq": _uniq,
            "wc": _count,
        }
        if name not in commands:
            raise CommandError(f"{name}: command not found; there are {', '.join(commands)}")
        if name in ("sort", "uniq", "wc"):
            given, operands = self._input(operands, given), []
        return commands[name](flags, operands, given)

    def _expanded(self, word: str) -> list[str]:
        if not re.search(r"[*?\[]", word):
            return [word]
        found = [n for n in self._files if fnmatch.fnmatch(n, _path(word))]
        return sorted(posixpath.relpath(name, _HOME) for name in found) or [word]

    def _input(self, operands: list[str], given: str) -> str:
        return "".join(self._text(name) for name in operands) if operands else given

    def _text(self, name: str) -> str:
        path = _path(name)
        if path not in self._files:
            kind = "is a directory" if path in self._folders else "no such file"
            raise CommandError(f"{name}: {kind}")
        return self._files[path]

    def _write(self, path: str, text: str) -> None:
        if path in self._folders or posixpath.dirname(path) not in self._folders:
            raise CommandError(f"{path}: no such directory, or it is one")
        if len(text) > _LARGEST_FILE or len(self._files) >= _MOST_FILES:
            raise CommandError("no space left on device")
        self._files[path] = text

    def _add_folders(self, path: str) -> None:
        while path not in self._folders and path != "/":
            self._folders.add(path)
            path = posixpath.dirname(path)

    def _copy(self, flags: str, operands: list[str], given: str) -> str:
        if len(operands) < 2:
            raise CommandError("two file names are needed")
        target = _path(operands[-1])
        if len(operands) > 2 and target not in self._folders:
            raise CommandError(f"{operands[-1]}: not a directory")
        for name in operands[:-1]:
            inside = posixpath.join(target, posixpath.basename(name))
            self._write(inside if target in self._folders else target, self._text(name))
        return ""

    def _grep(self, flags: str, operands: list[str], given: str) -> str:
        if not operands:
            raise CommandError("grep: a pattern is needed")
        pattern, names = operands[0], operands[1:]
        if "r" in flags:
            names = [posixpath.relpath(name, _HOME) for name in sorted(self._files)]
        fold = str.lower if "i" in flags else str
        lines = []
        for name, text in [(n, self._text(n)) for n in names] or [("", given)]:
            hits = [ln for ln in text.splitlines() if (fold(pattern) in fold(ln)) != ("v" in flags)]
            label = f"{name}:" if len(names) > 1 or "r" in flags else ""
            if "l" in flags:
                lines += [name] if hits else []
            elif "c" in flags:
                lines.append(f"{label}{len(hits)}")
            else:
                lines += [label + line for line in hits]
        return "".join(line + "\n" for line in lines)

    def _ends(self, operands: list[str], given: str, *, first: bool) -> str:
        most = 10
        if len(operands) > 0 and re.fullmatch(r"-?\d{1,6}", operands[0]):
            most, operands = abs(int(operands[0])), operands[1:]
        lines = self._input(operands, given).splitlines(keepends=True)
        return "".join(lines[:most] if first else lines[max(len(lines) - most, 0) :])

    def _list(self, flags: str, operands: list[str], given: str) -> str:
        names: list[str] = []
        for operand in operands or ["."]:
            path = _path(operand)
            if path in self._files:
                names.append(operand)
            elif path in self._folders:
                inside = [n for n in [*self._files, *self._folders] if posixpath.dirname(n) == path != n]
                names += sorted(posixpath.basename(n) + "/" * (n in self._folders) for n in inside)
            else:
                raise CommandError(f"ls: {operand}: no such file or directory")
        return "".join(name + "\n" for name in names)

    def _make_folder(self, flags: str, operands: list[str], given: str) -> str:
        for operand in operands:
            if len(self._folders) >= _MOST_FILES:
                raise CommandError("no space left on device")
            self._add_folders(_path(operand))
        return ""

    def _remove(self, flags: str, operands: list[str], given: str) -> str:
        for operand in operands:
            path = _path(operand)
            if path in self._files:
                del self._files[path]
            elif path in self._folders and "r" in flags and path != _HOME:
                self._files = {n: t for n, t in self._files.items() if not n.startswith(path + "/")}
                self._folders = {n for n in self._folders if n != path and not n.startswith(path + "/")}
            else:
                raise CommandError(f"rm: {operand}: no such file, or a directory without -r")
        return ""


def _path(name: str) -> str:
    return posixpath.normpath(posixpath.join(_HOME, name))


def _split(line: str | list[str], separator: str) -> list[list[str]]:
    """A command line's words between separators.

    Raises:
        CommandError: A quotation mark is not closed.
    """
    if isinstance(line, str):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&>;")
        lexer.commenters = ""
        try:
            line = list(lexer)
        except ValueError as error:
            raise CommandError(f"syntax error: {error}") from error
        line = [separator if word == ";" and separator == "&&" else word for word in line]
    parts: list[list[str]] = [[]]
    for word in line:
        if word == separator:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts if parts[-1] or len(parts) == 1 else parts[:-1] + ([] if separator == "&&" else [[]])


def _sort(flags: str, operands: list[str], given: str) -> str:
    def number(line: str) -> tuple[float, str]:
        match = re.match(r"\s*(-?\d{1,15}(\.\d{1,15})?)", line)
        return (float(match[1]) if match else 0.0), line

    lines = sorted(given.splitlines(), key=number if "n" in flags else None, reverse="r" in flags)
    lines = list(dict.fromkeys(lines)) if "u" in flags else lines
    return "".join(line + "\n" for line in lines)


def _uniq(flags: str, operands: list[str], given: str) -> str:
    runs: list[tuple[str, int]] = []
    for line in given.splitlines():
        if runs and runs[-1][0] == line:
            runs[-1] = (line, runs[-1][1] + 1)
        else:
            runs.append((line, 1))
    return "".join(f"{count} {line}\n" if "c" in flags else f"{line}\n" for line, count in runs)


def _count(flags: str, operands: list[str], given: str) -> str:
    counts = {"l": given.count("\n"), "w": len(given.split()), "c": len(given.encode())}
    return " ".join(str(counts[flag]) for flag in (flags or "lwc") if flag in counts) + "\n"
