"""Health: slow and failing replicas weigh less, and recover."""

import pytest
from roll_scheduler import ReplicaHealth, SchedulerError


def weights(health, names):
    told = {name: 1.0 for name in names}
    for name in names:
        if (weight := health.weight(name)) is not None:
            told[name] = weight
    return told


def test_equal_replicas_are_left_alone():
    health = ReplicaHealth()
    for number in range(100):
        health.ended("ab"[number % 2], tokens=100 + number % 7, seconds=1)
    assert weights(health, "ab") == {"a": 1.0, "b": 1.0}


def test_a_replica_at_a_third_of_the_speed_weighs_the_cube_of_its_share_of_the_mean():
    health = ReplicaHealth()
    for _ in range(50):
        for name, seconds in (("a", 1), ("b", 1), ("c", 1), ("d", 3)):
            health.ended(name, tokens=100, seconds=seconds)
    found = weights(health, "abcd")
    assert found["a"] == found["b"] == 1.0
    assert found["d"] == pytest.approx(3 ** (-3 / 4 * 3), rel=1e-6)


def test_a_failing_replica_weighs_less_and_recovers():
    health = ReplicaHealth(floor=0.1)
    for _ in range(100):
        health.failed("a")
    assert health.weight("a") == 0.1
    assert health.weight("a") is None
    for _ in range(200):
        health.ended("a", tokens=10, seconds=1)
    assert health.weight("a") == pytest.approx(1, abs=0.01)


def test_what_left_no_longer_counts():
    health = ReplicaHealth()
    for _ in range(10):
        health.ended("fast", tokens=1000, seconds=1)
        health.ended("a", tokens=10, seconds=1)
        health.ended("b", tokens=10, seconds=1)
    assert health.weight("a") < 0.3
    health.forget("fast")
    assert health.weight("a") == 1.0


def test_nonsense_is_no_speed():
    health = ReplicaHealth()
    for _ in range(10):
        health.ended("a", tokens=0, seconds=0)
        health.ended("b", tokens=5, seconds=0)
    assert weights(health, "ab") == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("fields", [{"tolerance": 2}, {"floor": 0}])
def test_bad_numbers_are_refused(fields):
    with pytest.raises(SchedulerError, match=f"ReplicaHealth.{next(iter(fields))}: got"):
        ReplicaHealth(**fields)


def test_a_slow_replica_is_weighed_again_after_a_drain():
    health = ReplicaHealth()
    for _ in range(10):
        health.ended("fast", tokens=100, seconds=1)
        health.ended("slow", tokens=100, seconds=10)
    slow = health.weight("slow")
    assert slow is not None and slow < 0.5
    assert health.weight("slow") is None
    health.reset("slow")
    assert health.weight("slow") == slow


def test_a_drain_that_ends_does_not_make_a_slow_replica_healthy(core_run):
    run = core_run(
        replicas={"slow": 4, "fast": 4}, groups_per_batch=64, group_size=1, weigh_health=True, min_members=1
    )
    run.admit()

    def end(count):
        for _ in range(count):
            run.now += 1.0
            ticket = next(iter(run.running))
            run.generate(ticket, tokens=10 if run.running[ticket].replica == "slow" else 1000)

    def on_slow():
        return sum(generate.replica == "slow" for generate in run.running.values())

    end(20)
    assert on_slow() == 4  # every slot is needed
    run.do(run.core.replica_drains("slow", run.now))
    end(16)
    assert on_slow() == 0
    run.do(run.core.replica_drains("slow", run.now, on=False))
    end(6)
    assert run.core._replicas._router._loads.replicas["slow"].weight < 0.5
