import numpy as np
import pytest
from roll_agentic import AgenticError, Segment, Turn

CONTEXT = Segment(source="template", token_ids=np.array([1]))
SAID = Segment(
    source="sampled",
    token_ids=np.array([2]),
    logprobs=np.array([-1.0]),
    versions=((0, 1),),
    finish_reason="stop",
)


@pytest.mark.parametrize(
    ("segments", "sources"),
    [
        ((CONTEXT,), "template"),
        ((SAID, CONTEXT), "sampled, template"),
        ((CONTEXT, SAID, SAID), "template, sampled, sampled"),
    ],
)
def test_turn_adds_context_and_then_one_sampled_segment(segments: tuple, sources: str) -> None:
    with pytest.raises(AgenticError, match=f"context and then one sampled segment, got {sources}"):
        Turn(response="a", segments=segments)


def test_turn_cannot_contradict_its_sampled_segment() -> None:
    with pytest.raises(AgenticError, match="the turn ended with 'length', its sampled segment with 'stop'"):
        Turn(response="a", segments=(CONTEXT, SAID), finish_reason="length")


def test_unknown_finish_reason_is_refused() -> None:
    with pytest.raises(AgenticError, match="one of stop, length, abort; got 'eos'"):
        Turn(response="a", finish_reason="eos")  # type: ignore[arg-type]
