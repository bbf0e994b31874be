"""A trainer of your own in a page: GRPO on the letter-sorting task. No Ray, no YAML, every loop in sight.

uv run python examples/custom_trainer.py
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
from roll_learners import LocalLearner, OptimizerSettings, Sample, make_algorithm, policy_step
from roll_learners import supervised_step as imitate
from roll_rewards import make_grader
from roll_rollout import GenerateRequest, SamplingParams
from roll_rollout.torch_weights import weight_update
from roll_rollout.transformers_engine import TransformersEngine
from roll_scheduler import Generated, Graded, RolloutScheduler, SchedulerPolicy

SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 32, "intermediate_size": 384, "tie_word_embeddings": True}  # fmt: skip


async def train(task: Path, *, supervised_steps: int = 300, policy_steps: int = 80) -> tuple[float, float]:
    """Trains a 0.4 M-parameter model; returns its held-out accuracy before and after the policy steps."""
    write_files(task, seed=0)
    names = ("demonstrations", "train", "heldout")
    files = [JsonlData(source="jsonl", path=task / f"{name}.jsonl") for name in names]
    demonstrations, prompts, held_out = map(open_rows, files)
    tokenizer, encoder = load_tokenizer(task / "tokenizer"), PromptEncoder(task / "tokenizer")
    model = random_model("qwen3", SHAPE, tokenizer=tokenizer)
    engine = TransformersEngine(random_model("qwen3", SHAPE, tokenizer=tokenizer), max_batch=128)
    sampling = SamplingParams(max_tokens=80, stop_token_ids=encoder.end_token_ids)
    grader, algorithm = make_grader("exact", after=";"), make_algorithm("dapo")
    ids, rng = map(str, itertools.count()), np.random.default_rng(0)

    async def generate(ticket, row, replica):
        prompt, seed = encoder.encode(row), ticket.seed
        done = await engine.generate(
            GenerateRequest(id=next(ids), prompt_ids=prompt, seed=seed, sampling=sampling)
        )
        cut = done.finish_reason == "length"
        return Generated(completion=done, tokens=len(done), oldest_version=done.oldest_version, truncated=cut)

    async def grade(ticket, row, completion):
        score = await grader.grade(encoder.decode(completion.token_ids), row.reference)
        return Graded(score=score, value=score.value)

    def scheduler(rows, **policy):
        return RolloutScheduler(prompts=rows, generate=generate, grade=grade, replicas={"engine": 1024},
                                policy=SchedulerPolicy(**policy))  # fmt: skip

    async def accuracy() -> float:
        batch = await scheduler(held_out[:512], groups_per_batch=512, group_size=1).next_batch()
        return float(np.mean([group.members[0].graded.value for group in batch.groups]))

    cold_start = OptimizerSettings(learning_rate=3e-3, betas=(0.9, 0.98), schedule="cosine", warmup_steps=30,
                                   total_steps=supervised_steps, min_lr_ratio=0.1)  # fmt: skip
    learner = LocalLearner(model, optimizer=cold_start)
    encoded = encoder.encode_supervised(demonstrations[: supervised_steps * 64]).samples
    for start in range(0, len(encoded), 64):
        imitate(learner, [Sample(token_ids=t, response_mask=m) for t, m in encoded[start : start + 64]])
    await engine.update_weights(weight_update(learner.export_weights(), version=0))
    before = await accuracy()

    learner = LocalLearner(model, optimizer=OptimizerSettings(learning_rate=4e-4, betas=(0.9, 0.99)))
    rollouts = scheduler(itertools.cycle(prompts), groups_per_batch=16, group_size=8)
    for version in range(1, policy_steps + 1):
        members = [member for group in (await rollouts.next_batch()).groups for member in group.members]
        samples = [sample_of(member) for member in members]
        metrics = policy_step(learner, samples, algorithm, mini_batches=2, epochs=1, rng=rng).metrics
        await engine.update_weights(weight_update(learner.export_weights(), version=version))
        rollouts.publish(version)
        print(f"step {version}  reward {metrics['critic/rewards/mean']:.3f}")
    after = await accuracy()
    await engine.close()
    return before, after


def sample_of(member) -> Sample:
    done, reward, group = member.generated.completion, member.graded.value, member.ticket.group
    return Sample.from_completion(done.prompt_ids, done.token_ids, done.logprobs, reward=reward, group=group)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print("accuracy before {:.3f}, after {:.3f}".format(*asyncio.run(train(Path(folder)))))
