"""Several engines behind one `Engine`: routed, updated in turn, drained, replaced when they die."""

from roll_rollout.replicas.choice import Chooser, LeastOutstanding, ReplicaView
from roll_rollout.replicas.deadlines import ReplicaDeadlines
from roll_rollout.replicas.member import ReplicaStatus
from roll_rollout.replicas.replicas import Replicas

__all__ = ["Chooser", "LeastOutstanding", "ReplicaDeadlines", "ReplicaStatus", "ReplicaView", "Replicas"]
