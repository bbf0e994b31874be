"""Tests that any filter, and any part of a snapshot, can be run through; for whoever writes one."""

import json

import numpy as np

from roll_scheduler.rounds.group_filter import BatchFilter, GroupFilter
from roll_scheduler.snapshot import StatefulPart

__all__ = ["check_batch_filter", "check_filter", "check_part"]

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


def check_batch_filter(batch_filter: BatchFilter) -> list[str]:
    """Sentences that say what is wrong with a batch filter; empty if it may be used.

    Checked for batches of 1 to 7 groups: the pool is at least a batch, and `choose` picks one to a batch of
    different groups that are there, of a whole pool a full batch, the same ones again.
    """
    problems: list[str] = []
    for most in range(1, 8):
        pool = batch_filter.pool(most)
        if pool < most:
            problems.append(f"pool({most}) is {pool}, allowed is at least {most}")
        for count in (1, most, pool):
            values = [np.array([0.0, number % 3, 1.0]) for number in range(count)]
            chosen = batch_filter.choose(values, min(most, count))
            call = f"choose of {count} groups, at most {min(most, count)}, gave {list(chosen)}"
            if not 1 <= len(set(chosen)) == len(chosen) <= most or not set(chosen) <= set(range(count)):
                problems.append(f"{call}: allowed are different ones that are there")
            elif count == pool and len(chosen) < most:
                problems.append(f"{call}: a whole pool has to give a full batch of {most}")
            if list(batch_filter.choose(values, min(most, count))) != list(chosen):
                problems.append(f"{call}, then others")
    return problems


def check_part(part: StatefulPart) -> list[str]:
    """Sentences that say what is wrong with a part of a snapshot; empty if it may be used.

    Checked: its state survives JSON, and is the same after it was restored.
    """
    try:
        state = part.state()
        written = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        return [f"state() is not JSON: {error}"]
    part.restore(json.loads(written))
    again = json.dumps(part.state(), allow_nan=False)
    return [] if again == written else [f"state() was {written[:200]}, after restore {again[:200]}"]


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
