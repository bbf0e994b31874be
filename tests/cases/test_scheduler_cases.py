"""Hand-written cases of scheduling, bound to the public functions of roll_scheduler."""

import asyncio
import json
from collections import Counter
from itertools import chain, repeat
from pathlib import Path

import pytest
from roll_scheduler import (
    Generated,
    Graded,
    OverProvision,
    PartialRollouts,
    RolloutScheduler,
    SchedulerCore,
    SchedulerError,
    SchedulerPolicy,
    SchedulerSnapshot,
    TicketFailed,
    may_train,
    staleness,
    ticket_seed,
    versions_of,
)

LINES = (Path(__file__).parents[1] / "data/cases/scheduler.jsonl").read_text().splitlines()
CASES = [json.loads(line) for line in LINES]
STEP = 50


async def yields(count):
    """Lets every other task go on `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def grade(ticket, prompt, completion):
    return Graded(score=completion, value=float(ticket.member))


def generated(prompt, version=0):
    return Generated(completion=prompt, tokens=1, oldest_version=version, truncated=False)


def admission(case):
    policy = SchedulerPolicy(groups_per_batch=case["batch"], group_size=1, max_staleness=case["bound"])
    resume = SchedulerSnapshot(version=case["resume_version"])
    core = SchedulerCore(policy, replicas={"a": 1}, resume=resume)
    for _ in range(case["outstanding"]):
        core.admit(0.0)
    return {"may_submit": core.room}


def version_bound(case):
    versions = {"version": case["consume_version"], "oldest_version": case["start_version"]}
    return {
        "may_train": may_train(**versions, max_staleness=case["bound"]),
        "staleness": staleness(**versions),
    }


def failures(case):
    async def generate(ticket, prompt, replica):
        if ticket.group == 0 and ticket.member < case["failed"]:
            raise TicketFailed("engine", "broken")
        return generated(prompt)

    async def main():
        policy = SchedulerPolicy(groups_per_batch=1, group_size=case["group_size"])
        async with RolloutScheduler(
            prompts=range(9), generate=generate, grade=grade, replicas={"a": 8, "b": 8}, policy=policy
        ) as scheduler:
            return [await scheduler.next_batch() for _ in range(2)]

    first, second = asyncio.run(main())
    return {
        "group_scored_with": len(first.groups[0].members),
        "worker_alive": len(second.groups) == 1,
        "or": "failed one retried",
        "group_dropped": first.groups[0].id == 1,
        "counted": first.dropped == {"failed": 1} and first.failures == {"engine": 2 * case["failed"]},
    }


def buffer(case):
    batch = case["capacity"] // 4
    policy = SchedulerPolicy(groups_per_batch=batch, group_size=1, max_staleness=3)
    taken = []

    def prompts():
        for item in range(case["producer_items"]):
            taken.append(item)
            yield item

    async def generate(ticket, prompt, replica):
        return generated(prompt)

    async def main():
        async with RolloutScheduler(
            prompts=prompts(), generate=generate, grade=grade, replicas={"a": 64}, policy=policy
        ) as scheduler:
            batches = [await scheduler.next_batch()]
            await yields(STEP * case["capacity"] // 64)
            assert len(taken) == case["capacity"]
            assert scheduler.metrics()["scheduler/ready_groups"] == case["capacity"] - batch
            while batches[-1].groups:
                batches.append(await scheduler.next_batch())
            return batches

    batches = asyncio.run(main())
    delivered = [group.prompt for group in chain.from_iterable(batch.groups for batch in batches)]
    assert len(set(delivered)) == len(delivered)
    evicted = case["producer_items"] - len(delivered) - sum(sum(batch.dropped.values()) for batch in batches)
    return {"delivered": len(delivered), "evicted_silently": evicted}


def fairness(case):
    trained = Counter()
    now = 0

    async def generate(ticket, prompt, replica):
        version = now
        await yields(case["durations_in_steps"][prompt] * STEP)
        return generated(prompt, version)

    async def main():
        nonlocal now
        policy = SchedulerPolicy(groups_per_batch=2, group_size=1, max_staleness=case["bound"])
        prompts = chain.from_iterable(repeat(range(case["prompts"]), case["epochs"]))
        async with RolloutScheduler(
            prompts=prompts, generate=generate, grade=grade, replicas={"a": 8}, policy=policy
        ) as scheduler:
            while (batch := await scheduler.next_batch()).groups:
                trained.update(group.prompt for group in batch.groups)
                await yields(STEP)
                now += 1
                scheduler.publish(now)

    asyncio.run(main())
    counts = [trained[prompt] for prompt in range(case["prompts"])]
    return {"min_times_trained": min(counts), "max_times_trained": max(counts)}


def engine_crash(case):
    engines = [f"engine {number}" for number in range(case["engines"])]
    on_dead = case["in_flight_on_dead"]
    died = asyncio.Event()
    finished = Counter()

    async def generate(ticket, prompt, replica):
        await died.wait()
        finished[ticket.id] += 1
        return generated(prompt)

    async def main():
        policy = SchedulerPolicy(groups_per_batch=on_dead * case["engines"], group_size=1)
        slots = dict.fromkeys(engines, on_dead)
        async with RolloutScheduler(
            prompts=range(100), generate=generate, grade=grade, replicas=slots, policy=policy
        ) as scheduler:
            waiting = asyncio.ensure_future(scheduler.next_batch())
            await yields(STEP)
            lost = [item.ticket.id for item in scheduler.pending() if item.replica == engines[0]]
            scheduler.remove_replica(engines[0], "died")
            died.set()
            return (
                lost,
                await asyncio.wait_for(waiting, timeout=case.get("within_s", 60)),
                scheduler.metrics(),
            )

    try:
        lost, batch, metrics = asyncio.run(main())
    except SchedulerError as error:
        return {
            "hang": False,
            "error_within_s": 60,
            "error_names": "engine" if engines[0] in str(error) else str(error),
        }
    delivered = Counter(member.ticket.id for group in batch.groups for member in group.members)
    return {
        "results": sum(delivered[ticket] for ticket in lost),
        "each_exactly_once": all(delivered[ticket] == finished[ticket] == 1 for ticket in lost),
        "dead_engine_reported": metrics["scheduler/replicas"] == case["engines"] - 1,
    }


def seeds(case):
    def of(run_seed):
        return [ticket_seed(run_seed, group=0, member=engine) for engine in range(case["engines"])]

    run_seed = case["run_seed"]
    return {
        "outputs_differ_between_engines": len(set(of(run_seed))) == case["engines"],
        "same_run_seed_reproduces": of(run_seed) == of(run_seed),
        "other_run_seed_differs": not set(of(run_seed)) & set(of(run_seed + 1)),
    }


def resume(case):
    """Runs until the groups are as the case says, takes a snapshot, goes on from it."""
    yielded = sorted({group for key in GROUPS for group in case.get(key, [])})
    policy = SchedulerPolicy(groups_per_batch=1, group_size=1, max_staleness=len(yielded) - 1)
    core = SchedulerCore(policy, replicas={"a": len(yielded)})
    sent = {ticket.group: ticket for _ in yielded for ticket in commands(core.admit(0.0))}
    for group in case["trained"]:
        commands(core.generated(sent[group], tokens=1, oldest_version=0, truncated=False, now=0.0))
        core.graded(sent[group], value=1.0, now=0.0)
        core.take_batch()
        core.open_batch()
    for group in case.get("buffered", []):
        commands(core.generated(sent[group], tokens=1, oldest_version=0, truncated=False, now=0.0))
        core.graded(sent[group], value=1.0, now=0.0)
    for group in case.get("dropped_as_stale", []):
        core.generated(sent[group], tokens=1, oldest_version=-len(yielded), truncated=False, now=0.0)
    snapshot = core.snapshot()
    resumed = SchedulerCore(policy, replicas={"a": len(yielded)}, resume=snapshot)
    again = []
    while resumed.next_group <= yielded[-1]:
        if not resumed.pass_over():
            again += [ticket.group for ticket in commands(resumed.admit(0.0))]
    open_groups = sorted(set(yielded) - set(case["trained"]) - set(case.get("dropped_as_stale", [])))
    return {
        "after_resume_trained_once": again,
        "skipped": sorted(set(open_groups) - set(again)),
        "resume_at": snapshot.first_group,
    }


class Engine:
    """Generates until it is told to end; notes what runs and how many tokens each ticket got."""

    def __init__(self):
        self.running = set()
        self.tokens = Counter()
        self.finished = Counter()
        self.may_end = asyncio.Event()
        self.version = 0

    async def generate(self, ticket, prompt, replica):
        self.running.add(ticket.id)
        try:
            while not self.may_end.is_set():
                self.tokens[ticket.group] += 1
                await asyncio.sleep(0)
        finally:
            self.running.remove(ticket.id)
        self.finished[ticket.id] += 1
        return generated(prompt, self.version)


def trace_of_versions(case):
    versions = [event.split(" v")[-1] for event in case["events"]]
    start, *published = map(int, versions)
    return {"off_policy_steps": {"r1": staleness(version=published[-1], oldest_version=start)}}


def trace_of_abort(case):
    """Two run, two wait for a slot; all are aborted, then let go on."""

    async def main():
        engine = Engine()
        policy = SchedulerPolicy(groups_per_batch=4, group_size=1)
        async with RolloutScheduler(
            prompts="abcd", generate=engine.generate, grade=grade, replicas={"a": 2}, policy=policy
        ) as scheduler:
            batch = asyncio.ensure_future(scheduler.next_batch())
            await yields(STEP)
            assert engine.running == {0, 1}
            await scheduler.pause("abort")
            still = len(engine.running)
            queued = engine.tokens[2] + engine.tokens[3]
            engine.may_end.set()
            scheduler.resume()
            delivered = Counter(
                member.ticket.id for group in (await batch).groups for member in group.members
            )
        return {
            "results": delivered.total(),
            "each_exactly_once": set(delivered.values()) == {1} and delivered == engine.finished,
            "tokens_of_c_d": queued,
            "engine_in_flight": still,
        }

    return asyncio.run(main())


def trace_of_race(case):
    """A prompt that comes in a pause is held back, so there is nothing that an abort could miss."""

    async def main():
        engine = Engine()
        engine.may_end.set()
        policy = SchedulerPolicy(groups_per_batch=1, group_size=1)
        async with RolloutScheduler(
            prompts="a", generate=engine.generate, grade=grade, replicas={"a": 2}, policy=policy
        ) as scheduler:
            await scheduler.pause("keep")
            batch = asyncio.ensure_future(scheduler.next_batch())
            await yields(STEP)
            assert not batch.done() and not engine.finished
            await scheduler.pause("abort")
            scheduler.resume()
            results = len((await batch).groups)
        once = engine.finished == {0: 1}
        return {
            "results": results,
            "a": "aborted or finished after resume, never lost, never twice" if once else engine.finished,
        }

    return asyncio.run(main())


def trace_of_update(case):
    """Nothing is sent out while weights change."""

    async def main():
        engine = Engine()
        policy = SchedulerPolicy(groups_per_batch=1, group_size=1)
        async with RolloutScheduler(
            prompts="a", generate=engine.generate, grade=grade, replicas={"a": 2}, policy=policy
        ) as scheduler:
            await scheduler.pause("keep")
            batch = asyncio.ensure_future(scheduler.next_batch())
            await yields(STEP)
            during = engine.tokens[0]
            engine.version = 1
            scheduler.publish(1)
            scheduler.resume()
            await yields(STEP)
            engine.may_end.set()
            finished = len((await batch).groups) == 1
        assert engine.tokens[0] > 0
        return {"a_tokens_generated_during_update": during, "a_finished": finished}

    return asyncio.run(main())


def trace_of_part(case):
    """A completion of 8 tokens that is stopped after 5, at the version before."""
    weights = {"version": 1}

    async def generate_part(ticket, prompt, replica, part):
        tokens = list(part.kept or [])
        while len(tokens) < 8 and not part.stopping.is_set():
            tokens.append(f"v{weights['version']}")
            if len(tokens) == 5:
                await part.stopping.wait()
        return Generated(
            completion=tokens,
            tokens=len(tokens),
            oldest_version=weights["version"],
            truncated=False,
            finished=len(tokens) == 8,
        )

    async def main():
        policy = SchedulerPolicy(groups_per_batch=1, group_size=1, max_staleness=1, partial=PartialRollouts())
        async with RolloutScheduler(
            prompts="s",
            generate_part=generate_part,
            grade=grade,
            replicas={"a": 1},
            policy=policy,
            resume=SchedulerSnapshot(version=1),
        ) as scheduler:
            batch = asyncio.ensure_future(scheduler.next_batch())
            await yields(STEP)
            await scheduler.pause("stop")
            weights["version"] = 2
            scheduler.publish(2)
            scheduler.resume()
            (group,) = (await batch).groups
        (member,) = group.members
        versions = [f"v{version}" for version in versions_of(member.spans)]
        assert versions == member.generated.completion
        return {"tokens_in_training_row": member.generated.tokens, "token_versions": versions}

    return asyncio.run(main())


def trace_of_surplus(case):
    """Eight groups are graded at once, one hangs in its generation, one in its judge."""
    cancelled = Counter()

    async def generate(ticket, prompt, replica):
        if ticket.group == 8:
            await forever("generate")
        return generated(prompt)

    async def judge(ticket, prompt, completion):
        if ticket.group == 9:
            await forever("judge")
        return await grade(ticket, prompt, completion)

    async def forever(what):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled[what] += 1
            raise

    async def main():
        extra = OverProvision(groups=case["launched"] - case["need"])
        policy = SchedulerPolicy(groups_per_batch=case["need"], group_size=1, over_provision=extra)
        async with RolloutScheduler(
            prompts=range(20), generate=generate, grade=judge, replicas={"a": 20}, policy=policy
        ) as scheduler:
            batch = await asyncio.wait_for(scheduler.next_batch(), timeout=2)
            assert [group.id for group in batch.groups] == list(range(case["need"]))
            await yields(STEP)
            return {
                "batch_ready_within_s": 2,
                "surplus_cancelled": cancelled.total(),
                "judge_call_cancelled": cancelled["judge"] == 1,
            }

    return asyncio.run(main())


TRACES = {
    "d005": trace_of_versions,
    "d006": trace_of_abort,
    "d007": trace_of_race,
    "d010": trace_of_part,
    "d011": trace_of_surplus,
    "d024": trace_of_update,
}

GROUPS = ("yielded", "trained", "dropped_as_stale", "unresolved")


def commands(made):
    return [command.ticket for command in made]


BOUND = {
    "resume": resume,
    "admission": admission,
    "may_train": version_bound,
    "failures": failures,
    "buffer": buffer,
    "fairness": fairness,
    "engine_crash": engine_crash,
    "seeds": seeds,
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case):
    bound = TRACES.get(case["id"]) or BOUND[case["input"]["op"]]
    got = bound(case["input"])
    assert {key: got[key] for key in case["expected"]} == case["expected"], case["why"]
