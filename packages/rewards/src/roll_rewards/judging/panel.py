"""One judge's opinion, asked again when it cannot be read. Called by graders."""

from dataclasses import dataclass, replace
from typing import Literal

from roll_rewards.judging.endpoint import Generate, Written, written_by, yes_probability
from roll_rewards.judging.verdicts import Verdict, VerdictKind, read_verdict
from roll_rewards.remote.transport import RemoteError

AnswerKind = Literal["yes_no", "score", "preference", "yes_probability"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a judge is asked and read.

    Example: `Asking(kind="score", low=1, high=5)`.

    Attributes:
        kind: What its verdict is; `yes_probability` takes the probability of "yes" from the first token.
        low: Score that is worth 0.
        high: Score that is worth 1.
        tries: How often it is asked until its verdict can be read, at least 1.
        system: System message; None sends none.
    """

    kind: AnswerKind = "yes_no"
    low: float = 1.0
    high: float = 10.0
    tries: int = 3
    system: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """What one judge said, with what it took.

    Attributes:
        verdict: Its verdict, or why there is none.
        spent: Sums over all tries: tokens, seconds, cost; the text is the last one.
        tries: How often it was asked.
    """

    verdict: Verdict
    spent: Written
    tries: int


async def opinion(generate: Generate, prompt: str, asking: Asking) -> Opinion:
    """A judge's opinion; never raises for what the judge or its service does.

    Args:
        generate: The judge.
        prompt: What it is asked.
        asking: How.
    """
    messages = [{"role": "user", "content": prompt}]
    if asking.system is not None:
        messages.insert(0, {"role": "system", "content": asking.system})
    spent, verdict, attempt = Written(text=""), Verdict(value=None, reason="not asked"), 0
    for attempt in range(1, asking.tries + 1):
        try:
            written = await written_by(generate, messages)
        except RemoteError as error:
            return Opinion(verdict=Verdict(value=None, reason=str(error)), spent=spent, tries=attempt)
        except Exception as error:
            # Boundary to foreign code: an engine may raise anything.
            reason = f"the judge raised {type(error).__name__}: {error}"
            return Opinion(verdict=Verdict(value=None, reason=reason), spent=spent, tries=attempt)
        spent = _added(spent, written)
        verdict = _read(written, asking)
        if verdict.value is not None:
            break
    return Opinion(verdict=verdict, spent=spent, tries=attempt)


def _read(written: Written, asking: Asking) -> Verdict:
    if asking.kind != "yes_probability":
        kind: VerdictKind = asking.kind
        return read_verdict(written.text, kind, low=asking.low, high=asking.high)
    probability = yes_probability(written.first_words)
    if probability is not None:
        return Verdict(value=probability, reason=written.text[:300])
    return Verdict(value=None, reason="the service sent no log-probability of yes or no for the first token")


def _added(spent: Written, written: Written) -> Written:
    return replace(
        written,
        prompt_tokens=spent.prompt_tokens + written.prompt_tokens,
        completion_tokens=spent.completion_tokens + written.completion_tokens,
        seconds=spent.seconds + written.seconds,
        cost=spent.cost + written.cost,
    )
