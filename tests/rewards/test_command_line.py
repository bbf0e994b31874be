"""`roll-grade` as a person uses it, and what its check finds in graders that can be gamed."""

import io
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from roll_rewards import make_grader
from roll_rewards.cli import main
from roll_rewards.lint import lint_grader

ROWS = [
    {"prompt": "2+2?", "responses": ["4", "5"], "answer": "4"},
    {
        "prompt": "3+2?",
        "completion": [{"role": "assistant", "content": "5"}],
        "reward_model": {"ground_truth": "5"},
    },
]


def substring(response: str, reference: str) -> float:
    return float(reference in response)


def generous(response: str, reference: str) -> float:
    return float(response in f"{reference} and more")


def fragile(response: str, reference: str) -> float:
    return float(float(response) == float(reference))


def dice(response: str, reference: str) -> float:
    return random.random()


def miser(response: str, reference: str) -> float:
    return 0.0


async def blocking(response: str, reference: str) -> float:
    if response == "42":
        time.sleep(0.6)
    return float(response == reference)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n", encoding="utf-8")
    return path


def test_file_is_graded_and_summarised(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = rows.with_name("scores.jsonl")
    assert main([str(rows), "--grader", "exact", "--out", str(out), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert (metrics["rewards/mean"], metrics["rewards/lines"]) == (pytest.approx(2 / 3), 2.0)
    assert metrics["rewards/best_of_n/mean"] == 1.0
    scores = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted((s["line"], s["sample"], s["score"]) for s in scores) == [
        (1, 0, 1.0),
        (1, 1, 0.0),
        (2, 0, 1.0),
    ]


def test_progress_is_drawn_for_a_person(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([str(rows), "--grader", "exact"]) == 0
    assert terminal.getvalue().rstrip(" \n").rpartition("\r")[2].startswith(f"[{'#' * 30}] 3/3  mean 0.667")
    drawn = terminal.getvalue()
    assert main([str(rows), "--grader", "exact", "--no-progress"]) == 0
    assert terminal.getvalue() == drawn


def test_response_without_a_verdict_makes_the_status_one(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.write_text(rows.read_text(encoding="utf-8") + '{"response": "1", "answer": 3}\n', encoding="utf-8")
    assert main([str(rows), "--grader", "exact"]) == 1
    table = capsys.readouterr().out
    assert "failed: line 4 sample 0: error" in table and "slowest: line" in table


def test_summary_of_no_verdicts_is_still_json(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows.write_text('{"response": "1", "answer": 3}\n', encoding="utf-8")
    assert main([str(rows), "--grader", "exact", "--json"]) == 1
    summary = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert (summary["rewards/mean"], summary["rewards/failed"]) == (None, 1.0)


def test_options_and_columns_are_taken(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows.write_text('{"r": "X: AB", "gold": "ab"}\n', encoding="utf-8")
    words = [str(rows), "--grader", "exact", "--response", "r", "--reference", "gold", "--json"]
    assert main([*words, "-o", "after=X:", "-o", "case_sensitive=false"]) == 0
    assert json.loads(capsys.readouterr().out)["rewards/mean"] == 1.0


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("", ["--grader", "exakt"], "did you mean 'exact'"),
        ("[1]\n", ["--grader", "exact"], "rows.jsonl:1: a JSON object is expected"),
        ("{\n", ["--grader", "exact"], "rows.jsonl:1: no JSON"),
        ('{"a": 1}\n', ["--grader", "exact"], "rows.jsonl:1: no response"),
        ('{"response": 1}\n', ["--grader", "exact"], "must be a text"),
        ("", ["--grader", "exact", "-o", "after"], "KEY=VALUE"),
    ],
)
def test_what_cannot_be_done_is_said(
    rows: Path, text: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.write_text(text, encoding="utf-8")
    assert main([str(rows), *words]) == 2
    assert message in capsys.readouterr().err


def test_missing_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "no.jsonl"), "--grader", "exact"]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_command_runs_a_function_of_the_working_directory(tmp_path: Path, rows: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(
        "def same(response, reference):\n    return response == reference\n"
    )
    words = ["-c", "import sys; from roll_rewards.cli import main; sys.exit(main())", "rows.jsonl"]
    done = subprocess.run(
        [sys.executable, *words, "--grader", "my_rewards:same", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rewards/graded"] == 3.0


def test_check_prints_a_table_and_fails_for_a_grader_that_pays_for_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = json.dumps({"reference": "42", "prompt": "6*7?"})
    assert main(["check", f"{__name__}:generous", "--row", row]) == 1
    assert "ERROR   empty: pays 1" in capsys.readouterr().out
    assert main(["check", "exact", "--row", row]) == 0
    assert main(["check", "exact", "--row", "[]"]) == 2
    assert main(["check", "exact"]) == 2


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("generous", "empty: pays 1"),
        ("fragile", "no verdict on what a policy may say (error: PythonCallable raised ValueError"),
        ("dice", "different values for the same response"),
        ("miser", "pays no right response more than nothing"),
    ],
)
async def test_check_finds_what_is_wrong(name: str, error: str) -> None:
    grader = make_grader("python", callable=f"{__name__}:{name}")
    result = await lint_grader(grader, {"reference": "42"})
    assert any(error in found for found in result.errors)


async def test_check_finds_a_grader_that_stops_the_event_loop() -> None:
    grader = make_grader("python", callable=f"{__name__}:blocking")
    result = await lint_grader(grader, {}, gold="42")
    assert any("blocks the event loop" in found for found in result.errors)


async def test_check_warns_of_an_answer_hidden_among_others() -> None:
    result = await lint_grader(make_grader("python", callable=f"{__name__}:substring"), {"reference": "42"})
    assert result.errors == ()
    warned = {text.partition(":")[0] for text in result.warnings}
    assert {"hedge", "every number", "denial", "longer word"} <= warned


@pytest.mark.timeout(180)
async def test_math_grader_passes_its_own_check() -> None:
    result = await lint_grader(make_grader("math"), {"reference": "42", "prompt": "What is 6 times 7?"})
    assert result.errors == ()
    assert [text for text in result.warnings if not text.startswith("repeated") and "takes" not in text] == []
