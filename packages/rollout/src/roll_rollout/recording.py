"""Completions on disk: an engine that writes down what another one draws, and one that plays it back.

A recording is a file of JSON lines, one a completion in the order in which they ended:

    {"prompt_ids": [5, 9, 4], "seed": 11, "token_ids": [8, 2], "logprobs": [-0.1, -1.2],
     "versions": [[3, 2]], "finish_reason": "stop", "exact": true}
"""

import asyncio
import json
import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from roll_rollout.capabilities import EngineCapabilities, capabilities_of
from roll_rollout.completion import Completion
from roll_rollout.engine import Engine, EngineLoad
from roll_rollout.errors import EngineClosed, EngineError
from roll_rollout.request import GenerateRequest
from roll_rollout.weights import WeightReceipt, WeightUpdate, weights_checksum

logger = logging.getLogger(__name__)

_Key = tuple[bytes, int]


class RecordingEngine:
    """An `Engine` that passes everything on to another one and writes down its completions.

    A completion is in the file when `generate` returns it. Routed experts are not written.

    Args:
        engine: Draws; it belongs to this one from now on.
        path: The recording; completions are appended to it.
    """

    def __init__(self, engine: Engine, path: str | Path) -> None:
        self._engine = engine
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO | None = None

    @property
    def capabilities(self) -> EngineCapabilities:
        """What requests may ask of the other engine; what goes beyond `Engine` is not passed on."""
        return replace(
            capabilities_of(self._engine),
            streaming=False,
            pause_modes=(),
            sleep_levels=(),
            prefix_cache=False,
            adapters=False,
            health=False,
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns the completion of one request once it is written down. See `Engine.generate`."""
        completion = await self._engine.generate(request)
        if self._file is None:
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(json.dumps(_line(completion)) + "\n")
        self._file.flush()
        return completion

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests. See `Engine.abort`."""
        await self._engine.abort(request_ids)

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Replaces the weights of the other engine. See `Engine.update_weights`."""
        return await self._engine.update_weights(update)

    async def load(self) -> EngineLoad:
        """Returns how busy the other engine is."""
        return await self._engine.load()

    async def close(self) -> None:
        """Closes the other engine and the file. See `Engine.close`."""
        await self._engine.close()
        if self._file is not None:
            self._file.close()


class ReplayEngine:
    """An `Engine` that plays back a recording.

    The completion of a request is the one recorded for its prompt and seed, with the versions that drew it
    then. Of several, each is given once, in their order.

    Weights are taken without a look at them, so that a run trains on a recording as it did when it was made.

    Args:
        path: The recording, or a directory with several, whose names are in the order of their making.
        version: Policy version at the start.

    Raises:
        EngineError: A file is missing, or a line is broken; a last line without an end is left out.
    """

    def __init__(self, path: str | Path, *, version: int = 0) -> None:
        self._path = Path(path)
        self._completions: dict[_Key, deque[Completion]] = defaultdict(deque)
        self._version = version
        self._sampled_tokens = 0
        self._closed = False
        for completion in read_recording(self._path):
            self._completions[_key(completion.prompt_ids, completion.seed)].append(completion)

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do. See `DescribedEngine`."""
        return EngineCapabilities(stop_strings=True)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns what was recorded for a request. See `Engine.generate`.

        Raises:
            EngineError: Nothing was, or all of it was given already; says which.
        """
        where = f"request {request.id!r}"
        if self._closed:
            raise EngineClosed(f"{where}: the engine is closed")
        # As from another engine: callers see the other tasks run meanwhile.
        await asyncio.sleep(0)
        recorded = self._completions.get(_key(request.prompt_ids, request.seed))
        if not recorded:
            given = "has been given already" if recorded is not None else self._nothing_for(request)
            raise EngineError(f"{where}: recording {str(self._path)!r}: {given}")
        completion = replace(recorded.popleft(), request_id=request.id)
        self._sampled_tokens += len(completion)
        return completion

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Nothing to do: no request is ever in flight for long."""

    async def update_weights(self, update: WeightUpdate) -> WeightReceipt:
        """Takes the version. See `Engine.update_weights`."""
        if self._closed:
            raise EngineClosed("update_weights: the engine is closed")
        self._version = update.version
        return WeightReceipt(version=update.version, checksum=weights_checksum(update.buckets))

    async def load(self) -> EngineLoad:
        """Returns an idle load."""
        return EngineLoad(running=0, waiting=0, kv_tokens=0, sampled_tokens=self._sampled_tokens)

    async def close(self) -> None:
        """Refuses all later requests. See `Engine.close`."""
        self._closed = True

    def _nothing_for(self, request: GenerateRequest) -> str:
        prompt = request.prompt_ids.tobytes()
        seeds = sorted(seed for key, seed in self._completions if key == prompt)
        if seeds:
            return f"has nothing for seed {request.seed}; its prompt was recorded for {seeds[:5]}"
        return f"has nothing for its prompt of {len(request.prompt_ids)} tokens"


def read_recording(path: str | Path) -> list[Completion]:
    """Returns the completions of a recording in its order; their request ids are their line numbers.

    Args:
        path: A file, or a directory whose `.jsonl` files are read in the order of their names.

    Raises:
        EngineError: A file is missing, or a line is broken; a last line without an end is left out.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise EngineError(f"recording {str(path)!r}: the directory holds no .jsonl file")
        return [completion for file in files for completion in read_recording(file)]
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(f"recording {str(path)!r}: cannot be read: {error}") from error
    *lines, rest = text.split("\n")
    if rest:
        logger.warning("recording %s: its last line has no end and is left out", path)
    return [
        _completion(line, f"recording {str(path)!r}, line {number}") for number, line in enumerate(lines, 1)
    ]


def _line(completion: Completion) -> dict[str, Any]:
    return {
        "prompt_ids": completion.prompt_ids.tolist(),
        "seed": completion.seed,
        "token_ids": completion.token_ids.tolist(),
        "logprobs": completion.logprobs.tolist(),
        "versions": [list(run) for run in completion.versions],
        "finish_reason": completion.finish_reason,
        "exact": completion.exact,
    }


def _completion(line: str, where: str) -> Completion:
    try:
        fields: Mapping[str, Any] = json.loads(line)
        return Completion(
            request_id=where.rsplit(" ", 1)[-1],
            prompt_ids=np.array(fields["prompt_ids"], dtype=np.int32),
            token_ids=np.array(fields["token_ids"], dtype=np.int32),
            logprobs=np.array(fields["logprobs"], dtype=np.float32),
            versions=tuple((int(version), int(length)) for version, length in fields["versions"]),
            finish_reason=fields["finish_reason"],
            seed=int(fields["seed"]),
            exact=bool(fields["exact"]),
        )
    except (ValueError, KeyError, TypeError, EngineError) as error:
        raise EngineError(f"{where}: is no completion: {type(error).__name__}: {error}") from error


def _key(prompt_ids: np.ndarray, seed: int) -> _Key:
    return prompt_ids.tobytes(), seed
