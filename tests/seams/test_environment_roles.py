"""Environment workers fit their role, and engines and sandboxes fit the seams of roll_agentic."""

import inspect

import pytest
from roll_agentic import TokenEngine
from roll_agentic.tools import ProgramResult, Sandbox, ToolUnavailable
from roll_launch.episode_roles import EnvironmentWorker
from roll_launch.local_environment import LocalEnvironmentWorker
from roll_launch.ray.environment import RayEnvironmentWorker
from roll_launch.workers.sandbox import ToolSandbox
from roll_launch.workers.turn_engine import TurnEngine
from roll_rewards.sandbox import SandboxError, SandboxPool

PAIRS = [
    (EnvironmentWorker, LocalEnvironmentWorker),
    (EnvironmentWorker, RayEnvironmentWorker),
    (TokenEngine, TurnEngine),
    (Sandbox, ToolSandbox),
]


@pytest.mark.parametrize(("protocol", "own"), PAIRS, ids=lambda each: each.__name__)
def test_each_method_is_there_with_the_same_parameters(protocol: type, own: type) -> None:
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if name.startswith("_"):
            continue
        found = getattr(own, name)
        assert inspect.iscoroutinefunction(found), f"{own.__name__}.{name} is not async"
        wanted, got = (inspect.signature(each).parameters for each in (method, found))
        assert [(p.name, p.kind) for p in wanted.values()] == [(p.name, p.kind) for p in got.values()], name


async def test_programs_of_tools_run_in_the_sandbox_of_graders() -> None:
    sandbox = ToolSandbox(sandboxes=1)
    try:
        assert await sandbox.run_python("print(40 + 2)", seconds=5) == ProgramResult(
            output="42\n", exit_code=0
        )
        failed = await sandbox.run_python("import sys; print('a'); sys.exit(3)", seconds=5)
        assert (failed.output, failed.exit_code, failed.timed_out) == ("a\n", 3, False)
        assert (await sandbox.run_python("while True: pass", seconds=0.5)).timed_out
        assert "ValueError: \\ud800" not in (await sandbox.run_python("print('\ud800')", seconds=5)).output
    finally:
        await sandbox.close()


async def test_a_sandbox_that_cannot_be_had_is_no_answer_for_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(self: SandboxPool, job: object) -> None:
        raise SandboxError("no namespaces here")

    monkeypatch.setattr(SandboxPool, "run", broken)
    with pytest.raises(ToolUnavailable, match="no namespaces here"):
        await ToolSandbox(sandboxes=1).run_python("1", seconds=1)
