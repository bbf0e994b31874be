"""Tests that any group filter can be run through; for whoever writes one."""

import numpy as np

from roll_scheduler.group_filter import GroupFilter

__all__ = ["check_filter"]

GROUPS = (
    [0.0],
    [1.0, 1.0],
    [0.0, 1.0],
    [-1.0, 0.5, 0.5, 2.0],
    [0.0] * 8,
    [1.0] * 15 + [0.0],
)


def check_filter(group_filter: GroupFilter) -> list[str]:
    """Sentences that say what is wrong with a filter; empty if it may be used.

    Checked on groups of 1 to 16 members: the name, that `keep` returns a bool without raising, gives the same
    answer again, does not depend on the order of the members, and leaves its arguments as they are.
    """
    problems: list[str] = []
    name: object = group_filter.name
    if not isinstance(name, str) or not name:
        problems.append(f"name is {name!r}, not a word")
    for rewards in GROUPS:
        for truncated in (np.zeros(len(rewards), dtype=np.bool_), np.arange(len(rewards)) % 2 == 0):
            problems += _check_keep(group_filter, np.array(rewards), truncated)
    return problems


def _check_keep(group_filter: GroupFilter, values: np.ndarray, truncated: np.ndarray) -> list[str]:
    call = f"keep({values.tolist()}, {truncated.tolist()})"
    given = values.copy(), truncated.copy()
    try:
        answer: object = group_filter.keep(values, truncated)
        again = group_filter.keep(values, truncated)
        reordered = group_filter.keep(values[::-1].copy(), truncated[::-1].copy())
    except Exception as error:  # boundary to the filter under test: what it raises is the finding
        return [f"{call} raised {type(error).__name__}: {error}"]
    problems = []
    if not isinstance(answer, bool):
        problems.append(f"{call} returned {answer!r}, not a bool")
    if bool(answer) != bool(again):
        problems.append(f"{call} answered {answer!r}, then {again!r}")
    if bool(answer) != bool(reordered):
        problems.append(f"{call} depends on the order of the members")
    if not (np.array_equal(values, given[0]) and np.array_equal(truncated, given[1])):
        problems.append(f"{call} changed its arguments")
    return problems
