"""Routing and order through the core and the driver: what a policy's `order`, `router` and limits do."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roll_scheduler import (
    ROUTERS,
    Abort,
    Generate,
    Grade,
    LengthPredictor,
    PartialRollouts,
    PromptTraits,
    Request,
    SchedulerCore,
    SchedulerError,
    SchedulerPolicy,
    Stop,
    check_router,
)


def policy(**fields):
    return SchedulerPolicy(**{"groups_per_batch": 4, "group_size": 3, **fields})


def admitted(core):
    """Starts a batch; the generations that began."""
    core.open_batch()
    commands = []
    while core.room:
        commands += core.admit(0.0)
    return [command for command in commands if isinstance(command, Generate)]


def generated(core, command, *, tokens=10, now=1.0):
    return core.generated(command.ticket, tokens=tokens, oldest_version=0, truncated=False, now=now)


@pytest.mark.parametrize("order", ["fifo", "longest_first"])
@pytest.mark.parametrize("router", sorted(ROUTERS))
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_whatever_the_policy_every_ticket_is_delivered_once(order, router, seed):
    """Random lengths, failures, stops and replicas that come and go."""
    rng = random.Random(seed)
    core = SchedulerCore(
        policy(
            order=order,
            router=router,
            weigh_health=rng.random() < 0.5,
            partial=PartialRollouts(stop_at_cut=False, max_versions=9),
            max_failures=10**6,
            quarantine_after=0,
            retries=10**6,
        ),
        replicas={"a": 2, "b": 3},
        traits=lambda group: PromptTraits(key=f"p{group % 3}", session=group % 2),
    )
    running, todo, now, gone = {}, list(admitted(core)), 0.0, False
    while (delivered := core.take_batch(now)) is None:
        now += 1.0
        for command in todo:  # what follows from a command is added
            match command:
                case Generate(ticket=ticket):
                    assert ticket.id not in running
                    running[ticket.id] = command
                case Abort(ticket=ticket):
                    running.pop(ticket.id, None)
                case Stop(ticket=ticket):
                    del running[ticket.id]
                    tokens = ticket.continues + rng.randint(0, 50)
                    todo += core.stopped(ticket, tokens=tokens, oldest_version=0, now=now)
                case Grade(ticket=ticket):
                    core.graded(ticket, value=float(ticket.member % 2), now=now)
        todo = []
        if not running:
            continue
        what = rng.random()
        if what < 0.15:
            planned = rng.random() < 0.5
            todo = (
                core.replica_up("b", 3, now)
                if gone
                else core.replica_down("b", "test", now, returns=True, planned=planned)
            )
            gone = not gone
        elif what < 0.25:
            todo = core.failed(running.pop(rng.choice(sorted(running))).ticket, "engine", "test", now)
        else:
            command = running.pop(rng.choice(sorted(running)))
            todo = generated(core, command, tokens=command.ticket.continues + rng.randint(1, 5000), now=now)
        assert now < 5000
    assert [len(delivery.members) for delivery in delivered.deliveries] == [3] * 4


def test_members_start_where_their_prompt_is_and_in_a_plain_run_spread():
    for router, expected in (("prefix_affinity", [1, 1, 1, 1]), ("least_loaded", [3, 3, 3, 3])):
        core = SchedulerCore(policy(router=router), replicas=dict.fromkeys("abcd", 12))
        places = {}
        for command in admitted(core):
            places.setdefault(command.ticket.group, set()).add(command.replica)
        assert [len(names) for names in places.values()] == expected


def test_a_session_s_tickets_share_a_replica():
    core = SchedulerCore(
        policy(router="session_affinity"),
        replicas=dict.fromkeys("abcd", 100),
        traits=lambda group: PromptTraits(session=f"user {group % 2}"),
    )
    places = {}
    for command in admitted(core):
        places.setdefault(command.ticket.group % 2, Counter())[command.replica] += 1
    assert all(max(counts.values()) >= 2 for counts in places.values())


def test_prompts_known_to_be_long_start_first():
    predictor = LengthPredictor()
    for _ in range(20):
        for prompt, tokens in enumerate((100, 4000, 200, 2000)):
            predictor.observe(f"p{prompt}", "", tokens)
    core = SchedulerCore(
        policy(order="longest_first"),
        replicas={"a": 1},
        estimator=predictor,
        traits=lambda group: PromptTraits(key=f"p{group}"),
    )
    todo, order = admitted(core), []
    while todo:
        command = todo.pop(0)
        order.append(command.ticket.group)
        todo += [each for each in generated(core, command, tokens=1000) if isinstance(each, Generate)]
    # The first was sent out before the others had been admitted.
    assert order[1:4] == [1, 1, 1]
    assert order.index(3) < order.index(2)


def test_kv_limits_what_runs_on_a_replica_to_what_is_predicted_to_fit():
    predictor = LengthPredictor()
    for _ in range(500):
        predictor.observe("p", "", 1000)
    core = SchedulerCore(
        policy(kv_tokens=4000),
        replicas=dict.fromkeys("ab", 50),
        estimator=predictor,
        traits=lambda group: PromptTraits(key="p", prompt_tokens=300),
    )
    running = Counter(command.replica for command in admitted(core))
    assert running == {"a": 3, "b": 3}


def test_a_drained_replica_gets_nothing_until_the_drain_ends():
    core = SchedulerCore(policy(), replicas={"a": 2, "b": 2})
    assert core.replica_drains("a", 0.0) == []
    assert [command.replica for command in admitted(core)] == ["b", "b"]
    assert [command.replica for command in core.replica_drains("a", 0.0, on=False)] == ["a", "a"]


def test_a_slow_replica_gets_less():
    core = SchedulerCore(policy(weigh_health=True, groups_per_batch=64), replicas={"a": 100, "b": 100})
    todo, count, now = admitted(core), Counter(), 0.0
    ends = sorted((1.0 if command.replica == "a" else 6.0, command.ticket.id, command) for command in todo)
    while ends:
        now, _, command = ends.pop(0)
        for each in generated(core, command, tokens=100, now=now):
            if isinstance(each, Generate):
                count[each.replica] += 1
                after = now + (1.0 if each.replica == "a" else 6.0)
                ends.append((after, each.ticket.id, each))
        ends.sort(key=lambda end: end[:2])
    assert count.total() == 0  # there were slots for all
    core.open_batch()
    assert core._replicas._router._loads.replicas["b"].weight < 0.6


def test_a_ticket_that_failed_waits_for_another_replica_and_lets_others_pass():
    core = SchedulerCore(policy(), replicas={"a": 1, "b": 1})
    first, second = admitted(core)
    assert (first.replica, second.replica) == ("a", "b")
    (other,) = core.failed(first.ticket, "engine", "test", 1.0)
    assert other.replica == "a" and other.ticket.id != first.ticket.id
    again = [each for each in generated(core, second) if isinstance(each, Generate)]
    assert [(each.ticket.id, each.replica) for each in again] == [(first.ticket.id, "b")]


def test_a_ticket_that_failed_everywhere_starts_where_it_can():
    core = SchedulerCore(policy(retries=5), replicas={"a": 1})
    (first,) = admitted(core)
    (again,) = core.failed(first.ticket, "engine", "test", 1.0)
    assert again.ticket.id == first.ticket.id and again.ticket.attempt == 1


class Last:
    """A router of one's own: the replica with the greatest name that has a slot."""

    def __init__(self):
        self.free, self.weights, self.seen = {}, {}, []

    def up(self, name, slots):
        self.free[name], self.weights[name] = slots, 1.0

    def down(self, name):
        del self.free[name], self.weights[name]

    def take(self, request, avoid=()):
        self.seen.append(request)
        able = [name for name, free in self.free.items() if free and self.weights[name] and name not in avoid]
        if not able:
            return None
        self.free[max(able)] -= 1
        return max(able)

    def release(self, name, request):
        self.free[name] += 1

    def report(self, name, weight):
        self.weights[name] = weight


def test_a_router_of_one_s_own_is_told_what_is_known():
    assert check_router(Last) == []
    router = Last()
    core = SchedulerCore(
        policy(),
        replicas={"a": 5, "b": 5},
        router=router,
        traits=lambda group: PromptTraits(session=group + 9),
    )
    assert [command.replica for command in admitted(core)] == ["b"] * 5 + ["a"] * 5
    assert router.seen[0] == Request(prefix=0, session=9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"order": "shortest"},
            r"SchedulerPolicy.order: got 'shortest', allowed is 'fifo' or 'longest_first'",
        ),
        ({"router": "random"}, r"SchedulerPolicy.router: got 'random', allowed is one of least_loaded, "),
        ({"kv_tokens": 0}, r"SchedulerPolicy.kv_tokens: got 0"),
    ],
)
def test_impossible_policies_are_refused(fields, message):
    with pytest.raises(SchedulerError, match=message):
        policy(**fields)


async def test_the_driver_hands_over_traits_router_and_predictor(work):
    predictor, seen = LengthPredictor(), []

    def traits(prompt):
        seen.append(prompt)
        return PromptTraits(key=prompt)

    async with work.scheduler(
        policy(order="longest_first"),
        prompts=4,
        replicas={"a": 4, "b": 4},
        traits=traits,
        estimator=predictor,
    ) as scheduler:
        scheduler.drain_replica("b")
        work.seconds = lambda ticket: 0.0
        await scheduler.next_batch()
    assert seen == ["p0", "p1", "p2", "p3"]
    assert {replica for _, replica in work.started} == {"a"}
    assert set(predictor.state()["prompts"]) == set(seen)


def test_the_metrics_predict_the_tail():
    core = SchedulerCore(policy(order="longest_first"), replicas={"a": 100})
    todo = admitted(core)
    assert core.metrics(0.0)["scheduler/predicted_tail_s"] == 0.0
    for command in todo[:6]:
        generated(core, command, tokens=100, now=10.0)  # ten tokens a second
    early, late = core.metrics(11.0), core.metrics(500.0)
    assert 0 < early["scheduler/predicted_tail_s"] < late["scheduler/predicted_tail_s"]
    assert early["scheduler/predicted_tokens"] > 10 * early["scheduler/predicted_tail_s"]
    assert early["scheduler/draining"] == 0
    core.replica_drains("a", 11.0)
    assert core.metrics(11.0)["scheduler/draining"] == 1
