"""Edge cases of preferences, supervision and distillation, each bound by its kind.

The cases are in `tests/data/cases/preference_sft_distill.jsonl`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import roll_learners as rl
import torch
from roll_learners import Sample, Segments, Totals, response_tokens
from roll_learners.batch import collate
from roll_learners.rows import Row
from transformers import Qwen3Config, Qwen3ForCausalLM

PATH = Path(__file__).parents[1] / "data" / "cases" / "preference_sft_distill.jsonl"
CASES = [json.loads(line) for line in PATH.read_text().splitlines()]
Result = dict[str, Any]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def completion(prompt: list[int], response: list[int]) -> Sample:
    return Sample.from_completion(np.array(prompt, np.int32), np.array(response, np.int32))


def labels(given: Any) -> Result:
    sample = completion(given["prompt"], given["response"])
    packed = rl.pack([sample])
    unshifted = np.where(sample.response_mask, sample.token_ids, given["ignore"])
    trained = packed.targets != given["ignore"]
    pairs = np.stack([packed.input_ids[trained], packed.targets[trained]], 1)
    return {"labels_unshifted": unshifted.tolist(), "shifted_pairs": pairs.tolist()}


def sequence_logp(given: Any) -> Result:
    mask = torch.tensor(given["mask"])
    if given.get("ignore_eos"):
        mask[int(mask.nonzero().max())] = 0
    segments, flat = response_tokens(mask[None], tensor(given["token_logps"])[None])
    return {"sum": segments.sums(flat)[0].item(), "mean": segments.means(flat)[0].item()}


def dpo(given: Any) -> Result:
    sums = (given[k] for k in ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected"))
    logits = rl.preference_logits(*(tensor([value]) for value in sums)).requires_grad_()
    loss = rl.dpo(logits, beta=given["beta"])
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    return {"loss": loss.item(), "finite": math.isfinite(loss.item()) and bool(slope.isfinite().all())}


def sft_row(given: Any) -> Result:
    if "text_ids" in given:
        ids = given["text_ids"]
        made = rl.demonstrations([(ids[:1], ids[1:])], end_token_id=given["eos"])
        (sample,) = made.samples
        return {"ids": sample.token_ids.tolist(), "eos_trained": bool(sample.response_mask[-1])}
    made = rl.demonstrations([(given["prompt"], given["response"])], end_token_id=2)
    return {"kept": bool(made.samples), "counted": f"empty completion: {made.empty}", "nan": False}


def collated(given: Any) -> Result:
    """Pad and end token have one id: only the real one is trained, wherever rows are padded."""
    samples = [completion(row[:1], row[1:]) for row in given["rows"]]
    rows = [Row(members=(i,), prompt=1, length=len(sample.token_ids) - 1) for i, sample in enumerate(samples)]
    batch = collate(samples, rows, device="cpu")
    width = batch.input_ids.shape[1]
    got = np.full((len(rows), width + 1), -100)
    got[:, 0] = [row[0] for row in given["rows"]]
    got[batch.positions.numpy() // width, batch.positions.numpy() % width + 1] = batch.targets.numpy()
    return {"labels": got.tolist(), "attention": (got != -100).astype(int).tolist()}


def truncate_batch(given: Any) -> Result:
    lengths = [row["len"] for row in given["rows"]]
    cut = [rl.keep_end(completion([1], [*range(2, n + 1)]), given["max_len"]) for n in lengths]
    assert [sample.token_ids[-1] for sample in cut] == lengths
    kept = [len(sample.token_ids) for sample in cut]
    return {"real_tokens_kept": kept, "all_pad_rows": sum(count == 0 for count in kept)}


def pack_equal(given: Any) -> Result:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 16,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "head_dim": 8,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
    samples = [completion(doc[:1], doc[1:]) for doc in given["docs"]]

    def loss(packed: rl.Packed) -> float:
        mask = torch.from_numpy(packed.attention_mask())[None, None]
        with torch.no_grad():
            logits = model(
                input_ids=torch.from_numpy(packed.input_ids)[None],
                position_ids=torch.from_numpy(packed.position_ids)[None],
                attention_mask=mask,
            ).logits[0]
        targets = torch.from_numpy(packed.targets)
        return torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()

    together, apart = loss(rl.pack(samples)), sum(loss(rl.pack([sample])) for sample in samples)
    assert together > 1
    return {"loss_packed_minus_unpacked": together - apart}


def divergence_of(student: torch.Tensor, teacher: torch.Tensor, name: str, shared: int | None) -> float:
    rule = rl.Distillation(divergence=name, vocabulary=shared)
    term = rl.DistillationObjective(rule, [lambda states: states]).logits_term
    assert term is not None
    weight = torch.ones(len(student), dtype=torch.float64)
    return term(student, {"teacher_states_0": teacher, "teacher_weight_0": weight}).item()


def kd(given: Any) -> Result:
    name = {"KL(teacher||student)": "forward_kl", "KL(student||teacher)": "reverse_kl"}[given["direction"]]
    if "teacher_probs" in given:
        sides = (tensor([given[f"{side}_probs"]]).log() for side in ("student", "teacher"))
    else:
        sides = (tensor([given[f"{side}_logits"]]) for side in ("student", "teacher"))
    return {"kl": divergence_of(*sides, name, given.get("tokenizer_size"))}


def kd_setup(given: Any) -> Result:
    student, teacher = (torch.zeros(1, given[f"{side}_vocab"]) for side in ("student", "teacher"))
    with pytest.raises(rl.LearnerError, match="the student has 6 logits and the teacher 8"):
        divergence_of(student.double(), teacher.double(), "forward_kl", None)
    size = given["tokenizer_size"]
    teacher[0, size:] = 50.0  # what the padding rows say must not count
    value = divergence_of(student.double(), teacher.double(), "forward_kl", size)
    return {"ok": value == pytest.approx(0, abs=1e-9), "classes_compared": size}


def sft_loss(given: Any) -> Result:
    lengths = torch.tensor([len(row) for row in given["token_losses"]])
    totals = Totals.of_lengths(lengths)
    objective, total = rl.SupervisedObjective(given["aggregation"]), 0.0
    for members in given["micro_batches"]:
        flat = -torch.cat([tensor(given["token_losses"][i]) for i in members])
        segments = Segments.of_lengths(lengths[members])
        batch = rl.TokenBatch(logprobs=flat, entropy=None, segments=segments, totals=totals, columns={})
        total += objective.terms(batch).loss.item()
    return {"loss": total}


def chat_mask(given: Any) -> Result:
    train = {"all assistant turns": "all", "last assistant turn": "last"}[given["train"]]
    turns = [(role, count) for role, count in given["turns"]]
    mask = rl.conversation_mask(turns, train=train)  # type: ignore[arg-type]  # one of the two
    return {"mask": mask.astype(int).tolist()}


BINDINGS: dict[str, Callable[[Any], Result]] = {
    "labels": labels,
    "sequence_logp": sequence_logp,
    "dpo": dpo,
    "sft_row": sft_row,
    "collate": collated,
    "truncate_batch": truncate_batch,
    "pack_equal": pack_equal,
    "kd": kd,
    "kd_setup": kd_setup,
    "sft_loss": sft_loss,
    "chat_mask": chat_mask,
}


@pytest.mark.parametrize("case", [pytest.param(case, id=f"{case['id']}: {case['why']}") for case in CASES])
def test_the_case_holds(case: Any) -> None:
    expected = dict(case["expected"])
    tolerance = expected.pop("tol", 1e-6)
    expected.pop("or", None)  # another answer that would do as well
    result = BINDINGS[case["input"]["op"]](case["input"])
    for key, wanted in expected.items():
        if isinstance(wanted, float):
            assert result[key] == pytest.approx(wanted, abs=tolerance), key
        else:
            assert result[key] == wanted, key


def test_a_cut_leaves_a_prompt_or_at_least_one_token_untrained() -> None:
    sample = completion([1, 2], [3, 4, 5, 6])
    cut = rl.keep_end(sample, 3)
    assert cut.token_ids.tolist() == [4, 5, 6]
    assert cut.response_mask.tolist() == [False, True, True]
    assert rl.keep_end(sample, 9) is sample
    with pytest.raises(rl.LearnerError, match="longest 0"):
        rl.keep_end(sample, 0)
