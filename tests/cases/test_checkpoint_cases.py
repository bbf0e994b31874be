"""Hand-written cases of checkpoints and resuming, bound to the store, the data's order and the learner."""

import json
import logging
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from roll_launch.checkpoint_store import CheckpointError, commit, newest, prepare, rotate
from roll_launch.data import PromptOrder
from roll_learners import LocalLearner, OptimizerSettings, Sample, make_algorithm, policy_step
from roll_scheduler import ticket_seed
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

LINES = (Path(__file__).parents[1] / "data/cases/checkpoint.jsonl").read_text().splitlines()
CASES = [json.loads(line) for line in LINES]
RUN_SEED = 3


def save(root, name, files=("weights",), content=b"some"):
    beside = prepare(root / name)
    for file in files:
        (beside / file).write_bytes(content)
    commit(beside, root / name)


def step_of(name):
    """The cases call step_N checkpoint-N, with a remark behind it."""
    return int(name.split()[0].removeprefix("checkpoint-"))


def rotation(case, root, caplog):
    for name in case["existing"]:
        save(root, f"step_{step_of(name)}")
    saved = case.get("just_saved")
    rotate(root, keep=case["keep"], just_saved=saved and step_of(saved))
    kept = sorted(int(path.name.removeprefix("step_")) for path in root.iterdir())
    names = [f"checkpoint-{step}" for step in kept]
    return {"kept": names, "must_keep": [saved] if saved in names else names}


def auto_resume(case, root, caplog):
    for name, parts in case["dirs"].items():
        if "COMPLETE" in parts:
            save(root, name, [part for part in parts if part != "COMPLETE"])
        else:
            beside = prepare(root / name.removesuffix(".tmp"))
            for part in parts:
                (beside / part).write_bytes(b"half")
    if "latest_file" in case:
        (root / "latest").symlink_to(case["latest_file"])
    found = newest(root)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    return {
        "picked": found and found.name,
        "starts_from": 0 if found is None else int(found.name.removeprefix("step_")),
        "warned": any(case.get("latest_file", "") in record.getMessage() for record in warned),
    }


def save_fault(case, root, caplog):
    """The step is written once more, and the process dies when the earlier one has lost its name."""
    (buffer,) = case["existing"]
    name = buffer.split()[-1]
    save(root, name, [buffer], b"before")
    rename = os.rename

    class Killed(BaseException):
        pass

    def dies_the_second_time(source, target, **options):
        if Path(source).name == f"{name}.tmp":
            raise Killed
        rename(source, target, **options)

    with mock.patch.object(os, "rename", dies_the_second_time), pytest.raises(Killed):
        save(root, name, [buffer], b"after")
    assert not (root / name).exists()
    found = newest(root)
    return {"loadable": [path.name for path in found.iterdir() if path.read_bytes() == b"before"]}


def index(case, root, caplog):
    beside = prepare(root / "step_1")
    (beside / "model.safetensors.index.json").write_text(json.dumps({"weight_map": case["weight_map"]}))
    for shard, tensors in case["tensors_in_shards"].items():
        save_file({name: np.zeros(1, np.float32) for name in tensors}, beside / shard)
    try:
        commit(beside, root / "step_1")
    except CheckpointError as error:
        named = [tensor for tensor in case["weight_map"] if repr(tensor) in str(error)]
        return {"error_at_save": newest(root) is None, "error_names": named}
    return {"error_at_save": False}


def resume_data(case, root, caplog):
    """The cursor is the number of occurrences used; unshuffled or not, order is a function of it."""
    items, seed = case["items"], case.get("seed", 0)
    straight = PromptOrder(items, seed)
    if "segments_in_batches" in case:
        cursor, used = 0, []
        for batches in case["segments_in_batches"]:
            resumed = PromptOrder(items, seed)
            for _ in range(batches * case["batch"]):
                used.append(resumed.row(cursor))
                cursor += 1
        assert used == [straight.row(occurrence) for occurrence in range(cursor)]
        assert len(set(used)) == cursor
        return {"next_index": cursor}
    first = [straight.row(occurrence) for occurrence in range(items)]
    second = [straight.row(occurrence) for occurrence in range(items, 2 * items)]
    resumed = PromptOrder(items, seed)
    same = [resumed.row(occurrence) for occurrence in range(items, 2 * items)] == second
    return {
        "order_of_epoch_2": "same as uninterrupted" if same else "another",
        "differs_from_epoch_1": first != second and sorted(first) == sorted(second),
    }


def resume_rng(case, root, caplog):
    before = case["draws_before"]
    rng = np.random.default_rng(RUN_SEED)
    drawn = rng.random(before)
    beside = prepare(root / "step_1")
    torch.save({"rng": rng.bit_generator.state}, beside / "trainer.pt")
    commit(beside, root / "step_1")
    expected = rng.random()
    assert expected not in drawn
    seeds = [ticket_seed(RUN_SEED, group, member=0) for group in range(before + 1)]

    resumed = np.random.default_rng(RUN_SEED)
    state = torch.load(newest(root) / "trainer.pt", weights_only=True)
    resumed.bit_generator.state = state["rng"]
    PromptOrder(100, RUN_SEED).row(before)
    same = resumed.random() == expected and ticket_seed(RUN_SEED, before, member=0) == seeds[-1]
    return {"next_draw": "same as uninterrupted (8th draw)" if same else "another"}


class Training:
    """A trainer as the launcher has it: learner, generator, and a place in the data."""

    def __init__(self, checkpoint=None):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(RUN_SEED)
            config = Qwen3Config(
                vocab_size=25,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                tie_word_embeddings=True,
            )
            model = Qwen3ForCausalLM(config)
        if checkpoint is not None:
            model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self.learner = LocalLearner(
            model, optimizer=OptimizerSettings(learning_rate=1e-2, total_steps=8, schedule="linear")
        )
        self.rng = np.random.default_rng(RUN_SEED)
        self.cursor, self.rows = 0, []
        if checkpoint is not None:
            state = torch.load(checkpoint / "trainer.pt", weights_only=True)
            self.learner.load_state_dict(state["learner"])
            self.rng.bit_generator.state = state["rng"]
            self.cursor = state["cursor"]

    def save(self, root, name):
        beside = prepare(root / name)
        self.learner.save_pretrained(beside)
        rng = self.rng.bit_generator.state
        torch.save(
            {"learner": self.learner.state_dict(), "rng": rng, "cursor": self.cursor}, beside / "trainer.pt"
        )
        commit(beside, root / name)

    def steps(self, count):
        order = PromptOrder(7, RUN_SEED)
        for _ in range(count):
            rows = [order.row(occurrence) for occurrence in range(self.cursor, self.cursor + 4)]
            samples = [self._sample(row, member) for row in rows for member in range(2)]
            algorithm = make_algorithm("grpo")
            policy_step(self.learner, samples, algorithm, mini_batches=2, epochs=1, rng=self.rng)
            self.cursor += len(rows)
            self.rows += rows

    @staticmethod
    def _sample(row, member):
        rng = np.random.default_rng([row, member])
        prompt, response = (rng.integers(0, 25, length).astype(np.int32) for length in (3, 4 + row))
        behavior = rng.uniform(-4, -2, len(response)).astype(np.float32)
        return Sample.from_completion(prompt, response, behavior, reward=float(member), group=row)

    def parts(self):
        """What the case compares, by its names there."""
        groups = self.learner.state_dict()["optimizer"]
        state = groups["state"]
        return {
            "weights": dict(self.learner.export_weights()),
            "optimizer first moment": {key: entry["exp_avg"] for key, entry in state.items()},
            "optimizer second moment": {key: entry["exp_avg_sq"] for key, entry in state.items()},
            "optimizer step count": [int(entry["step"]) for entry in state.values()] + [self.learner.updates],
            "lr": [group["lr"] for group in groups["param_groups"]],
            "rng": self.rng.bit_generator.state,
            "data order": self.rows[-8:],
        }


def identical(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def resume_equal(case, root, caplog):
    straight = Training()
    straight.steps(4)
    interrupted = Training()
    interrupted.steps(2)
    interrupted.save(root, "step_2")
    between = interrupted.parts()
    resumed = Training(newest(root))
    resumed.steps(2)
    expected, got = straight.parts(), resumed.parts()
    assert not identical(between["weights"], expected["weights"])
    different = [name for name in case["compare"] if not identical(got[name], expected[name])]
    assert different == []
    return {"bitwise_equal_on_cpu": True}


BOUND = {
    "rotate": rotation,
    "auto_resume": auto_resume,
    "save_fault": save_fault,
    "index": index,
    "resume_equal": resume_equal,
    "resume_data": resume_data,
    "resume_rng": resume_rng,
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case, tmp_path, caplog):
    got = BOUND[case["input"]["op"]](case["input"], tmp_path, caplog)
    assert {key: got[key] for key in case["expected"]} == case["expected"], case["why"]
