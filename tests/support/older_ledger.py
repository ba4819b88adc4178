"""State tables of an older backup than the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.delta.table import DeltaTable
from airflow_kafka_offsets.sinks.fan_out import FanOut
from airflow_kafka_offsets.sinks.parquet.files import ParquetFiles
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.iceberg import iceberg_sink
from tests.support.loads import Loader, rows


def sinks(directory: Path) -> dict[str, Sink]:
    """Return one sink of each kind."""
    uri = str(directory / "lake" / "target")
    return {
        "table": SqlTable("target"),
        "fan-out": FanOut.of([SqlTable("target"), SqlTable("other")]),
        "delta": DeltaTable(uri),
        "iceberg": iceberg_sink("positions", directory),
        "iceberg-external": iceberg_sink("sql", directory),
        "parquet": ParquetFiles(uri),
    }


def backup_of(loader: Loader) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the state tables."""
    tables = Tables().metadata.sorted_tables
    return {table.name: rows(loader.engine, f"SELECT * FROM {table.name}") for table in tables}


def restore(loader: Loader, backup: dict[str, list[tuple[Any, ...]]]) -> None:
    """Put the state tables back as a backup of them alone would, the numbers of batches included."""
    tables = Tables().metadata.sorted_tables
    with loader.engine.begin() as conn:
        for table in tables:
            conn.execute(table.delete())
            values = [dict(zip(table.columns.keys(), row, strict=True)) for row in backup[table.name]]
            if values:
                columns: list[sa.Column[Any]] = [sa.Column(name) for name in table.columns.keys()]  # noqa: SIM118 - a ColumnCollection
                plain = sa.Table(table.name, sa.MetaData(), *columns)
                conn.execute(plain.insert(), values)
        if loader.engine.dialect.name == "postgresql":
            last = max(row[0] for row in backup["offset_batches"])
            conn.execute(sa.text(f"SELECT setval('offset_batches_batch_id_seq', {last})"))
