"""Errors travel between processes with all they say."""

import pickle

import pytest
from roll_scheduler import DeadlineExceeded, SchedulerError, StarvationError, TicketFailed, TooManyFailures


@pytest.mark.parametrize("kind", [SchedulerError, StarvationError, TooManyFailures, DeadlineExceeded])
def test_error_survives_pickling_with_message_and_counts(kind):
    error = pickle.loads(pickle.dumps(kind("what happened", {"deadline": 3})))
    assert type(error) is kind
    assert isinstance(error, SchedulerError)
    assert str(error) == "what happened"
    assert error.counts == {"deadline": 3}


def test_ticket_failure_survives_pickling_with_its_kind():
    error = pickle.loads(pickle.dumps(TicketFailed(kind="engine", message="connection lost")))
    assert (error.kind, error.message, str(error)) == ("engine", "connection lost", "engine: connection lost")


def test_a_kind_that_is_no_word_is_refused():
    with pytest.raises(SchedulerError, match=r"TicketFailed\.kind: got None, allowed is text"):
        TicketFailed(None, "it broke")
