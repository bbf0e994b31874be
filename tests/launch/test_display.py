"""Progress: plain lines where there is no terminal, a live table where there is one."""

import errno
import io

import pytest
from rich.console import Console
from roll_launch.alarms import Alarm
from roll_launch.display import Display, DisplayError
from roll_launch.screen import Screen


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _plain() -> tuple[Display, io.StringIO, _Clock]:
    out, clock = io.StringIO(), _Clock()
    return Display(Console(file=out, width=200), clock=clock), out, clock


def test_plain_lines_name_stage_step_reward_and_time_left() -> None:
    display, out, clock = _plain()
    display.begin("rlvr", 10)
    clock.now = 2.0
    display.step(1, {"critic/score/mean": 0.4, "response_length/mean": 12.34, "perf/throughput": 987.0})
    assert out.getvalue() == "rlvr  step 1/10  left 0m18s  reward 0.400  length 12.3  tokens/s 987\n"


def test_quick_steps_do_not_flood_a_log_but_the_last_is_shown() -> None:
    display, out, _ = _plain()
    display.begin("sft", 100)
    for step in range(1, 101):
        display.step(step, {"actor/nll": 1.0})
    assert [line.split()[2] for line in out.getvalue().splitlines()] == ["1/100", "100/100"]


def test_an_evaluation_line_stays() -> None:
    display, out, _ = _plain()
    display.begin("rlvr", 80)
    display.evaluation(20, {"eval/accuracy": 0.91, "eval/samples": 512.0, "eval/response_length/mean": 8.0})
    assert "evaluation: accuracy 0.910 on 512 samples" in out.getvalue()


def test_a_terminal_gets_a_table_that_is_taken_away_at_the_end() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=120))
    display.begin("rlvr", 10)
    display.step(3, {"critic/score/mean": 0.4})
    display.end()
    assert "3/10" in out.getvalue()
    display.end()


ALARM = Alarm(
    name="kl_explosion",
    stage="rlvr",
    step=3,
    metric="actor/ppo_kl",
    value=0.8,
    threshold=0.1,
    message="Too far.",
)


def test_an_alarm_is_a_line_that_stays_and_steps_count_them_from_then_on() -> None:
    display, out, _ = _plain()
    display.begin("rlvr", 10)
    display.step(1, {"critic/score/mean": 0.4})
    display.alarm(ALARM)
    display.step(10, {"critic/score/mean": 0.4})
    display.alarm_over("kl_explosion", 10)
    first, *lines = out.getvalue().splitlines()
    assert "alarms" not in first
    assert lines[0] == "rlvr  step 3/10  ALARM kl_explosion: Too far."
    assert lines[1].endswith("reward 0.400  alarms 1, last kl_explosion (step 3)")
    assert lines[2] == "rlvr  step 10/10  alarm kl_explosion is over"


def test_the_table_of_a_terminal_counts_alarms_too() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=120))
    display.begin("rlvr", 10)
    display.alarm(ALARM)
    display.step(4, {"critic/score/mean": 0.4})
    display.end()
    assert "ALARM kl_explosion: Too far." in out.getvalue()
    assert "1, last kl_explosion (step 3)" in out.getvalue()


class _NobodyReads(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error

    def flush(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), OSError(errno.EIO, "gone"), OSError(errno.ENOSPC, "full")]
)
def test_a_run_goes_on_when_nobody_reads_its_screen_any_more(error: OSError) -> None:
    display = Display(Console(file=Screen(_NobodyReads(error))))
    display.begin("rlvr", 10)
    display.step(1, {"critic/score/mean": 0.4})
    display.say("still there")
    display.end()


def test_a_step_before_any_stage_is_an_error() -> None:
    with pytest.raises(DisplayError):
        _plain()[0].step(1, {})
