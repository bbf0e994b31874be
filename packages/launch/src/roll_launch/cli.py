"""The command line: parses first, imports what a command needs after that."""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130

OPTIONS = ("--help", "--version", "--run-dir")
OVERRIDES = "a.b.c=value (or --a.b.c value) replaces one value of the file; lists by index or stage name"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 1 (a run failed), 2 (bad input) or 130 (interrupted)."""
    # argparse takes no positional argument after an option that follows the first; those come back as `more`.
    known, more = _parser().parse_known_args(_dotted(sys.argv[1:] if arguments is None else arguments))
    overrides = [*known.overrides, *more]
    from roll_launch.errors import RollLaunchError

    try:
        if known.command == "check":
            from roll_launch.check import check

            return check(known.config, overrides)
        if known.command == "resume":
            from roll_launch.resume import resume

            return resume(known.directory, overrides)
        from roll_launch.run import run

        return run(known.config, overrides, run_dir=known.run_dir)
    except RollLaunchError as error:
        print(f"roll-launch: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        # Before a run handles signals itself, nothing has started that would need to be ended.
        return EXIT_INTERRUPTED


def _dotted(arguments: Sequence[str]) -> list[str]:
    """Turns `--a.b value` and `--a.b=value` into `a.b=value`; the options of the command line itself stay."""
    plain: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name = argument.partition("=")[0]
        if not argument.startswith("--") or name in OPTIONS or argument == "--":
            plain.append(argument)
        elif "=" in argument:
            plain.append(argument.removeprefix("--"))
        else:
            value = next(rest, None)
            plain.append(argument.removeprefix("--") + ("" if value is None else f"={value}"))
    return plain


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roll-launch",
        description="Reinforcement-learning post-training of language models from one YAML file.",
    )
    parser.add_argument(
        "--version", action="version", version=f"roll-launch {metadata.version('roll-launch')}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run all stages of a configuration")
    run.add_argument(
        "--run-dir", type=Path, help="write here (new or empty) and not into a dated sub-directory"
    )
    check = commands.add_parser(
        "check", help="check a configuration, print what it comes to, and run it dry on a fake engine"
    )
    resume = commands.add_parser(
        "resume", help="go on with a run that was stopped or killed, from its last checkpoint"
    )
    for command in (run, check):
        command.add_argument("config", type=Path, help="a YAML file, such as examples/quickstart.yaml")
    resume.add_argument("directory", type=Path, metavar="RUN_DIR", help="such as runs/quickstart/latest")
    for command in (run, check, resume):
        command.add_argument("overrides", nargs="*", metavar="a.b.c=value", help=OVERRIDES)
    return parser


if __name__ == "__main__":
    sys.exit(main())
