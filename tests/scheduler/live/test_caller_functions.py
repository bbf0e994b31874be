"""What callers' functions raise or return wrongly ends `next_batch`, and leaves nothing behind."""

import asyncio

import pytest
from roll_scheduler import (
    Generated,
    Graded,
    LeastLoaded,
    OverProvision,
    PromptTraits,
    SchedulerError,
    SchedulerPolicy,
)


def make_policy(**changes):
    return SchedulerPolicy(**{"groups_per_batch": 2, "group_size": 2, **changes})


class Raising:
    """A filter that fails."""

    name = "raising"

    def keep(self, values, truncated):
        raise ValueError("no verdict")


def raising(*arguments):
    raise ValueError("told nothing")


def test_a_filter_that_raises_stops_the_completions_that_its_group_did_without(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 1.0 if ticket.member < 2 else 500.0
        policy = make_policy(filters=(Raising(),), over_provision=OverProvision(members=1))
        with pytest.raises(ValueError, match="no verdict"):
            await work.scheduler(policy).next_batch()

    run_virtual(main())  # which looks for tasks that are left


def test_an_observer_that_raises_costs_no_batch(run_virtual, work):
    async def main():
        async with work.scheduler(make_policy(), observe=raising) as scheduler:
            batch = await scheduler.next_batch()
            assert [group.id for group in batch.groups] == [0, 1]
            with pytest.raises(ValueError, match="told nothing"):
                await scheduler.next_batch()

    run_virtual(main())


def test_an_observer_that_raises_at_the_close_leaves_no_task(run_virtual, work):
    async def main():
        work.seconds = lambda ticket: 1.0 if ticket.member == 0 else 500.0
        scheduler = work.scheduler(make_policy(), observe=raising)
        waiting = asyncio.ensure_future(scheduler.next_batch())
        await asyncio.sleep(2.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert scheduler.ledger() == {"closed": 4}

    run_virtual(main())


def test_a_part_that_cannot_tell_its_state_leaves_no_task(run_virtual, work):
    class Broken:
        def state(self):
            raise ValueError("state is broken")

        def restore(self, state):
            pass

    async def main():
        work.seconds = lambda ticket: 500.0
        scheduler = work.scheduler(make_policy(), parts={"curriculum": Broken()})
        waiting = asyncio.ensure_future(scheduler.next_batch())
        await asyncio.sleep(2.0)
        with pytest.raises(ValueError, match="state is broken"):
            await scheduler.aclose()
        with pytest.raises(ValueError, match="state is broken"):
            await waiting

    run_virtual(main())


@pytest.mark.parametrize("option", ["tag", "traits"])
def test_what_is_asked_of_a_prompt_and_raises_after_many_ends_the_wait(run_virtual, work, option):
    def of(prompt):
        if prompt == "p700":  # later than one turn of the event loop admits
            raise ValueError("what prompt is this")
        return "shop" if option == "tag" else PromptTraits(key=prompt)

    async def main():
        policy = make_policy(groups_per_batch=800, group_size=1)
        scheduler = work.scheduler(policy, replicas={"a": 2}, **{option: of})
        with pytest.raises(ValueError, match="what prompt is this"):
            await scheduler.next_batch()
        assert scheduler.snapshot().first_group == 0

    run_virtual(main())


def test_a_prompt_of_which_a_function_failed_is_generated_after_a_resume(run_virtual, work):
    async def main():
        def tag(prompt):
            if prompt == "p2":
                raise ValueError("what prompt is this")
            return "shop"

        policy = make_policy(max_staleness=1)
        scheduler = work.scheduler(policy, tag=tag)
        with pytest.raises(ValueError, match="what prompt is this"):
            await scheduler.next_batch()
        snapshot = scheduler.snapshot()
        assert (snapshot.first_group, snapshot.resolved) == (0, ())
        async with work.scheduler(policy, tag=lambda prompt: "shop", resume=snapshot) as resumed:
            ids = [group.id for _ in range(2) for group in (await resumed.next_batch()).groups]
        assert ids == [0, 1, 2, 3]

    run_virtual(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tag": lambda prompt: None}, r"tag: got None for group 0, allowed is text"),
        ({"tag": lambda prompt: ["shop"]}, r"tag: got \['shop'\] for group 0, allowed is text"),
        ({"traits": lambda prompt: None}, r"traits: got None for group 0, allowed is a PromptTraits"),
        ({"traits": lambda prompt: PromptTraits(session=[1])}, r"session \[1\] .* what can be hashed"),
        ({"traits": lambda prompt: PromptTraits(key={})}, r"key \{\} .* what can be hashed"),
        ({"traits": lambda prompt: PromptTraits(prompt_tokens=-1)}, r"prompt_tokens -1 .* number >= 0"),
        ({"traits": lambda prompt: PromptTraits(prompt_tokens=float("nan"))}, r"prompt_tokens nan"),
    ],
)
def test_what_a_prompt_is_said_to_be_is_checked(run_virtual, work, options, message):
    async def main():
        scheduler = work.scheduler(
            make_policy(concurrency={"shop": 1} if "tag" in options else {}), **options
        )
        with pytest.raises(SchedulerError, match=message):
            await scheduler.next_batch()

    run_virtual(main())


@pytest.mark.parametrize("tokens", [float("nan"), float("inf")])
@pytest.mark.parametrize("choice", [{"router": "least_tokens"}, {"order": "longest_first"}])
def test_an_estimator_without_a_number_is_an_error_and_not_a_hang(run_virtual, work, tokens, choice):
    class Estimator:
        def observe(self, key, domain, tokens, truncated=False):
            pass

        def expected(self, key, domain="", *, so_far=0.0, running=()):
            return tokens

    async def main():
        scheduler = work.scheduler(make_policy(**choice), replicas={"a": 1, "b": 1}, estimator=Estimator())
        with pytest.raises(SchedulerError, match=f"estimator: got {tokens} expected tokens for group 0"):
            await scheduler.next_batch()

    run_virtual(main())


def test_a_router_that_is_empty_and_has_a_length_is_used(run_virtual, work):
    class Counting(LeastLoaded):
        def __init__(self):
            super().__init__()
            self.names = []

        def __len__(self):
            return len(self.names)

        def up(self, name, slots):
            self.names.append(name)
            super().up(name, slots)

    async def main():
        router = Counting()
        async with work.scheduler(make_policy(), router=router) as scheduler:
            await scheduler.next_batch()
        assert router.names == ["a"]

    run_virtual(main())


def test_environments_that_are_limited_have_to_be_told_apart(run_virtual, work):
    async def main():
        with pytest.raises(SchedulerError, match=r"tag: got None, allowed with concurrency .*'shop': 1"):
            work.scheduler(make_policy(concurrency={"shop": 1}))

    run_virtual(main())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"lengths": Raising()}, r"parts: got the name 'lengths', allowed is any other text"),
        ({3: Raising()}, r"parts: got the name 3"),
        ({"curriculum": Raising()}, r"parts\['curriculum'\]: got .*, allowed is a StatefulPart"),
    ],
)
def test_what_cannot_be_a_part_of_a_snapshot_is_refused_at_once(run_virtual, work, parts, message):
    async def main():
        with pytest.raises(SchedulerError, match=message):
            work.scheduler(make_policy(), parts=parts)

    run_virtual(main())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": {"groups_per_batch": 2}}, r"policy: got dict, allowed is a SchedulerPolicy"),
        ({"replicas": ["a"]}, r"replicas: got \['a'\], allowed are slots by name"),
        ({"replicas": {}}, r"replicas: got \{\}, allowed are slots by name, of at least one"),
        ({"resume": {"first_group": 3}}, r"resume: got dict, allowed is None or a SchedulerSnapshot"),
    ],
)
def test_what_a_scheduler_is_made_of_is_checked_by_name(run_virtual, work, wrong, message):
    async def main():
        with pytest.raises(SchedulerError, match=message):
            work.scheduler(**{"policy": make_policy(), **wrong})

    run_virtual(main())


def test_a_second_event_loop_is_refused(work):
    async def generate(ticket, prompt, replica):
        return Generated(completion="text", tokens=1, oldest_version=0, truncated=False)

    async def grade(ticket, prompt, completion):
        return Graded(score=None, value=float(ticket.member))

    async def make():
        work.generate, work.grade = generate, grade
        return work.scheduler(make_policy())

    async def call(scheduler):
        return len((await scheduler.next_batch()).groups)

    scheduler = asyncio.run(make())
    assert asyncio.run(call(scheduler)) == 2
    with pytest.raises(SchedulerError, match="next_batch: got another event loop than before"):
        asyncio.run(call(scheduler))
    asyncio.run(scheduler.aclose())
