"""Episodes become samples: sampled ids untouched, rewards and states where turns are."""

import numpy as np
import pytest
from roll_agentic import Episode, Failure, History, Segment, StopReason, Turn
from roll_launch.samples import SampleError
from roll_launch.trajectories import first_of_runs, samples_from_episode, state_id


def sampled(*ids: int, version: int = 3, finish: str = "stop") -> Segment:
    return Segment(
        source="sampled",
        token_ids=np.array(ids),
        logprobs=-np.array(ids, np.float32) / 10,
        versions=((version, len(ids)),) if ids else (),
        finish_reason=finish,
    )


def said(*ids: int) -> Segment:
    return Segment(source="environment", token_ids=np.array(ids))


def episode(
    history: History, turns: list[Segment], rewards: list[float], failure: Failure | None = None
) -> Episode:
    return Episode(
        seed=4,
        status=StopReason.DONE,
        turns=tuple(Turn(response="", segments=(turn,), finish_reason=turn.finish_reason) for turn in turns),
        rewards=np.array(rewards, np.float64),
        messages=(),
        history=history,
        anchors=tuple("abcdef"[: len(turns)]),
        tool_calls=0,
        invalid_actions=0,
        failure=failure,
        seconds=1.0,
    )


def of_segments(*segments: Segment) -> History:
    history = History()
    history.current.extend(segments)
    return history


FIRST, SECOND = sampled(11, 12), sampled(13, 14, version=5)
TWO_TURNS = [said(1, 2), FIRST, said(3), SECOND]


def test_an_episode_is_one_sample_with_a_reward_and_a_state_for_each_turn() -> None:
    history = of_segments(*TWO_TURNS)
    (sample,) = samples_from_episode(
        episode(history, [FIRST, SECOND], [0.25, 0.75]), reward=1.0, group=7, kind="trajectory"
    )
    assert sample.token_ids.tolist() == [1, 2, 11, 12, 3, 13, 14]
    assert sample.response_mask.tolist() == [False, False, True, True, False, True, True]
    assert sample.behavior_logprobs is not None
    assert sample.behavior_logprobs.tolist() == pytest.approx([0, 0, -1.1, -1.2, 0, -1.3, -1.4])
    assert (sample.reward, sample.group, sample.version, sample.truncated) == (1.0, 7, 3, False)
    assert sample.turn_rewards is not None and sample.turn_rewards.tolist() == [0.25, 0.75]
    assert sample.turn_states is not None
    assert sample.turn_states.tolist() == [state_id("a"), state_id("b")]


def test_by_step_each_turn_is_a_sample_with_the_reward_of_the_episode() -> None:
    history = of_segments(*TWO_TURNS)
    samples = samples_from_episode(
        episode(history, [FIRST, SECOND], [0.0, 1.0]), reward=1.0, group=7, kind="step"
    )
    assert [sample.token_ids[sample.response_mask].tolist() for sample in samples] == [[11, 12], [13, 14]]
    assert [(sample.reward, sample.version) for sample in samples] == [(1.0, 3), (1.0, 5)]
    assert [sample.turn_rewards.tolist() for sample in samples if sample.turn_rewards is not None] == [
        [1.0],
        [1.0],
    ]


def test_turns_that_nothing_separates_count_as_one_as_the_learner_counts_them() -> None:
    history = of_segments(said(1), FIRST, SECOND, said(3), sampled(15))
    (sample,) = samples_from_episode(
        episode(history, [FIRST, SECOND, sampled(15)], [0.5, 0.25, 0.25]),
        reward=1.0,
        group=0,
        kind="trajectory",
    )
    assert np.count_nonzero(sample.turn_starts) == 2
    assert sample.turn_rewards is not None and sample.turn_rewards.tolist() == [0.75, 0.25]


def test_turns_without_a_token_begin_no_run() -> None:
    empty = sampled()
    history = of_segments(said(1), empty, said(2), FIRST, said(3), empty, said(4), SECOND)
    (sample,) = samples_from_episode(
        episode(history, [empty, FIRST, empty, SECOND], [0.0, 0.25, 0.25, 0.5]),
        reward=1.0,
        group=0,
        kind="trajectory",
    )
    assert sample.turn_rewards is not None and sample.turn_rewards.tolist() == [0.5, 0.5]
    assert sample.turn_states is not None
    assert sample.turn_states.tolist() == [state_id("b"), state_id("d")]


def test_each_branch_is_a_sample_and_its_last_turn_has_what_was_earned_outside_of_it() -> None:
    history = of_segments(said(1), FIRST)
    history.start("overflow: truncate_oldest", first_turn=1).extend([said(8), SECOND])
    samples = samples_from_episode(
        episode(history, [FIRST, SECOND], [0.0, 1.0]), reward=1.0, group=2, kind="trajectory"
    )
    assert [sample.token_ids.tolist() for sample in samples] == [[1, 11, 12], [8, 13, 14]]
    assert [sample.reward for sample in samples] == [1.0, 1.0]
    assert all(
        sample.turn_rewards is not None and sample.turn_rewards.tolist() == [1.0] for sample in samples
    )


def test_an_episode_without_a_verdict_is_refused() -> None:
    broken = episode(
        of_segments(*TWO_TURNS), [FIRST, SECOND], [0, 0], Failure(kind="error", message="it broke")
    )
    with pytest.raises(SampleError, match="it broke"):
        samples_from_episode(broken, reward=0.0, group=0, kind="trajectory")


def test_a_reward_that_was_shaped_keeps_the_sum_of_what_turns_earned() -> None:
    history = of_segments(*TWO_TURNS)
    (sample,) = samples_from_episode(
        episode(history, [FIRST, SECOND], [0.25, 0.75]), reward=0.5, group=7, kind="step_concatenated"
    )
    assert sample.turn_rewards is not None and sample.turn_rewards.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("spans", "first"),
    [([], []), ([[3, 3]], []), ([[3, 5], [5, 6], [8, 9]], [0, 2]), ([[3, 5], [7, 7]], [0])],
)
def test_runs_begin_where_the_mask_does(spans: list[list[int]], first: list[int]) -> None:
    assert first_of_runs(spans).tolist() == first
