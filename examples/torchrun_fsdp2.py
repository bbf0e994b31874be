"""A learner of several processes without a launcher: supervised steps on made-up samples, in shards.

uv run torchrun --nproc-per-node 2 examples/torchrun_fsdp2.py 20
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from roll_learners import OptimizerSettings, Sample, supervised_step
from roll_learners.fsdp2 import Fsdp2Learner, Layout, Sharding, load_checkpoint, save_checkpoint
from transformers import Qwen3Config, Qwen3ForCausalLM

SHAPE = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8,
         "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}  # fmt: skip


def make_learner() -> Fsdp2Learner:
    """The same model on every rank, then each rank's shards of it."""
    torch.manual_seed(0)
    return Fsdp2Learner(
        Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
        sharding=Sharding(layout=Layout(ranks=dist.get_world_size())),
        optimizer=OptimizerSettings(learning_rate=1e-2),
    )


def batch(rng: np.random.Generator) -> list[Sample]:
    """Counting up from a random number: every rank draws the same batch, and computes a share of it."""
    starts = rng.integers(0, 16, 32)
    rows = [(start + np.arange(rng.integers(4, 12))) % 16 for start in starts]
    return [Sample.from_completion(row[:2].astype(np.int32), row[2:].astype(np.int32)) for row in rows]


def main(steps: int) -> None:
    """Trains, and goes on from a checkpoint."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rng, learner = np.random.default_rng(0), make_learner()
    paths = [tempfile.mkdtemp()] if dist.get_rank() == 0 else [""]
    dist.broadcast_object_list(paths)
    for step in range(steps):
        metrics = supervised_step(learner, batch(rng)).metrics
        if dist.get_rank() == 0:
            print(f"step {step + 1}  nll {metrics['actor/nll']:.3f}")
        if step + 1 == steps // 2:
            save_checkpoint(learner, Path(paths[0]))
            learner = make_learner()
            load_checkpoint(learner, Path(paths[0]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
