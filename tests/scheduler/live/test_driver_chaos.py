"""The live scheduler under random policies, failures, pauses, losses and resumes, in virtual time.

Every prompt is trained on once, within the bound, and no call hangs or is left running.
"""

import asyncio
import dataclasses
import json
import math
from contextlib import suppress
from random import Random

import pytest
from roll_scheduler import (
    ROUTERS,
    AdaptiveDeadline,
    Generated,
    Graded,
    OverProvision,
    PartialRollouts,
    PromptTraits,
    RolloutScheduler,
    SchedulerPolicy,
    SchedulerSnapshot,
    TicketFailed,
)

NAMES = ("a", "b", "c")


def random_policy(random):
    """Any policy under which no prompt may be lost."""
    groups, bound = random.randint(1, 4), random.choice([0, 0, 0.5, 1, 1.5, 2, 3])
    partial = over = None
    if random.random() < 0.5:
        cut = bound > 0 and random.random() < 0.6
        partial = PartialRollouts(
            max_versions=random.randint(1, 4), stop_at_cut=cut, stop_deadline_s=random.choice([0.5, 5.0])
        )
    if random.random() < 0.5:
        more = random.randint(0, groups)
        over = OverProvision(
            groups=more,
            members=random.randint(0 if more else 1, 3),
            defer=bound == 0,
            adaptive=random.random() < 0.3,
        )
    return SchedulerPolicy(
        groups_per_batch=groups,
        group_size=random.randint(1, 4),
        max_staleness=bound,
        stale="requeue",
        partial=partial,
        retries=100,
        quarantine_after=0,
        generate_deadline_s=20.0,
        grade_deadline_s=10.0,
        adaptive_grading=random.choice([None, AdaptiveDeadline(least_s=1, most_s=9)]),
        max_failures=100_000,
        max_refills=10_000,
        over_provision=over,
        concurrency={"odd": random.randint(1, 3)} if random.random() < 0.3 else {},
        order=random.choice(["fifo", "longest_first"]),
        router=random.choice(sorted(ROUTERS)),
        kv_tokens=random.choice([None, 50, 2000]),
        weigh_health=random.random() < 0.5,
    )


class Run:
    """A run that is disturbed, stopped and gone on with until the prompts are exhausted."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.policy = random_policy(self.random)
        self.prompts = range(self.random.randint(0, 14))
        self.version = 0
        self.trained = []
        self.live = {}

    def chance(self, share):
        return self.random.random() < share

    async def fault(self, kind):
        if self.chance(0.05):
            raise TicketFailed(kind, "it broke")
        if self.chance(0.04):
            await asyncio.sleep(1e6)

    async def generate(self, ticket, prompt, replica):
        await self.fault("engine")
        version = self.version
        await asyncio.sleep(self.random.choice([0, 0.1, 1, 3, 8]))
        tokens = self.random.randint(1, 30)
        return Generated(completion=prompt, tokens=tokens, oldest_version=version, truncated=False)

    async def generate_part(self, ticket, prompt, replica, part):
        await self.fault("engine")
        assert ticket.continues == part.tokens
        version, finished = self.version, True
        for _ in range(self.random.choice([0, 1, 10, 30])):
            await asyncio.sleep(0.1)
            if part.stopping.is_set():
                finished = self.chance(0.3)
                break
        new = 0 if part.stopping.is_set() and self.chance(0.3) else self.random.randint(1, 30)
        if self.chance(0.05):
            await asyncio.sleep(30.0)  # too late for any deadline
        return Generated(
            completion=prompt,
            tokens=part.tokens + new,
            oldest_version=version,
            truncated=False,
            finished=finished,
        )

    async def grade(self, ticket, prompt, completion):
        await self.fault("grader")
        await asyncio.sleep(self.random.choice([0, 0.1, 1, 3, 8]))
        return Graded(score=None, value=self.random.choice([0.0, 1.0]))

    def scheduler(self, snapshot):
        first = snapshot.first_group if snapshot else 0
        self.live = {name: self.random.randint(1, 6) for name in self.random.sample(NAMES, 2)}
        work = {"generate": self.generate}
        if self.policy.partial:
            work = {"generate_part": self.generate_part}
        return RolloutScheduler(
            prompts=self.prompts[first:],
            **work,
            grade=self.grade,
            replicas=dict(self.live),
            policy=self.policy,
            resume=snapshot,
            tag=lambda prompt: "odd" if prompt % 2 else "even",
            traits=lambda prompt: PromptTraits(str(prompt % 3), session=prompt % 4, prompt_tokens=prompt),
            clock=asyncio.get_running_loop().time,
        )

    def publish(self, scheduler):
        self.version += 1
        scheduler.publish(self.version)

    async def pause(self, scheduler):
        modes = ["keep", "abort", "stop"] if self.policy.partial else ["keep", "abort"]
        await scheduler.pause(self.random.choice(modes))
        if self.chance(0.5):
            self.publish(scheduler)
        if self.chance(0.3):
            await scheduler.pause(self.random.choice(modes))
        await asyncio.sleep(self.random.choice([0, 1, 10]))
        scheduler.resume()

    def come_or_go(self, scheduler):
        name = self.random.choice(NAMES)
        if name not in self.live:
            self.live[name] = self.random.randint(1, 6)
            scheduler.add_replica(name, self.live[name])
        elif len(self.live) > 1:
            del self.live[name]
            scheduler.remove_replica(name, "died", returns=self.chance(0.5), planned=self.chance(0.5))

    async def disturb(self, scheduler):
        while True:
            await asyncio.sleep(self.random.choice([0.05, 0.5, 2, 5]))
            what = self.random.choice(["replica", "pause", "publish", "drain", "look"])
            if what == "replica":
                self.come_or_go(scheduler)
            elif what == "pause":
                await self.pause(scheduler)
            elif what == "publish" and self.chance(0.3):
                self.publish(scheduler)
            elif what == "drain":
                name = self.random.choice(sorted(self.live))
                scheduler.drain_replica(name)
                await asyncio.sleep(0.5)
                scheduler.drain_replica(name, on=False)
            elif what == "look":
                assert scheduler.pending_count() == len(scheduler.pending())
                assert all(map(math.isfinite, scheduler.metrics().values()))

    def check(self, batch):
        for group in batch.groups:
            assert group.id == group.prompt
            assert self.policy.min_members <= len(group.members) <= self.policy.group_size
            self.trained.append(group.id)
            for member in group.members:
                oldest = min([span.version for span in member.spans], default=member.generated.oldest_version)
                assert batch.version - oldest <= math.ceil(self.policy.max_staleness)
                if self.policy.partial:
                    assert sum(span.tokens for span in member.spans) == member.generated.tokens

    async def train(self, scheduler):
        """Whether the prompts are exhausted; otherwise the run is to be stopped."""
        while (batch := await scheduler.next_batch()).groups:
            self.check(batch)
            await asyncio.sleep(self.random.choice([0, 1]))
            if self.chance(0.7):
                self.publish(scheduler)
            if self.chance(0.2):
                return False
        return True

    async def main(self):
        snapshot, done = None, False
        while not done:
            async with self.scheduler(snapshot) as scheduler:
                disturber = asyncio.ensure_future(self.disturb(scheduler))
                try:
                    done = await self.train(scheduler)
                finally:
                    disturber.cancel()
                    with suppress(asyncio.CancelledError):
                        await disturber
            saved = json.loads(json.dumps(dataclasses.asdict(scheduler.snapshot())))
            snapshot = SchedulerSnapshot(**saved)
            self.version = max(self.version, snapshot.version)
        assert sorted(self.trained) == list(self.prompts)


@pytest.mark.parametrize("block", range(4))
def test_every_prompt_is_trained_on_once_whatever_happens(run_virtual, caplog, block):
    caplog.set_level("CRITICAL")
    for seed in range(40 * block, 40 * block + 40):
        run_virtual(Run(seed).main())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_prompt_is_trained_on_once_in_a_thousand_runs(run_virtual, caplog):
    caplog.set_level("CRITICAL")
    for seed in range(1000, 2000):
        run_virtual(Run(seed).main())
