import json

import pytest
from roll_agentic import lint_environment, make
from roll_agentic.cli import main


class Generous:
    """Rewards everything, also nonsense; slow and unlabelled."""

    def reset(self, *, seed: int) -> tuple:
        return f"say {seed}", {"tools": [{"type": "function", "function": {"name": "bad name"}}]}

    def step(self, action: str, /) -> tuple:
        return "x" * 30_000, 1.0, True, False, {}


class Stuck:
    def reset(self, *, seed: int) -> tuple:
        raise OSError("no display")

    def step(self, action: str, /) -> tuple:
        return "", 0.0, True, False, {}


class Touchy:
    """Raises at what it does not know."""

    def reset(self, *, seed: int) -> tuple:
        return f"say {seed % 2}", {"actions": ["0", "1"], "instructions": "say it"}

    def step(self, action: str, /) -> tuple:
        return "", float(int(action) == 1), True, False, {}


class Favourite:
    """A policy that the command line makes by name."""

    async def act(self, state):
        from roll_agentic import Turn

        return Turn(response="8")


async def test_report_tells_what_each_agent_saw() -> None:
    report = await lint_environment(lambda: make("number_guessing"), actions=["3", "8", "12"])
    assert report.passed
    assert [run.agent for run in report.runs] == ["random", "scripted", "adversarial"]
    random, _, adversarial = report.runs
    assert (random.reward_low, random.reward_high, random.episodes) == (0.0, 1.0, 8)
    assert adversarial.invalid == adversarial.steps > 0
    assert report.warnings == ()


async def test_what_is_odd_is_warned_of_and_bad_schemas_fail() -> None:
    report = await lint_environment(Generous)
    assert not report.passed
    assert [check.name for check in report.checks if not check.passed] == ["step_after_done", "tools"]
    warnings = "; ".join(report.warnings)
    for part in (
        "every reward was 1",
        "nonsense succeeded in 100%",
        "never called invalid",
        "30000 characters",
    ):
        assert part in warnings


async def test_environment_that_does_not_start_or_raises_is_reported() -> None:
    stuck = await lint_environment(Stuck)
    assert (stuck.passed, stuck.runs) == (False, ())
    assert "no display" in stuck.checks[0].detail
    touchy = await lint_environment(Touchy)
    assert [check.name for check in touchy.checks if not check.passed] == [
        "invalid_actions",
        "step_after_done",
    ]
    assert any("ValueError" in fault for fault in touchy.runs[-1].faults)


def test_check_command_prints_the_report_and_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "number_guessing", "numbers=8", "--actions", "1,4,6", "--seeds", "4"]) == 0
    assert "ok    same_seed" in capsys.readouterr().out
    assert main(["check", f"{__name__}:Generous", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["reward_high"] == 1.0


def test_run_command_evaluates_and_writes_records(capsys, tmp_path) -> None:
    page, records = tmp_path / "replay.html", tmp_path / "episodes.jsonl"
    played = ["run", "number_guessing", "--engine", f"{__name__}:Favourite", "--episodes", "20"]
    code = main([*played, "--max-turns", "5", "--html", str(page), "--jsonl", str(records)])
    assert code == 0
    assert "env/success_rate" in capsys.readouterr().out
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(lines) == 20
    assert len({line["seed"] for line in lines}) == 20
    assert all(line["seed"] % 2 == 1 for line in lines)
    assert "number_guessing" in page.read_text()


def test_play_command_lets_a_person_play(capsys, monkeypatch) -> None:
    said = iter(["8", "4", "2", "1", "0"])
    monkeypatch.setattr("builtins.input", lambda shown: next(said))
    monkeypatch.setattr(
        "roll_agentic.players.PersonPolicy.__init__.__defaults__", (lambda shown: next(said),)
    )
    assert main(["play", "number_guessing", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "Find a secret number" in out
    assert "reward" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "number_gessing"], "did you mean 'number_guessing'"),
        (["check", "number_guessing", "size"], "options are written key=value"),
        (["run", "number_guessing", "--engine", "best"], "--engine is random"),
        (["run", "number_guessing", "--engine", "no_module:x"], "ModuleNotFoundError"),
        (["run", "number_guessing", "--engine", "builtins:list"], "no method 'act'"),
        (["run", "number_guessing", "--episodes", "0"], "at least 1"),
    ],
)
def test_what_is_asked_wrongly_is_said(capsys, arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_list_command_names_what_there_is(capsys) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out.split()
    assert {"sokoban", "frozen_lake", "gem/ID", "rock/ID"} <= set(listed)
