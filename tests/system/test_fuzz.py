"""`make fuzz` in small: each target reads what it is fed first, and some of what it is fed next."""

from __future__ import annotations

import random

import pytest

from fuzz.targets import TARGETS

# Pages are Airflow's, which takes longer to start.
QUICK = [name for name in TARGETS if name not in ("forms", "headers")]


@pytest.mark.parametrize("name", QUICK)
def test_what_reads_bytes_of_others_refuses_damaged_ones(name: str) -> None:
    target, rng = TARGETS[name], random.Random(7)
    read, corpus = target.prepare()
    outcomes = {read(data) for data in corpus}
    outcomes |= {read(target.damage(rng, corpus)) for _ in range(30)}
    assert len(outcomes) > 1
