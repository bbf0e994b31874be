"""What agents of several kinds see of an environment, and what that says. Used by `roll-env check`."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roll_agentic.boundary import close_environment, made
from roll_agentic.conformance import DEFAULT_ACTIONS, INVALID_ACTIONS, CheckResult, check_environment
from roll_agentic.environment import Environment, Info
from roll_agentic.errors import EnvironmentFault
from roll_agentic.session import EnvironmentSession
from roll_agentic.tools.schema import schema_problem

_LONG_OBSERVATION = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """What one kind of agent saw in its episodes.

    Example: `AgentRun(agent="random", episodes=8, ended=8, steps=40, reward_low=0.0, reward_high=1.0,
    success_rate=0.25, invalid=0, slowest_s=0.001, longest_observation=120, faults=())`.

    Attributes:
        agent: `random` (valid actions by chance), `scripted` (them in turns) or `adversarial` (nonsense).
        episodes: How many it played.
        ended: How many of them ended by themselves.
        steps: Steps in all.
        reward_low: Lowest reward of a step; 0 when there was none.
        reward_high: Highest.
        success_rate: Share of episodes that terminated with a total reward above 0.
        invalid: Actions that the environment called invalid.
        slowest_s: Seconds of the slowest call.
        longest_observation: Its characters.
        faults: Messages of faults, each once.
    """

    agent: str
    episodes: int
    ended: int
    steps: int
    reward_low: float
    reward_high: float
    success_rate: float
    invalid: int
    slowest_s: float
    longest_observation: int
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """All that is known of an environment.

    Example: `LintReport(checks=(...), runs=(...), warnings=("nonsense is never called invalid",))`.

    Attributes:
        checks: Results of `check_environment`, and of `tools` where the environment names any.
        runs: One for each kind of agent; empty when the environment does not even start.
        warnings: What is allowed and yet worth a look.
    """

    checks: tuple[CheckResult, ...]
    runs: tuple[AgentRun, ...]
    warnings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)


async def lint_environment(
    make: Callable[[], Environment],
    *,
    actions: Sequence[str] | None = None,
    seeds: Sequence[int] = range(8),
    max_steps: int = 100,
    seeded: bool = True,
    deadline_s: float = 10.0,
    slow_s: float = 1.0,
) -> LintReport:
    """Check an environment and play it with a random, a scripted and an adversarial agent.

    Args:
        make: Makes a new environment, the same each time.
        actions: Valid actions; by default those of `info["actions"]` at reset, else some common words.
        seeds: Seeds to play, at least 2.
        max_steps: Longest episode, at least 1.
        seeded: Whether the seed makes a difference.
        deadline_s: Seconds for each call, above 0.
        slow_s: A call slower than this is worth a warning.

    Raises:
        AgenticError: An argument is out of its range.
    """
    info = await _first_info(make, seeds[0] if seeds else 0, deadline_s)
    known = actions or _named_actions(info) or DEFAULT_ACTIONS
    checks = await check_environment(
        make, actions=known, seeds=seeds, max_steps=max_steps, seeded=seeded, deadline_s=deadline_s
    )
    tools = info.get("tools")
    if tools:
        problem = _tools_problem(tools)
        checks.append(CheckResult(name="tools", passed=not problem, detail=problem))
    if not checks[0].passed:
        return LintReport(checks=tuple(checks), runs=(), warnings=())
    runs = tuple(
        [await _run(make, agent, known, seeds, max_steps, deadline_s) for agent in ("random", "scripted")]
        + [await _run(make, "adversarial", INVALID_ACTIONS, seeds, max_steps, deadline_s)]
    )
    return LintReport(checks=tuple(checks), runs=runs, warnings=tuple(_warnings(runs, info, slow_s)))


async def _first_info(make: Callable[[], Environment], seed: int, deadline_s: float) -> Info:
    """Info of a first reset; empty when there is none, which the checks then say."""
    try:
        environment = await made(make, deadline_s=deadline_s)
    except Exception:
        # Boundary to foreign code: the checks make the environment again and report why it cannot be made.
        return {}
    session = EnvironmentSession(environment, deadline_s=deadline_s)
    try:
        return (await session.reset(seed=seed))[1]
    except EnvironmentFault:
        return {}
    finally:
        session.close()
        await close_environment(environment)


async def _run(
    make: Callable[[], Environment],
    agent: str,
    actions: Sequence[str],
    seeds: Sequence[int],
    max_steps: int,
    deadline_s: float,
) -> AgentRun:
    """Play one episode for each seed."""
    rewards: list[float] = []
    times, lengths = [0.0], [0]
    faults: Counter[str] = Counter()
    ended = won = invalid = 0
    for seed in seeds:
        environment = await made(make, deadline_s=deadline_s)
        session = EnvironmentSession(environment, deadline_s=deadline_s)
        chance, script, total = random.Random(seed), itertools.cycle(actions), 0.0
        try:
            lengths.append(len((await session.reset(seed=seed))[0]))
            for _ in range(max_steps):
                action = chance.choice(actions) if agent == "random" else next(script)
                started = time.perf_counter()
                answer = await session.step(action)
                times.append(time.perf_counter() - started)
                lengths.append(len(answer.observation))
                rewards.append(answer.reward)
                total += answer.reward
                invalid += not answer.info.get("action_is_valid", True)
                if answer.terminated or answer.truncated:
                    ended += 1
                    won += answer.terminated and total > 0
                    break
        except EnvironmentFault as fault:
            faults[fault.message] += 1
        finally:
            session.close()
            await close_environment(environment)
    return AgentRun(
        agent=agent,
        episodes=len(seeds),
        ended=ended,
        steps=len(rewards),
        reward_low=min(rewards, default=0.0),
        reward_high=max(rewards, default=0.0),
        success_rate=won / len(seeds),
        invalid=invalid,
        slowest_s=max(times),
        longest_observation=max(lengths),
        faults=tuple(faults),
    )


def _named_actions(info: Info) -> list[str]:
    actions = info.get("actions")
    return [str(action) for action in actions] if isinstance(actions, list | tuple) else []


def _tools_problem(tools: object) -> str:
    """What is wrong with the schemas in `info["tools"]`; empty when nothing is."""
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        return f"info['tools'] is a sequence of schemas, got {type(tools).__name__}"
    for index, schema in enumerate(tools):
        problem = schema_problem(schema) if isinstance(schema, Mapping) else "it is no mapping"
        if problem:
            return f"tool {index}: {problem}"
    return ""


def _warnings(runs: Sequence[AgentRun], info: Info, slow_s: float) -> list[str]:
    """What is worth a look."""
    low, high = min(run.reward_low for run in runs), max(run.reward_high for run in runs)
    nonsense = runs[-1]
    found = []
    if low == high:
        found.append(f"every reward was {low:g}: nothing to learn from these actions")
    if nonsense.success_rate > 0:
        found.append(f"nonsense succeeded in {nonsense.success_rate:.0%} of episodes")
    if nonsense.steps and not nonsense.invalid:
        found.append("nonsense is never called invalid in info['action_is_valid']")
    if "instructions" not in info:
        found.append("info has no 'instructions': a policy must know the rules from elsewhere")
    slow = max(run.slowest_s for run in runs)
    if slow > slow_s:
        found.append(f"the slowest step took {slow:.2f} s")
    longest = max(run.longest_observation for run in runs)
    if longest > _LONG_OBSERVATION:
        found.append(f"an observation has {longest} characters")
    return found
