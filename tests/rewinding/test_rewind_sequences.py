"""Any sequence of loads and rewinds, with `replace` and without, is proved by `verify`."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import timedelta

import pytest

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import ConfigurationError, NoPositionError, RewindConflictError
from airflow_kafka_offsets.ledger import compaction
from airflow_kafka_offsets.ledger.compaction import Compacted
from airflow_kafka_offsets.ledger.tables import Tables
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names
from tests.support.rewinds import TARGET, Rewinder, only

pytestmark = pytest.mark.server

# Each is proved anew. `make soak` takes more.
STEPS = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 20
SEED = 20261121


@pytest.mark.parametrize(
    "retention",
    [pytest.param(None, marks=pytest.mark.long), timedelta(microseconds=1)],
    ids=["whole history", "compacted history"],
)
def test_any_sequence_of_loads_and_rewinds_is_proved(
    rewinder: Rewinder, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, retention: timedelta | None
) -> None:
    """Against a model of how often each offset must be there. The steps are random, from a seed that the failure
    shows.
    """
    monkeypatch.setattr(compaction, "_AT_LEAST", 2)
    name, chance = topic(), random.Random(SEED)
    loads = ["load"] * (2 if retention is None else 6)
    kafka = rewinder.loader.kafka
    expected: Counter[int] = Counter()
    end = position = 0
    done: list[str] = []
    refused: list[str] = []
    refused_as_compacted: list[str] = []
    for _ in range(STEPS):
        old, step = position, chance.choice([*loads, "to-offset", "shift-by", "undo", "to-batch", "to-current"])
        replace = chance.random() < 0.5
        if step == "load" or not done:
            count = chance.randrange(8)
            produce(kafka, name, names(end, count))
            end += count
            rewinder.loader(name, limits=Limits(max_records=chance.choice([None, 3]), history_retention=retention))
            expected.update(range(position, end))
            position = end
            done.append(f"load to {end}")
        else:
            last = rewinder.history()[-1][0] if rewinder.history() else 1
            value = {
                "to-offset": chance.randint(0, end),
                "shift-by": chance.randint(-5, 5),
                "to-batch": chance.randint(1, max(1, last)),
                "undo": None,
                "to-current": None,
            }[step]
            try:
                preview = rewinder.preview(step, value)
            except (NoPositionError, RewindConflictError):
                refused.append(step)
                continue
            except ConfigurationError as error:
                refused_as_compacted.append(f"{step}: {error}")
                continue
            one = only(preview)
            assert one.new is not None
            position = one.new.offset
            if step == "to-offset":
                assert position == value
            elif step == "shift-by":
                assert position == min(max(old + (value or 0), 0), end)
            rewinder.execute(preview, replace=TARGET if replace else None)
            if replace:
                for offset in range(position, end):
                    del expected[offset]
            done.append(f"{step} {value} from {old} to {position}{', replace' if replace else ''}")

        told = f"seed {SEED}: {'; '.join(done)}"
        assert rewinder.positions(name) == ({0: position} if done else {}), told
        assert rewinder.times(name) == dict(sorted((+expected).items())), told
        try:
            rewinder.prove()
        except Exception as error:
            raise AssertionError(told) from error
    assert set(refused) <= {"undo"}
    with rewinder.loader.engine.connect() as conn:
        compacted = Compacted.of(conn, Tables.of(), rewinder.group).spans
    assert bool(compacted) == bool(retention)
    assert not refused_as_compacted or retention is not None
    assert all("to-batch: Batches" in each and "were compacted" in each for each in refused_as_compacted)
    assert sum("replace" in one for one in done) > 3, "the steps are too few to say something"
