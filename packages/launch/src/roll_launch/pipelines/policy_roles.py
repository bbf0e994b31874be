"""The roles that every stage of reinforcement learning has."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from roll_launch.role_group import RoleGroup
from roll_launch.roles import Actor, Trainer
from roll_launch.side_roles import TeacherRole


class PolicyRoles(Protocol):
    """What computes: who trains, who generates, and whatever else a pipeline has beside them."""

    @property
    def trainer(self) -> Trainer:
        """Trains the policy."""
        ...

    @property
    def actors(self) -> RoleGroup[Actor]:
        """Generate."""
        ...

    @property
    def teachers(self) -> tuple[TeacherRole, ...]:
        """Those that are roles of their own."""
        ...

    def serving(self) -> AbstractAsyncContextManager[None]:
        """Keeps what may be replaced serving while it is entered."""
        ...
