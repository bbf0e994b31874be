"""Tokens per second of transformers' `generate`, of `TransformersEngine` and of vLLM on a CPU, in one run.

    python benchmarks/engine_speed.py                                  # tiny model, both traces
    python benchmarks/engine_speed.py --models tiny smol --json speed.json

Completions have fixed lengths: those of the quickstart's demonstrations, and a lognormal with median 32 and
99th percentile 256. `generate` is called as TRL calls it, once for as many prompts as run at once, and goes
on to the longest of them; only tokens that were asked for count. All sides sample at temperature 1 from the
same prompts, in groups of 8. Rates are of wall time and of CPU time; the second hardly depends on what else
the machine does. Every engine's log-probs are compared with a plain forward pass.

vLLM runs in its own environment (scripts/make_vllm_env.py, or --vllm-python); without one it is left out.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from roll_rollout import Completion, Engine, GenerateRequest, SamplingParams
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).parents[1]
GROUP = 8
SIDES = ("generate", "engine", "vllm")
CHECKED = 6
"""Completions of a run whose log-probs are compared."""


def tiny_model() -> PreTrainedModel:
    """The quickstart's: 397k parameters, vocabulary 25."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=25, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=32, intermediate_size=384, tie_word_embeddings=True, max_position_embeddings=1024,
        )
    )  # fmt: skip


def smol_model() -> PreTrainedModel:
    """135M parameters in the shape of SmolLM2-135M."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, intermediate_size=1536, tie_word_embeddings=True,
            max_position_embeddings=2048, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], PreTrainedModel], int]] = {
    "tiny": (tiny_model, 8),
    "smol": (smol_model, 50),
}
"""How to make a model, and the length of its prompts."""


def lengths_of(trace: str, count: int) -> np.ndarray:
    """Returns int64[count], the lengths of a trace."""
    if trace == "quickstart":
        from roll_launch.tasks.sort_letters import demonstration, letter_sequences

        source = Random(0)
        prompts = islice(letter_sequences(source, heldout=False), count)
        return np.array([min(80, len(demonstration(source, letters)) + 1) for letters in prompts])
    draws = np.random.default_rng(0).standard_normal(count)
    return np.clip(32 * np.exp(np.log(256 / 32) / 2.326 * draws), 1, 600).astype(int)


def prompts_of(count: int, length: int, vocabulary: int) -> np.ndarray:
    """Returns int64[count, length], equal in groups."""
    groups = np.random.default_rng(1).integers(3, vocabulary, (-(-count // GROUP), length))
    return np.repeat(groups, GROUP, axis=0)[:count]


def run_generate(model: PreTrainedModel, prompts: np.ndarray, lengths: np.ndarray, at_once: int) -> None:
    """Batch after batch, each to its longest completion."""
    for start in range(0, len(prompts), at_once):
        ids, longest = (
            torch.from_numpy(prompts[start : start + at_once]),
            int(lengths[start : start + at_once].max()),
        )
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=longest, min_new_tokens=longest,
            do_sample=True, top_k=0, top_p=1.0, pad_token_id=0, disable_compile=True,
        )  # fmt: skip


async def run_engine(
    engine: Engine, prompts: np.ndarray, lengths: np.ndarray, slots: asyncio.Semaphore | None = None
) -> list[Completion]:
    """All requests at once, or as many as there are slots; the engine runs as many as it was made for."""

    async def one(index: int) -> Completion:
        sampling = SamplingParams(max_tokens=int(lengths[index]))
        request = GenerateRequest(id=f"{index}", prompt_ids=prompts[index], seed=index, sampling=sampling)
        async with slots or contextlib.nullcontext():
            return await engine.generate(request)

    return list(await asyncio.gather(*[one(index) for index in range(len(prompts))]))


def cpu_seconds() -> float:
    """CPU time of this process and of all below it that live."""
    tick, own, total = os.sysconf("SC_CLK_TCK"), os.getpid(), time.process_time()
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / tick)
    for number, (parent, seconds) in parents.items():
        while parent > 1 and parent != own:
            parent = parents.get(parent, (0, 0.0))[0]
        total += seconds if parent == own and number != own else 0.0
    return total


async def measured(
    work: Callable[[], Awaitable[Any]], tokens: int, rounds: int
) -> tuple[dict[str, float], Any]:
    """Returns the best rates of a few rounds, and what the last one gave."""
    walls, cpus, last = [], [], None
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), cpu_seconds()
        last = await work()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_seconds() - cpu)
    return {"tokens_per_s": tokens / min(walls), "tokens_per_cpu_s": tokens / max(min(cpus), 1e-3)}, last


def largest_gap(model: PreTrainedModel, completions: list[Completion]) -> float:
    """Returns the largest difference between an engine's log-probs and those of a plain forward pass."""
    gaps = [0.0]
    for each in completions[:CHECKED]:
        ids = torch.from_numpy(np.concatenate([each.prompt_ids, each.token_ids]).astype(np.int64))
        with torch.inference_mode():
            logits = (
                model(input_ids=ids[None], use_cache=False).logits[0, len(each.prompt_ids) - 1 : -1].float()
            )
        plain = logits.log_softmax(-1).gather(1, ids[len(each.prompt_ids) :, None])[:, 0].numpy()
        gaps.append(float(np.abs(plain - each.logprobs).max()))
    return max(gaps)


async def side_here(side: str, model: PreTrainedModel, job: dict[str, Any]) -> dict[str, float]:
    """Returns the rates of `generate` or of the engine."""
    from roll_rollout.transformers_engine import TransformersEngine

    prompts, lengths, at_once = np.array(job["prompts"]), np.array(job["lengths"]), job["at_once"]
    tokens = int(lengths.sum())
    if side == "generate":

        async def work() -> None:
            run_generate(model, prompts, lengths, at_once)

        run_generate(model, prompts[:1], np.array([2]), 1)
        return (await measured(work, tokens, job["rounds"]))[0]
    engine = TransformersEngine(model, max_batch=at_once)
    await run_engine(engine, prompts[:1], np.array([2]))
    rates, completions = await measured(lambda: run_engine(engine, prompts, lengths), tokens, job["rounds"])
    await engine.close()
    return rates | {"largest_gap": largest_gap(model, completions)}


async def vllm_worker(path: Path, jobs: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Returns the rates of vLLM for each job; runs in vLLM's environment."""
    from roll_rollout.vllm_engine import VLLMEngine
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(path), []
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    engine = await VLLMEngine.start(
        path, dtype="float32", max_batch=64, max_context=1024, options={"enforce_eager": True}
    )
    for job in jobs:
        prompts, lengths = np.array(job["prompts"]), np.array(job["lengths"])
        slots = asyncio.Semaphore(job["at_once"])
        await run_engine(engine, prompts[:1], np.array([2]))
        rates, completions = await measured(
            lambda prompts=prompts, lengths=lengths, slots=slots: run_engine(engine, prompts, lengths, slots),
            int(lengths.sum()),
            job["rounds"],
        )
        found.append(rates | {"largest_gap": largest_gap(model, completions)})
    await engine.close()
    return found


def vllm_rates(
    python: Path, model: PreTrainedModel, jobs: list[dict[str, Any]], threads: int
) -> list[dict[str, float]]:
    """Returns the rates of vLLM in its own environment."""
    with tempfile.TemporaryDirectory(prefix="roll-speed-") as scratch:
        model.save_pretrained(Path(scratch) / "model")
        (Path(scratch) / "jobs.json").write_text(json.dumps(jobs))
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [str(python), __file__, "--vllm-worker", scratch, "--threads", str(threads)]
        subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
        return json.loads((Path(scratch) / "found.json").read_text())


def jobs_of(options: argparse.Namespace, name: str, vocabulary: int) -> list[dict[str, Any]]:
    """Returns what is measured of a model: one job a trace and number of requests at once."""
    found = []
    for trace in options.traces:
        for at_once in options.at_once:
            count = max(16, 2 * at_once) if name == "tiny" else max(2, at_once)
            prompts = prompts_of(count, MODELS[name][1], vocabulary)
            found.append(
                {
                    "model": name, "trace": trace, "at_once": at_once, "prompts": prompts.tolist(),
                    "lengths": lengths_of(trace, count).tolist(), "rounds": options.rounds,
                }
            )  # fmt: skip
    return found


def main() -> None:
    """Measures, prints a table, and writes JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=["tiny"])
    parser.add_argument(
        "--traces", nargs="+", choices=("quickstart", "lognormal"), default=["quickstart", "lognormal"]
    )
    parser.add_argument("--at-once", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--vllm-python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--vllm-worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.vllm_worker is not None:
        jobs = json.loads((options.vllm_worker / "jobs.json").read_text())
        found = asyncio.run(vllm_worker(options.vllm_worker / "model", jobs))
        (options.vllm_worker / "found.json").write_text(json.dumps(found))
        return
    rows = []
    for name in options.models:
        torch.manual_seed(0)
        model = MODELS[name][0]().eval()
        jobs = jobs_of(options, name, model.config.vocab_size)
        of_vllm: list[dict[str, float]] = []
        if "vllm" in options.sides and options.vllm_python.exists():
            of_vllm = vllm_rates(options.vllm_python, model, jobs, options.threads)
        elif "vllm" in options.sides:
            print(f"vllm is left out: there is no {options.vllm_python} (scripts/make_vllm_env.py)")
        for index, job in enumerate(jobs):
            rates = {
                side: asyncio.run(side_here(side, model, job)) for side in options.sides if side != "vllm"
            }
            rates |= {"vllm": of_vllm[index]} if of_vllm else {}
            rows.append({key: job[key] for key in ("model", "trace", "at_once")} | {"rates": rates})
            print(line_of(rows[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"threads": options.threads, "rows": rows}, indent=2) + "\n")


def line_of(row: dict[str, Any]) -> str:
    """Returns one line of the table."""
    parts = [f"{row['model']:5} {row['trace']:10} {row['at_once']:3} at once"]
    for side, rates in row["rates"].items():
        gap = f", gap {rates['largest_gap']:.0e}" if "largest_gap" in rates else ""
        parts.append(f"{side} {rates['tokens_per_cpu_s']:7.0f}/cpu-s ({rates['tokens_per_s']:.0f}/s{gap})")
    ours = row["rates"].get("engine")
    for side, rates in row["rates"].items():
        if ours is not None and side != "engine":
            parts.append(f"engine/{side} {ours['tokens_per_cpu_s'] / rates['tokens_per_cpu_s']:.2f}")
    return " | ".join(parts)


if __name__ == "__main__":
    main()
