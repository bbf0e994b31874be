"""The examples of docs/scheduling.md run as they are written, and its tables name what there is."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import roll_scheduler
from roll_scheduler import ROUTERS

PAGE = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_an_example_runs_without_a_warning(example):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr


def test_every_router_is_described():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(ROUTERS)


def test_every_option_of_the_first_table_exists():
    fields = {field.name for field in dataclasses.fields(roll_scheduler.SchedulerPolicy)}
    fields |= {field.name for field in dataclasses.fields(roll_scheduler.OverProvision)}
    named = set(re.findall(r"\b([a-z_]+)=", PAGE.split("## Order")[0])) - {"traits"}
    assert named and named <= fields
