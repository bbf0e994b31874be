"""Device plans are parsed strictly."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roll_hw import PLATFORMS, DevicePlan, HwError, parse_device_plan


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("cuda:0", (0,)),
        ("cuda:0-3", (0, 1, 2, 3)),
        ("0-3,6", (0, 1, 2, 3, 6)),
        (" 6, 0-1 ", (6, 0, 1)),
        ("7", (7,)),
    ],
)
def test_plan_lists_its_devices_in_the_order_written(text, devices):
    plan = parse_device_plan(text, platform=PLATFORMS["cuda"], available=8)
    assert plan == DevicePlan(platform="cuda", devices=devices)


@pytest.mark.parametrize("name", PLATFORMS)
def test_cpu_is_a_plan_everywhere(name):
    plan = parse_device_plan("cpu", platform=PLATFORMS[name], available=8)
    assert plan == DevicePlan(platform="cpu", devices=())


def test_rocm_devices_go_by_either_name():
    for text in ("rocm:1", "cuda:1", "1"):
        plan = parse_device_plan(text, platform=PLATFORMS["rocm"], available=2)
        assert plan == DevicePlan(platform="rocm", devices=(1,))


@pytest.mark.parametrize(
    ("text", "available", "message"),
    [
        ("cuda:0-3", 2, r"'cuda:0-3': cuda device 2-3 is not there, there are 2: 0-1"),
        ("0,5", 2, r"cuda device 5 is not there, there are 2: 0-1"),
        ("0", 0, r"cuda device 0 is not there, there is none"),
        ("0-999999999", 1, r"cuda device 1-999999999 is not there"),
        ("npu:0", 8, r"is for npu, but the platform here is cuda"),
        ("gpu:0", 8, r"'gpu', which is no platform; allowed is 'cpu' or"),
        ("3-1", 8, r"the range '3-1' runs backwards"),
        ("0-2,1", 8, r"names \[1\] more than once"),
        ("", 8, r"got '', allowed is"),
        ("cuda:", 8, r"got '', allowed is"),
        ("0,", 8, r"got '', allowed is"),
        ("-1", 8, r"got '-1', allowed is"),
        ("list(range(8))", 8, r"got 'list\(range\(8\)\)', allowed is"),
        ("²", 8, r"allowed is"),
    ],
)
def test_impossible_plan_is_refused_with_the_reason(text, available, message):
    with pytest.raises(HwError, match=message):
        parse_device_plan(text, platform=PLATFORMS["cuda"], available=available)


def test_there_are_no_numbered_devices_on_cpu():
    with pytest.raises(HwError, match="cpu device 0 is not there, there is none"):
        parse_device_plan("0", platform=PLATFORMS["cpu"], available=8)


@given(st.text(alphabet="0123456789-,: cudapn", max_size=12))
def test_any_text_is_a_plan_of_existing_devices_or_an_error(text):
    try:
        plan = parse_device_plan(text, platform=PLATFORMS["cuda"], available=4)
    except HwError:
        return
    assert set(plan.devices) <= {0, 1, 2, 3}
    assert len(set(plan.devices)) == len(plan.devices)
    assert plan.platform == ("cuda" if plan.devices else "cpu")


def test_error_survives_pickling():
    error = pickle.loads(pickle.dumps(HwError("what happened")))
    assert str(error) == "what happened"
