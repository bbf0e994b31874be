"""Times that no schedule can beat, and how they are derived.

Notation: a replica runs iterations of t0 + t1 * b seconds with b <= S active sequences, each of which gets
one token; prefilling a token takes p seconds; C tokens of KV fit; there are R replicas. L_i is the length of
completion i, W the sum of the lengths, P the prompt tokens of the groups, each group once (a prompt is
computed somewhere at least once). T is the time from the start to the last token.

*Critical path.* A completion gets at most one token an iteration, and an iteration with it takes at least
t0 + t1. Outside the engine it waits w_i seconds (environment, reward), so T >= max_i(p * prompt + L_i * (t0 +
t1) + w_i).

*Work.* In T seconds a replica that prefills q seconds produces at most (T - q) * r tokens with r = S / (t0 +
t1 * S), because b / (t0 + t1 * b) grows with b. Summed over replicas, W <= T * sum(r) - min(r * p) * P, so
T >= (W + min(r * p) * P) / sum(r). If only N < R * S completions exist, S is replaced by max(N / R, 1) where
replicas are alike: the rate is concave in b, so its sum is greatest for an even distribution.

*KV area.* Before an iteration that gives completion i its j-th token, its KV has j tokens with the new one,
and the prompt of its group is there once. So completion i takes up L_i * (L_i + 1) / 2 token-iterations, and
a group of greatest length M at least prompt * M for the prompt; let A be the sum. With I iterations a replica
offers I * C, and T = t0 * I + t1 * tokens + p * prefilled. Summed over replicas, A <= sum(C / t0) * T -
min(C * t1 / t0) * W - min(C * p / t0) * P, so T >= (A + min(C * t1 / t0) * W + min(C * p / t0) * P) /
sum(C / t0). It says nothing without a KV limit or with t0 = 0.

*Redundancy.* If only some of what is started has to finish, each bound holds for the best choice in
hindsight: of each group the k shortest, and of the groups those with the lowest value of that very bound.
What is aborted only adds work. The greatest of the three is a bound although each has a choice of its own.

*Steady state.* Over many steps on the same devices, completions of one step may run beside those of others
(asynchrony, partial rollouts): the critical path and the area of a single step fall away, the work stays. All
tokens that are trained on have to be generated and all samples trained on, so the run takes at least the sum
of both over all devices; where the devices are split, at least as long as either side.

*Staleness.* With a bound of k versions, what step s trains on got its first token after the weights of step
s - k - 1 were published, and its last before the optimizer step of s, which takes F seconds and Y for the
sync. So from the end of step s - k - 1 to that of s it takes at least c + F + Y, with c the critical path of
the longest completion that s trains on. Such stretches of every (k + 1)th step do not overlap, so a run takes
at least the sum of c + F + Y over the steps r, r + k + 1, r + 2 (k + 1), ..., whichever r is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roll_scheduler.simulator.engine_model import EngineModel
from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.setting import Setting

__all__ = [
    "StepBound",
    "device_bound",
    "redundant_step_bound",
    "speedup_ceiling",
    "staleness_bound",
    "step_bound",
    "work_bound",
    "work_seconds",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """Lower bounds of the rollout of one step, seconds; see the module.

    Attributes:
        critical_path_s: From the longest completion.
        work_s: From all tokens at the best batch size.
        kv_area_s: From KV over time; 0 where KV is not limited.
    """

    critical_path_s: float
    work_s: float
    kv_area_s: float

    @property
    def seconds(self) -> float:
        """The greatest of them."""
        return max(self.critical_path_s, self.work_s, self.kv_area_s)


def step_bound(
    tokens: Sequence[np.ndarray],
    engines: Sequence[EngineModel],
    *,
    prompt_tokens: int = 0,
    outside_s: Sequence[np.ndarray] | None = None,
) -> StepBound:
    """Lower bounds of a step in which all of the completions have to finish.

    Args:
        tokens: For each group, integers [G]: lengths of its completions, tokens >= 1.
        engines: One a replica.
        prompt_tokens: Tokens of each prompt.
        outside_s: Shaped as `tokens`: seconds that each completion spends outside the engines.

    Raises:
        SimulationError: If there is no completion or no engine.
    """
    groups = _checked(tokens, engines)
    flat = np.concatenate(groups).astype(np.float64)
    waits = 0.0 if outside_s is None else np.concatenate([np.asarray(group) for group in outside_s])
    least_iteration = min(engine.iteration_s(1) for engine in engines)
    least_prefill = min(engine.prefill_token_s for engine in engines) * prompt_tokens
    return StepBound(
        critical_path_s=least_prefill + float((flat * least_iteration + waits).max()),
        work_s=work_seconds(
            float(flat.sum()), engines, prompts=len(groups) * prompt_tokens, completions=flat.size
        ),
        kv_area_s=_area_seconds(groups, engines, prompt_tokens),
    )


def redundant_step_bound(
    tokens: np.ndarray,
    engines: Sequence[EngineModel],
    *,
    keep_groups: int,
    keep_members: int,
    prompt_tokens: int = 0,
) -> StepBound:
    """Lower bounds of a step in which only some of the groups and some of their completions have to finish.

    Args:
        tokens: Integers [P, R]: lengths of all completions that are started.
        engines: One a replica.
        keep_groups: Groups that have to finish, 1 to P.
        keep_members: Completions of each that have to finish, 1 to R.
        prompt_tokens: Tokens of each prompt.

    Raises:
        SimulationError: If more is to be kept than there is.
    """
    if tokens.ndim != 2 or not (1 <= keep_groups <= len(tokens) and 1 <= keep_members <= tokens.shape[1]):
        raise SimulationError(
            f"redundant_step_bound: got {keep_groups} groups x {keep_members} of shape {tokens.shape}, "
            "allowed is 1 to as many as there are"
        )
    shortest = np.sort(tokens, axis=1)[:, :keep_members]

    def best(value_of_group: np.ndarray) -> list[np.ndarray]:
        return list(shortest[np.argsort(value_of_group, kind="stable")[:keep_groups]])

    by_longest = step_bound(best(shortest[:, -1]), engines, prompt_tokens=prompt_tokens)
    by_work = step_bound(best(shortest.sum(axis=1)), engines, prompt_tokens=prompt_tokens)
    # The area bound mixes area and work, so each takes its own best choice.
    areas = (shortest * (shortest + 1) / 2).sum(axis=1) + prompt_tokens * shortest[:, -1]
    return StepBound(
        critical_path_s=by_longest.critical_path_s,
        work_s=by_work.work_s,
        kv_area_s=_area_bound(
            float(np.sort(areas)[:keep_groups].sum()),
            float(np.sort(shortest.sum(axis=1))[:keep_groups].sum()),
            keep_groups * prompt_tokens,
            engines,
        ),
    )


def work_seconds(
    tokens: float, engines: Sequence[EngineModel], *, prompts: float = 0, completions: int | None = None
) -> float:
    """Least seconds in which the engines produce that many tokens.

    Args:
        tokens: Tokens to decode.
        engines: One a replica.
        prompts: Prompt tokens to prefill.
        completions: How many completions the tokens are of, if no other runs beside them.
    """
    batches = [float(engine.slots) for engine in engines]
    if completions is not None and len(set(engines)) == 1:
        batches = [min(batch, max(1.0, completions / len(engines))) for batch in batches]
    rates = [1 / engine.token_s(batch) for engine, batch in zip(engines, batches, strict=True)]
    prefill = min(rate * engine.prefill_token_s for rate, engine in zip(rates, engines, strict=True))
    return (tokens + prefill * prompts) / sum(rates)


def work_bound(setting: Setting, *, steps: int, samples: int, tokens: int) -> float:
    """Least seconds in which these devices generate and train on that much, whatever overlaps.

    Args:
        setting: Devices and speeds. Where the trainer has devices of its own, that split is kept; see
            `Setting.split` for the bound of the same devices without one.
        steps: Training steps.
        samples: Samples trained on, over all steps.
        tokens: Their tokens.
    """
    prompts = setting.workload.prompt_tokens * samples / setting.group_size
    generate = work_seconds(float(tokens), setting.engines, prompts=prompts)
    trainer = setting.trainer
    if trainer.colocated:
        train = trainer.sample_s * samples / len(setting.engines) + steps * trainer.fixed_s
        return generate + train + steps * setting.sync_s
    train = trainer.sample_s * samples / trainer.devices + steps * trainer.fixed_s
    return max(generate, train) + steps * setting.sync_s


def device_bound(setting: Setting, *, samples: int, tokens: int) -> float:
    """Least seconds for that much on all of the devices, however they are split between the two.

    With a share b of D devices for training, a run takes at least the greater of work / ((1 - b) * D) and
    training / (b * D), and over all b the least of it is (work + training) / D. A device of the trainer's own
    counts as one of the first replica. Fixed times and syncs may overlap and are left out.

    Args:
        setting: Devices and speeds.
        samples: Samples trained on, over all steps.
        tokens: Their tokens.
    """
    own = setting.trainer.devices
    engines = [*setting.engines, *[setting.engines[0]] * own]
    prompts = setting.workload.prompt_tokens * samples / setting.group_size
    train = setting.trainer.sample_s * samples / len(engines)
    return work_seconds(float(tokens), engines, prompts=prompts) + train


def staleness_bound(setting: Setting, longest: Sequence[int], *, max_staleness: int) -> float:
    """Least seconds of a run whose samples are at most so many versions old.

    Args:
        setting: Devices and speeds.
        longest: Tokens of the longest completion that each step trains on, in the order of the steps.
        max_staleness: The bound, >= 0; 0 is synchronous.

    Raises:
        SimulationError: If the bound is negative.
    """
    if max_staleness < 0:
        raise SimulationError(f"staleness_bound: got max_staleness {max_staleness!r}, allowed is >= 0")
    iteration = min(engine.iteration_s(1) for engine in setting.engines)
    after = setting.trainer.fixed_s + setting.sync_s
    apart = max_staleness + 1
    each = [tokens * iteration + after for tokens in longest]
    return max((sum(each[first::apart]) for first in range(apart)), default=0.0)


def speedup_ceiling(*, rollout_share: float, utilisation: float) -> float:
    """Greatest speed-up on the same devices: 1 / ((1 - f) + f * rho).

    Args:
        rollout_share: f, the share of the step that is rollout, 0 to 1.
        utilisation: rho, the work bound of the rollout divided by its time, above 0 to 1.

    Raises:
        SimulationError: If a value is out of its range.
    """
    if not 0 <= rollout_share <= 1 or not 0 < utilisation <= 1:
        raise SimulationError(
            f"speedup_ceiling: got rollout_share={rollout_share!r}, utilisation={utilisation!r}, allowed "
            "are 0 to 1 and above 0 to 1"
        )
    return 1 / ((1 - rollout_share) + rollout_share * utilisation)


def _checked(tokens: Sequence[np.ndarray], engines: Sequence[EngineModel]) -> list[np.ndarray]:
    groups = [np.asarray(group) for group in tokens]
    if not engines or not groups or any(group.size == 0 for group in groups):
        raise SimulationError(
            f"step_bound: got {len(groups)} groups and {len(engines)} engines, allowed are at least one of "
            "each, and no empty group"
        )
    return groups


def _area_seconds(groups: Sequence[np.ndarray], engines: Sequence[EngineModel], prompt_tokens: int) -> float:
    lengths = [group.astype(np.float64) for group in groups]
    area = sum(float((group * (group + 1) / 2).sum() + prompt_tokens * group.max()) for group in lengths)
    work = sum(float(group.sum()) for group in lengths)
    return _area_bound(area, work, len(groups) * prompt_tokens, engines)


def _area_bound(area: float, work: float, prompts: float, engines: Sequence[EngineModel]) -> float:
    if any(engine.kv_tokens is None or engine.base_s == 0 for engine in engines):
        return 0.0
    offers = [((engine.kv_tokens or 0) / engine.base_s, engine) for engine in engines]
    decode = min(offer * engine.sequence_s for offer, engine in offers) * work
    prefill = min(offer * engine.prefill_token_s for offer, engine in offers) * prompts
    return (area + decode + prefill) / sum(offer for offer, _ in offers)
