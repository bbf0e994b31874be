"""Estimators beside those of groups, by hand and at the edges."""

import numpy as np
import pytest
import roll_learners as rl
import torch
from roll_learners import Segments, Turns

NAN = float("nan")


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


GROUPS = torch.tensor([5, 5, 5, 2, 2])


def test_maxrl_divides_by_the_mean_and_is_zero_without_success() -> None:
    advantages = rl.maxrl(doubles(1, 0, 0, 0, 0), GROUPS)
    assert advantages.tolist() == pytest.approx([2, -1, -1, 0, 0])
    assert rl.maxrl(doubles(1, NAN, 0, 1, 1), GROUPS).tolist() == pytest.approx([1, 0, -1, 0, 0])
    with pytest.raises(rl.LearnerError, match=r"maxrl: the lowest reward is -1\.0"):
        rl.maxrl(doubles(1, -1, 0, 0, 0), GROUPS)


def test_raft_keeps_the_best_that_succeeded() -> None:
    assert rl.raft_pp(doubles(1, 1, 0.5, 0, 0), GROUPS).tolist() == [1, 1, 0, 0, 0]
    assert rl.raft_pp(doubles(NAN, 0.5, 0.2, -1, NAN), GROUPS).tolist() == [0, 1, 0, 0, 0]


def test_gpg_scales_up_for_groups_that_say_nothing() -> None:
    assert rl.gpg(doubles(1, 0, 0.5, 1, 1), GROUPS).tolist() == pytest.approx(
        [5 / 3 * 0.5, -5 / 3 * 0.5, 0, 0, 0]
    )
    assert not rl.gpg(doubles(1, 1, 1, 0, 0), GROUPS).any()


def test_opo_weighs_the_baseline_by_length() -> None:
    segments = Segments.of_lengths(torch.tensor([1, 3, 4, 2, 2]))
    advantages = rl.opo(doubles(1, 0, NAN, 0.1, 0.1), GROUPS, segments)
    assert advantages.tolist() == pytest.approx([0.75, -0.25, 0, 0, 0])


def test_remax_needs_every_baseline_of_a_sample_with_a_verdict() -> None:
    assert rl.remax(doubles(1, NAN), doubles(0.25, NAN)).tolist() == [0.75, 0]
    with pytest.raises(rl.LearnerError, match="1 of 2 samples have no baseline"):
        rl.remax(doubles(1, 0), doubles(NAN, 0))


def test_groups_without_a_spread_stay_zero_when_nothing_is_added_to_the_deviation() -> None:
    assert rl.grpo(doubles(1, 1, 1, 0, 1), GROUPS, eps=0.0)[:3].tolist() == [0, 0, 0]
    assert rl.batch_normalised(doubles(0, 1, NAN), eps=0.0).tolist() == pytest.approx(
        [-(0.5**0.5), 0.5**0.5, 0]
    )


# Two sequences: turns of 2 and 1 tokens, and of 1 token.
TURNS = Turns(
    tokens=Segments.of_lengths(torch.tensor([2, 1, 1])), sequences=Segments.of_lengths(torch.tensor([2, 1]))
)


def test_a_discount_per_turn() -> None:
    rewards = doubles(0.5, 1.0, -1.0)
    assert rl.turn_returns(rewards, TURNS, gamma=0.5).tolist() == [1.0, 1.0, -1.0]
    assert rl.turn_reinforce(rewards, TURNS, gamma=0.5).tolist() == [1.0, 1.0, 1.0, -1.0]
    normalised = rl.step_reinforce(rewards, TURNS, torch.tensor([7, 7]), gamma=0.5, eps=0.0)
    # Of 1, 1 and -1 the mean is 1/3 and the sample deviation 2/sqrt(3).
    assert normalised.tolist() == pytest.approx([3**-0.5, 3**-0.5, 3**-0.5, -2 * 3**-0.5])


def test_turns_begin_after_every_gap_and_at_every_sequence() -> None:
    turns = Turns.of_mask(torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]))
    assert turns.tokens.ids.tolist() == [0, 0, 1, 2]
    assert turns.sequences.ids.tolist() == [0, 0, 1]
    assert turns.sequences.lengths.tolist() == [2, 1, 0]


def test_gigpo_turns_meet_only_those_of_their_own_group_and_state() -> None:
    rewards, groups, states = doubles(1.5, -1.0), torch.tensor([0, 0]), torch.tensor([4, 4, 4])
    arguments = (doubles(0.5, 1.0, -1.0), states, TURNS)
    own = rl.gigpo(rewards, groups, *arguments, gamma=0.0, omega=1.0, by_deviation=False)
    # Episodes differ by 1.25 from their mean; the turns' rewards from theirs, 1/6.
    assert own.tolist() == pytest.approx([1.25 + 1 / 3, 1.25 + 1 / 3, 1.25 + 5 / 6, -1.25 - 7 / 6])
    apart = rl.gigpo(rewards, torch.tensor([0, 1]), *arguments, gamma=0.0, by_deviation=False)
    assert apart.tolist() == pytest.approx([-0.25, -0.25, 0.25, 0])


def test_nodes_are_shared_up_to_the_first_difference() -> None:
    sequences = [np.array([1, 2, 3]), np.array([1, 2, 4, 3]), np.array([1, 2, 3])]
    first, second, other = rl.prefix_nodes(sequences, [0, 0, 9])
    assert (first[:2] == second[:2]).all()
    assert first[2] not in second
    assert not set(other) & set(first)
    # A later token after different histories is another token of the tree.
    assert len({*first, *second}) == 5


def test_hard_credit_by_hand() -> None:
    segments = Segments.of_lengths(torch.tensor([2, 2]))
    nodes = torch.tensor([0, 1, 0, 2])
    advantages = rl.arpo_hard(doubles(1, 0), torch.tensor([3, 3]), segments, nodes, eps=0.0)
    assert advantages.tolist() == pytest.approx([0, 0.5**0.5, 0, -(0.5**0.5)])


def test_shares_of_tokens_are_guarded_against_rounding() -> None:
    sigma = torch.arange(10, dtype=torch.float64)
    assert rl.where_critics_differ(sigma, 0.3).tolist() == [False] * 3 + [True] * 7
    assert rl.where_critics_agree(sigma, 0.7).tolist() == [True] * 3 + [False] * 7
    assert rl.where_critics_agree(torch.zeros(4), 0.25).tolist() == [False, True, True, True]
    assert rl.where_critics_differ(sigma, 0.0).all()


@pytest.mark.parametrize(
    "arguments", [{"coef": -0.1}, {"coef": 0.1, "target": 0.0}, {"coef": 0.1, "horizon": 0}, {"coef": NAN}]
)
def test_a_wrong_kl_controller_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(rl.LearnerError, match="allowed are coef >= 0"):
        rl.KlController(**arguments)  # type: ignore[arg-type]
    assert rl.KlController(0.1).observe(5.0, sequences=8) == 0.1


def test_masks_of_samples() -> None:
    rewards, groups = np.array([1, 0, NAN, 1, 1]), np.array([1, 1, 1, 2, 2])
    kept = rl.difficulty_mask(rewards, groups, low=0.0, high=1.0)
    assert kept.tolist() == [True, True, True, False, False]
    lengths = np.array([9, 9, 3, 9, 3])
    assert rl.error_length_mask(np.array([1.0, 0, 0, 0.5, -1]), lengths, longest=4).tolist() == [
        True, False, True, True, True,
    ]  # fmt: skip


def test_masks_of_conversations() -> None:
    turns = [("user", 1), ("assistant", 2), ("tool", 1), ("assistant", 1)]
    assert rl.conversation_mask(turns).tolist() == [False, True, True, False, True]
    assert rl.conversation_mask(turns, train="last").tolist() == [False] * 4 + [True]
    assert rl.conversation_mask(turns, left_out={1}).tolist() == [False] * 4 + [True]
    assert rl.conversation_mask(turns, role="tool").tolist() == [False, False, False, True, False]
    assert rl.conversation_mask([]).tolist() == []
