"""docs/configuration.md."""

import subprocess
import sys
from pathlib import Path

from roll_launch.config.reference import configuration_markdown

PATH = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_committed_reference_is_that_of_the_schema() -> None:
    again = "python -m roll_launch.config.reference > docs/configuration.md"
    assert PATH.read_text(encoding="utf-8") == configuration_markdown(), f"out of date; run: {again}"


def test_every_key_is_described() -> None:
    rows = [line for line in configuration_markdown().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.split(" | ")[3].strip(" |") == ""] == []


def test_the_module_writes_the_reference() -> None:
    command = [sys.executable, "-m", "roll_launch.config.reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (configuration_markdown(), "")
