"""Bad input: exit code 2 and one screen that names what, where, got and allowed; nothing is left behind."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launched_run import QUICKSTART
from roll_launch.cli import main

SCREEN_LINES = 24

OVERRIDES = {
    "an unknown key": (["stages.rlvr.learner.lerning_rate=1"], ["lerning_rate", "unknown key"]),
    "a misspelt key deep inside": (
        ["stages.rlvr.rollout.sampling.temprature=1"],
        ["temprature", "temperature"],
    ),
    "a hyphen": (["stages.rlvr.rollout.group-size=8"], ["group-size", "group_size"]),
    "a word for a number": (["stages.rlvr.steps=five"], ["stages.rlvr.steps", "five", "int"]),
    "a number out of range": (["stages.sft.batch_size=0"], ["stages.sft.batch_size", "0"]),
    "no override at all": (["stages.rlvr.steps"], ["stages.rlvr.steps"]),
    "an unresolved reference": (["name=${nowhere.at.all}"], ["nowhere.at.all"]),
    "a variable that is not set": (["name=${env:ROLL_TEST_NOT_SET}"], ["ROLL_TEST_NOT_SET"]),
    "group size 1 with a group baseline": (["stages.rlvr.rollout.group_size=1"], ["group_size", "dapo"]),
    "an unknown preset": (["stages.rlvr.algorithm.preset=gropo"], ["gropo", "grpo"]),
    "an unknown grader": (["stages.rlvr.rewards.grader.name=exat"], ["exat", "exact"]),
    "an unknown option of a grader": (
        ["stages.rlvr.rewards.grader.options={aftr: x}"],
        ["aftr", "after"],
    ),
    "a missing file": (["stages.rlvr.data.path=nothing.jsonl"], ["nothing.jsonl", "stages.rlvr.data.path"]),
    "a directory for a file": (["stages.rlvr.data.path=/tmp"], ["/tmp", "directory"]),
    "a missing model": (["stages.rlvr.model={source: pretrained, path: no/model}"], ["no/model", "model"]),
    "a stage that does not come earlier": (["stages.sft.model={source: stage, stage: rlvr}"], ["rlvr"]),
    "a device that is not there": (["stages.rlvr.learner.device=cuda:7"], ["cuda:7", "device"]),
    "a device of no platform": (["stages.rlvr.rollout.engine.device=gpu"], ["gpu"]),
    "an unknown architecture": (["stages.sft.model.architecture=qwen33"], ["qwen33", "qwen3"]),
    "an unknown field of an architecture": (["stages.sft.model.config.hiden_size=8"], ["hiden_size"]),
    "a prompt over the limit": (
        ["stages.rlvr.rollout.max_prompt_tokens=4"],
        ["jsonl:", "tokens", "4"],
    ),
    "a demonstration over the limit": (["stages.sft.max_tokens=9"], ["demonstrations.jsonl:", "9"]),
    "sampling that training cannot use": (["stages.rlvr.rollout.sampling.top_p=0.9"], ["top_p", "0.9"]),
    "a callable that is not there": (
        ["prepare.0.callable=roll_launch.tasks.sort_letters:write_file"],
        ["write_file"],
    ),
    "more threads than a process can have": (["stages.rlvr.learner.threads=100000"], ["threads", "1024"]),
    "an unknown option of the command": (["--run-dirr", "x"], ["run-dirr"]),
}

FILES = {
    "no such file": (None, ["config.yaml"]),
    "broken YAML": ("name: x\nstages: [", ["config.yaml:2"]),
    "a duplicate key": ("name: a\nname: b\n", ["name", "config.yaml:2"]),
    "an empty file": ("", ["empty"]),
    "a list": ("- a\n- b\n", ["mapping"]),
    "bytes that are no text": (b"name: \x80\xff", ["UTF-8"]),
    "no stages": ("name: x\nstages: []\n", ["stages"]),
    "null for a required value": ("name: null\nstages: []\n", ["name"]),
}


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[list[str]], str]:
    """Runs a command in an empty directory; returns what it says after checking that it was refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(arguments: list[str]) -> str:
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) <= SCREEN_LINES
        assert "Traceback" not in said
        assert not (tmp_path / "runs" / "quickstart").exists()
        return said

    return run


@pytest.mark.parametrize(("overrides", "named"), OVERRIDES.values(), ids=OVERRIDES)
def test_bad_value_is_refused_before_anything_starts(
    refused: Callable[[list[str]], str], overrides: list[str], named: list[str]
) -> None:
    said = refused(["run", str(QUICKSTART), *overrides])
    assert [text for text in named if text not in said] == [], said


@pytest.mark.parametrize(("content", "named"), FILES.values(), ids=FILES)
def test_bad_file_is_refused_with_its_place(
    refused: Callable[[list[str]], str], tmp_path: Path, content: str | bytes | None, named: list[str]
) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refused(["check", str(path)])
    assert [text for text in named if text not in said] == [], said


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ["data.jsonl", "no rows"]),
        ("{not json\n", ["data.jsonl:1"]),
        ('{"text": 3}\n', ["data.jsonl:1"]),
        ('{"prompt": "b\\ud800a=", "reference": "ab"}\n', ["data.jsonl:1", "Unicode"]),
        ("[" * 100_000 + "\n", ["data.jsonl:1", "nested"]),
    ],
    ids=["empty data", "broken JSON", "a prompt that is no text", "half a surrogate pair", "deep nesting"],
)
def test_bad_data_is_refused_with_its_line(
    refused: Callable[[list[str]], str], tmp_path: Path, content: str, named: list[str]
) -> None:
    (tmp_path / "data.jsonl").write_text(content)
    said = refused(["run", str(QUICKSTART), "stages.rlvr.data.path=data.jsonl"])
    assert [text for text in named if text not in said] == [], said


def test_an_old_run_is_not_written_into(refused: Callable[[list[str]], str], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "summary.json").write_text("{}")
    assert "not empty" in refused(["run", str(QUICKSTART), "--run-dir", "old"])
    assert (tmp_path / "old" / "summary.json").read_text() == "{}"


def test_a_users_function_that_exits_does_not_decide_the_exit_code(
    refused: Callable[[list[str]], str], tmp_path: Path
) -> None:
    (tmp_path / "leaving.py").write_text("def rows():\n    raise SystemExit(0)\n")
    data = "stages.rlvr.data={source: python, callable: 'leaving:rows'}"
    assert "SystemExit" in refused(["run", str(QUICKSTART), data])
