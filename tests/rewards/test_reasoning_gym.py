import sys
from types import SimpleNamespace

import pytest
from roll_rewards import RewardError, make_grader
from roll_rewards.graders import reasoning_gym as module

ENTRY = {"question": "4 - 1 - 7 =", "answer": "-4", "metadata": {"source_dataset": "chain_sum"}}


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A task whose scorer the test sets."""
    task = SimpleNamespace(score=None)
    monkeypatch.setattr(module, "_task_scorer", lambda name: lambda answer, entry: task.score(answer, entry))
    return task


async def test_task_scores_its_own_entry() -> None:
    grader = make_grader("reasoning_gym", task="chain_sum")
    right = await grader.grade("-4", "-4", entry=ENTRY)
    assert right.value == 1.0
    assert right.parsed == "-4"
    assert (await grader.grade("no idea", "-4", entry=ENTRY)).value < 0.1


async def test_answer_is_what_the_last_answer_tag_encloses() -> None:
    grader = make_grader("reasoning_gym", task="chain_sum")
    score = await grader.grade("<answer>1</answer> wait <answer> -4 </answer> done", None, entry=ENTRY)
    assert score.value == 1.0
    assert score.parsed == "-4"


async def test_entry_may_be_the_reference_itself() -> None:
    assert (await make_grader("reasoning_gym", task="chain_sum").grade("-4", ENTRY)).value == 1.0


async def test_missing_entry_is_refused() -> None:
    with pytest.raises(
        RewardError, match=r"needs the data set's entry .* in the column 'entry', got str '-4'"
    ):
        await make_grader("reasoning_gym", task="chain_sum").grade("-4", "-4")


async def test_scorer_that_raises_on_the_answer_alone_gives_zero(scorer: SimpleNamespace) -> None:
    scorer.score = lambda answer, entry: float(int(answer) == int(entry["answer"]))
    grader = make_grader("reasoning_gym", task="any")
    score = await grader.grade("not a number", ENTRY)
    assert score.value == 0.0
    assert score.parsed is None


async def test_scorer_that_raises_on_the_right_answer_too_is_broken(scorer: SimpleNamespace) -> None:
    scorer.score = lambda answer, entry: entry["no such key"]
    with pytest.raises(KeyError):
        await make_grader("reasoning_gym", task="any").grade("-4", ENTRY)


def test_unknown_task_names_the_nearest() -> None:
    with pytest.raises(RewardError, match="has no task 'chain_sums'; did you mean 'chain_sum'"):
        make_grader("reasoning_gym", task="chain_sums")


def test_task_that_needs_a_configuration_is_refused() -> None:
    with pytest.raises(RewardError, match="task 'composite' has no scorer of its own"):
        make_grader("reasoning_gym", task="composite")


def test_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    module._task_scorer.cache_clear()
    with pytest.raises(RewardError, match=r"pip install 'roll-rewards\[reasoning-gym\]'"):
        make_grader("reasoning_gym", task="chain_sum")
