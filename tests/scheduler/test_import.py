"""The package is light, and shows all that it has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import roll_scheduler

README = (Path(__file__).parents[2] / "packages" / "scheduler" / "README.md").read_text(encoding="utf-8")


def fresh(code):
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_scheduler_imports_nothing_heavy_and_no_sibling():
    code = (
        "import sys, roll_scheduler\n"
        "heavy = {'torch', 'ray', 'transformers', 'vllm', 'numpy', 'asyncio', 'roll_hw', 'roll_rollout',"
        " 'roll_rewards', 'roll_agentic', 'roll_learners', 'roll_launch', 'roll_scheduler.simulator'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert fresh(code).strip() == "[]"


def test_making_a_scheduler_needs_no_numpy_either():
    code = (
        "import sys\n"
        "from roll_scheduler import SchedulerCore, SchedulerPolicy, ZeroSpread\n"
        "policy = SchedulerPolicy(groups_per_batch=1, group_size=1, filters=(ZeroSpread(),))\n"
        "core = SchedulerCore(policy, replicas={'a': 1})\n"
        "core.open_batch()\n"
        "print(len(core.admit(0.0)), 'numpy' in sys.modules)"
    )
    assert fresh(code).split() == ["1", "False"]


def test_each_name_can_be_had_by_a_star_import_and_is_listed():
    assert fresh("from roll_scheduler import *\nprint(Curriculum.__name__, planned_tp.__name__)").split() == [
        "Curriculum",
        "planned_tp",
    ]
    assert set(roll_scheduler.__all__) <= set(dir(roll_scheduler))


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'roll_scheduler' has no attribute 'Scheduler'"):
        roll_scheduler.Scheduler  # noqa: B018


def test_the_readme_lists_every_name():
    table = README.split("## Names")[1]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
    assert listed == set(roll_scheduler.__all__)


def test_the_simulators_help_needs_no_numpy():
    code = (
        "import sys\n"
        "from roll_scheduler.simulator.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    print('code', end.code, 'numpy' in sys.modules)"
    )
    assert fresh(code).rstrip().endswith("code 0 False")


def test_importing_takes_little_processor_time():
    code = (
        "import time\n"
        "before = time.process_time()\n"
        "import roll_scheduler\n"
        "print(time.process_time() - before)"
    )
    assert min(float(fresh(code)) for _ in range(3)) < 0.1
