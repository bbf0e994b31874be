"""The default chooser: the least busy replica, unless another has read the prompt's beginning."""

import numpy as np
import pytest
from roll_rollout import EngineError, GenerateRequest, SamplingParams
from roll_rollout.replicas import LeastOutstanding, ReplicaView


def request_for(ids) -> GenerateRequest:
    return GenerateRequest(id="r", prompt_ids=np.array(ids), seed=0, sampling=SamplingParams(max_tokens=4))


def views(**outstanding: int) -> list[ReplicaView]:
    return [
        ReplicaView(name=name, requests=1, outstanding=tokens, version=0)
        for name, tokens in outstanding.items()
    ]


def test_least_busy_replica_is_chosen():
    assert LeastOutstanding()(request_for([1, 2]), views(a=30, b=10, c=20)) == "b"


def test_later_turn_goes_where_its_beginning_was_read():
    choose = LeastOutstanding(block=4)
    first = list(range(8))
    assert choose(request_for(first), views(a=0, b=5)) == "a"
    assert choose(request_for([*first, 9, 9, 9]), views(a=50, b=0)) == "a"
    assert choose(request_for([*first[:4], 7, 7, 7, 7]), views(a=50, b=0)) == "a"
    assert choose(request_for([7, 7, 7, 7]), views(a=50, b=0)) == "b"


def test_busy_home_is_left_for_another():
    choose = LeastOutstanding(slack=100)
    prompt = request_for([1, 2, 3])
    assert choose(prompt, views(a=0, b=1)) == "a"
    assert choose(prompt, views(a=100, b=0)) == "a"
    assert choose(prompt, views(a=101, b=0)) == "b"
    assert choose(prompt, views(a=0, b=50)) == "b"


def test_home_that_is_gone_is_replaced():
    choose = LeastOutstanding()
    prompt = request_for([1, 2, 3])
    assert choose(prompt, views(a=0, b=1)) == "a"
    assert choose(prompt, views(b=5, c=4)) == "c"


def test_memory_of_prefixes_is_bounded():
    choose = LeastOutstanding(remembered=2)
    for token in range(5):
        choose(request_for([token]), views(a=0, b=1))
    assert choose(request_for([4]), views(a=9, b=0)) == "a"
    assert choose(request_for([0]), views(a=9, b=0)) == "b"


def test_arguments_out_of_range_are_refused():
    with pytest.raises(EngineError, match="slack=-1"):
        LeastOutstanding(slack=-1)
