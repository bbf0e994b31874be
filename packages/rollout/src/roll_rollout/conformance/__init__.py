"""The conformance suite: what every `Engine` must do, to be run on any implementation."""

from roll_rollout.conformance.bench import AdapterPolicy, Policy, Score, Violation
from roll_rollout.conformance.suite import CHECKS, CheckResult, check_engine

__all__ = ["CHECKS", "AdapterPolicy", "CheckResult", "Policy", "Score", "Violation", "check_engine"]
