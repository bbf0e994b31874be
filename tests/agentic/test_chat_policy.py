import numpy as np
import pytest
from characters import END, Characters
from roll_agentic import (
    AgenticError,
    ChatPolicy,
    ChatPolicyConfig,
    Episode,
    Sampled,
    episode_rows,
    run_episode,
    turn_seed,
)
from roll_agentic.tools import Toolbox, ToolEnvironment


class Engine:
    """Says the given texts one after the other, cut to what is allowed; remembers its prompts."""

    def __init__(self, texts: list[str], chat: Characters) -> None:
        self.texts, self.chat = list(texts), chat
        self.prompts: list[list[int]] = []
        self.seeds: list[int] = []

    async def sample(self, prompt_ids: np.ndarray, *, max_tokens: int, seed: int) -> Sampled:
        self.prompts.append(prompt_ids.tolist())
        self.seeds.append(seed)
        ids = [*self.chat.encode(self.texts[len(self.prompts) - 1]), END]
        finish = "stop" if len(ids) <= max_tokens else "length"
        ids = ids[:max_tokens]
        return Sampled(
            token_ids=np.array(ids),
            logprobs=np.full(len(ids), -0.5),
            versions=((3, len(ids)),),
            finish_reason=finish,  # type: ignore[arg-type]
        )


class Talk:
    """Answers `turns` times with the same text, then ends."""

    def __init__(self, turns: int, text: str = "go on", instructions: str = "") -> None:
        self.turns, self.text, self.instructions = turns, text, instructions

    def reset(self, *, seed: int) -> tuple:
        self.left = self.turns
        return "start", {"instructions": self.instructions} if self.instructions else {}

    def step(self, action: str, /) -> tuple:
        self.left -= 1
        return self.text, 1.0, self.left == 0, False, {}


async def play(chat: Characters, texts: list[str], talk: Talk, **config) -> tuple[Episode, Engine]:
    engine = Engine(texts, chat)
    options = {"context_tokens": 1000, "turn_tokens": 50, **config}
    summarise = options.pop("summarise", None)
    policy = ChatPolicy(engine, chat, ChatPolicyConfig(**options), summarise=summarise)
    return await run_episode(talk, policy, seed=4, max_turns=20), engine


async def test_every_prompt_starts_with_everything_so_far() -> None:
    episode, engine = await play(Characters(), ["a", "bc", "d"], Talk(3, instructions="Be brief."))
    assert episode.status == "done"
    for turn, prompt in enumerate(engine.prompts[1:], start=1):
        before = [*engine.prompts[turn - 1], *Characters().encode(["a", "bc", "d"][turn - 1]), END]
        assert prompt[: len(before)] == before
    assert Characters().decode(engine.prompts[2]) == (
        "<system>Be brief.<end>\n<user>start<end>\n<assistant>a<end>\n<user>go on<end>\n"
        "<assistant>bc<end>\n<user>go on<end>\n<assistant>"
    )
    (row,) = episode_rows(episode.history)
    assert Characters().decode(row.token_ids[row.response_mask]) == "a<end>bc<end>d<end>"
    assert set(row.versions[row.response_mask].tolist()) == {3}


async def test_thinking_is_kept_by_appending_and_branches_by_rendering() -> None:
    chat, texts = Characters(drop_thinking=True), ["<think>\nx</think>\n\nyes", "no"]
    appended, engine = await play(chat, texts, Talk(2))
    assert len(appended.history.branches) == 1
    assert "<think>" in chat.decode(engine.prompts[1])
    rendered, engine = await play(chat, texts, Talk(2), history="render")
    assert [branch.reason for branch in rendered.history.branches] == ["", "template: rewrites history"]
    assert "<think>" not in chat.decode(engine.prompts[1])
    for row, prompt in zip(episode_rows(rendered.history, "step"), engine.prompts, strict=True):
        assert row.token_ids[~row.response_mask].tolist() == prompt


async def test_rendering_without_a_rewrite_goes_on_in_the_same_branch() -> None:
    episode, _ = await play(Characters(), ["a", "b"], Talk(2), history="render")
    assert len(episode.history.branches) == 1


async def test_full_context_ends_the_episode_rather_than_cutting_a_reply() -> None:
    episode, engine = await play(Characters(), ["a" * 40] * 9, Talk(9), context_tokens=160)
    assert episode.status == "context"
    assert episode.truncated
    assert all(len(prompt) + 50 <= 160 for prompt in engine.prompts)
    assert len(episode.turns) == len(engine.prompts) == 2


async def test_oldest_turn_is_dropped_and_recorded() -> None:
    talk = Talk(6, instructions="Rules.")
    episode, engine = await play(
        Characters(), list("abcdef"), talk, context_tokens=80, turn_tokens=20, overflow="truncate_oldest"
    )
    assert episode.status == "done"
    reasons = [branch.reason for branch in episode.history.branches]
    assert reasons[0] == ""
    assert set(reasons[1:]) == {"overflow: truncate_oldest"}
    last = Characters().decode(engine.prompts[-1])
    assert last.startswith("<system>Rules.<end>")
    assert "<user>start" not in last
    assert last.endswith("<user>go on<end>\n<assistant>")
    assert all(len(prompt) <= 60 for prompt in engine.prompts)
    rows = episode_rows(episode.history, "step")
    assert [row.token_ids[~row.response_mask].tolist() for row in rows] == engine.prompts


async def test_summary_takes_the_place_of_old_turns() -> None:
    async def summarise(messages) -> str:
        return f"{len(messages)} messages"

    episode, engine = await play(
        Characters(),
        list("abcdefghi"),
        Talk(9),
        context_tokens=110,
        turn_tokens=10,
        overflow="summarise",
        summarise=summarise,
    )
    assert episode.status == "done"
    branch = episode.history.branches[1]
    assert branch.reason == "overflow: summarise"
    prompt = Characters().decode(engine.prompts[branch.first_turn])
    assert "Summary of what happened before:" in prompt
    assert prompt.endswith("go on<end>\n<assistant>")


async def test_cut_off_reply_is_not_carried_out() -> None:
    episode, _ = await play(Characters(), ["a" * 99], Talk(2))
    assert episode.status == "length"
    assert episode.rewards.tolist() == [0.0]


async def test_stop_sequence_cuts_text_and_tokens_and_the_turn_is_closed() -> None:
    episode, engine = await play(Characters(), ["act!made up", "b"], Talk(2), stops=("!",))
    assert episode.turns[0].response == "act"
    assert "<assistant>act<end>\n<user>" in Characters().decode(engine.prompts[1])
    (row,) = episode_rows(episode.history)
    assert Characters().decode(row.token_ids[row.response_mask]) == "actb<end>"


async def test_long_observation_is_cut_with_a_mark() -> None:
    _, engine = await play(Characters(), ["a", "b"], Talk(2, "x" * 500), observation_chars=60)
    prompt = Characters().decode(engine.prompts[1])
    assert "[... cut off ...]" in prompt
    assert prompt.count("x") <= 60


async def test_members_of_a_group_sample_with_different_seeds() -> None:
    _, engine = await play(Characters(), ["a", "b"], Talk(2))
    _, other = await play(Characters(), ["a", "b"], Talk(2), member=1)
    assert len({*engine.seeds, *other.seeds}) == 4
    assert engine.seeds[0] == turn_seed(4, 0, 0)


@pytest.mark.parametrize(
    "config",
    [
        {"turn_tokens": 1000},
        {"least_turn_tokens": 51},
        {"history": "rerender"},
        {"overflow": "drop"},
        {"observation_chars": 0},
    ],
)
def test_configuration_out_of_range_is_refused(config: dict) -> None:
    with pytest.raises(AgenticError):
        ChatPolicyConfig(**{"context_tokens": 1000, "turn_tokens": 50, **config})


def test_summaries_need_someone_who_makes_them() -> None:
    config = ChatPolicyConfig(context_tokens=100, turn_tokens=10, overflow="summarise")
    with pytest.raises(AgenticError, match="needs summarise"):
        ChatPolicy(Engine([], Characters()), Characters(), config)


@pytest.mark.parametrize("role", ["tool", "user"])
async def test_what_tools_answered_has_their_role(role: str) -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    chat = Characters()
    call = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    engine = Engine([call, "3"], chat)
    config = ChatPolicyConfig(context_tokens=900, turn_tokens=90, tool_role=role)  # type: ignore[arg-type]
    environment = ToolEnvironment(Talk(1), Toolbox([add]))
    episode = await run_episode(environment, ChatPolicy(engine, chat, config), seed=0, max_turns=4)
    assert episode.status == "done"
    assert chat.decode(engine.prompts[0]).startswith("tools:1\n")
    assert chat.decode(engine.prompts[1]).endswith(f"{call}<end>\n<{role}>3<end>\n<assistant>")
