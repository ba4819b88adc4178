"""All that this package uses of pyiceberg and is not public there, with the reason for each.

`tests/sinks/iceberg/test_private.py` fails where pyiceberg changes one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.update import TableRequirement


def commit_once(table: Table, transaction: Transaction, requirements: Sequence[TableRequirement]) -> None:
    """Commit a transaction that goes on from a table, with requirements of the caller besides its own.

    The public `Transaction.commit_transaction` takes no further requirements. It also repeats a commit that others
    overtook: past what was looked at before, so that a batch could be appended twice.
    """
    own = transaction._requirements
    others = [each for each in requirements if type(each) not in set(map(type, own))]
    table._do_commit(transaction._updates, (*own, *others))


def read_file(table: Table, schema: Schema, file: FileScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in their order, without those that other engines marked as deleted.

    The public `ArrowScan.to_record_batches` holds all rows of the files that it reads in memory.
    """
    deletes = _read_all_delete_files(table.io, [file])
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    yield from scan._record_batches_from_scan_tasks_and_deletes([file], deletes)


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Return columns with Iceberg's types; their ids have no meaning.

    The public functions for it want field ids in the metadata of Arrow's fields.
    """
    return Catalog._convert_schema_if_needed(columns)
