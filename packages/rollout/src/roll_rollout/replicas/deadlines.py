"""How long a set of replicas waits for one of them."""

from dataclasses import dataclass, fields

from roll_rollout.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDeadlines:
    """Seconds, for example `ReplicaDeadlines(sync_s=120.0)`.

    Attributes:
        start_s: For an engine to be made.
        sync_s: For one replica to take a weight update or an adapter.
        control_s: For one replica to answer any other call: load, health, pause, sleep, abort, close.
        drain_s: For the requests of a replica to end by themselves.
        serve_s: That a request waits for a replica that serves.

    Raises:
        EngineError: One is not above 0.
    """

    start_s: float = 600.0
    sync_s: float = 300.0
    control_s: float = 60.0
    drain_s: float = 3600.0
    serve_s: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds = getattr(self, field.name)
            if not seconds > 0:
                raise EngineError(f"ReplicaDeadlines.{field.name}: got {seconds}, allowed is more than 0")
