"""Other libraries' environments through their adapters; the libraries are real, ROCK's service is not."""

import asyncio
import random
import subprocess
import warnings

import numpy as np
import pytest
from roll_agentic import (
    AgenticError,
    RandomPolicy,
    ScriptedPolicy,
    Turn,
    check_environment,
    make,
    run_episode,
    run_game,
)
from roll_agentic.adapters import (
    GemEnvironment,
    GymnasiumText,
    ReasoningGym,
    RockEnvironment,
    RockShell,
    TextArena,
    TextArenaGame,
)
from roll_agentic.environments import Terminal

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(120)]


async def failed(maker, **options) -> set[str]:
    results = await check_environment(maker, seeds=range(4), **options)
    return {result.name for result in results if not result.passed}


@pytest.mark.parametrize("env_id", ["game:GuessTheNumber-v0-easy", "rg:leg_counting"])
async def test_gem_environments_keep_their_promises(env_id: str) -> None:
    actions = ["\\boxed{5}", "\\boxed{2}", "\\boxed{up}", "\\boxed{left}", "5"]
    assert await failed(lambda: make(f"gem/{env_id}"), actions=actions, max_steps=40) <= {"ends"}


async def test_gem_game_is_won_by_playing_it() -> None:
    class Bisects:
        async def act(self, state):
            if state.turn == 0:
                self.low, self.high = 1, 10
            elif "higher" in state.messages[-1].text:
                self.low = self.guess + 1
            else:
                self.high = self.guess - 1
            self.guess = (self.low + self.high) // 2
            return Turn(response=f"\\boxed{{{self.guess}}}")

    episode = await run_episode(
        GemEnvironment("game:GuessTheNumber-v0-easy"), Bisects(), seed=2**40 + 3, max_turns=5
    )
    assert (episode.status, episode.total_reward) == ("done", 1.0)


async def test_environments_with_global_randomness_leave_the_program_its_own() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = (random.random(), np.random.random())
    random.seed(1)
    np.random.seed(1)
    environment = GemEnvironment("game:GuessTheNumber-v0-easy")
    environment.reset(seed=5)
    environment.step("\\boxed{1}")
    assert (random.random(), np.random.random()) == expected


async def test_reasoning_gym_scores_its_own_answers() -> None:
    environment = ReasoningGym("leg_counting")
    question, _ = environment.reset(seed=12345678901)
    assert "legs" in question
    answer = environment._entry["answer"]
    assert environment.step(f"<answer>{answer}</answer>")[1] == 1.0
    assert await failed(lambda: make("reasoning_gym/leg_counting"), actions=["4", "12"]) == set()


async def test_text_arena_alone_and_in_self_play() -> None:
    moves = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]
    episode = await run_episode(TextArena("TowerOfHanoi-v0"), ScriptedPolicy(moves), seed=1, max_turns=9)
    assert (episode.status, episode.total_reward) == ("done", 1.0)
    assert await failed(lambda: make("textarena/TowerOfHanoi-v0"), actions=moves, seeded=False) == set()

    class Cells:
        def __init__(self, cells: str) -> None:
            self.cells = cells

        async def act(self, state):
            return Turn(response=f"[{self.cells[state.turn]}]")

    players = {"player_0": Cells("012"), "player_1": Cells("34")}
    episodes = await run_game(TextArenaGame("TicTacToe-v0"), players, seed=0, max_turns=5)
    assert {name: episode.total_reward for name, episode in episodes.items()} == {
        "player_0": 1,
        "player_1": -1,
    }


async def test_gymnasium_environment_is_played_in_words() -> None:
    def maker() -> GymnasiumText:
        return GymnasiumText(
            "FrozenLake-v1",
            action_names=["left", "down", "right", "up"],
            render_mode="ansi",
            is_slippery=False,
        )

    way = ["down", "down", "right", "1", "<answer>right</answer>", "fly", "right"]
    episode = await run_episode(maker(), ScriptedPolicy(way), seed=0, max_turns=9)
    assert episode.success
    assert episode.invalid_actions == 1
    assert episode.messages[0].text == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert await failed(maker, actions=["left", "down", "right", "up"], seeded=False) == set()


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (lambda: GemEnvironment("game:Nothing"), "GEM has no environment"),
        (lambda: ReasoningGym("nothing"), "cannot make 'nothing'"),
        (lambda: TextArena("Nothing-v0"), "cannot make 'Nothing-v0'"),
        (lambda: GymnasiumText("Nothing-v0"), "cannot make 'Nothing-v0'"),
        (lambda: GymnasiumText("Pendulum-v1"), "only Discrete and Text"),
        (lambda: GymnasiumText("FrozenLake-v1", action_names=["a"]), "has 4 actions, got 1 names"),
        (lambda: RockShell(folder="/"), "not the root"),
        (lambda: TextArenaGame("TicTacToe-v0", players=0), "players of at least 1"),
    ],
)
def test_what_does_not_exist_is_named(maker, message: str) -> None:
    with pytest.raises(AgenticError, match=message):
        maker()


class FakeService:
    """Answers as ROCK's admin does, and runs commands in a temporary directory."""

    def __init__(self, root) -> None:
        self.root, self.paths, self.is_down = root, [], False

    async def serve(self):
        from aiohttp import web

        app = web.Application()
        app.router.add_route("*", "/apis/envs/sandbox/v1/{what}", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def answer(self, request):
        from aiohttp import web

        what = request.match_info["what"]
        self.paths.append(what)
        if self.is_down:
            return web.json_response({"status": "Failed", "error": "no node"}, status=500)
        place = {"sandbox_id": "s1", "host_name": "h", "host_ip": "127.0.0.1"}
        result: dict = {}
        if what == "start_async":
            result = place
        elif what == "get_status":
            result = {**place, "is_alive": True, "status": {}}
        elif what == "execute":
            body = await request.json()
            line = body["command"][-1].replace("/work", str(self.root / "work"))
            done = await asyncio.to_thread(
                subprocess.run,
                ["sh", "-c", line],
                capture_output=True,
                text=True,
                cwd=self.root if body["cwd"] == "/" else self.root / "work",
            )
            result = {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.returncode}
        return web.json_response({"status": "Success", "result": result})


@pytest.mark.slow
def test_rock_refuses_what_is_no_configuration() -> None:
    with pytest.raises(AgenticError, match="no configuration"):
        RockShell(memory=5, cpus="many")


@pytest.mark.slow
async def test_terminal_task_in_a_rock_container(tmp_path) -> None:
    service = FakeService(tmp_path)
    address = await service.serve()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shell = RockShell(base_url=address, image="python:3.11")
        environment = Terminal(shell=lambda: shell)
        for seed in range(2):
            question, _ = await environment.reset(seed=seed)
            observation, *_ = await environment.step("ls | wc -l")
            assert observation.strip() == "4", question
        assert (await shell.run("echo out; echo err >&2; exit 3", seconds=5.0)).exit_code == 3
        slow = await shell.run("sleep 30", seconds=0.2)
        assert (slow.timed_out, slow.exit_code) == (True, None)
        await shell.start({"it's/deep.txt": "quote ' and $HOME\n"})
        assert await shell.read("it's/deep.txt") == "quote ' and $HOME\n"
        assert await shell.read("missing") is None
        service.is_down = True
        broken = await run_episode(environment, RandomPolicy(["ls"]), seed=0, max_turns=2)
        assert (broken.status, service.paths.count("start_async")) == ("env_error", 2)
        service.is_down = False
        again = await run_episode(environment, RandomPolicy(["ls", "done"]), seed=0, max_turns=9)
        assert again.failure is None
        await environment.close()
        assert service.paths[-1] == "stop"
    finally:
        await service.runner.cleanup()


def test_rock_environment_passes_calls_on() -> None:
    class Client:
        def reset(self, *, seed: int):
            return seed, {"a": 1}

        def step(self, action: str):
            return action, 1, True, False, {}

        def close(self) -> None:
            self.closed = True

    client = Client()
    environment = RockEnvironment("any", client=client)
    assert environment.reset(seed=4) == ("4", {"a": 1})
    assert environment.step("x") == ("x", 1.0, True, False, {})
    environment.close()
    assert client.closed
