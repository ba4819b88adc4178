"""A replay that commits after batches which were planned after it: what it replaces, and what refuses it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import (
    VerificationError,
)
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.replays import RUN, Interrupted, Replayer, offsets, proved, states
from tests.support.rewinds import TARGET, Rewinder

pytestmark = pytest.mark.server


class TestCommittedLate:
    """A replay that is committed after batches which were planned after it: their ids do not tell what is in the
    table.
    """

    @pytest.mark.parametrize("with_replace", [False, True], ids=["rewind", "rewind-with-replace"])
    def test_after_a_rewind_and_its_load(self, replayer: Replayer, orders: str, with_replace: bool) -> None:
        loader = replayer.loader

        def meanwhile() -> None:
            Rewinder(loader)("to-offset", 5, f"{orders}:0", replace=TARGET if with_replace else None)
            loader(orders)

        launcher = Interrupted(meanwhile)
        result = replayer(orders, {orders: {0: (2, 9)}}, replace=True, sink=TARGET, launcher=launcher)

        assert (result.batches, result.rows) == ((2,), 7)
        assert states(loader) == [(kind, "committed") for kind in ("load", "replay", "rewind", "load")]
        # What the load wrote meanwhile of offsets 5 to 8 is replaced, like what was there before.
        kept = [*range(20)] if with_replace else [*range(20), *range(9, 20)]
        assert offsets(loader)[0] == sorted(kept)
        proved(loader)
        produce(loader.kafka, orders, names(900, 3))
        loader(orders)
        proved(loader)
        # Nothing of that hides a row that is missing.
        with loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE target SET _kafka_offset = 3 WHERE _batch_id = 2 AND _kafka_offset = 6"))
            conn.execute(sa.text("UPDATE target SET id = -1 WHERE _batch_id = 2"))
        with pytest.raises(VerificationError):
            proved(loader)

    def test_after_another_replay(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader
        other = replace(RUN, run_id="run-2")

        def meanwhile() -> None:
            replayer(orders, {orders: {0: (5, 12), 1: (0, 3)}}, replace=True, sink=TARGET, run=other)

        replayer(orders, {orders: {0: (2, 9)}}, replace=True, sink=TARGET, launcher=Interrupted(meanwhile))

        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        of_batch = dict(
            rows(loader.engine, "SELECT _batch_id, count(*) FROM target WHERE _kafka_partition = 0 GROUP BY _batch_id")
        )
        assert of_batch == {1: 10, 2: 7, 3: 3}
        proved(loader)

    def test_into_another_table(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader

        def meanwhile() -> None:
            Rewinder(loader)("to-offset", 5, f"{orders}:0", replace=TARGET)
            loader(orders)

        replayer(orders, {orders: {0: (2, 9)}}, launcher=Interrupted(meanwhile))

        assert offsets(loader, "elsewhere") == {0: list(range(2, 9))}
        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        proved(loader)

    def test_with_an_upsert_key(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name, sink = topic(), SqlTable("target", upsert_key=("id",))
        produce(inline_loader.kafka, name, names(0, 10))
        inline_loader(name, sink=sink)

        def meanwhile() -> None:
            Rewinder(inline_loader)("to-offset", 5, replace=sink)
            inline_loader(name, sink=sink)

        Replayer(inline_loader)(name, {name: {0: (2, 9)}}, sink=sink, launcher=Interrupted(meanwhile))

        assert offsets(inline_loader) == {0: list(range(10))}
        verify("loader", sink=sink, engine=inline_loader.engine)
