"""The package is light."""

import subprocess
import sys


def test_importing_the_scheduler_imports_nothing_heavy_and_no_sibling():
    code = (
        "import sys, roll_scheduler\n"
        "heavy = {'torch', 'ray', 'transformers', 'vllm', 'roll_hw', 'roll_rollout', 'roll_rewards',"
        " 'roll_agentic', 'roll_learners', 'roll_launch'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
