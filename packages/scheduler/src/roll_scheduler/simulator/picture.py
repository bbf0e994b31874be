"""Pictures of results as SVG, written without a plotting library."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from roll_scheduler.simulator.result import SimulationResult, SlotSpan

__all__ = ["bar_chart", "gantt", "sheet"]

WIDTH, LABEL, RIGHT = 960, 190, 20
PLOT = WIDTH - LABEL - RIGHT
BAR, GAP, HEAD, AXIS = 22, 10, 52, 34
MOST_ROWS = 128
"""Slots that a Gantt chart shows at most; of more, every n-th."""

ROLLOUT, TRAIN, OTHER, KEPT, LEFT_OUT, TRAINING = (
    "#3b78b8",
    "#e0a33a",
    "#b9b9b9",
    "#3b78b8",
    "#d2603a",
    "#f1e3c8",
)


class _Drawing:
    """Elements of an SVG picture, from top to bottom."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def rectangle(
        self, x: float, y: float, width: float, height: float, colour: str, title: str = ""
    ) -> None:
        inside = f"<title>{escape(title)}</title>" if title else ""
        size = f'width="{max(width, 0.0):.2f}" height="{height:.2f}"'
        self._parts.append(f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{colour}">{inside}</rect>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "#444", dash: str = "") -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        ends = f'x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
        self._parts.append(f'<line {ends} stroke="{colour}" stroke-width="1"{dashes}/>')

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", size: int = 13) -> None:
        where = f'x="{x:.2f}" y="{y:.2f}" font-size="{size}" text-anchor="{anchor}"'
        self._parts.append(f"<text {where}>{escape(words)}</text>")

    def legend(self, y: float, entries: Sequence[tuple[str, str]]) -> None:
        x = float(LABEL)
        for colour, words in entries:
            self.rectangle(x, y - 10, 12, 12, colour)
            self.text(x + 17, y, words, size=12)
            x += 30 + 7.0 * len(words)

    def time_axis(self, y: float, seconds: float) -> None:
        step = _round_step(seconds)
        for tick in range(int(seconds / step) + 1):
            x = LABEL + PLOT * tick * step / seconds
            self.line(x, y, x, y + 4)
            self.text(x, y + 17, f"{tick * step:g}", anchor="middle", size=11)
        self.line(LABEL, y, LABEL + PLOT, y)
        self.text(WIDTH - RIGHT, y + 30, "seconds", anchor="end", size=11)

    def svg(self, height: float) -> str:
        box = f'width="{WIDTH}" height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}"'
        style = 'font-family="sans-serif" fill="#222"'
        body = "\n".join(self._parts)
        background = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {style}>\n{background}\n{body}\n</svg>\n'


def bar_chart(results: Sequence[SimulationResult], *, title: str = "Mean seconds a step") -> str:
    """An SVG picture with one bar a policy: mean step time, split by what it was spent on.

    Where training overlaps generation, the part of the step in which nobody waits for the batch is shown as
    training. The dashed mark is the device bound: nothing on the same devices is faster.

    Args:
        results: At least one, with at least one step each.
        title: Above the picture.
    """
    drawing = _Drawing()
    height = _bars(drawing, results, title, top=0.0)
    return drawing.svg(height)


def gantt(result: SimulationResult, *, until_s: float | None = None) -> str:
    """An SVG picture of who had which slot when; one row a slot, training behind it.

    Args:
        result: Of a run that recorded spans.
        until_s: End of the picture; None is the end of the run.
    """
    drawing = _Drawing()
    height = _slots(drawing, result, until_s or result.total_s, top=0.0)
    return drawing.svg(height)


def sheet(results: Sequence[SimulationResult], *, title: str = "Mean seconds a step", steps: int = 2) -> str:
    """The bar chart and below it the slots in the first `steps` steps of each policy that recorded spans."""
    drawing = _Drawing()
    height = _bars(drawing, results, title, top=0.0)
    recorded = [result for result in results if result.spans]
    until = max((sum(step.step_s for step in result.steps[:steps]) for result in recorded), default=0.0)
    for result in recorded:
        height = _slots(drawing, result, until, top=height)
    return drawing.svg(height)


def _bars(drawing: _Drawing, results: Sequence[SimulationResult], title: str, *, top: float) -> float:
    longest = max(result.total_s / len(result.steps) for result in results)
    drawing.text(LABEL, top + 20, title, size=15)
    drawing.legend(
        top + 40,
        [(ROLLOUT, "waiting for the batch"), (TRAIN, "training"), (OTHER, "weight sync and the rest")],
    )
    y = top + HEAD
    for result in results:
        steps = len(result.steps)
        whole = result.total_s / steps
        # One-step-off generates its next batch meanwhile: its rollout may be longer than what is left.
        train = min(whole, sum(step.train_s for step in result.steps) / steps)
        rollout = min(whole - train, sum(step.rollout_s for step in result.steps) / steps)
        x = float(LABEL)
        for part, colour in ((rollout, ROLLOUT), (train, TRAIN), (whole - train - rollout, OTHER)):
            width = PLOT * part / longest
            drawing.rectangle(x, y, width, BAR, colour, f"{part:.1f} s")
            x += width
        drawing.text(LABEL - 8, y + BAR - 6, result.policy, anchor="end")
        drawing.text(LABEL + 6, y + BAR - 6, f"{whole:.1f} s", size=12)
        mark = LABEL + PLOT * result.device_bound_s / steps / longest
        drawing.line(mark, y - 3, mark, y + BAR + 3, "#000", "3 2")
        y += BAR + GAP
    drawing.time_axis(y, longest)
    return y + AXIS + 6


def _slots(drawing: _Drawing, result: SimulationResult, until: float, *, top: float) -> float:
    rows = _rows(result)
    row = 1.5 if len(rows) > 64 else 3.0 if len(rows) > 16 else 8.0
    y = top + HEAD
    drawing.text(LABEL, top + 20, f"{result.policy}: slots over time", size=15)
    drawing.legend(
        top + 40, [(KEPT, "trained on"), (LEFT_OUT, "stopped or left out"), (TRAINING, "training")]
    )
    bottom = y + row * len(rows)
    scale = PLOT / until
    for span in result.spans:
        place = rows.get((span.replica, span.slot))
        if place is not None and span.start < until:
            drawing.rectangle(
                LABEL + span.start * scale,
                y + row * place,
                (min(span.end, until) - span.start) * scale,
                row * 0.85,
                KEPT if span.kept else LEFT_OUT,
                _named(span),
            )
    shared = result.setting.trainer.colocated
    if result.lent:
        _lent(drawing, result, until, rows, top=y, row=row)
    else:
        # Training holds up what has a slot, or happens elsewhere and gets a line of its own.
        above, tall = (y, bottom - y) if shared else (bottom + 3, 8.0)
        for step in result.steps:
            end = min(until, step.train_start_s + step.train_s)
            if step.train_start_s < end:
                x, width = LABEL + step.train_start_s * scale, (end - step.train_start_s) * scale
                drawing.rectangle(x, above, width, tall, TRAINING, f"training of step {step.step}")
    if not shared:
        bottom += 14
        drawing.text(LABEL - 8, bottom - 3, "trainer", anchor="end", size=11)
    for replica in sorted({replica for replica, _ in rows}):
        first = min(place for (index, _), place in rows.items() if index == replica)
        if row > 2 or replica % 4 == 0:
            drawing.text(LABEL - 8, y + row * first + 10, f"replica {replica}", anchor="end", size=11)
    drawing.time_axis(bottom, until)
    return bottom + AXIS + 10


def _lent(
    drawing: _Drawing,
    result: SimulationResult,
    until: float,
    rows: Mapping[tuple[int, int], int],
    *,
    top: float,
    row: float,
) -> None:
    """A rectangle over the rows of a replica for each time that it was lent to the trainer."""
    places: dict[int, list[int]] = {}
    for (replica, _), place in rows.items():
        places.setdefault(replica, []).append(place)
    for replica, start, end in result.lent:
        here = places.get(replica)
        if here and start < min(end, until):
            x, width = LABEL + start * PLOT / until, (min(end, until) - start) * PLOT / until
            tall = row * (max(here) - min(here) + 1)
            drawing.rectangle(x, top + row * min(here), width, tall, TRAINING, f"replica {replica} is lent")


def _rows(result: SimulationResult) -> dict[tuple[int, int], int]:
    slots = [
        (replica, slot)
        for replica, engine in enumerate(result.setting.engines)
        for slot in range(engine.slots)
    ]
    shown = slots[:: -(-len(slots) // MOST_ROWS)]
    return {slot: place for place, slot in enumerate(shown)}


def _named(span: SlotSpan) -> str:
    return f"group {span.group} member {span.member}: {span.start:.1f} to {span.end:.1f} s"


def _round_step(seconds: float) -> float:
    power = 10.0 ** (len(f"{seconds:.0f}") - 1)
    return next(power * part for part in (0.1, 0.2, 0.5, 1.0, 2.0) if seconds / (power * part) <= 10)
