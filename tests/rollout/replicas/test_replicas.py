"""A set of engines: where requests go, what happens when an engine dies or leaves, and weights in turn."""

import asyncio

import numpy as np
import pytest
from roll_rollout import EngineClosed, EngineError, EngineUnavailable, WeightMismatch
from roll_rollout.replicas import ReplicaDeadlines, Replicas

QUICK = ReplicaDeadlines(start_s=0.2, sync_s=0.2, control_s=0.2, drain_s=0.2, serve_s=0.2)


async def no_wait(seconds: float) -> None:
    await asyncio.sleep(0)


async def until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def states(replicas: Replicas) -> dict[str, str]:
    return {status.name: status.state for status in replicas.status()}


class First:
    """A chooser that takes the first replica."""

    def __call__(self, request, replicas):
        return replicas[0].name


async def test_requests_of_a_dead_replica_are_drawn_again_elsewhere(faulty, ask, script):
    engines = {"a": faulty(name="a"), "b": faulty(name="b")}
    replicas = Replicas(engines, choose=First())
    requests = [ask(f"r{seed}", seed=seed, max_tokens=40) for seed in range(4)]
    tasks = [asyncio.create_task(replicas.generate(request)) for request in requests]
    await until(lambda: len(engines["a"].served) == 4)
    await engines["a"].die()
    for request, completion in zip(requests, await asyncio.gather(*tasks), strict=True):
        assert completion.token_ids.tolist() == script(request)
        assert completion.request_id == request.id
        assert completion.finish_reason == "length"
    assert len(engines["b"].served) == 4
    assert states(replicas) == {"a": "lost", "b": "serving"}
    assert "the process is gone" in replicas.status()[0].why
    await replicas.close()


async def test_replacement_has_the_last_weights_before_it_serves(faulty, ask, update_of):
    log: list[str] = []
    made = []

    async def make(name: str):
        made.append(faulty(log, name=f"{name}'"))
        return made[-1]

    engines = {"a": faulty(log, name="a"), "b": faulty(log, name="b")}
    replicas = Replicas(engines, make=make, choose=First(), sleep=no_wait)
    await replicas.update_weights(update_of(1))
    await replicas.update_weights(update_of(2))
    await engines["a"].die()
    with pytest.raises(EngineError):
        await engines["a"].load()
    await replicas.load()
    await until(lambda: states(replicas)["a"] == "serving")
    assert made[0].received == [2]
    assert made[0].served == []
    replicas._dispatch._choose = lambda request, among: "a"  # the test's own chooser, from here on
    completion = await replicas.generate(ask("r"))
    assert completion.versions == ((2, 8),)
    assert made[0].served == ["r"]
    assert replicas.replacements == 1
    assert engines["a"].closed
    await replicas.close()


async def test_replacement_that_does_not_take_the_weights_never_serves(faulty, ask, update_of):
    made = []

    async def make(name: str):
        engine = faulty(name=name)
        engine.lies = len(made) < 2
        made.append(engine)
        return engine

    engines = {"a": faulty(name="a")}
    replicas = Replicas(engines, make=make, attempts=3, sleep=no_wait)
    await replicas.update_weights(update_of(5))
    await engines["a"].die()
    completion = await replicas.generate(ask("r"))
    assert completion.versions == ((5, 8),)
    assert [engine.served for engine in made] == [[], [], ["r"]]
    assert [engine.closed for engine in made] == [True, True, False]
    await replicas.close()


async def test_request_fails_at_once_with_names_when_nobody_is_left(faulty, ask):
    engines = {"a": faulty(name="a"), "b": faulty(name="b")}
    replicas = Replicas(engines)
    for engine in engines.values():
        await engine.die()
    with pytest.raises(EngineUnavailable, match=r"a is lost .*b is lost"):
        await replicas.generate(ask("r"))
    await replicas.close()


async def test_factory_that_fails_is_named_when_its_attempts_are_used_up(faulty, ask):
    async def make(name: str):
        raise RuntimeError("no GPU is free")

    engine = faulty(name="a")
    replicas = Replicas({"a": engine}, make=make, attempts=2, sleep=no_wait)
    await engine.die()
    with pytest.raises(EngineUnavailable, match="replacement 2 failed: no GPU is free"):
        await replicas.generate(ask("r"))
    await replicas.close()


async def test_request_under_which_replicas_keep_dying_fails_by_itself(faulty, ask):
    class Fragile(faulty):
        async def generate(self, request):
            if request.id == "poison":
                await self.die()
            return await super().generate(request)

    async def make(name: str):
        return Fragile(name=name)

    replicas = Replicas({"a": Fragile(name="a")}, make=make, deaths=2, sleep=no_wait)
    with pytest.raises(EngineUnavailable, match="3 replicas died under it"):
        await replicas.generate(ask("poison"))
    assert len(await replicas.generate(ask("fine"))) == 8
    await replicas.close()


async def test_weights_come_in_turn_and_requests_go_to_those_that_serve(faulty, ask, update_of):
    log: list[str] = []
    engines = {name: faulty(log, name=name) for name in "abcd"}
    replicas = Replicas(engines, standing_still=2)
    for engine in engines.values():
        engine.step.clear()
    task = asyncio.create_task(replicas.update_weights(update_of(1)))
    await until(lambda: engines["a"].updating == 1)
    assert [engine.updating for engine in engines.values()] == [1, 0, 0, 0]
    served = await replicas.generate(ask("during the first"))
    assert served.versions == ((0, 8),)
    assert "during the first" not in engines["a"].served
    engines["a"].step.set()
    await until(lambda: engines["b"].updating and engines["c"].updating)
    assert engines["d"].updating == 0
    assert states(replicas) == {"a": "serving", "b": "syncing", "c": "syncing", "d": "serving"}
    for engine in engines.values():
        engine.step.set()
    assert (await task).version == 1
    assert log.index("d begins 1") > min(log.index("b has 1"), log.index("c has 1"))
    assert [status.version for status in replicas.status()] == [1, 1, 1, 1]
    await replicas.close()


async def test_refused_update_changes_no_replica(faulty, ask, update_of):
    engines = {name: faulty(name=name) for name in "ab"}
    replicas = Replicas(engines)
    await replicas.update_weights(update_of(1))
    with pytest.raises(WeightMismatch, match="'a'"):
        await replicas.update_weights(update_of(2, shape=(5,)))
    assert [engine.version for engine in engines.values()] == [1, 1]
    assert states(replicas) == {"a": "serving", "b": "serving"}
    assert (await replicas.generate(ask("r"))).versions == ((1, 8),)
    await replicas.close()


async def test_replica_that_acknowledges_other_bytes_is_lost(faulty, update_of):
    for liar in "ab":
        engines = {name: faulty(name=name) for name in "ab"}
        engines[liar].lies = True
        replicas = Replicas(engines)
        receipt = await replicas.update_weights(update_of(1))
        assert receipt.checksum != "other"
        assert states(replicas)[liar] == "lost"
        assert sum(state == "serving" for state in states(replicas).values()) == 1
        await replicas.close()


async def test_replica_that_does_not_answer_an_update_is_lost_by_name(faulty, ask, update_of):
    engines = {name: faulty(name=name) for name in "ab"}
    replicas = Replicas(engines, deadlines=QUICK)
    engines["b"].hangs = True
    receipt = await replicas.update_weights(update_of(1))
    assert receipt.version == 1
    (status,) = [status for status in replicas.status() if status.state == "lost"]
    assert status.name == "b"
    assert "weight update to version 1: no answer within 0.2 s" in status.why
    assert (await replicas.generate(ask("r"))).versions == ((1, 8),)
    await replicas.close()


async def test_cancelled_update_still_reaches_every_replica(faulty, update_of):
    engines = {name: faulty(name=name) for name in "ab"}
    replicas = Replicas(engines)
    engines["b"].step.clear()
    task = asyncio.create_task(replicas.update_weights(update_of(1)))
    await until(lambda: engines["b"].updating)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engines["b"].step.set()
    await until(lambda: engines["b"].version == 1)
    await replicas.update_weights(update_of(2))
    assert [engine.received for engine in engines.values()] == [[1, 2], [1, 2]]
    await replicas.close()


async def test_hung_replica_lets_go_of_its_requests_when_its_health_is_asked(faulty, ask, script):
    engines = {"a": faulty(name="a", seconds_per_token=lambda request: 3600.0), "b": faulty(name="b")}
    replicas = Replicas(engines, choose=First(), deadlines=QUICK)
    request = ask("r")
    task = asyncio.create_task(replicas.generate(request))
    await until(lambda: engines["a"].served)
    engines["a"].hangs = True
    await replicas.check_health()
    assert (await task).token_ids.tolist() == script(request)
    assert states(replicas) == {"a": "lost", "b": "serving"}
    await replicas.close()


async def test_drained_replica_ends_its_requests_and_takes_no_more(faulty, ask):
    engines = {"a": faulty(name="a"), "b": faulty(name="b")}
    replicas = Replicas(engines, choose=First())
    task = asyncio.create_task(replicas.generate(ask("old", max_tokens=60)))
    await until(lambda: engines["a"].served)
    draining = asyncio.create_task(replicas.drain("a"))
    await asyncio.sleep(0)
    await replicas.generate(ask("new"))
    assert engines["b"].served == ["new"]
    await draining
    assert len(await task) == 60
    await replicas.remove("a")
    assert engines["a"].closed
    assert states(replicas) == {"b": "serving"}
    await replicas.close()


async def test_drain_that_does_not_end_names_replica_and_request(faulty, ask):
    replicas = Replicas({"a": faulty(name="a", seconds_per_token=lambda request: 3600.0)}, deadlines=QUICK)
    task = asyncio.create_task(replicas.generate(ask("slow")))
    await asyncio.sleep(0)
    with pytest.raises(EngineError, match=r"replica 'a' has 1 requests after 0.2 s, such as 'slow'"):
        await replicas.drain("a")
    await replicas.abort(["slow"])
    assert (await task).finish_reason == "abort"
    await replicas.close()


async def test_requests_of_a_removed_replica_go_on_with_the_tokens_they_have(faulty, ask, script, update_of):
    asked = []

    class Watched(faulty):
        async def generate(self, request):
            asked.append(request)
            return await super().generate(request)

    engines = {"a": Watched(name="a"), "b": Watched(name="b")}
    replicas = Replicas(engines, choose=First())
    request = ask("r", max_tokens=50)
    task = asyncio.create_task(replicas.generate(request))
    await until(lambda: engines["a"]._sampled_tokens >= 10)
    await replicas.update_weights(update_of(1))
    await replicas.remove("a")
    completion = await task
    assert completion.token_ids.tolist() == script(request)
    assert completion.finish_reason == "length"
    assert asked[1].partial is not None
    assert len(asked[1].partial) >= 10
    assert [version for version, _ in completion.versions] == [0, 1]
    await replicas.close()


async def test_aborted_request_ends_while_it_waits_for_a_replica(faulty, ask):
    hold = asyncio.Event()

    async def make(name: str):
        await hold.wait()
        return faulty(name=name)

    engine = faulty(name="a")
    replicas = Replicas({"a": engine}, make=make)
    await engine.die()
    task = asyncio.create_task(replicas.generate(ask("r")))
    await until(lambda: states(replicas)["a"] == "lost")
    await replicas.abort(["r", "unknown"])
    completion = await task
    assert (completion.finish_reason, len(completion)) == ("abort", 0)
    await replicas.close()


async def test_stream_goes_on_silently_on_another_replica(faulty, ask, script):
    engines = {"a": faulty(name="a"), "b": faulty(name="b")}
    replicas = Replicas(engines, choose=First())
    request, got = ask("r", max_tokens=40), []
    async for chunk in replicas.stream(request):
        assert chunk.start == len(got)
        got.extend(chunk.token_ids.tolist())
        if len(got) == 10:
            await engines["a"].die()
            replicas._roster.lost(replicas._roster.members["a"], "it died")
        last = chunk
    assert got == script(request) == last.completion.token_ids.tolist()
    await replicas.close()


async def test_stream_that_would_change_its_past_is_an_error(faulty, ask):
    class Other(faulty):
        def _script(self, request):
            return iter([99] * 40)

    engines = {"a": faulty(name="a"), "b": Other(name="b")}
    replicas = Replicas(engines, choose=First())
    with pytest.raises(EngineUnavailable, match="other tokens than had been handed out"):
        async for _ in replicas.stream(ask("r", max_tokens=40)):
            if states(replicas)["a"] != "lost":
                await engines["a"].die()
                replicas._roster.lost(replicas._roster.members["a"], "it died")
    await replicas.close()


async def test_newcomer_stands_still_while_the_set_does(faulty, ask, update_of):
    replicas = Replicas({"a": faulty(name="a")})
    await replicas.update_weights(update_of(3))
    await replicas.pause("keep")
    newcomer = faulty(name="b")
    await replicas.add("b", newcomer)
    assert newcomer.received == [3]
    tasks = [asyncio.create_task(replicas.generate(ask(f"r{n}", prompt=(n + 1,)))) for n in range(4)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    await replicas.resume()
    assert [len(each) for each in await asyncio.gather(*tasks)] == [8, 8, 8, 8]
    assert newcomer.served
    await replicas.close()


async def test_names_and_abilities_of_newcomers_are_checked(faulty):
    class Silent(faulty):
        @property
        def capabilities(self):
            from dataclasses import replace

            return replace(super().capabilities, streaming=False)

    replicas = Replicas({"a": faulty(name="a")})
    with pytest.raises(EngineError, match="'a': is there already, and serving"):
        await replicas.add("a", faulty(name="a"))
    with pytest.raises(EngineError, match="'b': streaming is False, the set needs True"):
        await replicas.add("b", Silent(name="b"))
    with pytest.raises(EngineError, match=r"'c': is unknown, there are \['a'\]"):
        await replicas.remove("c")
    await replicas.close()


async def test_chooser_that_names_a_stranger_is_told_so(faulty, ask):
    replicas = Replicas({"a": faulty(name="a")}, choose=lambda request, among: "z")
    with pytest.raises(EngineError, match=r"the chooser named replica 'z', allowed are \['a'\]"):
        await replicas.generate(ask("r"))
    assert (await replicas.load()).waiting == 0
    await replicas.close()


async def test_load_sums_and_never_falls_when_a_replica_is_lost(faulty, ask):
    engines = {"a": faulty(name="a"), "b": faulty(name="b")}
    replicas = Replicas(engines)
    await asyncio.gather(*[replicas.generate(ask(f"r{n}", prompt=(n + 1, 7))) for n in range(6)])
    before = await replicas.load()
    assert before.sampled_tokens == 48
    assert all(engine.served for engine in engines.values())
    await engines["a"].die()
    assert (await replicas.load()).sampled_tokens == 48
    await replicas.close()
    assert (await replicas.load()).running == 0


async def test_close_ends_requests_and_replacements(faulty, ask):
    started = asyncio.Event()

    async def make(name: str):
        started.set()
        await asyncio.Event().wait()

    engines = {"a": faulty(name="a"), "b": faulty(name="b", seconds_per_token=lambda request: 3600.0)}
    replicas = Replicas(engines, make=make, choose=First())
    await engines["a"].die()
    task = asyncio.create_task(replicas.generate(ask("r")))
    await started.wait()
    await asyncio.gather(replicas.close(), replicas.close())
    with pytest.raises(EngineClosed):
        await task
    with pytest.raises(EngineClosed):
        await replicas.generate(ask("s"))


def test_numbers_out_of_range_are_refused(faulty):
    with pytest.raises(EngineError, match="standing_still=0"):
        Replicas({"a": faulty()}, standing_still=0)
    with pytest.raises(EngineError, match="0 engines"):
        Replicas({})
    with pytest.raises(EngineError, match="sync_s: got 0"):
        ReplicaDeadlines(sync_s=0)


async def test_group_meets_its_prompt_on_one_replica(faulty, ask):
    engines = {name: faulty(name=name) for name in "abc"}
    replicas = Replicas(engines)
    prompts = np.arange(1, 7)
    await asyncio.gather(
        *[
            replicas.generate(ask(f"{prompt}#{member}", seed=member, prompt=(int(prompt), 3)))
            for prompt in prompts
            for member in range(4)
        ]
    )
    homes = {prompt: {name for name, e in engines.items() if f"{prompt}#0" in e.served} for prompt in prompts}
    for prompt, (home,) in homes.items():
        assert all(f"{prompt}#{member}" in engines[home].served for member in range(4))
    assert {home for (home,) in homes.values()} == set("abc")
    await replicas.close()
