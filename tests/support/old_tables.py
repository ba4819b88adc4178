"""State tables of schema version 9, and what is in a database."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.ledger.migrations import RENAMED_COLUMNS
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION

DATA = Path(__file__).parents[1] / "ledger/data"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def run_script(engine: Engine, script: str) -> None:
    """Run statements as a client of the database does: those that the script does not put in a transaction commit
    alone.
    """
    with engine.connect() as conn:
        conn = conn.execution_options(isolation_level="AUTOCOMMIT")
        for statement in script.split(";\n"):
            if statement.strip():
                # Without parameters, so that a % is a % to every driver.
                conn.connection.cursor().execute(statement)


def insert(engine: Engine, table: str, **values: Any) -> None:
    with engine.begin() as conn:
        conn.execute(sa.Table(table, sa.MetaData(), autoload_with=conn).insert().values(**values))


def contents(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as conn:
        return {
            table.name: [dict(row) for row in conn.execute(sa.select(table).order_by(*table.primary_key)).mappings()]
            for table in metadata.sorted_tables
        }


def index_text(index: Any) -> str:
    options = {name: str(value) for name, value in index["dialect_options"].items()}
    return f"{index['name']} {index['column_names']} {index['unique']} {options}"


def structure(engine: Engine) -> dict[str, Any]:
    """Columns, keys and indexes of every table."""
    inspector = sa.inspect(engine)
    return {
        table: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(table)],
            inspector.get_pk_constraint(table),
            sorted(map(index_text, inspector.get_indexes(table))),
        )
        for table in inspector.get_table_names()
    }


def batch(engine: Engine, batch_id: int, state: str = "committed", group: str = "loader", **values: Any) -> None:
    names = {"consumer_group": group, "generation": 0, "kind": "load", "state": state, "attempt": 1, "planned_at": NOON}
    insert(engine, "offset_batches", batch_id=batch_id, **names | values)


def offset_range(engine: Engine, batch_id: int, tp: TopicPartition, start: int, end: int, **values: Any) -> None:
    names = {"topic": tp.topic, "partition": tp.partition, "start_offset": start, "end_offset": end, "how": "stored"}
    insert(engine, "offset_ranges", batch_id=batch_id, **{"target_offset": end} | names | values)


def position(engine: Engine, tp: TopicPartition, offset: int, group: str = "loader", **values: Any) -> None:
    names = {"consumer_group": group, "topic": tp.topic, "partition": tp.partition, "offset_value": offset}
    insert(engine, "consumed_offsets", **names | {"batch_id": 1, "updated_at": NOON} | values)


def create_version_9(engine: Engine) -> None:
    """Create state tables of version 9 with a group that loaded two batches."""
    run_script(engine, (DATA / f"state_tables_version_9_{engine.dialect.name}.sql").read_text())
    insert(engine, "consumer_groups", group_id="loader", cluster_id="c", generation=0, epoch=2)
    batch(engine, 1, target_table="target", records=12, row_count=12, committed_at=NOON, files_since=NOON)
    batch(
        engine, 2, target_table="target", records=8, row_count=7, dead_letters=1, committed_at=NOON,
        letters_topic="bad", letters_sent_at=NOON,
    )  # fmt: skip
    offset_range(engine, 1, T0, 0, 10, records=12)
    offset_range(engine, 2, T0, 10, 20, records=8, replaced_from=12, replaced_to=15)
    offset_range(engine, 2, T1, 0, 5, topic_id="id", leader_epoch=3, end_epoch=4)
    insert(
        engine,
        "dead_letters",
        batch_id=2,
        topic="orders",
        partition=0,
        offset_value=11,
        consumer_group="loader",
        value=b"{",
        error="no JSON",
    )
    insert(
        engine,
        "offset_gaps",
        batch_id=2,
        topic="orders",
        partition=1,
        start_offset=0,
        end_offset=2,
        cause="expired",
        decision="skipped",
    )
    position(engine, T0, 20, batch_id=2, record_timestamp=NOON)
    position(engine, T1, 5, batch_id=2, topic_id="id", leader_epoch=4)


def upgraded(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """What version 9 holds, as the current version has to."""
    found = contents(engine)
    for table, renamed in RENAMED_COLUMNS.items():
        found[table] = [{renamed.get(name, name): value for name, value in row.items()} for row in found[table]]
    for dead_letter in found["dead_letters"]:
        del dead_letter["publishing"]
        dead_letter["replayed_by"] = None
    for batch in found["offset_batches"]:
        batch["compacted_from"] = None
    return found | {"erased_offsets": [], "offsets_schema_version": [{"version": SCHEMA_VERSION}]}
