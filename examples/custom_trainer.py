"""A trainer of your own in a page: GRPO on the letter-sorting task from the packages' public parts. No Ray, no YAML.

    uv run python examples/custom_trainer.py

First a supervised cold start on noisy demonstrations, then reinforcement learning; it prints the sampled accuracy on
held-out prompts before and after.
"""

import asyncio
import itertools
import tempfile
from pathlib import Path

import numpy as np
from roll_launch.config import JsonlData
from roll_launch.data import PromptEncoder, open_rows
from roll_launch.models import load_tokenizer, random_model
from roll_launch.tasks.sort_letters import write_files
from roll_learners import LocalLearner, OptimizerSettings, Sample, make_algorithm, policy_step, supervised_step
from roll_rewards import make_grader
from roll_rollout import GenerateRequest, SamplingParams
from roll_rollout.torch_weights import weight_update
from roll_rollout.transformers_engine import TransformersEngine
from roll_scheduler import Generated, Graded, RolloutScheduler, SchedulerPolicy

SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
         "intermediate_size": 384, "max_position_embeddings": 128, "tie_word_embeddings": True}  # fmt: skip
GRADER = make_grader("exact", after=";")


async def train(*, supervised_steps: int = 300, policy_steps: int = 80, heldout: int = 512) -> tuple[float, float]:
    """Trains a 0.4 M-parameter model; returns its held-out accuracy before and after reinforcement learning."""
    task = Path(tempfile.mkdtemp()) / "sort_letters"
    write_files(task, seed=0)
    tokenizer, encoder = load_tokenizer(task / "tokenizer"), PromptEncoder(task / "tokenizer")
    demonstrations, prompts, held_out = (
        open_rows(JsonlData(source="jsonl", path=task / f"{name}.jsonl")) for name in ("demonstrations", "train", "heldout")
    )
    sampling = SamplingParams(max_tokens=80, stop_token_ids=(tokenizer.eos_token_id,))
    model, rng = random_model("qwen3", SHAPE, tokenizer=tokenizer), np.random.default_rng(0)

    settings = OptimizerSettings(learning_rate=3e-3, betas=(0.9, 0.98), schedule="cosine", warmup_steps=30,
                                 total_steps=supervised_steps, min_lr_ratio=0.1)  # fmt: skip
    learner = LocalLearner(model, optimizer=settings)
    encoded = encoder.encode_supervised(demonstrations[: supervised_steps * 64]).samples
    for step in range(supervised_steps):
        batch = encoded[step * 64 : step * 64 + 64]
        supervised_step(learner, [Sample(token_ids=ids, response_mask=mask) for ids, mask in batch])

    engine = TransformersEngine(random_model("qwen3", SHAPE, tokenizer=tokenizer), max_batch=128)
    requests = itertools.count()

    async def generate(ticket, row, replica):
        request = GenerateRequest(id=str(next(requests)), prompt_ids=encoder.encode(row), seed=ticket.seed, sampling=sampling)
        completion = await engine.generate(request)
        return Generated(completion=completion, tokens=len(completion), oldest_version=completion.oldest_version,
                         truncated=completion.finish_reason == "length")  # fmt: skip

    async def grade(ticket, row, completion):
        score = await GRADER.grade(encoder.decode(completion.token_ids), row.reference)
        return Graded(score=score, value=score.value)

    def scheduler(source, groups, size, seed):
        policy = SchedulerPolicy(groups_per_batch=groups, group_size=size, min_members=1)
        return RolloutScheduler(prompts=iter(source), generate=generate, grade=grade, replicas={"engine": 1024},
                                policy=policy, run_seed=seed)  # fmt: skip

    async def accuracy() -> float:
        batch = await scheduler(held_out[:heldout], heldout, 1, seed=1).next_batch()
        return float(np.mean([group.members[0].graded.value for group in batch.groups]))

    await engine.update_weights(weight_update(learner.export_weights(), version=0))
    before = await accuracy()
    learner = LocalLearner(model, optimizer=OptimizerSettings(learning_rate=4e-4, betas=(0.9, 0.99)))
    rollouts = scheduler(itertools.cycle(prompts), 16, 8, seed=0)
    for version in range(1, policy_steps + 1):
        members = [member for group in (await rollouts.next_batch()).groups for member in group.members]
        samples = [Sample.from_completion(done.prompt_ids, done.token_ids, done.logprobs, reward=member.graded.value,
                                          group=member.ticket.group) for member in members
                   for done in [member.generated.completion]]  # fmt: skip
        metrics = policy_step(learner, samples, make_algorithm("dapo"), mini_batches=2, epochs=1, rng=rng)
        await engine.update_weights(weight_update(learner.export_weights(), version=version))
        rollouts.publish(version)
        print(f"step {version}  reward {metrics['critic/rewards/mean']:.3f}")
    return before, await accuracy()


if __name__ == "__main__":
    print("accuracy before {:.3f}, after {:.3f}".format(*asyncio.run(train())))
