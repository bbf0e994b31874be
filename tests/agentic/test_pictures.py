import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from roll_agentic import AgenticError, RandomPolicy, ScriptedPolicy, run_episode
from roll_agentic.environments import FrozenLake, NumberGuessing
from roll_agentic.pictures import grid_png, picture_frames, replay_html


def pixels(picture: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(picture)) as image:
        image.load()
        return np.asarray(image)


def test_picture_has_a_tile_for_each_cell_and_shows_differences() -> None:
    one, other = pixels(grid_png(["P_#", "OG*"])), pixels(grid_png(["_P#", "OG*"]))
    assert one.shape == (48, 72, 3)
    assert np.any(one[:24, :24] != other[:24, :24])
    assert np.any(one[:24, 24:48] != other[:24, 24:48])
    assert np.array_equal(one[24:], other[24:])
    assert np.array_equal(one[:, 48:], other[:, 48:])


def test_every_known_mark_looks_different() -> None:
    tiles = {pixels(grid_png([mark], cell=16)).tobytes() for mark in "_#PSOGX*Vaz"}
    assert len(tiles) == 11


@pytest.mark.parametrize(("rows", "cell"), [([], 24), ([""], 24), (["ab", "a"], 24), (["a"], 2)])
def test_boards_that_are_none_are_refused(rows: list[str], cell: int) -> None:
    with pytest.raises(AgenticError, match="a picture needs rows"):
        grid_png(rows, cell=cell)


def steps_of(page: str) -> list[dict]:
    found = re.search(r"const steps=(.*);\n", page)
    assert found
    return json.loads(found[1])


async def test_replay_shows_observations_answers_and_pictures(tmp_path) -> None:
    lake = FrozenLake(pictures=True, max_steps=6)
    episode = await run_episode(lake, RandomPolicy(), seed=3, max_turns=6)
    frames = await picture_frames(lake, episode)
    assert len(frames) == len(episode.turns) + 1
    page = replay_html(episode, title="Lake <1>", frames=frames, path=tmp_path / "lake.html")
    assert (tmp_path / "lake.html").read_text() == page
    steps = steps_of(page)
    assert [step["said"] for step in steps[:-1]] == [turn.response for turn in episode.turns]
    assert steps[-1]["said"] is None
    assert all(step["image"] for step in steps)
    assert "<title>Lake &lt;1&gt;</title>" in page


async def test_texts_cannot_break_out_of_the_page() -> None:
    policy = ScriptedPolicy(["</script><script>alert(1)</script>", "\ud800"])
    episode = await run_episode(NumberGuessing(), policy, seed=1, max_turns=2)
    page = replay_html(episode)
    assert page.count("</script>") == 1
    assert steps_of(page)[0]["said"] == "</script><script>alert(1)</script>"


async def test_failed_episode_can_be_shown() -> None:
    class Broken(NumberGuessing):
        def reset(self, *, seed: int):
            raise OSError("lost")

    episode = await run_episode(Broken(), ScriptedPolicy(["1"]), seed=1, max_turns=2)
    assert "lost" in replay_html(episode)
