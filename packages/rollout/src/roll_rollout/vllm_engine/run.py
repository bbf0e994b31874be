"""One request in vLLM: what it is asked for, and how its outputs are read. Called by `VLLMEngine`."""

from typing import Any

import numpy as np

from roll_rollout.request import GenerateRequest
from roll_rollout.token_run import TokenRun, continued_seed


class Run(TokenRun):
    """A request in vLLM.

    Args:
        request: What was asked for.
        room: Most tokens of its completion.

    Attributes:
        cached: Prompt tokens that vLLM had computed before; None until the first token.
    """

    def __init__(self, request: GenerateRequest, room: int) -> None:
        super().__init__(request, room, library="vLLM")
        self.cached: int | None = None

    def sampling(self) -> Any:
        """Returns vLLM's `SamplingParams`; each output brings the tokens since the last."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        asked = self.request.sampling
        return SamplingParams(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            min_p=asked.min_p,
            seed=continued_seed(self.request.seed, self.before),
            max_tokens=self.room - self.before,
            stop=list(asked.stop) or None,
            stop_token_ids=list(asked.stop_token_ids) or None,
            # End tokens come from the request alone.
            ignore_eos=True,
            detokenize=bool(asked.stop),
            skip_special_tokens=False,
            logprobs=0,
            output_kind=RequestOutputKind.DELTA,
        )

    def prompt(self) -> dict[str, Any]:
        """Returns vLLM's `TokensPrompt`."""
        prompt: dict[str, Any] = {"prompt_token_ids": self.request.context_ids.tolist()}
        if self.request.media:
            by_kind: dict[str, list[Any]] = {}
            for media in self.request.media:
                item = (media.data, media.sampling_rate) if media.kind == "audio" else media.data
                by_kind.setdefault(media.kind, []).append(item)
            prompt["multi_modal_data"] = by_kind
        return prompt

    def take(self, output: Any) -> None:
        """Appends the new tokens of vLLM's `CompletionOutput`."""
        tokens = list(output.token_ids)
        choices = output.logprobs or ()
        self.extend(tokens, [each[token].logprob for token, each in zip(tokens, choices, strict=False)])

    def experts(self, output: Any) -> np.ndarray | None:
        """Returns the routed experts of vLLM's last `CompletionOutput`, if it has any."""
        return None if output.routed_experts is None else np.asarray(output.routed_experts)
