"""Grader `remote`: a service of one's own that grades over HTTP, at once or by submitting and polling."""

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from roll_rewards.errors import RewardError
from roll_rewards.remote.patience import Patience, authorization, send_patiently
from roll_rewards.remote.transport import RemoteError, Reply, send
from roll_rewards.scores import REAL_TYPES, Score, failed

_POLL_GROWTH = 1.5
_LONGEST_POLL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """What a service says of a response.

    Sent is `{"response", "reference", "columns"}` as JSON by POST, with a header `Idempotency-Key` that is
    the same for every attempt of the same row, so that a service may answer a repeated request without
    grading twice. The answer is a JSON object with `score` and, if wanted, `parts`, `parsed`, `timed_out`,
    or a `failure` with `kind` and `message`. In mode `poll` the first answer has an `id`, and `GET url/id`
    is asked until its `status` is one of `done` or `broken`; the answer then is under `result`, or beside
    the status.

    A service that cannot be reached, refuses or takes longer than `timeout_s` is a failure, not a zero.

    Example: `Remote(url="https://grader.example/grade", key_env="GRADER_KEY", mode="poll")`.

    Attributes:
        url: Where to send.
        mode: `sync` or `poll`.
        key_env: Environment variable with the service's key; None sends none.
        auth_header: Header for the key.
        auth_scheme: Word in front of the key; empty for none.
        columns: Columns that are sent; None sends all that JSON can hold.
        score_field: Where the score is; a dot leads into an object.
        done: Statuses of a finished job.
        broken: Statuses of a job that will not finish.
        timeout_s: Wall seconds for one row, above 0.
        request_s: Wall seconds for one request, above 0.
        poll_s: First wait between two questions, above 0; later ones are longer.
        attempts: Requests in all when one fails, at least 1.
        first_wait_s: First wait after a failed request; later ones double.

    Raises:
        RewardError: An option is out of its range; when grading, the key is missing.
    """

    url: str
    mode: Literal["sync", "poll"] = "sync"
    key_env: str | None = None
    auth_header: str = "Authorization"
    auth_scheme: str = "Bearer"
    columns: tuple[str, ...] | None = None
    score_field: str = "score"
    done: tuple[str, ...] = ("done", "completed", "succeeded", "success", "finished")
    broken: tuple[str, ...] = ("failed", "error", "cancelled", "expired")
    timeout_s: float = 300.0
    request_s: float = 60.0
    poll_s: float = 0.5
    attempts: int = 4
    first_wait_s: float = 0.5

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise RewardError(
                f"option 'url' of grader 'remote' must begin with http:// or https://, got {self.url!r}"
            )
        if not (self.timeout_s > 0 and self.request_s > 0 and self.poll_s > 0):
            raise RewardError(
                "options 'timeout_s', 'request_s' and 'poll_s' of grader 'remote' must be above 0, "
                f"got {self.timeout_s}, {self.request_s} and {self.poll_s}"
            )
        self._patience()

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The service's verdict. See `Grader.grade`."""
        payload = {"response": response, "reference": reference, "columns": self._sent(columns)}
        headers = authorization(self.key_env, header=self.auth_header, scheme=self.auth_scheme)
        try:
            async with asyncio.timeout(self.timeout_s):
                answer = await self._post(payload, headers)
                if self.mode == "poll":
                    answer = await self._poll(answer, headers)
        except TimeoutError:
            return failed("deadline", f"{self.url} gave no score within {self.timeout_s:g} s")
        except RemoteError as error:
            return failed("remote", str(error))
        return self._score(answer)

    def _sent(self, columns: Mapping[str, object]) -> dict[str, object]:
        if self.columns is not None:
            return {name: columns[name] for name in self.columns if name in columns}
        return {name: value for name, value in columns.items() if _is_json(value)}

    async def _post(self, payload: Mapping[str, object], headers: Mapping[str, str]) -> object:
        text = json.dumps(payload, sort_keys=True, default=str)
        key = hashlib.blake2b(f"{self.url} {text}".encode(), digest_size=16).hexdigest()
        reply = await self._ask("POST", self.url, payload, {**headers, "Idempotency-Key": key})
        return reply.json(self.url)

    async def _poll(self, submitted: object, headers: Mapping[str, str]) -> object:
        job = _field(submitted, "id") if _field(submitted, "id") is not None else _field(submitted, "task_id")
        if not isinstance(job, str | int) or job == "":
            raise RemoteError(f"{self.url} answered no 'id' to a submission, but {submitted!r:.200}")
        wait, address = self.poll_s, f"{self.url.rstrip('/')}/{quote(str(job), safe='')}"
        while True:
            state = (await self._ask("GET", address, None, headers)).json(address)
            status = str(_field(state, "status")).lower()
            if status in self.broken:
                raise RemoteError(
                    f"{address} says {status}: {_field(state, 'message') or _field(state, 'error')!r:.200}"
                )
            if status in self.done:
                result = _field(state, "result")
                return state if result is None else result
            await asyncio.sleep(wait)
            wait = min(wait * _POLL_GROWTH, max(_LONGEST_POLL_S, self.poll_s))

    async def _ask(self, method: str, url: str, payload: object, headers: Mapping[str, str]) -> Reply:
        return await send_patiently(
            lambda: send(method, url, payload=payload, headers=headers, timeout_s=self.request_s),
            self._patience(),
            f"{method} {url}",
        )

    def _patience(self) -> Patience:
        return Patience(
            attempts=self.attempts, first_s=self.first_wait_s, longest_s=max(30.0, self.first_wait_s)
        )

    def _score(self, answer: object) -> Score:
        failure = _field(answer, "failure")
        if isinstance(failure, Mapping):
            return failed(str(failure.get("kind", "remote")), f"{self.url}: {failure.get('message', '')}")
        value = answer if isinstance(answer, REAL_TYPES) else _field(answer, self.score_field)
        if isinstance(value, bool):
            value = float(value)
        if not isinstance(value, REAL_TYPES) or not math.isfinite(value):
            return failed(
                "invalid", f"{self.url} answered no number under {self.score_field!r}: {answer!r:.200}"
            )
        parts, parsed = _field(answer, "parts"), _field(answer, "parsed")
        numbers = {
            str(name): float(part)
            for name, part in (parts.items() if isinstance(parts, Mapping) else ())
            if isinstance(part, REAL_TYPES)
        }
        return Score(
            value=float(value),
            parts=numbers,
            parsed=parsed if isinstance(parsed, str) else None,
            timed_out=_field(answer, "timed_out") is True,
        )


def _field(value: object, path: str) -> object:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
