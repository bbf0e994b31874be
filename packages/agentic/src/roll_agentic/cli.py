"""The command `roll-env`: check, play and run environments, and look at chat templates."""

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roll_agentic.errors import AgenticError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if all went well, 1 if a check failed, 2 if something was asked wrongly.

    Args:
        arguments: Without the program's name; None for those of the process.
    """
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except AgenticError as error:
        print(f"roll-env: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, EOFError):
        print()
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll-env", description="Check, play and run environments.")
    commands = parser.add_subparsers(required=True, metavar="command")
    listed = commands.add_parser("list", help="names that can be made")
    listed.set_defaults(run=_list)
    check = commands.add_parser("check", help="conformance and lint with three kinds of agents")
    _add_environment(check)
    check.add_argument("--actions", help="valid actions, separated by commas")
    check.add_argument("--seeds", type=int, default=8, help="how many seeds (default 8)")
    check.add_argument("--max-steps", type=int, default=100, help="longest episode (default 100)")
    check.add_argument("--unseeded", action="store_true", help="the seed makes no difference")
    check.add_argument("--deadline", type=float, default=10.0, help="seconds for each call (default 10)")
    check.add_argument("--json", action="store_true", help="the report as JSON")
    check.set_defaults(run=_check)
    play = commands.add_parser("play", help="play an episode yourself")
    _add_environment(play)
    play.add_argument("--seed", type=int, default=0)
    play.add_argument("--max-turns", type=int, default=100)
    play.set_defaults(run=_play)
    run = commands.add_parser("run", help="evaluate a policy")
    _add_environment(run)
    run.add_argument(
        "--engine",
        default="random",
        help="random, script:TEXT,TEXT, openai:MODEL or a policy's module:factory (default random)",
    )
    run.add_argument("--base-url", help="address of an OpenAI-compatible endpoint")
    run.add_argument("--episodes", type=int, default=16)
    run.add_argument("--concurrency", type=int, default=16)
    run.add_argument("--max-turns", type=int, default=20)
    run.add_argument("--seed", type=int, default=0, help="seed of the run")
    run.add_argument("--html", type=Path, help="write the first episode as a page")
    run.add_argument("--jsonl", type=Path, help="write all episodes, a line each")
    run.set_defaults(run=_run)
    drift = commands.add_parser("drift", help="what a tokenizer's chat template does to history")
    drift.add_argument("tokenizer", help="directory or name of a transformers tokenizer")
    drift.set_defaults(run=_drift)
    return parser


def _add_environment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("environment", help="a name, adapter/ID, or module:factory")
    parser.add_argument("option", nargs="*", help="options, key=value; values are JSON where they can be")


def _list(options: argparse.Namespace) -> int:
    from roll_agentic.registry import ADAPTERS, environment_names

    print("\n".join([*environment_names(), *(f"{name}/ID" for name in ADAPTERS)]))
    return 0


def _check(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from roll_agentic.lint import lint_environment
    from roll_agentic.registry import make

    config = _config(options.option)
    # A name or option that does not exist is the caller's mistake, not the environment's.
    make(options.environment, **config)
    report = asyncio.run(
        lint_environment(
            lambda: make(options.environment, **config),
            actions=options.actions.split(",") if options.actions else None,
            seeds=range(options.seeds),
            max_steps=options.max_steps,
            seeded=not options.unseeded,
            deadline_s=options.deadline,
        )
    )
    if options.json:
        print(json.dumps(asdict(report), indent=1))
        return 0 if report.passed else 1
    for check in report.checks:
        print(f"{'ok  ' if check.passed else 'FAIL'}  {check.name:<18}{check.detail}")
    for run in report.runs:
        print(
            f"      {run.agent:<12} {run.episodes} episodes, {run.ended} ended, {run.steps} steps, "
            f"rewards {run.reward_low:g}..{run.reward_high:g}, success {run.success_rate:.0%}, "
            f"{run.invalid} invalid, slowest {run.slowest_s * 1e3:.1f} ms"
        )
        for fault in run.faults:
            print(f"      {run.agent:<12} fault: {fault}")
    for warning in report.warnings:
        print(f"note  {warning}")
    return 0 if report.passed else 1


def _play(options: argparse.Namespace) -> int:
    from roll_agentic.players import PersonPolicy
    from roll_agentic.registry import make
    from roll_agentic.runner import run_episode

    environment = make(options.environment, **_config(options.option))
    shown = False

    class Person(PersonPolicy):
        async def act(self, state: Any) -> Any:
            nonlocal shown
            if not shown and state.first_info.get("instructions"):
                print(state.first_info["instructions"])
            shown = True
            return await super().act(state)

    episode = asyncio.run(
        run_episode(
            environment, Person(), seed=options.seed, max_turns=options.max_turns, act_deadline_s=86400.0
        )
    )
    last = episode.messages[-1] if episode.messages else None
    if last is not None and last.role == "environment":
        print(last.text)
    if episode.failure is not None:
        left = "EOFError" in episode.failure.message
        print("you left the game" if left else episode.failure.message, file=sys.stderr)
    print(f"{episode.status}, reward {episode.total_reward:g} in {len(episode.turns)} turns")
    return 0 if episode.failure is None else 1


def _run(options: argparse.Namespace) -> int:
    from roll_agentic.episode import summarise_episodes
    from roll_agentic.evaluation import episode_record, evaluate
    from roll_agentic.pictures.replay import replay_html
    from roll_agentic.registry import make

    config = _config(options.option)
    policy = _policy(options.engine, options.base_url)
    episodes = asyncio.run(
        evaluate(
            lambda: make(options.environment, **config),
            policy,
            episodes=options.episodes,
            run_seed=options.seed,
            max_turns=options.max_turns,
            concurrency=options.concurrency,
        )
    )
    for name, value in summarise_episodes(episodes).items():
        print(f"{name:<28}{value:.4g}")
    if options.jsonl:
        lines = [json.dumps(episode_record(episode)) for episode in episodes]
        options.jsonl.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    if options.html and episodes:
        replay_html(episodes[0], title=options.environment, path=options.html)
    broken = [episode.failure.message for episode in episodes if episode.failure is not None]
    if broken:
        print(f"{len(broken)} without a verdict, the first: {broken[0]}", file=sys.stderr)
    return 0 if len(broken) < len(episodes) else 1


def _drift(options: argparse.Namespace) -> int:
    from roll_agentic.chat import HuggingFaceChat
    from roll_agentic.drift import drift_table, template_drift

    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise AgenticError("roll-env drift needs transformers: pip install transformers") from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.tokenizer)
    except (OSError, ValueError) as error:
        raise AgenticError(f"cannot load the tokenizer {options.tokenizer!r}: {error}") from error
    print(drift_table(template_drift(HuggingFaceChat(tokenizer))))
    return 0


def _config(pairs: Sequence[str]) -> dict[str, Any]:
    """Options from `key=value`.

    Raises:
        AgenticError: There is no `=` or no key.
    """
    config: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise AgenticError(f"options are written key=value, got {pair!r}")
        try:
            config[key] = json.loads(text)
        except ValueError:
            config[key] = text
    return config


def _policy(engine: str, base_url: str | None) -> Any:
    """The policy that `--engine` names.

    Raises:
        AgenticError: There is none, or it cannot be made.
    """
    from roll_agentic.players import EndpointPolicy, RandomPolicy, ScriptedPolicy

    kind, _, rest = engine.partition(":")
    if engine == "random":
        return RandomPolicy()
    if kind == "script" and rest:
        return ScriptedPolicy(rest.split(","))
    if kind == "openai" and rest:
        return EndpointPolicy(rest, base_url=base_url)
    if not rest:
        raise AgenticError(
            f"--engine is random, script:TEXT,TEXT, openai:MODEL or a policy's module:factory; got {engine!r}"
        )
    try:
        policy = getattr(importlib.import_module(kind), rest)()
    except Exception as error:
        # Boundary to foreign code: importing and making a policy may raise anything.
        raise AgenticError(f"policy {engine!r}: {type(error).__name__}: {error}") from error
    if not callable(getattr(policy, "act", None)):
        raise AgenticError(f"policy {engine!r} made a {type(policy).__name__}, which has no method 'act'")
    return policy


if __name__ == "__main__":
    sys.exit(main())
