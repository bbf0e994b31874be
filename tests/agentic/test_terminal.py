import pytest
from roll_agentic import AgenticError, ScriptedPolicy, check_environment, run_episode
from roll_agentic.environments import MemoryShell, Terminal, TerminalTask
from roll_agentic.environments.terminal import generated_task
from roll_agentic.tools import ProgramResult, ToolUnavailable

FILES = {"a.txt": "beta 2\nalpha 10\n", "sub/b.txt": "gamma\n", "c.txt": "x\nx\ny\n"}


async def shell() -> MemoryShell:
    memory = MemoryShell()
    await memory.start(FILES)
    return memory


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("ls", "a.txt\nc.txt\nsub/\n"),
        ("ls sub", "b.txt\n"),
        ("cat a.txt sub/b.txt", "beta 2\nalpha 10\ngamma\n"),
        ("sort a.txt", "alpha 10\nbeta 2\n"),
        ("cat a.txt | sort -r | head -1", "beta 2\n"),
        ("sort -n c.txt | uniq -c", "2 x\n1 y\n"),
        ("wc -l a.txt", "2\n"),
        ("grep alpha *.txt", "a.txt:alpha 10\n"),
        ("grep -rl gamma", "sub/b.txt\n"),
        ("grep -c x c.txt", "2\n"),
        ("echo 'a b'  c", "a b c\n"),
        ("tail -n 1 a.txt", "alpha 10\n"),
        ("pwd", "/work\n"),
        ("echo 1 > n.txt && echo 2 >> n.txt && cat n.txt", "1\n2\n"),
        ("echo one; echo two", "one\ntwo\n"),
        ("mkdir -p x/y && mv a.txt x/y/z.txt && cat x/y/z.txt", "beta 2\nalpha 10\n"),
        ("cp a.txt c.txt sub && ls sub", "a.txt\nb.txt\nc.txt\n"),
        ("rm -r sub && ls", "a.txt\nc.txt\n"),
    ],
)
async def test_shell_in_memory_does_what_the_commands_say(command: str, output: str) -> None:
    assert await (await shell()).run(command, seconds=1.0) == ProgramResult(output=output, exit_code=0)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("cat missing", "no such file"),
        ("cat sub", "is a directory"),
        ("python -c 1", "command not found"),
        ("echo 'a", "syntax error"),
        ("echo a > ", "syntax error"),
        ("echo a | | cat", "syntax error"),
        ("echo a > no/where.txt", "no such directory"),
        ("rm sub", "directory without -r"),
        ("rm -r /work", "no such file"),
        ("cp a.txt", "two file names"),
        ("mv missing x", "no such file"),
        ("grep", "pattern is needed"),
    ],
)
async def test_shell_in_memory_says_what_fails(command: str, message: str) -> None:
    result = await (await shell()).run(command, seconds=1.0)
    assert result.exit_code == 1
    assert message in result.output


async def test_no_file_of_the_machine_can_be_seen() -> None:
    memory = await shell()
    assert (await memory.run("cat ../etc/passwd", seconds=1.0)).exit_code == 1
    assert await memory.read("/etc/passwd") is None


def solution(task: TerminalTask) -> list[str]:
    words = task.text.replace(",", "").replace(".txt.", ".txt").split()
    names = [word.rstrip(";.") for word in words if ".txt" in word or ".old" in word]
    if task.text.startswith("Count"):
        return [f"wc -l {names[0]} > answer.txt", "done"]
    if task.text.startswith("One of"):
        return [f"grep -l {words[words.index('word') + 1].rstrip('.')} *.txt > answer.txt", "Done."]
    if task.text.startswith("Move"):
        return ["mkdir archive", f"mv {names[0]} {names[1]}", "done"]
    return [f"cat {names[0]} {names[1]} | sort > merged.txt", "done"]


@pytest.mark.parametrize("seed", range(16))
async def test_every_generated_task_can_be_solved_and_is_not_solved_by_doing_nothing(seed: int) -> None:
    environment = Terminal()
    solved = await run_episode(
        environment, ScriptedPolicy(solution(generated_task(seed))), seed=seed, max_turns=9
    )
    assert solved.success, solved.messages
    idle = await run_episode(environment, ScriptedPolicy(["done"]), seed=seed, max_turns=9)
    assert (idle.status, idle.total_reward) == ("done", 0.0)


async def test_terminal_keeps_its_promises() -> None:
    results = await check_environment(Terminal, actions=["ls", "cat *.txt", "done"], max_steps=20)
    assert [result for result in results if not result.passed] == []


async def test_nothing_is_left_from_the_last_episode() -> None:
    environment = Terminal()
    await environment.reset(seed=0)
    await environment.step("echo 1 > left.txt")
    await environment.reset(seed=0)
    assert "left.txt" not in (await environment.step("ls"))[0]


async def test_steps_run_out_and_output_is_cut() -> None:
    environment = Terminal(
        tasks=lambda seed: TerminalTask(text="?", files={"a": "x" * 9000}, wanted={}), max_steps=2
    )
    await environment.reset(seed=0)
    observation, *_ = await environment.step("cat a")
    assert len(observation) < 4100
    assert (await environment.step("ls"))[3] is True
    with pytest.raises(AgenticError, match="call reset"):
        await environment.step("ls")


async def test_broken_sandbox_costs_the_episode_and_the_next_reset_makes_another() -> None:
    made = []

    class Fragile(MemoryShell):
        async def start(self, files) -> None:
            made.append(self)
            if len(made) == 1:
                raise ToolUnavailable("gone")
            await super().start(files)

    environment = Terminal(shell=Fragile)
    episode = await run_episode(environment, ScriptedPolicy(["ls", "done"]), seed=0, max_turns=3)
    assert episode.status == "done"
    assert len(made) == 2
    assert made[0] is not made[1]
