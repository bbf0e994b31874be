"""Weights and adapters of vLLM's workers: files that they reload, transfers, and which version drew a token.

vLLM labels every token with the weight version that was set when it was drawn. A label here stands for the
versions of the weights and of all adapters at that time.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.errors import EngineError, EngineUnavailable
from roll_rollout.weight_files import directory_specs, write_adapter, write_update
from roll_rollout.weights import TensorSpec, WeightUpdate

_SHARED_MEMORY = Path("/dev/shm")
_KEPT_ADAPTER_FILES = 2
"""vLLM may read an adapter again that it had put aside, so that the newest files stay."""


@dataclass(slots=True)
class _Adapter:
    number: int
    version: int
    directories: list[Path] = field(default_factory=list)


class VLLMWeights:
    """What the workers hold, and how it got there.

    Args:
        llm: vLLM's `AsyncLLM`.
        path: The model directory it was started from.
        version: Policy version of its weights.
        on_cpu: Whether its workers have the `CpuWorkerExtension`.
        most_adapters: Adapters that it can hold; None leaves that to vLLM.
    """

    def __init__(
        self, llm: Any, *, path: Path, version: int, on_cpu: bool, most_adapters: int | None
    ) -> None:
        self._on_cpu = on_cpu
        self._most_adapters = most_adapters
        self._llm = llm
        self._path = path
        self._version = version
        self._dtype = str(llm.vllm_config.model_config.dtype).removeprefix("torch.")
        self._specs: list[TensorSpec] = []
        self._adapters: dict[str, _Adapter] = {}
        self._numbers = 0
        self._labels: list[tuple[int, dict[str, int]]] = []
        self._broken = ""
        self._files: Path | None = None

    def version_of(self, adapter: str | None) -> int:
        """Returns the version that draws tokens now."""
        return self._version if adapter is None else self._adapters[adapter].version

    def adapter_versions(self) -> dict[str, int]:
        """Returns the version of every adapter by name."""
        return {name: adapter.version for name, adapter in self._adapters.items()}

    def spans(self, labelled: Iterable[Any] | None, adapter: str | None) -> list[tuple[int, int]]:
        """Returns pairs (version, index of its first token) for vLLM's `WeightVersionSpan`s."""
        found = []
        for span in labelled or ():
            version, adapters = self._labels[int(span.version)]
            found.append((version if adapter is None else adapters[adapter], span.start))
        return found

    async def publish_label(self) -> None:
        """Labels the tokens that follow with the versions that are loaded now."""
        self._labels.append((self._version, self.adapter_versions()))
        await self._llm.update_weight_version(str(len(self._labels) - 1))

    @asynccontextmanager
    async def written(self, update: WeightUpdate) -> AsyncIterator[Path]:
        """Gives a directory with the tensors of an update, for as long as the workers read it.

        Raises:
            WeightMismatch: It does not fit the model.
        """
        directory = self._new_directory()
        try:
            write_update(update, self._tensor_specs(), directory)
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def load(self, version: int, directory: Path) -> None:
        """Lets every worker reload a directory.

        Raises:
            EngineUnavailable: A worker failed: the engine holds a mixture of weights, and serves no more.
        """
        try:
            await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
            if self._on_cpu:
                await self._llm.collective_rpc("pack_output_head")
        except Exception as error:  # boundary: vLLM's workers
            self._break(version, error)
        self._version = version
        await self.publish_label()

    async def open_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Connects the workers to a trainer."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(init_info)))

    async def transfer(self, version: int, updates: Iterable[Mapping[str, Any]]) -> None:
        """Receives the parts of one version.

        Raises:
            EngineUnavailable: As `load`.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        try:
            await self._llm.start_weight_update()
            for part in updates:
                await self._llm.update_weights(WeightTransferUpdateRequest(update_info=dict(part)))
            await self._llm.finish_weight_update()
        except Exception as error:  # boundary: vLLM's workers
            self._break(version, error)
        self._version = version
        await self.publish_label()

    def write_adapter(self, update: AdapterUpdate) -> Path:
        """Returns a PEFT directory with an adapter.

        Raises:
            WeightMismatch: It does not fit the model.
            EngineError: There is no room for one more.
        """
        known, most = sorted(self._adapters), self._most_adapters
        if most is not None and update.name not in known and len(known) >= most:
            raise EngineError(
                f"adapter {update.name!r}: loaded are {known}, allowed are {most} (option max_loras)"
            )
        directory = self._new_directory()
        try:
            write_adapter(update, self._tensor_specs(), directory)
        except Exception:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    async def load_adapter(self, update: AdapterUpdate, directory: Path) -> None:
        """Lets every worker load an adapter, in the place of the one with its name.

        Raises:
            EngineError: vLLM refused it; what was loaded stays.
        """
        from vllm.lora.request import LoRARequest

        known = self._adapters.get(update.name)
        number = known.number if known else self._numbers + 1
        request = LoRARequest(
            lora_name=update.name,
            lora_int_id=number,
            lora_path=str(directory),
            load_inplace=known is not None,
        )
        try:
            await self._llm.add_lora(request)
        except Exception as error:  # boundary: vLLM's workers
            shutil.rmtree(directory, ignore_errors=True)
            raise EngineError(f"adapter {update.name!r}: vLLM refused it: {error}") from error
        adapter = self._adapters.setdefault(update.name, _Adapter(number=number, version=update.version))
        self._numbers = max(number, self._numbers)
        adapter.version = update.version
        adapter.directories.append(directory)
        while len(adapter.directories) > _KEPT_ADAPTER_FILES:
            shutil.rmtree(adapter.directories.pop(0), ignore_errors=True)
        await self.publish_label()

    async def unload_adapter(self, name: str) -> None:
        """Forgets an adapter.

        Raises:
            EngineError: It is unknown.
        """
        adapter = self._adapters.pop(name, None)
        if adapter is None:
            raise EngineError(f"unload_adapter: {name!r} is unknown, loaded are {sorted(self._adapters)}")
        await self._llm.remove_lora(adapter.number)
        for directory in adapter.directories:
            shutil.rmtree(directory, ignore_errors=True)

    def lora_request(self, adapter: str | None) -> Any:
        """Returns vLLM's `LoRARequest` for a loaded adapter; None for none."""
        if adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        loaded = self._adapters[adapter]
        return LoRARequest(
            lora_name=adapter, lora_int_id=loaded.number, lora_path=str(loaded.directories[-1])
        )

    def require_whole(self) -> None:
        """Returns unless an update failed half-way.

        Raises:
            EngineUnavailable: One did.
        """
        if self._broken:
            raise EngineUnavailable(self._broken)

    def remove_files(self) -> None:
        """Deletes all files."""
        if self._files is not None:
            shutil.rmtree(self._files, ignore_errors=True)

    def _break(self, version: int, error: Exception) -> None:
        self._broken = (
            f"vLLM failed in the middle of the weight update to version {version} and may hold a mixture: "
            f"{error}"
        )
        raise EngineUnavailable(self._broken) from error

    def _tensor_specs(self) -> list[TensorSpec]:
        if not self._specs:
            self._specs = directory_specs(self._path, dtype=self._dtype)
        return self._specs

    def _new_directory(self) -> Path:
        if self._files is None:
            parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
            self._files = Path(tempfile.mkdtemp(prefix="roll-vllm-", dir=parent))
        return Path(tempfile.mkdtemp(dir=self._files))
