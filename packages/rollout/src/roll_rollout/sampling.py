"""How the tokens of one completion are drawn: part of every request, honoured by every engine."""

from dataclasses import dataclass

from roll_rollout.errors import SamplingError


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling of one completion, for example `SamplingParams(max_tokens=80, stop_token_ids=(2,))`.

    The filters apply in the order top-k, top-p, min-p to the distribution after temperature. With a
    filter on, reported log-probs are those of the renormalised kept set, which is the distribution the
    token was drawn from; a learner that recomputes log-probs over the whole vocabulary needs
    `full_distribution`.

    Attributes:
        max_tokens: Most tokens to sample, at least 1.
        temperature: Divides the logits, 0 or more. At 0 the most likely token is taken and its log-prob
            is reported at temperature 1.
        top_p: Keep the smallest set of most likely tokens with at least this probability, in (0, 1].
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        min_p: Drop tokens below this fraction of the largest probability, in [0, 1).
        stop_token_ids: Ids that end the completion and stay in it. An engine adds none of its own:
            the caller names the end-of-sequence token here.
        stop: Strings that end the completion. Tokens that contain or follow the first character of a
            stop string are cut from it.

    Raises:
        SamplingError: A value is out of its range.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require("max_tokens", self.max_tokens, self.max_tokens >= 1, "an integer of at least 1")
        _require("temperature", self.temperature, 0.0 <= self.temperature < float("inf"), "0 or more, finite")
        _require("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "in (0, 1]")
        _require("top_k", self.top_k, self.top_k >= 0, "0 (off) or more")
        _require("min_p", self.min_p, 0.0 <= self.min_p < 1.0, "in [0, 1)")
        ids_fit = all(token >= 0 for token in self.stop_token_ids)
        _require("stop_token_ids", self.stop_token_ids, ids_fit, "ids of 0 or more")
        strings_fit = isinstance(self.stop, tuple) and all(self.stop)
        _require("stop", self.stop, strings_fit, "a tuple of strings that are not empty")

    @property
    def full_distribution(self) -> bool:
        """Whether log-probs are over the whole vocabulary: top-p, top-k and min-p are all off."""
        return self.top_p == 1.0 and self.top_k == 0 and self.min_p == 0.0


def _require(name: str, got: object, fits: bool, allowed: str) -> None:
    if not fits:
        raise SamplingError(f"SamplingParams.{name}: got {got!r}, allowed is {allowed}")
