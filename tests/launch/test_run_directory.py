"""Run directories: new, named by time, never mixed with another run."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from roll_launch.run_directory import RunDirectory, RunDirectoryError, environment_report, write_json
from roll_launch.run_log import RunLogError, logged_to
from roll_launch.screen import screen

NOW = datetime(2026, 1, 2, 3, 4, 5)


def test_two_runs_in_one_second_get_two_directories(tmp_path: Path) -> None:
    first, second = (RunDirectory.claim(tmp_path, now=NOW) for _ in range(2))
    second.become_latest()
    assert (first.root.name, second.root.name) == ("20260102-030405", "20260102-030405-2")
    assert (tmp_path / "latest").resolve() == second.root


def test_an_exact_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(RunDirectoryError, match="not empty"):
        RunDirectory.claim(tmp_path, now=NOW, exact=tmp_path)
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_a_directory_whose_start_was_killed_before_it_had_a_configuration_is_taken_again(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    killed = RunDirectory.claim(tmp_path, now=NOW, exact=root)
    with killed.locked():
        write_json(killed.environment, {})
    with RunDirectory.claim(tmp_path, now=NOW, exact=root).locked():
        pass
    (root / "logs" / "run.log").write_text("mine")
    with pytest.raises(RunDirectoryError, match="not empty"):
        RunDirectory.claim(tmp_path, now=NOW, exact=root)


def test_a_file_where_the_directory_should_be_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunDirectoryError, match="runs"):
        RunDirectory.claim(tmp_path / "runs", now=NOW)


def test_a_users_own_file_named_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("mine")
    RunDirectory.claim(tmp_path, now=NOW).become_latest()
    assert (tmp_path / "latest").read_text() == "mine"


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_the_environment_report_names_versions() -> None:
    report = environment_report()
    assert report["packages"]["roll-launch"]  # type: ignore[index]
    assert report["processors"]


def test_a_directory_is_given_back_when_no_run_comes_of_it(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyError),
        RunDirectory.claim(tmp_path / "runs" / "quickstart", now=NOW).released_on_error(),
    ):
        raise KeyError
    assert not (tmp_path / "runs" / "quickstart").exists()


def test_a_number_that_json_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "summary.json", {"eval/accuracy": float("nan")})


def test_a_run_that_lost_its_empty_directories_gets_them_back(tmp_path: Path) -> None:
    directory = RunDirectory.claim(tmp_path, now=NOW)
    directory.describe("name: x\n", masked=[])
    for name in ("rollouts", "logs", "stages"):
        (directory.root / name).rmdir()
    RunDirectory.reopen(directory.root)
    assert all((directory.root / name).is_dir() for name in ("rollouts", "logs", "stages"))


def test_a_log_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.log").mkdir()
    with (
        pytest.raises(RunLogError, match=r"run\.log cannot be written"),
        logged_to(tmp_path / "run.log", screen()),
    ):
        pass
