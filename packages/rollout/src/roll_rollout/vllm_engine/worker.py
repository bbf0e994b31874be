"""What vLLM's worker processes have besides their own on a CPU: its `worker_extension_cls`.

A process must ask the kernel for the matrix registers (AMX) before it uses them, and vLLM's attention in
bfloat16 uses them without asking: an illegal instruction. Importing this module asks.
"""

from typing import Any

import torch

torch.cpu._init_amx()


class CpuWorkerExtension:
    """Mixed into vLLM's CPU worker."""

    model_runner: Any

    def pack_output_head(self) -> None:
        """Packs the output embeddings for their matrix product once more.

        A reload packs the layers whose weights it brings. Tied output embeddings are none of them: they would
        go on with the packed weights of before (vLLM 0.32).
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
