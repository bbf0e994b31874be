"""Tasks with files in a terminal: the policy says commands, the files in the end decide."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from roll_agentic.environment import Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.environments.shell import MemoryShell, Shell
from roll_agentic.errors import AgenticError
from roll_agentic.tools.python import describe
from roll_agentic.tools.toolbox import ToolUnavailable

_INSTRUCTIONS = (
    "You work in a terminal. Say one command line at a time and read what it prints. When the task is done, "
    "say: done"
)
_WORDS = (
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "iris",
    "jade",
    "kelp",
    "lotus",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTask:
    """A task with files, and the files that must be there in the end.

    Example: `TerminalTask(text="Rename a.txt to b.txt.", files={"a.txt": "x"}, wanted={"b.txt": "x"},
    unwanted=("a.txt",))`.

    Attributes:
        text: What to do.
        files: Text of the files at the beginning, by path.
        wanted: Text that files must have in the end, compared without spaces at the ends.
        unwanted: Paths at which no file may be left.
    """

    text: str
    files: dict[str, str]
    wanted: dict[str, str]
    unwanted: tuple[str, ...] = field(default=())


class Terminal:
    """A task in a sandboxed shell: reward 1 if the files are as they should be when the policy says `done`.

    Args:
        shell: Makes the sandbox of the environment; one in memory by default, which runs no programs.
        tasks: Makes the task of a seed; generated ones by default: count lines, find a word, rename,
            merge and sort.
        max_steps: Commands until the episode is truncated, at least 1.
        seconds: Time limit of a command, above 0.
        longest_output: Characters of a command's output that are shown, at least 1.

    Raises:
        AgenticError: An argument is out of its range.
    """

    def __init__(
        self,
        *,
        shell: Callable[[], Shell] = MemoryShell,
        tasks: Callable[[int], TerminalTask] | None = None,
        max_steps: int = 10,
        seconds: float = 30.0,
        longest_output: int = 4000,
    ) -> None:
        if max_steps < 1 or not seconds > 0 or longest_output < 1:
            raise AgenticError(
                "Terminal needs max_steps and longest_output of at least 1 and seconds above 0, "
                f"got {max_steps}, {longest_output}, {seconds}"
            )
        self._make_shell, self._tasks = shell, tasks or generated_task
        self._max_steps, self._seconds, self._longest_output = max_steps, seconds, longest_output
        self._shell: Shell | None = None
        self._task: TerminalTask | None = None
        self._left = 0

    async def reset(self, *, seed: int) -> Reset:
        """Lay out the files of the task that belongs to the seed.

        Raises:
            ToolUnavailable: The sandbox broke; the next reset makes another one.
        """
        self._task = self._tasks(seed)
        if self._shell is None:
            self._shell = self._make_shell()
        try:
            await self._shell.start(self._task.files)
        except ToolUnavailable:
            await self.close()
            raise
        self._left = self._max_steps
        return self._task.text, {"instructions": _INSTRUCTIONS, "state": self._task.text}

    async def step(self, action: str, /) -> Step:
        """Run a command, or judge the files when the policy says `done`.

        Raises:
            AgenticError: No episode is going on.
            ToolUnavailable: The sandbox broke.
        """
        if self._left == 0 or self._shell is None or self._task is None:
            raise AgenticError("Terminal has no episode going on; call reset before step")
        self._left -= 1
        command = marked_answer(action)
        if command.lower().rstrip(".") == "done":
            self._left = 0
            return (
                "",
                float(await self._is_done(self._shell, self._task)),
                True,
                False,
                {"action_is_valid": True},
            )
        if not command or "\x00" in command or not command.isprintable():
            output, is_valid = "Say one command line.", False
        else:
            result = await self._shell.run(command, seconds=self._seconds)
            output, is_valid = describe(result, self._seconds), result.exit_code is not None
        if len(output) > self._longest_output:
            output = f"{output[: self._longest_output]}\n[... cut off ...]"
        return output, 0.0, False, self._left == 0, {"action_is_valid": is_valid, "tool_calls": int(is_valid)}

    async def close(self) -> None:
        """Let go of the sandbox."""
        if self._shell is not None:
            await self._shell.close()
            self._shell = None

    async def _is_done(self, shell: Shell, task: TerminalTask) -> bool:
        for path, wanted in task.wanted.items():
            text = await shell.read(path)
            if text is None or text.strip() != wanted.strip():
                return False
        for path in task.unwanted:
            if await shell.read(path) is not None:
                return False
        return True


def generated_task(seed: int) -> TerminalTask:
    """One of four kinds of small tasks with random files; the same for the same seed."""
    chance = random.Random(seed)
    names = chance.sample(_WORDS, 4)
    files = {f"{name}.txt": _lines(chance) for name in names}
    kind = chance.randrange(4)
    if kind == 0:
        name = f"{names[0]}.txt"
        return TerminalTask(
            text=f"Count the lines of {name} and write the number, nothing else, into answer.txt.",
            files=files,
            wanted={"answer.txt": str(files[name].count("\n"))},
        )
    if kind == 1:
        word = chance.choice(["zebra", "yacht", "xenon"])
        holder = f"{chance.choice(names)}.txt"
        files[holder] += f"{word}\n"
        return TerminalTask(
            text=f"One of the files contains the word {word}. Write that file's name into answer.txt.",
            files=files,
            wanted={"answer.txt": holder},
        )
    if kind == 2:
        old, new = f"{names[0]}.txt", f"archive/{names[0]}.old"
        return TerminalTask(
            text=f"Move {old} to {new}; the directory does not exist yet.",
            files=files,
            wanted={new: files[old]},
            unwanted=(old,),
        )
    one, other = f"{names[0]}.txt", f"{names[1]}.txt"
    merged = sorted((files[one] + files[other]).splitlines())
    return TerminalTask(
        text=f"Write all lines of {one} and {other}, sorted, into merged.txt.",
        files=files,
        wanted={"merged.txt": "\n".join(merged)},
    )


def _lines(chance: random.Random) -> str:
    return "".join(f"{chance.choice(_WORDS)} {chance.randint(1, 99)}\n" for _ in range(chance.randint(3, 9)))
