from pathlib import Path

import pytest
from roll_launch.callable_path import CallablePathError, resolve_callable


def test_a_function_or_method_is_found() -> None:
    assert resolve_callable("json:dumps")({}) == "{}"
    assert resolve_callable("pathlib:Path.cwd")() == Path.cwd()


@pytest.mark.parametrize("path", ["json.dumps", ":dumps", "json:", ""])
def test_another_form_is_refused(path: str) -> None:
    with pytest.raises(CallablePathError, match=r"allowed is 'package\.module:function'"):
        resolve_callable(path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("jsonn:dumps", "no module named 'jsonn'; it must be installed or on PYTHONPATH"),
        ("json.gone:dumps", "no module named 'json.gone'"),
        ("json:dump_s", "json has no 'dump_s'; did you mean 'dumps'"),
        ("json:__name__", "it is a str, which cannot be called"),
    ],
)
def test_what_is_not_there_is_named(path: str, message: str) -> None:
    with pytest.raises(CallablePathError, match=message):
        resolve_callable(path)


def test_a_module_that_fails_to_import_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_source_of_rows.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CallablePathError, match="importing broken_source_of_rows raised ZeroDivisionError"):
        resolve_callable("broken_source_of_rows:rows")
