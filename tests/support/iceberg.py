"""Iceberg tables in tests: in the database of the positions, or in an external catalog; counted by readers of their
own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.replaying.replay import replay
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.iceberg_rest import IcebergRestServer
from tests.support.loads import Loader

NAME = "shop.orders"


def iceberg_sink(where: str, directory: Path, *, name: str = NAME, **options: Any) -> IcebergTable:
    """Return a sink.

    :param where: of its catalog: `positions`, `sql`, or `rest`, whose namespace is the directory's
    """
    if where == "rest":
        namespace = "shop_" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]
        return IcebergTable(f"{namespace}.{name.partition('.')[2]}", rest_server().catalog, **options)
    warehouse = f"file://{directory}/lake"
    if where == "positions":
        return IcebergTable(name, warehouse=warehouse, **options)
    uri = f"sqlite:///{directory}/catalog.db"
    return IcebergTable(name, {"type": "sql", "uri": uri, "warehouse": warehouse}, **options)


@cache
def rest_server() -> IcebergRestServer:
    """Return the REST catalog of this session."""
    server = IcebergRestServer()
    try:
        return server.start()
    except BaseException:
        server.close()
        raise


def stop_rest_server() -> None:
    """Stop the REST catalog, if there is one."""
    if rest_server.cache_info().currsize:
        rest_server().close()
        rest_server.cache_clear()


def open_table(sink: IcebergTable, engine: Engine) -> Table:
    """Open the table as any other program does."""
    found = find_table(sink, engine)
    assert found is not None
    return found


def find_table(sink: IcebergTable, engine: Engine) -> Table | None:
    """Open the table as any other program does; None where there is none."""
    own = {"type": "sql", "uri": engine.url.render_as_string(hide_password=False), "warehouse": sink.warehouse or ""}
    properties = sink.catalog if isinstance(sink.catalog, Mapping) else own
    if properties is own and not sa.inspect(engine).has_table("iceberg_tables"):
        return None  # pyiceberg would create it
    catalog = load_catalog(sink.catalog_name, **properties)
    if isinstance(catalog, SqlCatalog):
        catalog.engine.dispose()
        catalog.engine = sa.create_engine(catalog.engine.url, poolclass=sa.NullPool)
    return catalog.load_table(sink.identifier) if catalog.table_exists(sink.identifier) else None


def scanned(table: Table, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows in order, by a scan of pyiceberg; and prove that the files themselves hold the same."""
    names = columns or (BATCH_ID, OFFSET)
    rows = table.scan(selected_fields=names).to_arrow()
    found = sorted(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    in_files = sum(pq.ParquetFile(path).metadata.num_rows for path in paths)
    assert in_files == len(found)
    assert len(paths) == len(set(paths))
    return found


@dataclass
class IcebergGroup:
    """Loads of a topic into an Iceberg table, and what is there afterwards."""

    loader: Loader
    orders: str
    sink: IcebergTable

    def load(self, **options: Any) -> LoadResult:
        return self.loader(self.orders, **{"sink": self.sink, "on_bad_record": DeadLetters(), **options})

    def replay(self, bounds: Any, pipeline: Mapping[str, Any] | None = None, **options: Any) -> LoadResult:
        return replay(
            self.loader.pipeline([self.orders], sink=self.sink, on_bad_record=DeadLetters(), **(pipeline or {})),
            bounds,
            kafka_config=self.loader.config,
            engine=self.loader.engine,
            launcher=self.loader.launcher,
            **options,
        )

    @property
    def table(self) -> Table:
        return open_table(self.sink, self.loader.engine)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return scanned(self.table, *columns)

    def offsets(self) -> list[int]:
        return sorted(offset for _, offset in self.rows())

    def proved(self) -> tuple[int, int, int | None]:
        coverage = verify("loader", sink=self.sink, engine=self.loader.engine, kafka_config=self.loader.config)
        return coverage.rows, coverage.dead_letters, coverage.reread
