"""The server with the official client, over real sockets."""

import asyncio
import json
import sys

import numpy as np
import openai
import pytest
from characters import END, Characters
from roll_agentic import AgenticError, Sampled, episode_rows
from roll_agentic.proxy import AgentResult, AgentRunner, ProxyServer, ServerLimits, Session, SessionBook

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


class Engine:
    """Says the given texts in turn, the last one for ever; one text may be an error to raise."""

    def __init__(self, *texts: str | Exception, wait_s: float = 0.0) -> None:
        self.texts, self.wait_s = list(texts), wait_s
        self.prompts: list[str] = []

    async def sample(self, prompt_ids: np.ndarray, *, max_tokens: int, seed: int) -> Sampled:
        self.prompts.append(Characters().decode(prompt_ids))
        await asyncio.sleep(self.wait_s)
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if isinstance(text, Exception):
            raise text
        ids = [*Characters().encode(text), END]
        cut = ids[:max_tokens]
        return Sampled(
            token_ids=np.array(cut),
            logprobs=np.full(len(cut), -0.25),
            versions=((7, len(cut)),),
            finish_reason="stop" if len(cut) == len(ids) else "length",
        )


class Served:
    """A server with one open session and a client for it."""

    def __init__(self, engine: Engine, *, key: str = "key", session: dict | None = None, **limits) -> None:
        options = {"context_tokens": 4000, "reply_tokens": 500, **limits}
        self.server = ProxyServer(engine, Characters(), ServerLimits(**options))
        self.session = self.server.sessions.open(key=key, **(session or {}))

    async def __aenter__(self) -> "Served":
        await self.server.start()
        self.client = openai.AsyncOpenAI(base_url=self.server.base_url, api_key="key", max_retries=0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.close()

    async def chat(self, *messages: dict | str, **options):
        sent = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        return await self.client.chat.completions.create(model="any", messages=sent, **options)


async def test_chat_continues_token_exactly_and_is_recorded() -> None:
    async with Served(engine := Engine("one", "two")) as served:
        first = await served.chat("hi")
        assert first.choices[0].message.content == "one"
        assert first.choices[0].finish_reason == "stop"
        assert first.usage.completion_tokens == 4
        reply = {"role": "assistant", "content": "one"}
        await served.chat("hi", reply, "more")
        assert engine.prompts[1] == engine.prompts[0] + "one<end>\n<user>more<end>\n<assistant>"
        history, calls = served.session.history()
        assert calls == (0, 1)
        (row,) = episode_rows(history)
        assert Characters().decode(row.token_ids[row.response_mask]) == "one<end>two<end>"
        assert set(row.behavior_logprobs[row.response_mask].tolist()) == {-0.25}
        assert set(row.versions[row.response_mask].tolist()) == {7}


async def test_tool_calls_round_trip_and_continue_the_transcript() -> None:
    async with Served(engine := Engine(f"I add. {CALL}", "it is 3")) as served:
        first = (await served.chat("1+2?", tools=[TOOL])).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.content == "I add."
        (call,) = first.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
        tool = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        second = await served.chat("1+2?", first.message.model_dump(exclude_none=True), tool, tools=[TOOL])
        assert second.choices[0].message.content == "it is 3"
        assert engine.prompts[1] == engine.prompts[0] + f"I add. {CALL}<end>\n<tool>3<end>\n<assistant>"
        assert len(served.session.history()[0].branches) == 1


async def test_malformed_call_stays_text_and_forbidden_calls_are_not_parsed() -> None:
    async with Served(Engine('<tool_call>{"name": "add", "arguments": "x"}</tool_call>', CALL)) as served:
        broken = (await served.chat("a", tools=[TOOL])).choices[0]
        assert (broken.finish_reason, broken.message.tool_calls) == ("stop", None)
        assert "tool_call" in broken.message.content
        none = (await served.chat("b", tools=[TOOL], tool_choice="none")).choices[0]
        assert none.message.tool_calls is None


async def test_streamed_reply_is_the_same_text_calls_and_usage() -> None:
    async with Served(Engine("some more words\n now", CALL)) as served:
        stream = await served.chat("hi", stream=True, stream_options={"include_usage": True})
        pieces = [piece async for piece in stream]
        text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        assert text == "some more words\n now"
        assert len(pieces) > 5
        assert pieces[-1].usage.completion_tokens == 21
        stream = await served.chat("again", tools=[TOOL], stream=True)
        deltas = [piece.choices[0] async for piece in stream]
        (call,) = [c for choice in deltas for c in choice.delta.tool_calls or []]
        assert (call.index, call.function.name) == (0, "add")
        assert deltas[-1].finish_reason == "tool_calls"


async def test_responses_form_works_whole_and_streamed() -> None:
    tool = {"type": "function", **TOOL["function"], "strict": False}
    async with Served(engine := Engine(f"so {CALL}", "three", "streamed words")) as served:
        first = await served.client.responses.create(
            model="any", instructions="Be kind.", input="1+2?", tools=[tool]
        )
        call = next(item for item in first.output if item.type == "function_call")
        assert first.output_text == "so"
        items = [
            {"role": "user", "content": "1+2?"},
            {"role": "assistant", "content": "so"},
            {"type": "function_call", "call_id": call.call_id, "name": "add", "arguments": call.arguments},
            {"type": "function_call_output", "call_id": call.call_id, "output": "3"},
        ]
        second = await served.client.responses.create(
            model="any", instructions="Be kind.", input=items, tools=[tool]
        )
        assert (second.status, second.output_text) == ("completed", "three")
        assert engine.prompts[1].startswith(engine.prompts[0])
        events = [
            event
            async for event in await served.client.responses.create(model="any", input="go", stream=True)
        ]
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "streamed words"
        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "streamed words"
        assert [len(branch.transcript.segments) for branch in served.session.history()[0].branches] == [4, 2]


async def test_edited_history_becomes_a_branch_and_a_fork_inherits() -> None:
    async with Served(Engine("one", "two", "three", "four")) as served:
        one = {"role": "assistant", "content": "one"}
        await served.chat("hi")
        await served.chat("hi", one, "left")
        await served.chat("hi", one, "right")
        await served.chat("hi", {"role": "assistant", "content": "edited"}, "left")
        history, calls = served.session.history()
        assert calls == (0, 1, 2, 3)
        assert [branch.reason for branch in history.branches] == [
            "",
            "fork: call 0 continued",
            "fork: history was rewritten",
        ]
        said = [Characters().decode(row.token_ids[row.response_mask]) for row in episode_rows(history)]
        assert said == ["one<end>two<end>", "three<end>", "four<end>"]


async def test_stop_sequence_and_token_limit_are_obeyed() -> None:
    async with Served(Engine("act!junk", "b" * 50)) as served:
        cut = (await served.chat("hi", stop="!")).choices[0]
        assert (cut.message.content, cut.finish_reason) == ("act", "stop")
        short = (await served.chat("hi", max_completion_tokens=5)).choices[0]
        assert (short.message.content, short.finish_reason) == ("bbbbb", "length")
        assert [len(call.sampled) for call in served.session.calls] == [3, 5]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "'messages' must be a list"),
        ({"messages": [{"role": "king", "content": "x"}]}, "must have a role"),
        ({"messages": [{"role": "user", "content": 5}]}, "must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text is served"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "'n' must be 1"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "calls of named functions"),
        ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, "calls of named functions"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "at least 1"),
        ({"messages": [{"role": "user", "content": "x"}], "stop": [""]}, "none of them empty"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "x"}]}, r"tools\[0\]"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "leaves no room"),
        ([], "must be a JSON object"),
    ],
)
async def test_request_that_cannot_be_served_is_refused_by_name(body: object, message: str) -> None:
    async with Served(Engine("never")) as served:
        with pytest.raises(openai.BadRequestError, match=message):
            await served.client.post("/chat/completions", body=body, cast_to=object)
        assert served.session.calls == ()


async def test_unknown_closed_and_exhausted_sessions_are_refused() -> None:
    async with Served(Engine("a"), session={"max_calls": 1}) as served:
        stranger = openai.AsyncOpenAI(base_url=served.server.base_url, api_key="other", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="no session has this key"):
            await stranger.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        by_header = await stranger.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], extra_headers={"X-Session-Id": "key"}
        )
        assert by_header.choices[0].message.content == "a"
        await stranger.close()
        address = served.server.session_url("a/b c")
        other = served.server.sessions.open(key="a/b c")
        async with openai.AsyncOpenAI(base_url=address, api_key="whatever", max_retries=0) as insider:
            await insider.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert len(other.calls) == 1
        with pytest.raises(openai.APIStatusError, match="out of calls") as caught:
            await served.chat("x")
        assert caught.value.status_code == 410
        served.session.close()
        with pytest.raises(openai.APIStatusError, match="is over"):
            await served.chat("x")


async def test_large_body_too_many_calls_slow_and_broken_engines_have_their_status() -> None:
    async with Served(
        Engine("a", wait_s=0.5), body_bytes=2000, concurrent=1, waiting=0, call_s=0.1
    ) as served:
        with pytest.raises(openai.APIStatusError) as large:
            await served.chat("x" * 3000)
        assert large.value.status_code == 413
        answers = await asyncio.gather(served.chat("x"), served.chat("y"), return_exceptions=True)
        assert sorted(answer.status_code for answer in answers) == [429, 504]
    async with Served(Engine(RuntimeError("out of memory"))) as served:
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await served.chat("x")
        assert served.session.calls == ()


async def test_answer_that_comes_after_the_session_was_closed_is_not_recorded() -> None:
    async with Served(Engine("late", wait_s=0.2)) as served:
        call = asyncio.ensure_future(served.chat("x"))
        await asyncio.sleep(0.05)
        served.session.close()
        with pytest.raises(openai.APIStatusError, match="closed while"):
            await call
        assert served.session.calls == ()


async def test_models_and_health_answer_without_a_session() -> None:
    async with Served(Engine("a")) as served:
        assert [model.id async for model in served.client.models.list()] == ["policy"]
        assert (await served.client.get("/../health", cast_to=object))["sessions"] == 1  # type: ignore[index]


async def test_many_sessions_at_once_do_not_mix() -> None:
    async with Served(Engine("x")) as served:
        sessions = [served.server.sessions.open() for _ in range(20)]

        async def talk(session: Session) -> None:
            client = openai.AsyncOpenAI(base_url=served.server.base_url, api_key=session.key)
            messages = [{"role": "user", "content": session.key}]
            for _ in range(3):
                answer = await client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
                messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
                messages += [{"role": "user", "content": "go on"}]
            await client.close()

        await asyncio.gather(*(talk(session) for session in sessions))
        for session in sessions:
            history, calls = session.history()
            assert (len(calls), len(history.branches)) == (3, 1)
            assert session.key in Characters().decode(history.current.token_ids)


async def test_agent_in_this_process_gets_an_episode() -> None:
    async with ProxyServer(
        Engine("4"), Characters(), ServerLimits(context_tokens=500, reply_tokens=50)
    ) as server:
        runner = AgentRunner(server, seconds=30.0)

        async def agent(base_url: str, api_key: str) -> float:
            async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
                answer = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "2+2"}]
                )
            return float(answer.choices[0].message.content == "4")

        episode = await runner.run_function(agent, seed=1)
        assert (episode.status, episode.total_reward, episode.calls) == ("done", 1.0, (0,))
        assert len(server.sessions) == 0

        async def breaks(base_url: str, api_key: str) -> float:
            raise KeyError("bug")

        async def late(base_url: str, api_key: str) -> float:
            raise TimeoutError("its own")

        async def infinite(base_url: str, api_key: str) -> AgentResult:
            return AgentResult(reward=float("inf"))

        for bad, kind in ((breaks, "error"), (late, "error"), (infinite, "invalid")):
            failed = await runner.run_function(bad, seed=1)
            assert failed.status == "policy_error"
            assert failed.failure is not None
            assert failed.failure.kind == kind
            assert np.isnan(failed.total_reward)

        async def hangs(base_url: str, api_key: str) -> float:
            await asyncio.Event().wait()
            return 0.0

        stopped = await AgentRunner(server, seconds=0.1).run_function(hangs, seed=1)
        assert stopped.status == "time_limit"


PROGRAM = """
import json, os, urllib.request
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps({"messages": [{"role": "user", "content": "say " + os.getenv("EPISODE_SEED")}]}).encode(),
    headers={"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print(json.dumps({"reward": len(said), "metrics": {"words": 1}}))
"""


async def test_any_program_that_takes_a_base_url_is_an_agent() -> None:
    async with ProxyServer(
        Engine("abc"), Characters(), ServerLimits(context_tokens=500, reply_tokens=50)
    ) as server:
        runner = AgentRunner(server, seconds=50.0)
        episode = await runner.run_program([sys.executable, "-c", PROGRAM], seed=9)
        assert episode.failure is None
        assert episode.total_reward == 3.0
        assert "say 9" in Characters().decode(episode.history.current.token_ids)
        failed = await runner.run_program([sys.executable, "-c", "import sys; sys.exit('no luck')"], seed=9)
        assert failed.failure is not None
        assert "no luck" in failed.failure.message
        silent = await runner.run_program([sys.executable, "-c", "print('hm')"], seed=9)
        assert silent.failure is not None
        assert "last line" in silent.failure.message
        sleeper = "import time; time.sleep(600)"
        stopped = await AgentRunner(server, seconds=0.5).run_program([sys.executable, "-c", sleeper], seed=9)
        assert (stopped.status, stopped.seconds < 10) == ("time_limit", True)


def test_limits_and_keys_out_of_range_are_refused() -> None:
    with pytest.raises(AgenticError):
        ServerLimits(context_tokens=1, reply_tokens=1)
    book = SessionBook()
    book.open(key="a")
    for options in ({"key": "a"}, {"key": ""}, {"max_calls": 0}):
        with pytest.raises(AgenticError):
            book.open(**options)  # type: ignore[arg-type]
    with pytest.raises(AgenticError, match="not running"):
        _ = ProxyServer(Engine("a"), Characters(), ServerLimits(context_tokens=9, reply_tokens=2)).base_url
