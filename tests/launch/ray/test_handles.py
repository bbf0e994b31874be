"""Failures of actors in the words of a role: who, in what, and why."""

import subprocess
import sys
from collections.abc import Awaitable

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
    WorkerCrashedError,
)
from roll_launch.failures import RoleDied, RoleError
from roll_launch.ray.handles import answer
from roll_rollout import PromptTooLong


async def _raises(error: BaseException) -> object:
    raise error


def _raised_in_a_task(cause: Exception) -> Awaitable[object]:
    return _raises(
        RayTaskError("start", "\x1b[36mTraceback\x1b[39m of the worker", cause).as_instanceof_cause()
    )


@pytest.mark.parametrize("cause", [ValueError("no such tokenizer"), RuntimeError("out of memory")])
async def test_an_error_in_a_task_names_role_method_cause_and_keeps_the_traceback(cause: Exception) -> None:
    with pytest.raises(RoleError) as caught:
        await answer("trainer", "start", _raised_in_a_task(cause))
    assert str(caught.value) == f"trainer failed in start: {type(cause).__name__}: {cause}"
    assert "Traceback of the worker" in caught.value.detail
    assert "\x1b" not in caught.value.detail


async def test_an_engines_refusal_comes_through_as_it_is() -> None:
    with pytest.raises(PromptTooLong, match="allowed is 5"):
        await answer("actor-0", "generate", _raised_in_a_task(PromptTooLong("allowed is 5")))


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("no connection", b"0" * 16),
        OutOfMemoryError("killed by the memory monitor"),
        NodeDiedError("the node is gone"),
        WorkerCrashedError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_lost_process_is_a_death_whatever_ray_calls_it(error: Exception) -> None:
    with pytest.raises(RoleDied, match="actor-0 died during generate"):
        await answer("actor-0", "generate", _raises(error))


async def test_any_other_error_of_ray_names_role_and_method() -> None:
    with pytest.raises(RoleError, match=r"trainer failed in publish: ObjectLostError") as caught:
        await answer("trainer", "publish", _raises(ObjectLostError("0" * 56, None, "")))
    assert not isinstance(caught.value, RoleDied)


def test_ray_is_imported_with_its_settings_made() -> None:
    """Under `uv run` Ray would otherwise run workers in a copy of the working directory."""
    script = (
        "import roll_launch.ray.runtime\n"
        "from ray._private import ray_constants\n"
        "assert not ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)
