"""A target that is altered between staging and commit is refused, and takes what was staged when it is mended."""

from __future__ import annotations

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.exceptions import KafkaOffsetsError, RecordError, TargetError
from airflow_kafka_offsets.sinks.sql import connected_table, insert, postgres_copy
from airflow_kafka_offsets.staging.rows import StagedRows
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.database_faults import (
    ADDED,
    Then,
    assert_nothing_written,
    assert_staged_rows_are_committed,
    change,
    raise_for_each_row,
)
from tests.support.loads import Loader

pytestmark = pytest.mark.server


class TestAlteredTarget:
    """Somebody alters the target between staging and commit; mended, it takes what was staged."""

    @pytest.fixture
    def orders(self, kafka: KafkaBroker, orders: str) -> str:
        """Ten records with a name, and one without."""
        produce(kafka, orders, [b'{"id": 10}'])
        return orders

    @pytest.mark.parametrize(
        ("alteration", "error", "message", "mended"),
        [
            ("DROP COLUMN name", TargetError, "it has no column 'name'", "ADD COLUMN name TEXT"),
            ("RENAME name TO label", TargetError, "it has no column 'name'", "RENAME label TO name"),
            ("ALTER name TYPE BIGINT USING 1", TargetError, "column 'name' is BIGINT", "ALTER name TYPE TEXT"),
            (
                "ADD COLUMN region TEXT NOT NULL",
                TargetError,
                "needs a value for 'region'",
                "ALTER region SET DEFAULT 'north'",
            ),
            (
                "ALTER name SET NOT NULL",
                RecordError,
                'offset 10 .*null value in column "name"',
                "ALTER name DROP NOT NULL",
            ),
        ],
        ids=["dropped", "renamed", "of-another-type", "one-more", "not-null"],
    )
    def test_altered_column_is_named(
        self,
        postgres_loader: Loader,
        orders: str,
        alteration: str,
        error: type[KafkaOffsetsError],
        message: str,
        mended: str,
    ) -> None:
        loader, engine = postgres_loader, postgres_loader.engine
        altered = Then(loader.launcher, lambda: change(engine, f"ALTER TABLE target {alteration}"))

        with pytest.raises(error, match=message):
            Loader(loader.kafka, engine, altered)(orders)

        assert_nothing_written(engine)
        change(engine, f"ALTER TABLE target {mended}")
        assert_staged_rows_are_committed(loader, orders, 11)

    @pytest.mark.parametrize("writer", [postgres_copy.copy_rows, insert.insert_rows], ids=["copy", "insert"])
    def test_also_in_the_transaction_when_the_table_was_found_to_fit(
        self, postgres_loader: Loader, orders: str, writer: connected_table.Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = postgres_loader.engine
        # Without an index on _batch_id: where there is one, the commit has read the table by then, and ALTER has to
        # wait.
        change(engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED})")

        def alter_and_write(conn: Connection, table: sa.Table, columns: pa.Schema, rows: StagedRows) -> int:
            change(engine, "ALTER TABLE target RENAME name TO label")
            return writer(conn, table, columns, rows)

        monkeypatch.setattr(connected_table, "_writer", lambda conn: alter_and_write)
        with pytest.raises(TargetError, match='column "name" of relation "target" does not exist'):
            postgres_loader(orders)
        monkeypatch.undo()

        assert_nothing_written(engine)
        change(engine, "ALTER TABLE target RENAME label TO name")
        assert_staged_rows_are_committed(postgres_loader, orders, 11)

    def test_a_trigger_that_refuses_a_row_has_the_record_named(self, postgres_loader: Loader, orders: str) -> None:
        engine = postgres_loader.engine
        change(engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED})")
        raise_for_each_row(engine, "NEW.id = 7", "raise_exception")

        with pytest.raises(RecordError, match="offset 7 cannot be loaded: the database refuses its row: not this one"):
            postgres_loader(orders)

        assert_nothing_written(engine)
        change(engine, "DROP TRIGGER refuse ON target")
        assert_staged_rows_are_committed(postgres_loader, orders, 11)
