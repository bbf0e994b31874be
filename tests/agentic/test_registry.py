from pathlib import Path

import pytest
from roll_agentic import ENVIRONMENTS, AgenticError, NumberGuessing, environment_names, make


class Maze:
    """An environment of a third party."""

    def __init__(self, size: int, *, walls: bool = True) -> None:
        if size < 0:
            raise ValueError("a maze has a size")
        self.size = size

    def reset(self, *, seed: int) -> tuple:
        return "start", {}

    def step(self, action: str, /) -> tuple:
        return "wall", 0.0, False, False, {}


def any_maze(**options: int) -> Maze:
    return Maze(options["size"])


def not_a_maze() -> object:
    return object()


A_NUMBER = 5


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package that declares one environment."""

    def installed(package: str, name: str, value: str) -> None:
        metadata = tmp_path / package / f"{package}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[roll_agentic.environments]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(str(metadata.parent))

    return installed


def test_environment_is_made_by_name_with_its_options() -> None:
    environment = make("number_guessing", numbers=4, turns=2)
    assert isinstance(environment, NumberGuessing)
    assert "from 0 to 3 with at most 2 guesses" in str(environment.reset(seed=0)[1])


def test_environment_is_made_by_import_path() -> None:
    environment = make(f"{__name__}:Maze", size=3)
    assert isinstance(environment, Maze)
    assert environment.size == 3


def test_factory_that_takes_any_options_gets_them_all() -> None:
    assert make(f"{__name__}:any_maze", size=7).size == 7


def test_installed_package_adds_environments(install) -> None:
    install("mazes", "maze", f"{__name__}:Maze")
    assert make("maze", size=2).size == 2
    assert environment_names() == sorted({*ENVIRONMENTS, "maze"})


def test_name_that_two_packages_claim_is_refused(install) -> None:
    install("mazes", "maze", f"{__name__}:Maze")
    install("labyrinths", "maze", f"{__name__}:any_maze")
    with pytest.raises(AgenticError, match="environment 'maze' is claimed by") as caught:
        make("maze", size=1)
    assert f"{__name__}:Maze" in str(caught.value)
    assert f"{__name__}:any_maze" in str(caught.value)


def test_package_cannot_take_over_a_name_of_ours(install) -> None:
    install("impostor", "number_guessing", f"{__name__}:Maze")
    with pytest.raises(AgenticError, match=r"'number_guessing' is claimed by .* and by roll_agentic"):
        make("number_guessing")


def test_unknown_name_names_the_nearest_and_all_there_are() -> None:
    with pytest.raises(AgenticError) as caught:
        make("number_gessing")
    assert "'number_gessing'; did you mean 'number_guessing'?" in str(caught.value)
    assert all(name in str(caught.value) for name in ENVIRONMENTS)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "number_guessing",
            {"number": 4},
            "has no option 'number'; did you mean 'numbers'?; it has numbers, turns",
        ),
        (f"{__name__}:Maze", {}, "needs the options size"),
        (f"{__name__}:Maze", {"size": -1}, "cannot be made: ValueError: a maze has a size"),
        (f"{__name__}:not_a_maze", {}, "made a object, which has no method 'reset'"),
        (f"{__name__}:A_NUMBER", {}, "is a int, which cannot be called"),
        (f"{__name__}:Missing", {}, "AttributeError"),
        ("no_such_module:Maze", {}, "cannot import environment 'no_such_module:Maze': ModuleNotFoundError"),
        ("number_guessing", {"turns": 0}, "NumberGuessing needs turns of at least 1, got 0"),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_reason(name: str, options: dict, message: str) -> None:
    with pytest.raises(AgenticError) as caught:
        make(name, **options)
    assert message in str(caught.value)
