"""Reward functions as other libraries' users write them, run unchanged."""

import asyncio
import re
from typing import Any

import numpy as np
import pytest
from roll_rewards import RewardError, grade_with_deadline, make_grader


def trl_accuracy(prompts, completions, answer, **kwargs):
    return [float(text.endswith(gold)) for text, gold in zip(completions, answer, strict=True)]


def trl_chat(completions, **kwargs):
    return [len(completion[0]["content"]) / 10 for completion in completions]


def trl_kwargs_only(completions, **kwargs):
    return [float(text == gold) for text, gold in zip(completions, kwargs["solution"], strict=True)]


async def trl_async(completions, solution, log_metric=None, trainer_state=None):
    await asyncio.sleep(0)
    log_metric("seen", len(completions))
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, solution, strict=True)]


def trl_lengths(completion_ids, **kwargs):
    return [len(ids) for ids in completion_ids]


def trl_other_task(completions, **kwargs):
    return [None for _ in completions]


def verl_score(data_source, solution_str, ground_truth, extra_info=None):
    assert isinstance(extra_info, dict)
    return {
        "score": float(solution_str == ground_truth),
        "acc": True,
        "pred": solution_str,
        "note": data_source,
    }


def verl_plain(solution_str, ground_truth, method="strict", **kwargs):
    return solution_str == ground_truth


def verl_batched(data_sources, solution_strs, ground_truths, extra_infos):
    return [float(a == b) for a, b in zip(solution_strs, ground_truths, strict=True)]


def openrlhf(queries, prompts, labels, **kwargs):
    right = [float(q[len(p) :] == label) for q, p, label in zip(queries, prompts, labels, strict=True)]
    return {"rewards": np.array(right), "scores": np.array(right), "extra_logs": {"length": np.array([3.0])}}


async def slime_rm(args, sample, **kwargs):
    return float(sample.response == sample.label) + len(sample.metadata)


async def slime_batched(args, samples):
    return [float(sample.response == sample.label) for sample in samples]


def areal(prompt, completions, prompt_ids, completion_ids, answer, **kwargs):
    return int(completions == answer)


async def verifiers_exact(completion, answer) -> float:
    return 1.0 if completion[-1]["content"] == answer else 0.0


def verifiers_text(completion: str, answer: str, **kwargs) -> float:
    return float(completion == answer)


def verifiers_state(state):
    return float(state["completion"][-1]["content"] == state["answer"])


def brief(completion, parser):
    return parser.factor * len(completion[-1]["content"])


class Parser:
    factor = 0.5


class Rubric:
    def __init__(self) -> None:
        self.funcs = [verifiers_exact, brief]
        self.weights = [1.0, 0.1]
        self.parser = Parser()


RUBRIC = Rubric()


class Task:
    async def reward(self, trace: Any) -> float:
        return float(trace.last_reply == self.data.answer)  # type: ignore[attr-defined]


async def plugged(task, trace, runtime):
    return float(trace.last_reply == task.data.answer)


def gym_score(answer, entry):
    return float(answer == entry["answer"])


def grader(name: str, **options: object) -> Any:
    return make_grader("python", callable=f"{__name__}:{name}", **options)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("trl_accuracy", {"prompt": "2+2="}),
        ("trl_kwargs_only", {}),
        ("trl_async", {}),
        ("verl_score", {"data_source": "gsm8k", "extra_info": {"index": 1}}),
        ("verl_score", {}),
        ("verl_plain", {}),
        ("verl_batched", {}),
        ("openrlhf", {"prompt": "2+2="}),
        ("slime_rm", {}),
        ("slime_batched", {}),
        ("areal", {"prompt": "2+2="}),
        ("verifiers_exact", {}),
        ("verifiers_text", {}),
        ("verifiers_state", {}),
        ("Task.reward", {}),
        ("plugged", {}),
    ],
)
async def test_right_answer_scores_one_and_a_wrong_one_zero(name: str, columns: dict[str, object]) -> None:
    right = await grader(name).grade("4", "4", **columns)
    wrong = await grader(name).grade("5", "4", **columns)
    assert (right.value, wrong.value, right.failure) == (1.0, 0.0, None)


async def test_reference_reaches_a_function_that_calls_it_by_its_columns_name() -> None:
    assert (await grader("trl_accuracy").grade("x", "4", answer="x")).value == 1.0


async def test_conversational_prompts_give_conversational_completions() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert (await grader("trl_chat").grade("hello", None, prompt=messages)).value == 0.5


async def test_metrics_become_parts() -> None:
    assert (await grader("trl_async").grade("4", "4")).parts == {"seen": 1.0}
    score = await grader("verl_score").grade("4", "4")
    assert (score.parts, score.parsed) == ({"acc": 1.0}, "4")
    assert (await grader("openrlhf").grade("4", "4")).parts == {"scores": 1.0, "length": 3.0}


async def test_function_of_tokens_gets_the_column_of_their_ids() -> None:
    assert (await grader("trl_lengths").grade("x", None, completion_ids=[5, 6, 7])).value == 3.0


async def test_none_of_trl_is_no_verdict() -> None:
    score = await grader("trl_other_task").grade("4", "4")
    assert score.failure is not None and score.failure.kind == "inapplicable"


async def test_rubric_is_the_weighted_sum_of_its_functions() -> None:
    score = await grader("RUBRIC").grade("abcd", "abcd")
    assert score.value == pytest.approx(1.0 + 0.1 * 2.0)
    assert score.parts == {"verifiers_exact": 1.0, "brief": 2.0}


async def test_reasoning_gym_scorer_sees_the_answer_in_its_tags() -> None:
    score = await grader("gym_score").grade("so <answer> 4 </answer>", None, entry={"answer": "4"})
    assert score.value == 1.0


async def test_style_can_be_said_where_names_mislead() -> None:
    with pytest.raises(RewardError, match=re.escape("auto or one of")):
        grader("verl_plain", style="veral")
    with pytest.raises(RewardError, match="requires solution_str"):
        await grader("verl_plain", style="roll").grade("4", "4", ground_truth="4")


@pytest.mark.timeout(120)
async def test_isolated_function_is_judged_in_a_worker_and_killed_when_it_hangs() -> None:
    scorer = make_grader("python", callable="isolated_functions:worker_score", isolated=True)
    score = await scorer.grade("4", "4")
    assert (score.value, score.parsed) == (1.0, "4")
    sleeper = make_grader("python", callable="isolated_functions:sleeper", isolated=True, timeout_s=0.5)
    late = await grade_with_deadline(sleeper, "x", None, deadline_s=60)
    assert late.failure is not None and late.failure.kind == "deadline"
