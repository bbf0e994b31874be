"""What is wrong with a configuration, said so that its author can mend it without reading the source.

Every module of this package that reads or checks reports `Problem` records; `load.py` and `existence.py`
collect them into one `ConfigError`, and the command line prints it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from roll_launch.config.credentials import masked_data
from roll_launch.errors import RollLaunchError

SHOWN_PROBLEMS = 12
"""Lines of one report: what fits on a screen together with the command that was typed."""

SHOWN_VALUE = 60
"""Characters of a value shown in a message."""

SHOWN_PATH = 120
"""Characters of a dotted key shown in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake.

    Problem(source="examples/x.yaml", line=12, path="stages.rlvr.steps", message="not an int", got="'8'
    (str)", allowed="int >= 1", hint="write 8 without quotes"), which is shown as `examples/x.yaml:12:
    stages.rlvr.steps: not an int; got '8' (str); write 8 without quotes; allowed: int >= 1`.

    Args:
        source: The file, or "command line".
        line: Counted from 1; None where there is none.
        path: The dotted key, with the names of list items where they have one; "" for the whole document.
        message: What is wrong.
        got: The value and its type, or None where the message says it.
        allowed: Types, ranges or names that are accepted, or None.
        hint: What to write instead, or None.
        excerpt: Lines of the file to show below, for broken YAML.
    """

    source: str
    message: str
    line: int | None = None
    path: str = ""
    got: str | None = None
    allowed: str | None = None
    hint: str | None = None
    excerpt: str = ""

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        what = f"{self.path}: {self.message}" if self.path else self.message
        parts = [what]
        if self.got is not None:
            parts.append(f"got {self.got}")
        if self.hint is not None:
            parts.append(self.hint)
        text = "; ".join(parts)
        if self.allowed is not None:
            text += f"{' ' if text.endswith('?') else '; '}allowed: {self.allowed}"
        return f"{place}: {text}" + (f"\n{self.excerpt}" if self.excerpt else "")


class ConfigError(RollLaunchError):
    """A configuration cannot be used.

    Args:
        problems: At least one, in the order in which they are shown.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:SHOWN_PROBLEMS]]
        hidden = len(self.problems) - len(lines)
        if hidden:
            lines.append(f"... and {hidden} more")
        return "\n".join(lines)


def in_file_order(problems: Iterable[Problem], source: str) -> list[Problem]:
    """Problems each said once: those of `source` by line, then those of the command line."""
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda p: (p.source != source, p.line is None, p.line or 0))


def without_secrets(problem: Problem, secrets: frozenset[str]) -> Problem:
    """The problem with `secrets` masked wherever it repeats them."""

    def masked(text: str | None) -> str | None:
        return text if text is None else str(masked_data(text, secrets=secrets))

    return replace(
        problem,
        message=str(masked(problem.message)),
        got=masked(problem.got),
        hint=masked(problem.hint),
    )


def shortened(text: str, most: int = SHOWN_VALUE) -> str:
    """`text` on one line, cut in the middle where it is longer than `most` characters."""
    flat = " ".join(text.split())
    if len(flat) <= most:
        return flat
    half = most // 2 - 2
    return f"{flat[:half]} .. {flat[-half:]}"
