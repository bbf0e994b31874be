"""The README's examples run, and its table names what is public."""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import roll_learners
from roll_learners import POLICY_LOSSES
from roll_learners import algorithm as algorithm_module

README = (Path(__file__).parents[2] / "packages" / "learners" / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture
def registries() -> Iterator[None]:
    parts, presets = dict(POLICY_LOSSES._parts), dict(algorithm_module._presets)
    yield
    POLICY_LOSSES._parts = parts
    for name in algorithm_module._presets.keys() - presets.keys():
        del algorithm_module._presets[name]


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("example", EXAMPLES, ids=["loss", "train", "algorithm"])
def test_the_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(example.splitlines()) <= 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(example, "README.md", "exec"), {"__name__": "example"})


def test_every_public_name_is_in_the_table() -> None:
    table = README[README.index("## Names") :]
    assert set(re.findall(r"`(\w+)`", table)) == set(roll_learners.__all__)
