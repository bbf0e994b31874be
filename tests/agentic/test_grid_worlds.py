"""FrozenLake and Sokoban against their rules."""

import random
from collections import deque

import pytest
from roll_agentic import AgenticError, ScriptedPolicy, check_environment, run_episode
from roll_agentic.environments import FrozenLake, Sokoban
from roll_agentic.environments.frozen_lake import MOVES, has_path


def shortest_way(lake: list[str]) -> list[str]:
    """Moves from the upper left to the goal."""
    seen, todo = {(0, 0)}, deque([((0, 0), [])])
    while todo:
        (row, column), way = todo.popleft()
        if lake[row][column] == "G":
            return way
        for move, (down, right) in MOVES.items():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < len(lake) and 0 <= cell[1] < len(lake)
            if inside and cell not in seen and lake[cell[0]][cell[1]] != "O":
                seen.add(cell)
                todo.append((cell, [*way, move]))
    raise AssertionError("no way")


def push_solution(board: list[str]) -> list[str] | None:
    """Moves that solve a Sokoban level, by breadth-first search; None when there are none."""
    cells = {(r, c): mark for r, row in enumerate(board) for c, mark in enumerate(row)}
    walls = {cell for cell, mark in cells.items() if mark == "#"}
    goals = {cell for cell, mark in cells.items() if mark in "O*S"}
    boxes = frozenset(cell for cell, mark in cells.items() if mark in "X*")
    player = next(cell for cell, mark in cells.items() if mark in "PS")
    seen, todo = {(player, boxes)}, deque([(player, boxes, [])])
    while todo:
        player, boxes, way = todo.popleft()
        if boxes == goals:
            return way
        for move, (down, right) in MOVES.items():
            ahead = (player[0] + down, player[1] + right)
            pushed = boxes
            if ahead in boxes:
                behind = (ahead[0] + down, ahead[1] + right)
                if behind in walls or behind in boxes:
                    continue
                pushed = boxes - {ahead} | {behind}
            if ahead in walls or (ahead, pushed) in seen:
                continue
            seen.add((ahead, pushed))
            todo.append((ahead, pushed, [*way, move]))
    return None


@pytest.mark.parametrize("seed", range(20))
async def test_every_lake_can_be_crossed(seed: int) -> None:
    environment = FrozenLake(size=5, holes=0.4)
    board, _ = environment.reset(seed=seed)
    way = shortest_way(["_" + board[1:5], *board.split("\n")[1:]])
    episode = await run_episode(environment, ScriptedPolicy(way), seed=seed, max_turns=len(way))
    assert episode.success
    assert episode.messages[-1].text.endswith("V")


def test_hole_ends_the_game_without_reward() -> None:
    environment = FrozenLake(size=4, holes=0.5)
    for seed in range(50):
        board, _ = environment.reset(seed=seed)
        if board.split("\n")[0][1] == "O":
            observation, reward, terminated, truncated, _ = environment.step("right")
            assert (reward, terminated, truncated) == (0.0, True, False)
            assert observation.split("\n")[0][1] == "X"
            with pytest.raises(AgenticError, match="call reset"):
                environment.step("left")
            return
    raise AssertionError("no lake has a hole beside the start")


def test_edge_holds_and_nonsense_uses_up_a_move() -> None:
    environment = FrozenLake(max_steps=3, holes=0.0)
    board, _ = environment.reset(seed=0)
    assert environment.step("<answer>Up</answer>")[0] == board
    assert environment.step("jump")[4]["action_is_valid"] is False
    assert environment.step("left")[3] is True


def test_slippery_ice_goes_a_third_each_way() -> None:
    environment, ends = FrozenLake(size=3, holes=0.0, slippery=True), {}
    for seed in range(600):
        environment.reset(seed=seed)
        where = environment.step("right")[0].replace("\n", "").index("P")
        ends[where] = ends.get(where, 0) + 1
    # Right, down, or up against the edge; never left.
    assert set(ends) == {0, 1, 3}
    assert all(140 < count < 260 for count in ends.values())


def test_lake_with_hardly_a_way_is_made_in_time() -> None:
    board, _ = FrozenLake(size=40, holes=0.8).reset(seed=1)
    rows = board.split("\n")
    assert has_path(["_" + rows[0][1:], *rows[1:]])


@pytest.mark.parametrize("seed", range(12))
async def test_every_sokoban_level_can_be_solved(seed: int) -> None:
    environment = Sokoban(boxes=2, rows=6, columns=6, max_steps=400)
    board, _ = environment.reset(seed=seed)
    way = push_solution(board.split("\n"))
    assert way
    episode = await run_episode(environment, ScriptedPolicy(way), seed=seed, max_turns=len(way))
    assert (episode.status, episode.total_reward) == ("done", 1.0)


def test_levels_keep_walls_boxes_and_goals_in_balance_over_random_play() -> None:
    environment = Sokoban(boxes=2, box_reward=1.0, step_reward=-0.1, max_steps=1000)
    for seed in range(10):
        board, info = environment.reset(seed=seed)
        chance, placed = random.Random(seed), info["boxes_on_goals"]
        for _ in range(100):
            before = board
            move = chance.choice(list(MOVES))
            board, reward, terminated, _, info = environment.step(move)
            assert board.count("#") == before.count("#")
            assert board.count("X") + board.count("*") == 2
            assert board.count("O") + board.count("*") + board.count("S") == 2
            assert board.count("P") + board.count("S") == 1
            assert reward == pytest.approx(-0.1 + info["boxes_on_goals"] - placed + terminated)
            placed = info["boxes_on_goals"]
            if terminated:
                break


@pytest.mark.parametrize(
    "make", [FrozenLake, lambda: FrozenLake(slippery=True), Sokoban, lambda: Sokoban(boxes=2, rows=7)]
)
async def test_grid_worlds_keep_their_promises(make) -> None:
    results = await check_environment(make, actions=list(MOVES), max_steps=60)
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (FrozenLake, {"size": 1}),
        (FrozenLake, {"holes": 0.9}),
        (Sokoban, {"boxes": 0}),
        (Sokoban, {"rows": 5, "columns": 5, "boxes": 3}),
        (Sokoban, {"pulls": 0}),
    ],
)
def test_impossible_worlds_are_refused(make, options: dict) -> None:
    with pytest.raises(AgenticError):
        make(**options)


def test_pictures_come_with_the_state() -> None:
    for environment in (FrozenLake(pictures=True), Sokoban(pictures=True)):
        _, info = environment.reset(seed=0)
        assert info["image"].startswith(b"\x89PNG")
