"""The command `roll-grade`: grade a file of responses, or check what a grader pays for."""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from roll_rewards.evaluation import Graded
    from roll_rewards.grader import Grader

_BAR = 30
_SLOWEST = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Words after the program's name; None takes the process's own.

    Returns:
        0 when every response got a verdict (or the grader passed its check), 1 when some did not (or it did
        not pass), 2 when the command could not do its work.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = {"check": (_check_parser, _check), "serve": (_serve_parser, _serve)}
    parser, run = commands.get(words[0] if words else "", (_grade_parser, _grade))
    options = parser().parse_args(words if run is _grade else words[1:])
    from roll_rewards.errors import RewardError

    try:
        return run(options)
    except RewardError as error:
        print(f"roll-grade: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("roll-grade: stopped", file=sys.stderr)
        return 130


def _grade_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-grade",
        description="Grade the responses of a JSON Lines file; `roll-grade check GRADER` checks a grader, "
        "`roll-grade serve GRADER` serves one.",
        epilog="Exit status: 0 every response has a verdict, 1 some have none, 2 nothing could be graded.",
    )
    parser.add_argument("file", type=Path, help="JSON Lines with a response and a reference in each line")
    parser.add_argument(
        "--grader",
        required=True,
        help="a grader's name, as in `math`, or your function, as in `my_module:fn`",
    )
    _add_options(parser)
    parser.add_argument("--response", help="column of the responses (found by its usual names otherwise)")
    parser.add_argument("--reference", help="column of the references (found by its usual names otherwise)")
    parser.add_argument("--out", type=Path, help="write one JSON line for each response, as they are graded")
    parser.add_argument("--concurrency", type=int, default=16, help="responses graded at the same time (16)")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--no-progress", action="store_true", help="draw no progress bar")
    return parser


def _check_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-grade check", description="Feed a grader what a policy will try, and say what it pays for."
    )
    parser.add_argument("grader", help="a grader's name, or your function, as in `my_module:fn`")
    parser.add_argument(
        "--row", default="{}", help="JSON of a data set's row; `reference` is the gold answer"
    )
    parser.add_argument(
        "--gold", help="a response that deserves full marks (made from the reference otherwise)"
    )
    _add_options(parser)
    return parser


def _serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-grade serve", description="Serve a grader over HTTP, for `remote` graders elsewhere."
    )
    parser.add_argument("grader", help="a grader's name, or your function, as in `my_module:fn`")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on; 0 takes a free one (8080)")
    parser.add_argument(
        "--key-env", metavar="NAME", help="environment variable with the key that requests must send"
    )
    _add_options(parser)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the grader; VALUE may be JSON",
    )
    parser.add_argument(
        "--deadline", type=float, default=60.0, metavar="S", help="seconds for each response (60)"
    )


def _grade(options: argparse.Namespace) -> int:
    from roll_rewards.evaluation import as_row, grade_items, read_items, summary

    grader = make_named_grader(options.grader, options.option)
    items = read_items(options.file, response=options.response, reference=options.reference)
    bar = _Bar(len(items), sys.stderr, drawn=not options.no_progress and sys.stderr.isatty())
    with ExitStack() as files:
        out = files.enter_context(options.out.open("w", encoding="utf-8")) if options.out else None

        def note(done: int, graded: "Graded") -> None:
            if out is not None:
                out.write(json.dumps(as_row(graded), ensure_ascii=False) + "\n")
                out.flush()
            bar.show(done, graded)

        graded = grade_items(
            grader, items, deadline_s=options.deadline, concurrency=options.concurrency, on_score=note
        )
    bar.end()
    metrics = summary(graded)
    print(_json(metrics) if options.json else _table(metrics, graded, bar.seconds()))
    return 0 if items and not metrics["rewards/failed"] else 1


def _serve(options: argparse.Namespace) -> int:
    from roll_rewards.remote.patience import authorization
    from roll_rewards.remote.serving import GradingService

    grader = make_named_grader(options.grader, options.option)
    key = authorization(options.key_env, scheme="").get("Authorization")
    service = GradingService(
        grader, host=options.host, port=options.port, deadline_s=options.deadline, key=key
    )
    with service:
        print(f"{options.grader} at {service.url}", flush=True)
        service.wait()
    return 0


def _check(options: argparse.Namespace) -> int:
    import asyncio

    from roll_rewards.errors import RewardError
    from roll_rewards.lint import lint_grader, report

    try:
        row = json.loads(options.row)
    except ValueError as error:
        raise RewardError(f"--row is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise RewardError(f"--row must be a JSON object, got {type(row).__name__}")
    grader = make_named_grader(options.grader, options.option)
    result = asyncio.run(lint_grader(grader, row, gold=options.gold, deadline_s=options.deadline))
    print(report(result))
    return 1 if result.errors else 0


def make_named_grader(name: str, options: Sequence[str]) -> "Grader":
    """A grader of the table by its name, or a function by its import path, with `KEY=VALUE` options.

    Args:
        name: `math`, or `my_module:fn` (looked for in the working directory as well).
        options: Values are JSON where they can be read as such, texts otherwise.

    Raises:
        RewardError: There is no such grader or option, or an option has no `=`.
    """
    from roll_rewards.errors import RewardError
    from roll_rewards.registry import make_grader

    chosen: dict[str, object] = {}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator:
            raise RewardError(f"an option is KEY=VALUE, got {option!r}")
        chosen[key] = _value(value)
    if ":" not in name:
        return make_grader(name, **chosen)
    if "" not in sys.path:
        sys.path.insert(0, "")
    return make_grader("python", callable=name, **chosen)


def _value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value


class _Bar:
    """A progress bar with the mean so far, drawn at most ten times a second."""

    def __init__(
        self, total: int, stream: TextIO, *, drawn: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._stream, self._drawn, self._clock = total, stream, drawn, clock
        self._started = self._last = clock()
        self._sum, self._verdicts, self._failed = 0.0, 0, 0

    def show(self, done: int, graded: "Graded") -> None:
        if graded.score.failure is None:
            self._sum += graded.score.value
            self._verdicts += 1
        else:
            self._failed += 1
        now = self._clock()
        if not self._drawn or (now - self._last < 0.1 and done < self._total):
            return
        self._last = now
        filled = _BAR * done // max(self._total, 1)
        rate = done / max(now - self._started, 1e-9)
        mean = f"{self._sum / self._verdicts:.3f}" if self._verdicts else "-"
        self._stream.write(
            f"\r[{'#' * filled}{'.' * (_BAR - filled)}] {done}/{self._total}  mean {mean}  "
            f"failed {self._failed}  "
            f"{rate:.0f}/s  {max(self._total - done, 0) / rate:.0f} s left "
        )
        self._stream.flush()

    def end(self) -> None:
        if self._drawn:
            self._stream.write("\n")

    def seconds(self) -> float:
        return self._clock() - self._started


def _json(metrics: dict[str, float]) -> str:
    """JSON has no NaN: the mean of no verdicts is null."""
    return json.dumps({name: value if math.isfinite(value) else None for name, value in metrics.items()})


def _table(metrics: dict[str, float], graded: "Sequence[Graded]", seconds: float) -> str:
    lines = [f"{name.removeprefix('rewards/'):<28} {value:.4g}" for name, value in metrics.items()]
    lines.append(f"{'responses per second':<28} {len(graded) / max(seconds, 1e-9):.4g}")
    slow = sorted(graded, key=lambda item: -item.score.seconds)[:_SLOWEST]
    lines += [f"slowest: line {item.line} sample {item.sample}, {item.score.seconds:.3g} s" for item in slow]
    failures = [item for item in graded if item.score.failure is not None][:_SLOWEST]
    lines += [f"failed: line {item.line} sample {item.sample}: {_message(item)}" for item in failures]
    return "\n".join(lines)


def _message(item: "Graded") -> str:
    failure = item.score.failure
    return "" if failure is None else f"{failure.kind}: {failure.message}"
