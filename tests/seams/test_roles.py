"""Every runtime's handles have the methods that pipelines call on roles, with the same signatures."""

import inspect

import pytest
from roll_launch.dry_run import DryRuntime, DryTrainer
from roll_launch.local_runtime import LocalActor, LocalRewardWorker, LocalRuntime, LocalTrainer
from roll_launch.ray.handles import RayActor, RayRewardWorker, RayTrainer
from roll_launch.ray.runtime import RayRuntime
from roll_launch.roles import Actor, RewardWorker, Runtime, Trainer

PAIRS = [
    (Trainer, LocalTrainer),
    (Trainer, RayTrainer),
    (Trainer, DryTrainer),
    (Actor, LocalActor),
    (Actor, RayActor),
    (RewardWorker, LocalRewardWorker),
    (RewardWorker, RayRewardWorker),
    (Runtime, LocalRuntime),
    (Runtime, RayRuntime),
    (Runtime, DryRuntime),
]


@pytest.mark.parametrize(("protocol", "handle"), PAIRS, ids=lambda each: each.__name__)
def test_handle_has_each_method_of_its_role_with_the_same_parameters(protocol: type, handle: type) -> None:
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if name.startswith("_"):
            continue
        own = getattr(handle, name)
        assert inspect.iscoroutinefunction(own), f"{handle.__name__}.{name} is not async"
        wanted, got = (inspect.signature(each).parameters for each in (method, own))
        assert [(p.name, p.kind) for p in wanted.values()] == [(p.name, p.kind) for p in got.values()], name
