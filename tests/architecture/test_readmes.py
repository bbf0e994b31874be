"""Every Python example of a README runs as it is written."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from package_trees import PACKAGES, ROOT

READMES = [ROOT / "README.md", *(ROOT / "packages" / package / "README.md" for package in PACKAGES)]
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(textwrap.dedent(block), id=f"{path.parent.name}-{number}")
    for path in READMES
    for number, (_, block) in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), start=1)
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_without_a_warning(example: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_link_to_a_file_leads_somewhere(readme: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", readme.read_text(encoding="utf-8"))
    assert [link for link in links if not (readme.parent / link).exists()] == []


def test_no_page_is_empty_or_has_a_gap_left_to_fill() -> None:
    pages = [*READMES, *(ROOT / "docs").rglob("*.md")]
    gaps = re.compile(r"\b(TODO|TBD|FIXME|SECONDS_\w+|\w+_TABLE)\b")
    assert [str(page) for page in pages if not page.read_text(encoding="utf-8").strip()] == []
    assert {
        str(page): found for page in pages if (found := gaps.findall(page.read_text(encoding="utf-8")))
    } == {}
