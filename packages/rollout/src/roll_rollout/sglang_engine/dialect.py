"""SGLang's generate call: what it is asked, and how its outputs are read. Called through `ServerRequests`."""

import base64
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from roll_rollout.errors import EngineError, PromptTooLong, UnsupportedRequest
from roll_rollout.http_endpoint import Refused, Unanswered
from roll_rollout.sglang_engine.transport import SGLangTransport
from roll_rollout.token_run import TokenRun, continued_seed

_TOO_LONG = "longer than the model's context length"
_LABEL = "roll-"


class SGLangDialect:
    """`/generate`, streamed, with ids in and ids out.

    SGLang labels tokens with the weight version that it was told; a label here stands for the versions of the
    weights and of all adapters at that time. Tokens under another label were drawn before the first one.

    Args:
        transport: The way to SGLang.
        version: Policy version of its weights.
        experts_shape: Mixture layers and experts a token, for routed experts; None without.
    """

    path = "/generate"

    def __init__(
        self, transport: SGLangTransport, *, version: int, experts_shape: tuple[int, int] | None
    ) -> None:
        self.version = version
        self.adapters: dict[str, int] = {}
        self._transport = transport
        self._experts_shape = experts_shape
        self._labels: list[tuple[int, dict[str, int]]] = [(version, {})]
        self._sent = 0
        self._rids: dict[str, str] = {}

    def next_label(self, version: int, adapters: Mapping[str, int]) -> str:
        """Returns the label of tokens that are drawn by these versions from now on."""
        self._labels.append((version, dict(adapters)))
        return f"{_LABEL}{len(self._labels) - 1}"

    def body(self, run: TokenRun) -> dict[str, Any]:
        """Returns the request as `GenerateReqInput` has it."""
        request, asked = run.request, run.request.sampling
        body: dict[str, Any] = {
            "rid": self._new_rid(request.id),
            "input_ids": request.context_ids.tolist(),
            "sampling_params": {
                "max_new_tokens": run.room - run.before,
                "temperature": asked.temperature,
                "top_p": asked.top_p,
                "top_k": asked.top_k or -1,
                "min_p": asked.min_p,
                "stop": list(asked.stop) or None,
                "stop_token_ids": list(asked.stop_token_ids) or None,
                # End tokens come from the request alone, and stay.
                "ignore_eos": True,
                "no_stop_trim": True,
                "skip_special_tokens": False,
                "sampling_seed": continued_seed(request.seed, run.before) % 2**63,
            },
            "return_logprob": True,
            "stream": True,
        }
        if not asked.full_distribution:
            body["return_sampling_mask"] = True
        if request.adapter is not None:
            body["lora_path"] = request.adapter
        if request.routed_experts:
            body["return_routed_experts"] = True
        return body

    async def attempt(self, run: TokenRun) -> AsyncGenerator[None, None]:
        """Sends a request once. See `ServerDialect.attempt`."""
        info: Mapping[str, Any] = {}
        try:
            async with aclosing(self._transport.events(self.body(run))) as events:  # type: ignore[type-var]
                async for event in events:
                    info = _meta_info(event)
                    if self._take(run, info):
                        yield
                    if info.get("finish_reason") is not None:
                        break
        except Refused as error:
            raise _refusal(run, str(error)) from error
        reason = info.get("finish_reason")
        if reason is None:
            raise Unanswered("the stream ended before the completion did")
        self._rids.pop(run.request.id, None)
        self._finish(run, info, reason)

    async def abort(self, run: TokenRun) -> bool:
        """Tells SGLang, which then ends the stream. See `ServerDialect.abort`."""
        rid = self._rids.get(run.request.id)
        if rid is None:
            return False
        await self._transport.call("abort", {"rid": rid, "abort_all": False})
        return True

    def _new_rid(self, request_id: str) -> str:
        """Returns an id that no other begins with: SGLang aborts all that begin with the one it gets."""
        self._sent += 1
        self._rids[request_id] = rid = f"{self._sent}:{request_id}"
        return rid

    def _take(self, run: TokenRun, info: Mapping[str, Any]) -> bool:
        """Appends the tokens that an output has beyond those of the last; returns whether there are any.

        Outputs carry all tokens so far, or those since the last, as the server was started; the count says
        how many there should be in all.
        """
        entries: Sequence[Sequence[Any]] = info.get("output_token_logprobs") or ()
        total = int(info.get("output_token_logprobs_length", len(entries)))
        fresh = total - run.drawn
        if fresh <= 0:
            return False
        if fresh > len(entries):
            got = f"{total} tokens after {run.drawn}, and {len(entries)} of them"
            raise EngineError(f"request {run.request.id!r}: SGLang reports {got}")
        news = entries[-fresh:]
        values = [float(entry[0]) for entry in news]
        if not run.request.sampling.full_distribution:
            kept = info.get("output_token_sampling_logprobs") or ()
            if len(kept) < fresh:
                raise UnsupportedRequest(
                    f"request {run.request.id!r}: SGLang gives no log-probs of the kept set, which top-p, "
                    "top-k and min-p need; sample without them"
                )
            values = [float(each) for each in kept[-fresh:]]
        run.extend([int(entry[1]) for entry in news], values)
        return True

    def _finish(self, run: TokenRun, info: Mapping[str, Any], reason: Any) -> None:
        kind = reason.get("type") if isinstance(reason, dict) else str(reason)
        status = reason.get("status_code") if isinstance(reason, dict) else None
        if kind == "abort" and status is not None and not run.halted.is_set():
            raise _refusal(run, f"SGLang aborted it with status {status}: {reason.get('message')!r}")
        adapter = run.request.adapter
        spans = [
            (self._version_at(str(span["version"]), adapter), int(span["start"]))
            for span in info.get("weight_versions") or ()
        ]
        now = self.version if adapter is None else self.adapters.get(adapter, self.version)
        run.finish(kind, spans or [(now, 0)], now, self._experts(run, info.get("routed_experts")))

    def _version_at(self, label: str, adapter: str | None) -> int:
        place = label.removeprefix(_LABEL)
        version, adapters = self._labels[int(place) if label.startswith(_LABEL) else 0]
        return version if adapter is None else adapters.get(adapter, version)

    def _experts(self, run: TokenRun, encoded: str | None) -> np.ndarray | None:
        if encoded is None or self._experts_shape is None:
            return None
        flat = np.frombuffer(base64.b64decode(encoded), dtype=np.int32)
        layers, experts = self._experts_shape
        if flat.size % (layers * experts):
            where = f"request {run.request.id!r}: SGLang's routed experts"
            raise EngineError(
                f"{where} are {flat.size} numbers, allowed are multiples of {layers} x {experts}"
            )
        return flat.reshape(-1, layers, experts)


def _meta_info(event: Any) -> Mapping[str, Any]:
    """Returns what an output says about its request.

    Raises:
        Refused: It is an error that another attempt would meet again.
        Unanswered: It is another error.
    """
    if not isinstance(event, dict):
        raise Unanswered(f"an output that is no object: {str(event)[:100]!r}")
    error = event.get("error")
    if error is not None:
        text = str(error.get("message") if isinstance(error, dict) else error)
        if isinstance(error, dict) and error.get("retryable") is False:
            raise Refused(text, int(error.get("code", 400)), text)
        raise Unanswered(f"an error in the stream: {text[:300]}")
    info: Mapping[str, Any] = event.get("meta_info") or {}
    return info


def _refusal(run: TokenRun, message: str) -> EngineError:
    where = f"request {run.request.id!r}"
    if _TOO_LONG in message:
        return PromptTooLong(f"{where}: a prompt of {len(run.request.context_ids)} tokens: {message}")
    return EngineError(f"{where}: {message}")
