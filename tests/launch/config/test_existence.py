"""Whether what a configuration names is there."""

import json
import os
from pathlib import Path

import pytest
from roll_hw import PLATFORMS
from roll_launch.config import ConfigError, LoadedConfig, RunConfig, check_existence, load_config

PATH = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
RLVR, SFT = "stages.rlvr", "stages.sft"


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(*overrides: str) -> LoadedConfig[RunConfig]:
    return load_config(PATH, overrides)


def absent(*overrides: str) -> list[str]:
    found = loaded(*overrides)
    with pytest.raises(ConfigError) as caught:
        check_existence(found.config, found.document)
    return [str(problem) for problem in caught.value.problems]


def model(directory: Path, **fields: object) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", **fields}))
    (directory / "tokenizer.json").write_text("{}")
    return directory


def test_what_a_preparation_will_write_need_not_be_there() -> None:
    found = loaded()
    check_existence(found.config, found.document)


def test_without_its_preparation_everything_that_is_missing_is_named_with_its_line() -> None:
    lines = PATH.read_text().splitlines()
    problems = absent("prepare=[]")
    assert len(problems) == 4
    for problem, key in zip(
        problems, ["tokenizer: runs", "demonstrations.jsonl", "train.jsonl", "heldout.jsonl"], strict=True
    ):
        line = next(index for index, text in enumerate(lines, 1) if key in text)
        assert problem.startswith(f"{PATH}:{line}: stages.")
        assert "no such" in problem


def test_a_missing_file_names_its_near_siblings(working_directory: Path) -> None:
    (working_directory / "data").mkdir()
    (working_directory / "data" / "train.jsonl").write_text("{}")
    (problem,) = absent(f"{RLVR}.data.path=data/trian.jsonl")
    assert problem.endswith(
        "stages.rlvr.data.path: no such file; got data/trian.jsonl; did you mean data/train.jsonl?"
    )
    (problem,) = absent(f"{RLVR}.data.path=dta/train.jsonl")
    assert "did you mean data?" in problem
    (problem,) = absent(f"{RLVR}.data.path=data/zzz.parquet")
    assert "data holds train.jsonl" in problem
    (problem,) = absent(f"{RLVR}.data.path=qqq/www/x.jsonl")
    assert "there is no qqq" in problem


def test_a_directory_is_no_data_file(working_directory: Path) -> None:
    (working_directory / "data").mkdir()
    assert "is a directory; a file is expected" in absent(f"{RLVR}.data.path=data")[0]


def test_a_model_directory_must_exist_and_have_a_configuration(working_directory: Path) -> None:
    (working_directory / "models" / "empty").mkdir(parents=True)
    source = f"{SFT}.model={{source: pretrained, path: %s}}"
    assert "no such model directory" in absent(source % "models/qwen")[0]
    assert "it has no config.json" in absent(source % "models/empty")[0]
    model(working_directory / "models" / "good")
    found = loaded(source % "models/good")
    check_existence(found.config, found.document)
    (problem,) = absent(f"{SFT}.model={{source: pretrained, path: models/good, tokenizer: models/empty}}")
    assert "is no tokenizer directory" in problem


def test_an_architecture_and_its_fields_must_be_known() -> None:
    assert "did you mean 'qwen3'?" in absent(f"{SFT}.model.architecture=qwne3")[0]
    (problem,) = absent(f"{SFT}.model.config.hidden_sizes=3")
    assert "stages.sft.model.config.hidden_sizes: " in problem and "did you mean 'hidden_size'?" in problem


def test_sequences_must_fit_the_positions_of_the_model(working_directory: Path) -> None:
    problems = absent(f"{SFT}.model.config.max_position_embeddings=100")
    assert len(problems) == 2
    assert (
        "stages.sft.max_tokens: longer than the model's max_position_embeddings, 100; got 112" in problems[0]
    )
    assert "got 32 (max_prompt_tokens) + 80" in problems[1]
    model(working_directory / "m", max_position_embeddings=64)
    assert len(absent(f"{SFT}.model={{source: pretrained, path: m}}")) == 2


@pytest.mark.parametrize(
    ("override", "module"),
    [
        (f"{RLVR}.data={{source: python, callable: 'no_such_module:rows'}}", "no_such_module"),
        (
            f"{RLVR}.rewards.grader={{name: python, options: {{callable: 'roll_launch.no_such:f'}}}}",
            "roll_launch.no_such",
        ),
        ("prepare.0.callable=roll_launch.tasks.sort_leters:write_files", "roll_launch.tasks.sort_leters"),
    ],
)
def test_modules_must_be_found_and_are_not_imported(override: str, module: str) -> None:
    (problem,) = absent(override)
    assert f"no module named {module}" in problem


def test_a_module_of_the_users_is_found_without_running_it(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = working_directory / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "rows.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(working_directory))
    found = loaded(f"{RLVR}.data={{source: python, callable: 'mine.rows:rows'}}")
    check_existence(found.config, found.document)


def test_extras_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name in ("datasets", "reasoning_gym") else found(name),
    )
    (problem,) = absent(f"{RLVR}.data={{source: hf, name: x, split: train}}")
    assert "stages.rlvr.data.source: needs datasets; pip install 'roll-launch[datasets]'" in problem
    gym = "{source: reasoning_gym, task: chain_sum, size: 5, seed: 0}"
    problems = absent(
        f"{RLVR}.data={gym}", f"{RLVR}.rewards.grader={{name: reasoning_gym, options: {{task: x}}}}"
    )
    assert len(problems) == 2


@pytest.mark.parametrize("key", ["directory", "prepare.0.directory"])
def test_an_output_directory_must_be_possible(working_directory: Path, key: str) -> None:
    (working_directory / "file").write_text("x")
    problems = absent(f"{key}=file/below/it")
    assert any(f"{key}: cannot be made: " in problem for problem in problems)


def test_an_output_directory_must_be_writable(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != working_directory)
    assert "directory: cannot be written: no permission in" in absent("prepare=[]")[0]


def test_a_device_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [f"{RLVR}.learner.device=cuda:1", f"{RLVR}.rollout.engine.device=cuda:0"]
    monkeypatch.setattr("roll_launch.config.existence.detect_platform", lambda: PLATFORMS["cpu"])
    problems = absent(*overrides)
    assert "stages.rlvr.rollout.engine.device: device plan 'cuda:0' is for cuda" in problems[0]
    assert "stages.rlvr.learner.device: device plan 'cuda:1' is for cuda" in problems[1]
    monkeypatch.setattr("roll_launch.config.existence.detect_platform", lambda: PLATFORMS["cuda"])
    monkeypatch.setattr("roll_launch.config.existence.count_devices", lambda platform: 1)
    (problem,) = absent(*overrides)
    assert "learner.device: device plan 'cuda:1': cuda device 1 is not there" in problem


def test_without_a_document_stages_are_still_named() -> None:
    with pytest.raises(ConfigError, match=r"configuration: stages.rlvr.data.path: no such file"):
        check_existence(loaded("prepare=[]").config)
