"""Whole runs in seconds: both runtimes, reproducibility, what is left behind."""

import json
from collections.abc import Callable

import pytest
from launched_run import SHORT, Finished

TIMINGS = ("timing_s/", "perf/throughput", "scheduler/", "rewards/seconds")


def _without_timings(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{name: value for name, value in line.items() if not name.startswith(TIMINGS)} for line in lines]


@pytest.mark.timeout(180)
def test_the_same_seed_gives_bit_identical_metrics_under_the_local_runtime(
    launch: Callable[..., Finished],
) -> None:
    first = launch("runtime=local", *SHORT, name="first")
    second = launch("runtime=local", *SHORT, name="second")
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert _without_timings(first.metrics) == _without_timings(second.metrics)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_another_seed_gives_another_run(launch: Callable[..., Finished]) -> None:
    first = launch("runtime=local", *SHORT, name="first")
    other = launch("runtime=local", "seed=1", *SHORT, name="other")
    assert (first.code, other.code) == (0, 0), first.err + other.err
    assert _without_timings(first.metrics) != _without_timings(other.metrics)


@pytest.mark.timeout(180)
def test_a_run_through_ray_leaves_everything_a_person_looks_for(launch: Callable[..., Finished]) -> None:
    done = launch(*SHORT, "stages.rlvr.checkpoint.every=1", "stages.rlvr.checkpoint.keep=2")
    assert done.code == 0, done.err
    summary = done.summary
    assert summary["status"] == "finished"
    assert summary["steps"] == 43
    assert summary["samples"] == 40 * 64 + 3 * 16
    for name in (
        "eval/accuracy/before",
        "eval/accuracy/after",
        "tokens",
        "seconds",
        "timing_s/gen",
        "peak_rss_gb",
    ):
        assert isinstance(summary[name], int | float), name
    assert {path.name for path in (done.directory / "stages" / "rlvr" / "checkpoints").iterdir()} == {
        "step_2",
        "step_3",
    }
    model = {path.name for path in (done.directory / "stages" / "rlvr" / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "manifest.json"} <= model
    rollouts = [
        json.loads(line) for line in (done.directory / "rollouts" / "rlvr.jsonl").read_text().splitlines()
    ]
    assert len(rollouts) == 3 * 16
    assert all(
        line["score"] == float(line["response"].rpartition(";")[2] == line["reference"]) for line in rollouts
    )
    assert {line["step"] for line in rollouts} == {1, 2, 3}
    assert list((done.directory / "tensorboard" / "rlvr").iterdir())
    steps = [line for line in done.metrics if line["stage"] == "rlvr" and "training/policy_version" in line]
    assert [line["training/policy_version"] for line in steps] == [1, 2, 3]
    assert all(abs(line["training/rollout_probs_diff_max"]) < 1e-4 for line in steps)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_local_runtime_and_ray_train_on_the_same_samples(launch: Callable[..., Finished]) -> None:
    local = launch("runtime=local", *SHORT, name="local")
    ray = launch(*SHORT, name="ray")
    assert (local.code, ray.code) == (0, 0), local.err + ray.err

    def ledger(run: Finished) -> list[tuple[object, ...]]:
        lines = [
            json.loads(line) for line in (run.directory / "rollouts" / "rlvr.jsonl").read_text().splitlines()
        ]
        return [
            (line["step"], line["group"], line["member"], line["prompt"], line["versions"][0][0])
            for line in lines
        ]

    assert ledger(local) == ledger(ray)
