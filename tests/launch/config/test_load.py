"""Loading a run's configuration from a file."""

import subprocess
import sys
from pathlib import Path

import pytest
from roll_launch.config import ConfigError, RayRuntimeConfig, RunConfig, load_config

PATH = Path(__file__).parents[3] / "examples" / "quickstart.yaml"


def test_the_quickstart_loads() -> None:
    loaded = load_config(PATH)
    config: RunConfig = loaded.config
    assert [stage.name for stage in config.stages] == ["sft", "rlvr"]
    assert config.runtime == RayRuntimeConfig(kind="ray")
    assert loaded.document.source == str(PATH)


def test_the_directory_follows_from_the_name_where_it_is_left_out(tmp_path: Path) -> None:
    text = PATH.read_text().replace("directory: runs/quickstart ", "# ")
    path = tmp_path / "x.yaml"
    path.write_text(text)
    assert load_config(path, ["name=other"]).config.directory == Path("runs/other")
    with pytest.raises(ConfigError, match="name: "):
        load_config(path, ["name=a b"])


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.yaml").write_text(PATH.read_text())
    assert load_config("~/x.yaml", ["directory=~/runs"]).config.directory == tmp_path / "runs"


def test_loading_imports_neither_torch_nor_ray_nor_transformers() -> None:
    code = (
        "import sys; from roll_launch.config import load_config, check_existence, derive, dump_config\n"
        f"loaded = load_config({str(PATH)!r}); check_existence(loaded.config, loaded.document)\n"
        "derive(loaded.config); dump_config(loaded.config)\n"
        "print({'torch', 'ray', 'transformers', 'vllm', 'datasets'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
