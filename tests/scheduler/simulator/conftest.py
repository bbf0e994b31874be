"""Settings for the simulator's tests."""

import json
from pathlib import Path

import pytest
from roll_scheduler.simulator import EngineModel, Setting, Workload

VECTORS = Path(__file__).parents[2] / "data" / "vectors"


class TableLengths:
    """Lengths that are written down: `rows[group][member]`."""

    def __init__(self, rows):
        self.rows = rows
        self.cap = 10**9

    def tokens(self, group, member):
        row = self.rows[group % len(self.rows)]
        return row[member % len(row)]


@pytest.fixture
def vectors():
    def read(name):
        return {case["name"]: case for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"]}

    return read


@pytest.fixture
def table_setting():
    """A setting of engines whose iteration takes one second, with lengths from a table."""

    def make(rows, *, workers=1, slots=1, groups=None, size=None, engine=None, workload=None, **fields):
        engine = engine or EngineModel(slots=slots, base_s=1.0, sequence_s=0.0)
        return Setting(
            workload=Workload(TableLengths(rows), **(workload or {})),
            engines=(engine,) * workers,
            groups_per_batch=groups or len(rows),
            group_size=size or len(rows[0]),
            **fields,
        )

    return make
