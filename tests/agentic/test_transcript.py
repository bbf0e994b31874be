import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_agentic import Segment, Transcript, TranscriptError


def context(ids: list[int], source: str = "environment") -> Segment:
    return Segment(source=source, token_ids=ids)  # type: ignore[arg-type]


def said(ids: list[int], version: int = 0, reason: str = "stop") -> Segment:
    return Segment(
        source="sampled",
        token_ids=ids,  # type: ignore[arg-type]
        logprobs=np.full(len(ids), -0.5),
        versions=((version, len(ids)),) if ids else (),
        finish_reason=reason,  # type: ignore[arg-type]
    )


SEGMENTS = st.lists(
    st.builds(
        lambda ids, sampled, version: said(ids, version) if sampled else context(ids),
        st.lists(st.integers(0, 50), min_size=1, max_size=5),
        st.booleans(),
        st.integers(0, 9),
    ),
    max_size=8,
).map(lambda segments: [context([1], "template"), *segments])


def test_row_trains_sampled_tokens_only() -> None:
    transcript = Transcript(
        [context([9, 8], "template"), said([1, 2], version=3), context([7]), said([4], version=5)]
    )
    row = transcript.to_training_row()
    assert row.token_ids.tolist() == [9, 8, 1, 2, 7, 4]
    assert row.response_mask.tolist() == [False, False, True, True, False, True]
    assert row.behavior_logprobs.tolist() == [0, 0, -0.5, -0.5, 0, -0.5]
    assert (row.oldest_version, row.newest_version) == (3, 5)
    assert not row.truncated
    assert (row.token_ids.dtype, row.response_mask.dtype, row.behavior_logprobs.dtype) == (
        np.int32,
        np.bool_,
        np.float32,
    )


@pytest.mark.parametrize("reason", ["length", "abort"])
def test_row_says_that_its_last_turn_was_cut_off(reason: str) -> None:
    assert Transcript([context([9]), said([1], reason=reason)]).to_training_row().truncated


def test_turn_that_was_continued_after_an_abort_is_not_cut_off() -> None:
    row = Transcript(
        [context([9]), said([1], version=1, reason="abort"), said([2], version=2)]
    ).to_training_row()
    assert not row.truncated
    assert (row.oldest_version, row.newest_version) == (1, 2)


@given(SEGMENTS)
def test_rows_arrays_agree_with_the_segments(segments: list[Segment]) -> None:
    transcript = Transcript(segments)
    assert len(transcript) == len(transcript.token_ids) == sum(len(segment) for segment in segments)
    if all(segment.source != "sampled" for segment in segments):
        with pytest.raises(TranscriptError, match="nothing to train: none of the"):
            transcript.to_training_row()
        return
    row = transcript.to_training_row()
    trained = [token for segment in segments if segment.source == "sampled" for token in segment.token_ids]
    assert row.token_ids[row.response_mask].tolist() == trained
    assert np.all(row.behavior_logprobs[row.response_mask] == -0.5)
    assert np.all(row.behavior_logprobs[~row.response_mask] == 0)
    assert not row.response_mask[0]


@given(SEGMENTS, st.lists(st.integers(0, 50), max_size=4))
def test_prompt_that_starts_with_everything_so_far_is_taken_over(
    segments: list[Segment], new: list[int]
) -> None:
    transcript = Transcript(segments)
    before = transcript.token_ids
    transcript.continue_with(np.array([*before, *new]), source="template")
    assert transcript.token_ids.tolist() == [*before, *new]
    assert len(transcript.segments) == len(segments) + bool(new)
    if new:
        assert transcript.segments[-1].source == "template"


@given(SEGMENTS, st.data())
def test_prompt_that_rewrites_a_token_is_refused_at_its_position(
    segments: list[Segment], data: st.DataObject
) -> None:
    transcript = Transcript(segments)
    prompt = transcript.token_ids
    position = data.draw(st.integers(0, len(prompt) - 1))
    prompt[position] += 100
    with pytest.raises(
        TranscriptError, match=f"at position {position} it has token {prompt[position]} where"
    ):
        transcript.continue_with(prompt)
    assert len(transcript.segments) == len(segments)


def test_refused_prompt_names_the_segment_that_it_changed() -> None:
    transcript = Transcript([context([9], "template"), said([1, 2]), context([7])])
    with pytest.raises(TranscriptError) as caught:
        transcript.continue_with([9, 1, 3, 7, 5])
    assert str(caught.value) == (
        "the next prompt must start with the 4 tokens so far: at position 2 it has token 3 "
        "where the transcript has token 2, which is token 1 of segment 1 (sampled)"
    )


def test_prompt_that_ends_too_early_is_refused() -> None:
    transcript = Transcript([context([9], "template"), said([1, 2])])
    with pytest.raises(TranscriptError, match="at position 2 it ends where the transcript has token 2"):
        transcript.continue_with([9, 1])


def test_sampled_tokens_need_context() -> None:
    with pytest.raises(TranscriptError, match="position 0 is sampled without any context"):
        Transcript([said([1])])


def test_segments_cannot_be_changed_from_outside() -> None:
    transcript = Transcript([context([9])])
    transcript.token_ids[0] = 1
    assert transcript.token_ids.tolist() == [9]
    assert isinstance(transcript.segments, tuple)
