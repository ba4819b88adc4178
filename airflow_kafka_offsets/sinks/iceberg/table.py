"""An Iceberg table, as DAG files name it: its catalog decides with how many commits it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets.sinks.iceberg.elsewhere import ElsewhereIcebergTable
from airflow_kafka_offsets.sinks.iceberg.sink import IcebergSink

POSITIONS = "positions"


@dataclass(frozen=True, kw_only=True, init=False)
class IcebergTable(IcebergSink):
    """Append rows to an Iceberg table, or upsert them: Spark's tasks write its data files, and the commit adds them in
    one snapshot.

    Without `catalog`, the table is registered in the database of the positions, in the tables `iceberg_tables` and
    `iceberg_namespace_properties` of a SQL catalog, as Iceberg's JDBC catalog and pyiceberg know it: rows and positions
    move in one transaction. Other writers of the table wait for it, and go on from its snapshot.

    With `catalog`, or `catalog_conn_id`, the table is in any catalog that pyiceberg knows: REST, Glue, Hive, a SQL
    catalog elsewhere. There are two commits then, and rows are still loaded exactly once: a property of the table says
    which batch of a group was published last.

    A missing table is created, with the columns of the rows and `_batch_id`; all may be null. Columns are matched by
    name, and the table's may be wider, or narrower: values that do not fit follow `on_bad_record`.

    With `upsert_key` a row replaces the one with the same key, and the newest wins, as with `SqlTable`. Files that hold
    a replaced row are written again by the commit. Columns that the rows do not hold become null.

    All parameters are templated; that there is a catalog is known when the DAG is parsed.

    :param identifier: namespace and name, such as `shop.orders`
    :param catalog: the properties of a catalog, as `pyiceberg.catalog.load_catalog` takes them; None is the database of
        the positions, as is "positions"
    :param conn_id: the Airflow connection of the database of the positions
    :param catalog_conn_id: the Airflow connection of the catalog: its extra has pyiceberg's properties, `uri` and
        `credential` may be its host, login and password
    :param catalog_name: the name under which other programs open the catalog; a SQL catalog stores it
    :param warehouse: the directory, or URI, below which a created table has its files
    :param storage_conn_id: the Airflow connection with the properties of the storage in its extra, such as
        `s3.endpoint`; login and password are the access key of S3
    :param partition_by: of a created table: columns, or `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(16, c)`,
        `truncate(4, c)`
    :param sort_by: of a created table: by which columns the rows of a file are sorted, such as `created` or `id DESC`
    :param properties: of a created table
    :param columns: of a created table in Spark DDL, where a transform of DataFrames decides the columns
    :param upsert_key: the columns that a row is known by, for example `("id",)`; without them all rows are appended
    """

    def __new__(cls, *args: Any, **options: Any) -> IcebergSink:  # type: ignore[misc]
        """Return a sink of the kind that the catalog makes it: the two have other protocols."""
        catalog = args[1] if len(args) > 1 else options.get("catalog")
        if catalog not in (None, POSITIONS) or options.get("catalog_conn_id") is not None:
            return ElsewhereIcebergTable(*args, **options)
        return super().__new__(cls)
