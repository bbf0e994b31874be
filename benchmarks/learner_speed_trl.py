"""TRL's half of `learner_speed.py trl`: runs in the environment of `scripts/make_trl_env.py`.

Reads a configuration and a batch as JSON from standard input, takes GRPO steps on it with TRL's own loss, and
prints the median CPU seconds of one: loss, backward, clipping and AdamW. The batch is padded once, outside.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer


def main(threads: int, repeats: int) -> None:
    """One process, one thread or more."""
    torch.set_num_threads(threads)
    given = json.load(sys.stdin)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**given["config"]))
    with tempfile.TemporaryDirectory() as directory:
        trainer = _trainer(model, directory)
        trainer.current_gradient_accumulation_steps = 1  # set by its own training loop otherwise
        inputs = _inputs(given["batch"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        model.train()
        seconds = []
        for _ in range(repeats + 1):
            begun = time.process_time()
            loss = trainer.compute_loss(model, inputs)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - begun)
    print(json.dumps({"s": statistics.median(seconds[1:]), "version": trl.__version__}))


def _trainer(model: Any, directory: str) -> GRPOTrainer:
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(25)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1")
    settings = GRPOConfig(
        output_dir=directory,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=128,
        num_generations=8,
        max_completion_length=80,
        loss_type="dapo",
        epsilon_high=0.28,
        beta=0.0,
        gradient_checkpointing=False,
        report_to=[],
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "t2 t3"}]),
        processing_class=tokenizer,
    )


def _inputs(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Prompts padded on the left, completions on the right, as TRL's own rollout leaves them."""
    longest = max(len(each["prompt"]) for each in batch)
    widest = max(len(each["response"]) for each in batch)
    rewards = torch.tensor([each["reward"] for each in batch]).view(-1, 8)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    tokens = sum(len(each["response"]) for each in batch)
    return {
        "prompt_ids": torch.tensor([[0] * (longest - len(e["prompt"])) + e["prompt"] for e in batch]),
        "prompt_mask": torch.tensor(
            [[0] * (longest - len(e["prompt"])) + [1] * len(e["prompt"]) for e in batch]
        ),
        "completion_ids": torch.tensor([e["response"] + [0] * (widest - len(e["response"])) for e in batch]),
        "completion_mask": torch.tensor(
            [[1] * len(e["response"]) + [0] * (widest - len(e["response"])) for e in batch]
        ),
        "advantages": advantages.flatten(),
        "num_items_in_batch": torch.tensor(tokens),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
