"""The command line: parses first, imports what a command needs after that."""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130

OPTIONS = ("--help", "--version", "--run-dir", "--stage", "--json", "--to")
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
        if known.command == "doctor":
            from roll_launch.doctor.logprobs import doctor_logprobs

            return doctor_logprobs(known.target, overrides, stage=known.stage, json_path=known.json)
        if known.command in ("export", "convert"):
            from roll_launch.export import convert, export

            if overrides:
                raise RollLaunchError(f"{known.command} takes no more than this; got {' '.join(overrides)}")
            if known.command == "export":
                return export(known.source, known.target, stage=known.stage)
            return convert(known.source, known.target, to=known.to)
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
    doctor = commands.add_parser("doctor", help="find out why two parts that should agree do not")
    doctor.add_argument("topic", choices=("logprobs",), help="log-probs of engine and learner")
    doctor.add_argument(
        "target", type=Path, metavar="CONFIG|RUN_DIR", help="a YAML file, or a run's directory"
    )
    doctor.add_argument("--stage", help="the stage to look at; by default the last one that generates")
    doctor.add_argument("--json", type=Path, metavar="FILE", help="write the findings here as JSON")
    export = commands.add_parser(
        "export", help="write the newest model of a run, or a checkpoint, as a Hugging Face directory"
    )
    export.add_argument(
        "source", type=Path, metavar="RUN_DIR|CHECKPOINT", help="such as runs/quickstart/latest"
    )
    export.add_argument("--stage", help="of a run; by default the one that wrote last")
    convert = commands.add_parser("convert", help="write a model in another form")
    convert.add_argument("source", type=Path, metavar="SOURCE", help="a model's directory, or a checkpoint")
    convert.add_argument("--to", choices=("huggingface", "fsdp2"), required=True, help="what to write")
    for command in (export, convert):
        command.add_argument("target", type=Path, metavar="TARGET", help="a directory that is not there yet")
        command.set_defaults(overrides=[])
    for command in (run, check):
        command.add_argument("config", type=Path, help="a YAML file, such as examples/quickstart.yaml")
    resume.add_argument("directory", type=Path, metavar="RUN_DIR", help="such as runs/quickstart/latest")
    for command in (run, check, resume, doctor):
        command.add_argument("overrides", nargs="*", metavar="a.b.c=value", help=OVERRIDES)
    return parser


if __name__ == "__main__":
    sys.exit(main())
