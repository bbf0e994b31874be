"""Ratios of the learner's ways to compute: each pair in one process, on the same tensors.

    uv run python benchmarks/learner_speed.py [head] [rows] [trl]

`head`: log-probs and their gradient in tiles against whole logits. `rows`: padded, packed and shared rows on
two traces of lengths. `trl`: a training step against TRL's on the same batch, in the environment that
`scripts/make_trl_env.py` makes. Without an argument all three; results are in docs/learners.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from roll_learners import (
    ComputeSettings,
    LocalLearner,
    LogitsRule,
    OptimizerSettings,
    Sample,
    linear_logprobs,
    make_algorithm,
    policy_step,
)
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 150_000
TRL_PYTHON = Path(os.environ.get("TRL_PYTHON") or Path(__file__).parents[1] / ".venv-trl/bin/python")


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=["head", "rows", "trl", []])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.child:
        print(json.dumps(measure_head(**json.loads(given.child))))
        return
    parts = given.parts or ["head", "rows", "trl"]
    if "head" in parts:
        compare_heads(given.threads, given.repeats)
    if "rows" in parts:
        compare_rows(given.repeats)
    if "trl" in parts:
        compare_with_trl(given.threads, given.repeats)


def compare_heads(threads: int, repeats: int) -> None:
    """Each form in a process of its own, since a peak of memory cannot be taken back."""
    print("tokens hidden dtype | naive s, MiB | form s, MiB, ratio of time, of memory ...")
    for tokens, hidden, dtype in (
        (2048, 256, "float32"),
        (1024, 576, "float32"),
        (1024, 896, "bfloat16"),
    ):
        found = {}
        for form in ("naive", "tiles", "slopes"):
            case = {"form": form, "tokens": tokens, "hidden": hidden, "dtype": dtype, "repeats": repeats}
            command = [sys.executable, __file__, "--threads", str(threads), "--child", json.dumps(case)]
            found[form] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        naive = found.pop("naive")
        print(f"{tokens} {hidden} {dtype} | {naive['s']:.2f}, {naive['mib']:.0f}", end="")
        for form, got in found.items():
            ratios = f"{got['s'] / naive['s']:.2f}, {got['mib'] / naive['mib']:.2f}"
            print(f" | {form} {got['s']:.2f}, {got['mib']:.0f}, {ratios}", end="", flush=True)
        print(flush=True)


def measure_head(*, form: str, tokens: int, hidden: int, dtype: str, repeats: int) -> dict[str, float]:
    """Median CPU seconds of forward and backward, and MiB at the peak above what was there before.

    The gradient of the weight is among them.
    """
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    states = torch.randn(tokens, hidden).to(kind).requires_grad_(True)
    weight = (torch.randn(VOCABULARY, hidden).div_(hidden**0.5)).to(kind).requires_grad_(True)
    targets = torch.randint(VOCABULARY, (tokens,))

    def naive() -> torch.Tensor:
        logits = (states @ weight.T).float() / 0.9
        logprobs = logits.log_softmax(-1)
        chosen = logprobs.gather(1, targets[:, None])[:, 0]
        return chosen

    slopes, rule = torch.linspace(-1, 1, tokens), LogitsRule(temperature=0.9)
    forms = {
        "naive": naive,
        "tiles": lambda: linear_logprobs(states, weight, targets, rule=rule)[0],
        "slopes": lambda: linear_logprobs(states, weight, targets, rule=rule, slopes=slopes)[0],
    }

    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024
    seconds = []
    for _ in range(repeats + 1):
        states.grad = weight.grad = None
        begun = time.process_time()
        (forms[form]() * slopes).sum().backward()
        seconds.append(time.process_time() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"s": statistics.median(seconds[1:]), "mib": (peak - before) / 1024}


def quickstart_trace() -> tuple[PreTrainedModel, list[Sample]]:
    """0.4 M parameters; 16 x 8 completions of 4 to 80 tokens to prompts of 4 to 13."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = Qwen3Config(vocab_size=25, hidden_size=128, intermediate_size=384, **shape)
    return Qwen3ForCausalLM(config), _samples(25, groups=16, members=8, prompt=(4, 14), median=10, most=80)


def smollm2_trace() -> tuple[PreTrainedModel, list[Sample]]:
    """Two layers of SmolLM2-135M's shape with its vocabulary; 2 x 8 completions to prompts of about 50."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, **shape)
    samples = _samples(49152, groups=2, members=8, prompt=(40, 60), median=24, most=96)
    return LlamaForCausalLM(config), samples


def _samples(
    vocabulary: int, *, groups: int, members: int, prompt: tuple[int, int], median: int, most: int
) -> list[Sample]:
    rng = np.random.default_rng(0)
    samples = []
    for group in range(groups):
        ids = rng.integers(0, vocabulary, int(rng.integers(*prompt))).astype(np.int32)
        for member in range(members):
            length = int(np.clip(rng.lognormal(np.log(median), 0.67), 4, most))
            response = rng.integers(0, vocabulary, length).astype(np.int32)
            behavior = np.full(length, -np.log(vocabulary), np.float32)
            samples.append(
                Sample.from_completion(ids, response, behavior, reward=float(member % 2), group=group)
            )
    return samples


def compare_rows(repeats: int) -> None:
    """A training step with each form of rows, by turns; ratios to padded rows of one sample each."""
    algorithm = make_algorithm("dapo")
    for name, trace in (("quickstart", quickstart_trace), ("smollm2, 2 layers", smollm2_trace)):
        steps: dict[str, Callable[[], float]] = {}
        for form, packing, sharing in (
            ("padded", False, False),
            ("packed", True, False),
            ("shared", False, True),
            ("packed and shared", True, True),
        ):
            model, samples = trace()
            learner = LocalLearner(
                model,
                optimizer=OptimizerSettings(learning_rate=1e-5),
                micro_batch_tokens=2048,
                compute=ComputeSettings(packing=packing),
            )
            if not sharing:
                learner._scorer._sharing = None
            steps[form] = _timed(learner, samples, algorithm)
        seconds: dict[str, list[float]] = {form: [] for form in steps}
        for _ in range(repeats + 1):
            for form, step in steps.items():
                seconds[form].append(step())
        medians = {form: statistics.median(times[1:]) for form, times in seconds.items()}
        base = medians["padded"]
        print(name, *(f"| {form} {s:.3f} s, {s / base:.2f}" for form, s in medians.items()), flush=True)


def _timed(learner: LocalLearner, samples: list[Sample], algorithm: object) -> Callable[[], float]:
    def step() -> float:
        begun = time.process_time()
        policy_step(
            learner,
            samples,
            algorithm,  # type: ignore[arg-type]
            mini_batches=1,
            epochs=1,
            rng=np.random.default_rng(0),
        )
        return time.process_time() - begun

    return step


def compare_with_trl(threads: int, repeats: int) -> None:
    """The quickstart's batch: log-probs, loss, backward and AdamW of both."""
    if not TRL_PYTHON.exists():
        print(f"trl: skipped, {TRL_PYTHON} is not there: run scripts/make_trl_env.py")
        return
    script = Path(__file__).with_name("learner_speed_trl.py")
    model, samples = quickstart_trace()
    batch = [
        {
            "prompt": sample.token_ids[~sample.response_mask].tolist(),
            "response": sample.token_ids[sample.response_mask].tolist(),
            "reward": sample.reward,
        }
        for sample in samples
    ]
    done = subprocess.run(
        [str(TRL_PYTHON), str(script), str(threads), str(repeats)],
        input=json.dumps({"config": model.config.to_dict(), "batch": batch}),
        text=True,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    learner = LocalLearner(model, optimizer=OptimizerSettings(learning_rate=1e-5))
    step = _timed(learner, samples, make_algorithm("dapo"))
    ours = statistics.median([step() for _ in range(repeats + 1)][1:])
    print(f"trl {theirs['version']}: {theirs['s']:.3f} s, ours {ours:.3f} s, ratio {ours / theirs['s']:.2f}")


if __name__ == "__main__":
    main()
