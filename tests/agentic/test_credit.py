import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import (
    AgenticError,
    BranchRule,
    Episode,
    History,
    Segment,
    StopReason,
    Turn,
    branch_points,
    branch_probability,
    chunk_returns,
    crucial_chunks,
    episode_rows,
    interaction_chunks,
    normalised_entropy,
    step_credit,
    step_returns,
)

DATA = Path(__file__).parent.parent / "data" / "vectors"


def vectors(name: str) -> list[dict]:
    return json.loads((DATA / f"{name}.json").read_text())["cases"]


def episode(states: list[str], rewards: list[float]) -> Episode:
    return Episode(
        seed=0,
        status=StopReason.DONE,
        turns=tuple(Turn(response="a") for _ in states),
        rewards=np.array(rewards),
        messages=(),
        history=History(),
        anchors=tuple(states),
        tool_calls=0,
        invalid_actions=0,
        failure=None,
        seconds=0.0,
    )


@pytest.mark.parametrize("case", vectors("gigpo"), ids=lambda case: case["name"])
def test_anchors_and_returns_of_gigpo(case: dict) -> None:
    trajectories = case["inputs"]["trajectories"]
    credit = step_credit(
        [episode(t["states"], t["rewards"]) for t in trajectories], gamma=case["params"]["gamma"]
    )
    groups: dict[str, list[list[int]]] = {}
    for number, step, anchor in zip(credit.episodes, credit.steps, credit.anchors, strict=True):
        state = trajectories[number]["states"][step]
        groups.setdefault(state, []).append([int(number), int(step)])
        assert credit.anchors[(credit.episodes == number) & (credit.steps == step)] == anchor
    if "anchor_groups" in case["expected"]:
        assert groups == case["expected"]["anchor_groups"]
    assert len(set(credit.anchors.tolist())) == len(groups)
    for number, returns in enumerate(case["expected"].get("step_returns", [])):
        assert credit.returns[credit.episodes == number] == pytest.approx(returns, abs=1e-6)


def test_similar_states_share_an_anchor() -> None:
    episodes = [
        episode(["room A, 3 coins"], [0.0]),
        episode(["room A, 4 coins"], [1.0]),
        episode(["hall"], [1.0]),
    ]
    assert step_credit(episodes).anchors.tolist() == [0, 1, 2]
    assert step_credit(episodes, similarity=0.9).anchors.tolist() == [0, 0, 1]


def test_credit_refuses_what_has_no_verdict_and_odd_numbers() -> None:
    from dataclasses import replace

    from roll_agentic import Failure

    failed = replace(episode(["a"], [0.0]), failure=Failure(kind="error", message=""))
    with pytest.raises(AgenticError, match="with a verdict"):
        step_credit([failed])
    with pytest.raises(AgenticError):
        step_credit([], similarity=1.5)
    assert step_credit([]).anchors.tolist() == []


@given(st.lists(st.floats(-10, 10), max_size=20), st.floats(0, 1))
def test_step_returns_are_the_discounted_sums(rewards: list[float], gamma: float) -> None:
    returns = step_returns(rewards, gamma=gamma)
    for step in range(len(rewards)):
        direct = sum(gamma**k * reward for k, reward in enumerate(rewards[step:]))
        assert returns[step] == pytest.approx(direct, abs=1e-9)


@pytest.mark.parametrize(
    "case", [c for c in vectors("ipa_chunk") if "chunks" in c["inputs"]], ids=lambda c: c["name"]
)
def test_chunks_and_their_returns(case: dict) -> None:
    chunks = case["inputs"]["chunks"]
    history = History()
    for chunk in chunks:
        history.current.append(Segment(source="environment", token_ids=np.array([1, 1])))
        history.current.append(
            Segment(
                source="sampled",
                token_ids=np.array(chunk),
                logprobs=np.zeros(len(chunk)),
                versions=((0, len(chunk)),),
                finish_reason="stop",
            )
        )
    (row,) = episode_rows(history, "step_concatenated")
    bounds = interaction_chunks(row)
    said = row.token_ids[row.response_mask]
    assert [said[start:end].tolist() for start, end in bounds] == chunks
    returns = chunk_returns(case["inputs"]["R_final"], len(chunks), gamma=case["params"]["gamma"])
    assert returns == pytest.approx(case["expected"]["G"], abs=1e-6)
    assert chunk_returns(1.0, 0, gamma=0.9).tolist() == []


@pytest.mark.parametrize(
    "case", [c for c in vectors("ipa_chunk") if "min_drop" in c["params"]], ids=lambda c: c["name"]
)
def test_crucial_chunks_are_those_after_which_success_rises(case: dict) -> None:
    rates = case["inputs"]["success_rate_after_prefix_of_k_expert_chunks"]
    found = crucial_chunks(rates, min_drop=case["params"]["min_drop"])
    assert found == case["expected"]["crucial_chunk_numbers_1based"]


@pytest.mark.parametrize(
    "case", [c for c in vectors("arpo_hard_advantage") if "tau" in c["params"]], ids=lambda c: c["name"]
)
def test_branching_happens_above_the_threshold(case: dict) -> None:
    params = case["params"]
    rule = BranchRule(
        alpha=params["alpha"], beta=params["beta"], threshold=params["tau"], width=1, budget=9, first=1
    )
    changes = case["inputs"]["delta_H"]
    assert [branch_probability(change, rule) for change in changes] == pytest.approx(case["expected"]["P"])
    points = branch_points({0: [0.0, *changes]}, rule)
    branched = sorted(turn - 1 for _, turn, _ in points)
    assert branched == [index for index, yes in enumerate(case["expected"]["branch"]) if yes]


def test_budget_goes_to_the_greatest_changes() -> None:
    rule = BranchRule(alpha=0.0, beta=1.0, threshold=0.1, width=2, budget=7, first=4)
    entropies = {0: [0.1, 0.9], 1: [0.1, 0.15, 0.5], 2: [0.2, 0.8]}
    assert branch_points(entropies, rule) == [(0, 1, 2), (2, 1, 1)]
    with pytest.raises(AgenticError):
        BranchRule(alpha=0, beta=1, threshold=0, width=0, budget=1, first=1)


def test_entropy_of_a_uniform_distribution_is_one_and_of_a_certain_one_zero() -> None:
    uniform = [[math.log(1 / 4)] * 4] * 3
    assert normalised_entropy(uniform, vocabulary=4) == pytest.approx(1.0)
    assert normalised_entropy([[0.0]], vocabulary=4) == pytest.approx(0.0)
    with pytest.raises(AgenticError):
        normalised_entropy([], vocabulary=4)
