"""The live progress of a run: a table on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Table

from roll_launch.alarms import Alarm
from roll_launch.errors import RollLaunchError

LINE_EVERY_S = 5.0
"""Seconds between plain lines of one stage; its first and last step and evaluations are always shown."""

COLUMNS = (
    ("critic/score/mean", "reward", "{:.3f}"),
    ("actor/nll", "loss", "{:.3f}"),
    ("response_length/mean", "length", "{:.1f}"),
    ("response_length/max", "longest", "{:.0f}"),
    ("actor/entropy", "entropy", "{:.3f}"),
    ("actor/grad_norm", "grad", "{:.2f}"),
    ("perf/throughput", "tokens/s", "{:.0f}"),
)
"""Metric, its heading, its format."""


class DisplayError(RollLaunchError):
    """A stage was shown before it was begun."""


class Display:
    """Shows stages, steps and evaluations.

    Args:
        console: Where to; a terminal gets a live table.
        clock: Seconds, monotonic.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live: Live | None = None
        self._stage = ""
        self._steps = 0
        self._done = 0
        self._began = 0.0
        self._line_at = float("-inf")
        self._alarms = 0
        self._last_alarm = ""

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, stage: str, steps: int, *, done: int = 0) -> None:
        """A stage of `steps` steps begins, `done` of which were done before a resume."""
        self.end()
        self._stage, self._steps, self._done = stage, steps, done
        self._began = self._clock()
        self._line_at = float("-inf")
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step of the present stage ended."""
        if not self._stage:
            raise DisplayError("a step was shown before its stage began")
        cells = [
            (heading, style.format(metrics[name])) for name, heading, style in COLUMNS if name in metrics
        ]
        cells = [("step", f"{step}/{self._steps}"), ("left", self._left(step)), *cells]
        if self._alarms:
            cells.append(("alarms", f"{self._alarms}, last {self._last_alarm}"))
        if self._live is not None:
            self._live.update(self._table(cells))
            return
        now = self._clock()
        if step in (self._done + 1, self._steps) or now - self._line_at >= LINE_EVERY_S:
            self._line_at = now
            self.say(f"{self._stage}  " + "  ".join(f"{heading} {text}" for heading, text in cells))

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation ended; its line stays on the screen."""
        self.say(
            f"{self._stage}  step {step}/{self._steps}  evaluation: accuracy {metrics['eval/accuracy']:.3f} "
            f"on {metrics['eval/samples']:.0f} samples, length {metrics['eval/response_length/mean']:.1f}"
        )

    def alarm(self, alarm: Alarm) -> None:
        """A line that stays on the screen; steps show from now on how many there were."""
        self._alarms += 1
        self._last_alarm = f"{alarm.name} (step {alarm.step})"
        self.say(f"{self._stage}  step {alarm.step}/{self._steps}  ALARM {alarm.name}: {alarm.message}")

    def alarm_over(self, name: str, step: int) -> None:
        """A line that stays on the screen."""
        self.say(f"{self._stage}  step {step}/{self._steps}  alarm {name} is over")

    def end(self) -> None:
        """Nothing more is shown live."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _left(self, step: int) -> str:
        """Time to the end of the stage at its mean speed."""
        mean = (self._clock() - self._began) / max(step - self._done, 1)
        minutes, seconds = divmod(round(mean * (self._steps - step)), 60)
        return f"{minutes}m{seconds:02}s"

    def _table(self, cells: list[tuple[str, str]]) -> Table:
        table = Table(title=self._stage, title_justify="left", box=None, pad_edge=False)
        for heading, _ in cells:
            table.add_column(heading, justify="right")
        table.add_row(*(text for _, text in cells))
        return table
