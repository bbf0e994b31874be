"""What importing the package costs."""

import subprocess
import sys

import roll_learners


def test_configuration_needs_no_torch() -> None:
    program = (
        "import sys, roll_learners as r\n"
        "r.make_algorithm('gspo', clip_low=1e-4, kl={'placement': 'loss', 'coef': 0.1})\n"
        "r.OptimizerSettings(learning_rate=1e-3)\n"
        "import roll_learners.algorithm, roll_learners.microbatch, roll_learners.schedule\n"
        "heavy = {'torch', 'transformers', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_resolves() -> None:
    assert len(roll_learners.__all__) == len(set(roll_learners.__all__))
    for name in roll_learners.__all__:
        assert getattr(roll_learners, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(roll_learners, "nonsense")
