import json
from pathlib import Path

import pytest
from roll_launch.callable_path import CallablePathError
from roll_launch.prepare import MARKER, PreparationError, run_preparation

FILL = f"{__name__}:fill"


def fill(directory: Path, *, text: str = "hello") -> None:
    (directory / "sub").mkdir()
    (directory / "sub" / "file.txt").write_text(text)


def fail(directory: Path) -> None:
    (directory / "half.txt").write_text("half")
    raise OSError("no space left")


def race(directory: Path, *, place: str, text: str) -> None:
    """Prepares, while another process finishes the preparation that `text` stands for."""
    fill(directory, text="mine")
    run_preparation(f"{__name__}:other", Path(place), {"place": place, "text": text})
    marker = Path(place) / MARKER
    if text == "same":
        marker.write_text(marker.read_text().replace(":other", ":race"))


def other(directory: Path, *, place: str, text: str) -> None:
    fill(directory, text="theirs")


def test_a_preparation_fills_its_directory_once(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "letters"
    assert run_preparation(FILL, directory, {"text": "first"})
    (directory / "sub" / "file.txt").write_text("edited")
    assert not run_preparation(FILL, directory, {"text": "first"})
    assert (directory / "sub" / "file.txt").read_text() == "edited"
    assert [path.name for path in directory.parent.iterdir()] == ["letters"]


def test_the_marker_records_callable_and_arguments(tmp_path: Path) -> None:
    run_preparation(FILL, tmp_path / "a", {"text": "x"})
    marker = json.loads((tmp_path / "a" / MARKER).read_text())
    assert marker == {"callable": FILL, "arguments": {"text": "x"}}


def test_the_order_of_arguments_does_not_matter(tmp_path: Path) -> None:
    arguments = {"place": str(tmp_path / "b"), "text": "x"}
    run_preparation(f"{__name__}:other", tmp_path / "a", arguments)
    assert not run_preparation(f"{__name__}:other", tmp_path / "a", dict(reversed(arguments.items())))


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert run_preparation(FILL, tmp_path / "a", {})
    assert (tmp_path / "a" / "sub" / "file.txt").read_text() == "hello"


def test_other_arguments_are_an_error_that_shows_both(tmp_path: Path) -> None:
    run_preparation(FILL, tmp_path / "a", {"text": "old"})
    with pytest.raises(PreparationError, match=r"(?s)a holds another preparation.*old.*asked for.*new"):
        run_preparation(FILL, tmp_path / "a", {"text": "new"})
    assert (tmp_path / "a" / "sub" / "file.txt").read_text() == "old"


def test_files_of_someone_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(PreparationError, match="holds files that no preparation wrote"):
        run_preparation(FILL, tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_the_place_of_the_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    with pytest.raises(PreparationError, match="is not a directory"):
        run_preparation(FILL, tmp_path / "a", {})
    assert (tmp_path / "a").read_text() == "precious"


def test_a_failed_preparation_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(PreparationError, match="raised OSError: no space left"):
        run_preparation(f"{__name__}:fail", tmp_path / "a", {})
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(PreparationError, match=r"raised TypeError: .*unexpected keyword argument 'txt'"):
        run_preparation(FILL, tmp_path / "a", {"txt": "x"})
    with pytest.raises(PreparationError, match="values that JSON can hold"):
        run_preparation(FILL, tmp_path / "a", {"text": {1, 2}})


def test_a_missing_callable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CallablePathError, match="did you mean 'fill'"):
        run_preparation(f"{__name__}:fil", tmp_path / "a", {})
    assert list(tmp_path.iterdir()) == []


def test_the_same_preparation_by_another_process_meanwhile_is_kept(tmp_path: Path) -> None:
    arguments = {"place": str(tmp_path / "a"), "text": "same"}
    assert not run_preparation(f"{__name__}:race", tmp_path / "a", arguments)
    assert (tmp_path / "a" / "sub" / "file.txt").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_another_preparation_by_another_process_meanwhile_is_an_error(tmp_path: Path) -> None:
    arguments = {"place": str(tmp_path / "a"), "text": "different"}
    with pytest.raises(PreparationError, match="holds another preparation"):
        run_preparation(f"{__name__}:race", tmp_path / "a", arguments)
    assert (tmp_path / "a" / "sub" / "file.txt").read_text() == "theirs"
