"""Fixtures of the transports."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from transports_of_tests import KINDS, Transport, make_transport


@pytest.fixture(params=KINDS)
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    made = make_transport(request.param, tmp_path)
    yield made
    for receiver in made.receivers:
        receiver.close()
    made.sender.close()
    assert not [each for each in threading.enumerate() if each.name == "roll-broadcast"]
