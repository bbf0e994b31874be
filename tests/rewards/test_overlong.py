import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_rewards import RewardError, overlong_penalty

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "vectors" / "dapo_overlong.json").read_text())


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["name"])
def test_penalty_agrees_with_the_vectors(case: dict) -> None:
    penalty = overlong_penalty(
        np.array(case["inputs"]["lengths"], dtype=np.int32),
        max_tokens=case["params"]["L_max"],
        buffer_tokens=case["params"]["L_cache"],
    )
    np.testing.assert_allclose(penalty, case["expected"]["penalty"], rtol=0, atol=VECTORS["tolerance"])


@given(st.integers(1, 1000), st.data())
def test_penalty_never_rises_with_length_and_stays_in_its_range(max_tokens: int, data: st.DataObject) -> None:
    buffer_tokens = data.draw(st.integers(1, max_tokens))
    penalty = overlong_penalty(np.arange(2000), max_tokens=max_tokens, buffer_tokens=buffer_tokens)
    assert np.all(np.diff(penalty) <= 0)
    assert penalty[0] == 0.0
    assert penalty[max_tokens] == penalty[-1] == -1.0
    assert not np.any(np.signbit(penalty) & (penalty == 0))


def test_penalty_of_no_responses_is_empty() -> None:
    assert overlong_penalty(np.array([], dtype=np.int32), max_tokens=4, buffer_tokens=2).shape == (0,)


@pytest.mark.parametrize(("max_tokens", "buffer_tokens"), [(10, 0), (10, 11), (0, 0), (-1, -1)])
def test_penalty_refuses_limits_that_do_not_fit(max_tokens: int, buffer_tokens: int) -> None:
    with pytest.raises(RewardError, match=f"got buffer_tokens={buffer_tokens}, max_tokens={max_tokens}"):
        overlong_penalty(np.array([1]), max_tokens=max_tokens, buffer_tokens=buffer_tokens)


@pytest.mark.parametrize("lengths", [np.array([-1]), np.array([1.5])])
def test_penalty_refuses_lengths_that_are_not_counts(lengths: np.ndarray) -> None:
    with pytest.raises(RewardError, match="needs counts as lengths"):
        overlong_penalty(lengths, max_tokens=10, buffer_tokens=4)
