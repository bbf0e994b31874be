"""The first cause among many failures."""

import asyncio
import pickle

from roll_launch.failures import RoleDied, RoleError, first_cause


def test_the_earliest_of_several_role_failures_is_the_cause() -> None:
    late = RoleError("reward-0", "grade", "ConnectionError: gone", when=20.0)
    early = RoleError("trainer", "policy_step", "ValueError: bad", when=10.0)
    assert first_cause(ExceptionGroup("both", [late, ExceptionGroup("inner", [early])])) is early


def test_a_death_goes_before_the_errors_in_its_wake() -> None:
    consequence = RoleError("reward-0", "grade", "lost object", when=10.0)
    death = RoleDied("actor-0", "generate", "killed by signal 9", when=10.2)
    assert first_cause(ExceptionGroup("both", [consequence, death])) is death


def test_a_cause_behind_another_exception_is_found() -> None:
    death = RoleDied("actor-0", "generate", "killed", when=1.0)
    outer = RuntimeError("the step failed")
    outer.__cause__ = death
    assert first_cause(outer) is death


def test_an_exception_of_the_driver_itself_is_its_own_cause() -> None:
    error = KeyError("x")
    assert first_cause(error) is error
    assert isinstance(first_cause(asyncio.CancelledError()), asyncio.CancelledError)


def test_role_failures_survive_pickling() -> None:
    error = RoleDied("actor-0", "generate", "killed", detail="trace", when=3.5)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.when, again.detail) == (RoleDied, str(error), 3.5, "trace")
