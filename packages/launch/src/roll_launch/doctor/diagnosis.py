"""Compares engine and learner on fixed sequences, and finds the one change that would make them agree."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from roll_rollout import Completion, EngineError, GenerateRequest, capabilities_of
from roll_rollout.torch_weights import weight_update

from roll_launch.doctor import hypotheses
from roll_launch.doctor.subject import Gap, Subject, by_learner, sampled

DISTURBANCE = 1.05
"""What weights are multiplied by to see whether an engine takes them."""

EXACT = 2e-3
"""Nats within which two float32 computations of the same thing agree on one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the findings.

    Attributes:
        name: What was compared.
        gap: How far apart it was, None where that is not a number.
        verdict: "agrees", "differs", or what else was found.
    """

    name: str
    gap: Gap | None
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the doctor found.

    Attributes:
        cause: None if engine and learner agree; "unknown" if nothing that was tried explains the difference;
            else "weights", "tokenisation", "chat template", "temperature", "sampling filters", "packing",
            "batching", "dtype" or "log-probs".
        side: "engine", "learner" or "".
        statement: What that side does, for people.
        tolerance: Most nats by which one token may differ.
        checks: What was compared, in order.
        drift: Completions that tokenising their text again would have changed, of how many.
    """

    cause: str | None
    side: str
    statement: str
    tolerance: float
    checks: tuple[Check, ...]
    drift: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explanation:
    cause: str
    side: str
    statement: str
    gap: Gap


class Examination:
    """One examination of a subject.

    Args:
        subject: What is looked at. The engine ends with the learner's weights.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._checks: list[Check] = []
        self._found: list[_Explanation] = []
        self._version = subject.version

    async def run(self) -> Diagnosis:
        """Returns what was found.

        Raises:
            EngineError: The engine serves nothing.
        """
        subject, requests = self._subject, self._subject.requests()
        completions = await sampled(subject.engine, requests)
        if not completions:
            raise EngineError("doctor: the engine gave no token to any of the fixed prompts")
        engine = [each.logprobs for each in completions]
        if any(np.isnan(row).any() for row in engine):
            return self._done("log-probs", "engine", "it gives no log-probs of sampled tokens", completions)
        learner = by_learner(subject.learner, completions)
        plain = self._plain(completions)
        apart = self._compare("engine and learner", engine, learner)
        from_engine = self._compare("engine and plain forward", engine, plain)
        from_learner = self._compare("learner and plain forward", learner, plain)
        self._packing(completions, learner, plain)
        if capabilities_of(subject.engine).weight_updates:
            await self._weights(requests, completions)
        if not apart.largest <= subject.tolerance:
            if from_engine.largest > from_learner.largest / 2:
                await self._batching(requests)
                self._explain("engine", engine, completions, from_engine)
            if from_learner.largest > from_engine.largest / 2:
                self._explain("learner", learner, completions, from_learner)
            if not any(each.cause == "weights" for each in self._found):
                await self._dtype(requests)
        self._not_exact(completions)
        if not self._found:
            agree = apart.largest <= subject.tolerance
            said = "engine and learner agree" if agree else "nothing that was tried explains the difference"
            return self._done(None if agree else "unknown", "", said, completions)
        # Where both agree in float32, all else that was found is rounding too.
        best = min(self._found, key=lambda each: (each.cause != "dtype", each.gap.mean))
        return self._done(best.cause, best.side, best.statement, completions)

    def _plain(self, completions: Sequence[Completion]) -> list[np.ndarray]:
        temperature = self._subject.sampling.temperature
        return [
            self._subject.witness.logprobs(each.prompt_ids, each.token_ids, temperature=temperature)
            for each in completions
        ]

    def _compare(self, name: str, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> Gap:
        gap = Gap.between(one, other)
        verdict = "agrees" if gap.largest <= self._subject.tolerance else "differs"
        self._checks.append(Check(name=name, gap=gap, verdict=verdict))
        return gap

    def _packing(
        self, completions: Sequence[Completion], together: list[np.ndarray], plain: list[np.ndarray]
    ) -> None:
        """The learner's log-probs must not depend on what else is in its batch."""
        alone = [by_learner(self._subject.learner, [each])[0] for each in completions]
        gap = self._compare("learner, alone and in a batch", alone, together)
        residual = Gap.between(alone, plain)
        if gap.largest > self._subject.tolerance:
            said = "log-probs depend on what else is in the batch: padding or packing leaks"
            self._found.append(_Explanation(cause="packing", side="learner", statement=said, gap=residual))

    async def _batching(self, requests: Sequence[GenerateRequest]) -> None:
        """An engine's log-probs must not depend on its neighbours, where it draws the same tokens."""
        together = await sampled(self._subject.engine, requests)
        alone = [each for request in requests for each in await sampled(self._subject.engine, [request])]
        same = [
            (one, other)
            for one, other in zip(alone, together, strict=False)
            if np.array_equal(one.token_ids, other.token_ids)
        ]
        name = f"engine, alone and in a batch ({len(same)} of {len(requests)} with the same tokens)"
        if not same:
            self._checks.append(Check(name=name, gap=None, verdict="not comparable"))
            return
        gap = self._compare(name, [one.logprobs for one, _ in same], [two.logprobs for _, two in same])
        residual = Gap.between([one.logprobs for one, _ in same], self._plain([one for one, _ in same]))
        if gap.largest > self._subject.tolerance and residual.largest <= self._subject.tolerance:
            said = "log-probs depend on what else is in the batch"
            self._found.append(_Explanation(cause="batching", side="engine", statement=said, gap=residual))

    async def _weights(self, requests: Sequence[GenerateRequest], before: Sequence[Completion]) -> None:
        """The engine must hold the learner's weights, and others once it has acknowledged others."""
        stale = Gap.between([each.logprobs for each in before], self._plain(before))
        disturbed = await self._after_update(requests, DISTURBANCE)
        moved = not _same(before, disturbed)
        fresh = await self._after_update(requests, 1.0)
        residual = Gap.between([each.logprobs for each in fresh], self._plain(fresh))
        name = "engine and plain forward, after a weight sync"
        self._compare(name, [each.logprobs for each in fresh], self._plain(fresh))
        versions = {version for each in fresh for version, _ in each.versions}
        tolerance = self._subject.tolerance
        said = ""
        if not moved:
            said = "it acknowledges weights and goes on with those of before"
            residual = Gap(largest=0.0, mean=0.0, tokens=residual.tokens)
        elif stale.largest > tolerance >= residual.largest:
            said = f"it held other weights than the learner (version {self._subject.version}) until a sync"
        elif versions != {self._version}:
            said = f"its tokens carry versions {sorted(versions)} after version {self._version} was loaded"
        self._checks.append(
            Check(name="weights that arrive change what is drawn", gap=None, verdict="yes" if moved else "no")
        )
        if said:
            self._found.append(_Explanation(cause="weights", side="engine", statement=said, gap=residual))

    async def _after_update(self, requests: Sequence[GenerateRequest], factor: float) -> list[Completion]:
        """Returns what the engine draws with the learner's weights, multiplied by a factor."""
        self._version += 1
        tensors = (
            (name, tensor * factor if factor != 1.0 and tensor.is_floating_point() else tensor)
            for name, tensor in self._subject.learner.export_weights()
        )
        await self._subject.engine.update_weights(weight_update(tensors, version=self._version))
        return await sampled(self._subject.engine, requests)

    def _explain(
        self, side: str, said: Sequence[np.ndarray], completions: Sequence[Completion], from_plain: Gap
    ) -> None:
        """Looks for the change under which a side agrees with the plain forward."""
        if from_plain.largest <= self._subject.tolerance:
            return
        subject, temperature = self._subject, self._subject.sampling.temperature
        tried = [*hypotheses.temperatures(subject.witness, temperature)]
        if side == "engine":
            tried += [*hypotheses.filters(subject.witness, temperature, subject.directory)]
            tried += [*hypotheses.prompts(subject.witness, temperature, subject.tokenizer)]
        nearest: dict[str, tuple[Gap, str]] = {}
        for hypothesis in tried:
            gap = hypotheses.gap_under(hypothesis, said, completions)
            if hypothesis.cause not in nearest or gap.mean < nearest[hypothesis.cause][0].mean:
                nearest[hypothesis.cause] = (gap, hypothesis.statement)
        for cause, (gap, statement) in nearest.items():
            fits = gap.largest <= subject.tolerance and gap.mean < from_plain.mean / 2
            self._checks.append(
                Check(name=f"{side}: {statement}", gap=gap, verdict="agrees" if fits else "differs")
            )
            if fits:
                self._found.append(_Explanation(cause=cause, side=side, statement=statement, gap=gap))

    async def _dtype(self, requests: Sequence[GenerateRequest]) -> None:
        """Whether the difference is rounding: both once more in float32."""
        if self._subject.float32 is None:
            return
        engine, learner = await self._subject.float32()
        try:
            completions = await sampled(engine, requests)
        finally:
            await engine.close()
        said, plain = [each.logprobs for each in completions], self._plain(completions)
        gap = Gap.between(said, by_learner(learner, completions))
        from_plain = Gap.between(said, plain)
        agrees = max(gap.largest, from_plain.largest) <= EXACT
        self._checks.append(Check(name="both in float32", gap=gap, verdict="agrees" if agrees else "differs"))
        if agrees:
            statement = "in float32 both agree: the difference is rounding of the dtype"
            self._found.append(_Explanation(cause="dtype", side="", statement=statement, gap=gap))

    def _not_exact(self, completions: Sequence[Completion]) -> None:
        again = sum(not each.exact for each in completions)
        if again:
            said = f"{again} of {len(completions)} completions came as text and were tokenised again"
            none = Gap(largest=0.0, mean=0.0, tokens=0)
            self._found.append(_Explanation(cause="tokenisation", side="engine", statement=said, gap=none))

    def _done(
        self, cause: str | None, side: str, statement: str, completions: Sequence[Completion]
    ) -> Diagnosis:
        return Diagnosis(
            cause=cause,
            side=side,
            statement=statement,
            tolerance=self._subject.tolerance,
            checks=tuple(self._checks),
            drift=(self._drifting(completions), len(completions)),
        )

    def _drifting(self, completions: Sequence[Completion]) -> int:
        """How many completions would have other ids, had their text been tokenised again."""
        tokenizer = self._subject.tokenizer
        return sum(
            list(tokenizer.encode(tokenizer.decode(each.token_ids.tolist()), add_special_tokens=False))
            != each.token_ids.tolist()
            for each in completions
        )


def _same(first: Sequence[Completion], second: Sequence[Completion]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(one.token_ids, other.token_ids) and np.array_equal(one.logprobs, other.logprobs)
        for one, other in zip(first, second, strict=True)
    )
