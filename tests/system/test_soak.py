"""Random loads, faults and kills in any order, and the proof after every step.

A short run belongs to the tests; `make soak` takes a thousand steps (`STEPS=…`, `SEED=…`) and names the seed that
repeats a failure. The model knows what was written to Kafka; that output, dead letters and gaps are exactly this, is
asked of the database from outside, and of `verify`.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from devstack.kafka import KafkaBroker
from devstack.mariadb import MariaDbServer
from devstack.postgres import PostgresServer
from tests.support import random_loads
from tests.support.random_topics import DONE
from tests.support.targets import KINDS

pytestmark = pytest.mark.server

STEPS = int(os.environ.get("SOAK_STEPS", "20"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
_STEPS_OF_ONE_WORLD, _WORLDS_OF_ONE_ROUND = 40, 6


# What a table goes through every day, other targets go through in `make soak`, with a fifth of the steps.
OTHERS = [name for name in KINDS if name != "table"]


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("postgresql", "table"),
        pytest.param("sqlite", "table", marks=pytest.mark.long),
        pytest.param("mariadb", "table", marks=pytest.mark.long),
        *(pytest.param("postgresql", name, marks=pytest.mark.long) for name in OTHERS),
    ],
)
def test_random_loads_and_faults_lose_and_double_nothing(
    kind: str, target: str, request: pytest.FixtureRequest, kafka: KafkaBroker, launcher: Any, tmp_path: Path
) -> None:
    made: list[str] = []
    steps = STEPS // 2 if target == "table" else STEPS // 5

    def make_database() -> str:
        name = f"soak_{target}_{kind}_{len(made)}".replace("-", "_")
        made.append(name)
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        return server.create_database(name)

    server: PostgresServer | MariaDbServer = request.getfixturevalue("mariadb" if kind == "mariadb" else "postgres")
    random_loads.WORLD = random_loads.World(kafka, target, launcher, make_database)
    world = settings(
        # The first one is always the simplest: nothing happens in it.
        max_examples=_WORLDS_OF_ONE_ROUND,
        stateful_step_count=min(steps, _STEPS_OF_ONE_WORLD),
        deadline=None,
        database=None,
        # A failing sequence takes long to be repeated; its seed and its steps say enough.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    try:
        for round_ in itertools.count():
            run_state_machine_as_test(seed(f"{SEED} {kind} {round_}")(random_loads.Machine), settings=world)
            if DONE.total() >= steps:
                break
    finally:
        random_loads.WORLD = None
        counted = ", ".join(f"{count} {what}" for what, count in sorted(DONE.items()))
        print(f"seed {SEED}, {target} and {kind}: {DONE.total()} steps: {counted}")  # noqa: T201 - `make soak` shows it
        DONE.clear()
        if kind != "sqlite":
            for name in made:
                server.drop_database(name)
