import pickle

import pytest
from roll_agentic import AgenticError, TranscriptError
from roll_agentic.errors import DeadlineMissed, EnvironmentFault, PolicyFault


@pytest.mark.parametrize(
    "error",
    [
        AgenticError("a"),
        TranscriptError("b"),
        DeadlineMissed("c"),
        EnvironmentFault("deadline", "d"),
        PolicyFault("error", "e"),
    ],
)
def test_errors_survive_pickling_with_their_message(error: AgenticError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert isinstance(copy, AgenticError)
    assert vars(copy) == vars(error)
