"""Killed at random instants, a run loses nothing and doubles nothing; see `kill_campaign.py`."""

from pathlib import Path

import pytest
from kill_campaign import campaign

KILLS, FEWEST = 20, 3
BUDGET_S = 60.0
"""For the kills of one victim: a slow machine makes fewer, and not a later end."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("victim", "runtime"), [("driver", "local"), ("learner", "ray"), ("actor", "ray"), ("reward", "ray")]
)
def test_a_run_that_is_killed_at_random_instants_has_the_ledger_of_one_that_is_not(
    short_workspace: Path, victim: str, runtime: str
) -> None:
    report = campaign(
        victim,
        KILLS,
        runtime=runtime,
        seed=1,
        workspace=short_workspace,
        fewest=FEWEST,
        budget_s=BUDGET_S,
    )
    print(report.line())
    assert len(report.kills) >= FEWEST


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_driver_of_a_ray_run_leaves_no_process_and_the_run_goes_on(short_workspace: Path) -> None:
    campaign("driver", 3, runtime="ray", seed=2, workspace=short_workspace)
