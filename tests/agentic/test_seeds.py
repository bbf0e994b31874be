from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import episode_seed


def test_seed_of_a_group_is_the_same_in_every_process() -> None:
    assert episode_seed(42, 0) == 8804691661874483110


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_seed_fits_in_63_bits(run_seed: int, group: int) -> None:
    assert 0 <= episode_seed(run_seed, group) < 2**63


def test_groups_and_runs_have_seeds_of_their_own() -> None:
    seeds = {episode_seed(run, group) for run in range(20) for group in range(200)}
    assert len(seeds) == 4000


def test_no_seed_serves_both_training_and_validation() -> None:
    train = {episode_seed(7, group) for group in range(500)}
    validation = {episode_seed(7, group, split="validation") for group in range(500)}
    assert train.isdisjoint(validation)
    assert {seed % 2 for seed in train} == {0}
    assert {seed % 2 for seed in validation} == {1}
