"""All private names of pyiceberg that this package uses, with the reasons.

`tests/sinks/iceberg/test_private.py` fails where pyiceberg changes one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyiceberg.avro.file
import pyiceberg.manifest
import pyiceberg.serializers
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.catalog import (
    Catalog,
    CatalogType,
    MetastoreCatalog,
    infer_catalog_type,
    load_catalog,
)
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.rest.auth import AUTH_MANAGER
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    _get_column_projection_values,
    _read_all_delete_files,
    pyarrow_to_schema,
)
from pyiceberg.schema import Schema, prune_columns, visit_with_partner
from pyiceberg.table import FileScanTask, StagedTable, Table, Transaction
from pyiceberg.table.update import TableRequirement
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.types import ListType, MapType
from pyiceberg.utils.config import Config
from requests import Session

from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.iceberg.answers import bind_requests
from airflow_kafka_offsets.sinks.iceberg.checked_metadata import (
    CheckedBzip2,
    CheckedDecoder,
    CheckedDeflate,
    CheckedGzip,
    CheckedZstandard,
)
from airflow_kafka_offsets.sinks.iceberg.places import check_places, is_whole, may_be_local
from airflow_kafka_offsets.sinks.lake.newest import positions
from airflow_kafka_offsets.sinks.lake.snapshot import refuse_julian, rows_at_once
from airflow_kafka_offsets.sinks.lake.storage import is_part_of_host, warn_of_plain_http

# They are used by these names alone.
pyiceberg.serializers.GzipCompressor = CheckedGzip  # type: ignore[misc]
pyiceberg.avro.file.new_decoder = CheckedDecoder  # type: ignore[assignment,attr-defined]
# What one table says of a manifest would be taken for what another says, in the same process.
pyiceberg.manifest._manifest_cache._cache = None
KNOWN_CODECS |= {"deflate": CheckedDeflate, "bzip2": CheckedBzip2, "zstandard": CheckedZstandard}

STORAGE = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.", "py-io-impl")
"""What the names of a catalog's properties begin with that concern files."""


# What the server of a REST catalog may say of itself, and of a table: credentials that it lends, and where to use them.
# Where the worker's own identity is a token, as at Google and Azure, no server says to which host it is sent.
_OF_SERVER = frozenset(
    """
    prefix warehouse uri namespace-separator view-endpoints-supported token
    s3.endpoint s3.region s3.resolve-region s3.force-virtual-addressing s3.anonymous s3.access-key-id
    s3.secret-access-key s3.session-token s3.signer s3.signer.uri s3.signer.endpoint s3.server-side-encryption
    s3.sse-kms-key-id client.region client.access-key-id client.secret-access-key client.session-token
    gcs.oauth2.token gcs.oauth2.token-expires-at gcs.project-id gcs.requester-pays
    """.split()  # noqa: SIM905
)
_ACCOUNT = "adls.account-name"
_OF_AZURE_ACCOUNT = re.compile(r"adls\.(account-key|sas-token(\..+)?|token)")
_AZURE_PLACES = ("adls.account-host", "adls.blob-storage-", "adls.dfs-storage-")
_AZURE_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
# Accounts have letters and digits.
_NO_ACCOUNT = "adls.account-name-is-not-set"


def _with_lent(given: Properties, said: Properties) -> Properties:
    """Return properties with those that the server of a REST catalog may add.

    It names an account of Azure only together with a credential for it, beside which none of the given ones stays.
    """
    texts = {
        name: value for name, value in said.items() if isinstance(value, str) and value and is_part_of_host(name, value)
    }
    lent = {name: value for name, value in texts.items() if name in _OF_SERVER}
    if of_account := {name: value for name, value in texts.items() if _OF_AZURE_ACCOUNT.fullmatch(name)}:
        lent |= of_account | {name: value for name, value in texts.items() if name == _ACCOUNT}
        kept = (_ACCOUNT, *_AZURE_PLACES)
        given = {name: value for name, value in given.items() if not name.startswith("adls.") or name.startswith(kept)}
    warn_of_plain_http("The server of a REST catalog", lent)
    return given | lent


def with_account(properties: Mapping[str, Any]) -> Properties:
    """Return properties that name an account of Azure, if need be one that cannot exist.

    Otherwise pyiceberg takes the account of each URL, and those in the metadata of a table are of all who may write it.
    """
    names = (_ACCOUNT, "adls.sas-token.", "adls.connection-string")
    is_named = any(name.startswith(names) for name in properties)
    return dict(properties) if is_named else {**properties, _ACCOUNT: _NO_ACCOUNT}


def _refuse_unnamed_account(properties: Properties, location: str | None) -> None:
    """Refuse to take an account of Azure from the location of a table, which other writers of the table set.

    :param properties: those of `with_account`
    :raises ConfigurationError: none was named
    """
    if urlparse(location or "").scheme in _AZURE_SCHEMES and properties.get(_ACCOUNT) == _NO_ACCOUNT:
        raise ConfigurationError(
            f"No property names the account of {location!r}. The worker's own login would be sent to any account that "
            f"a writer of the table names: set {_ACCOUNT}, in the extra of the connection or of its catalog"
        )


class _RestCatalog(RestCatalog):
    """A REST catalog whose server says no more of its client than `_with_lent` takes, such as how and with which code
    it logs in, and takes no more of it than `bind_requests` allows. The properties of a table say nothing.
    """

    def _config_headers(self, session: Session) -> None:
        # The first step of a new session, which then asks for a token.
        super()._config_headers(session)
        bind_requests(session)

    def _fetch_config(self) -> None:
        given = self.properties
        super()._fetch_config()
        said = {name: value for name, value in self.properties.items() if given.get(name) != value}
        self.properties = _with_lent(given, said)

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        found = with_account(_with_lent(self.properties, properties))
        _refuse_unnamed_account(found, location)
        if self._auth_manager:
            found[AUTH_MANAGER] = self._auth_manager
        return load_file_io(found, location)

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        table = super()._response_to_table(identifier_tuple, _without_properties(table_response))
        table.metadata = table_response.metadata
        return table

    def _response_to_staged_table(
        self, identifier_tuple: tuple[str, ...], table_response: TableResponse
    ) -> StagedTable:
        table = super()._response_to_staged_table(identifier_tuple, _without_properties(table_response))
        table.metadata = table_response.metadata
        return table


def _without_properties(response: TableResponse) -> TableResponse:
    metadata = response.metadata.model_copy(update={"properties": {}})
    return response.model_copy(update={"metadata": metadata})


def load_known_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Return a catalog as `load_catalog` does. Neither its server nor the properties of a table name code to import,
    nor where and as whom files are read; the server of a REST catalog may lend credentials.

    pyiceberg makes the client of a table's files of all these properties.
    """
    found: Any = {**(Config().get_catalog_config(name) or {}), **properties}
    kind = found.get("type") or infer_catalog_type(name, found)
    if kind is CatalogType.REST or str(kind).lower() == CatalogType.REST.value:
        return _RestCatalog(name, **found)
    catalog = load_catalog(name, **properties)
    keep_to_given(catalog)
    return catalog


def keep_to_given(catalog: Catalog) -> None:
    """Let the properties of a table not say how its files are read, nor its URLs whose they are; see
    `load_known_catalog`.
    """
    catalog.properties = with_account(catalog.properties)
    load_file_io = catalog._load_file_io

    def load_known(properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        _refuse_unnamed_account(catalog.properties, location)
        return load_file_io(EMPTY_DICT, location)

    catalog._load_file_io = load_known  # type: ignore[method-assign]
    if isinstance(catalog, MetastoreCatalog):
        stage = catalog._update_and_stage_table

        def stage_known(table: Table | None, *arguments: Any) -> StagedTable:
            # The catalog has loaded the table again: another writer may have changed its properties meanwhile.
            if table is not None:
                is_local = may_be_local(catalog.properties)
                check_places(f"Iceberg table {'.'.join(table.name())!r}", table, may_be_local=is_local)
            return stage(table, *arguments)

        catalog._update_and_stage_table = stage_known  # type: ignore[assignment,method-assign]
    if isinstance(catalog, SqlCatalog):
        convert = catalog._convert_orm_to_iceberg

        def convert_known(row: IcebergTables) -> Table:
            # pyiceberg would read the metadata first.
            _refuse_unnamed_account(catalog.properties, row.metadata_location)
            return convert(row)

        catalog._convert_orm_to_iceberg = convert_known  # type: ignore[method-assign,assignment]


def commit_once(table: Table, transaction: Transaction, requirements: Sequence[TableRequirement]) -> None:
    """Commit a transaction that goes on from a table, with requirements of the caller besides its own.

    The public `Transaction.commit_transaction` takes no further requirements. It also retries a commit after a
    conflict, without the checks before it, so that a batch could be appended twice. Where a property of the table
    wants it, a commit deletes earlier metadata, which may be any files by the metadata: only those beside the present
    metadata are left in it, and none where a server says where that is, and deletes the earlier ones itself.
    """
    is_known = isinstance(table.catalog, MetastoreCatalog)
    earlier = [
        entry
        for entry in table.metadata.metadata_log
        if is_known and _is_earlier(entry.metadata_file, table.metadata_location)
    ]
    table.metadata = table.metadata.model_copy(update={"metadata_log": earlier})
    own = transaction._requirements
    others = [each for each in requirements if type(each) not in set(map(type, own))]
    table._do_commit(transaction._updates, (*own, *others))


def _is_earlier(path: str, present: str) -> bool:
    """Return whether a path is that of metadata beside the present one."""
    place, _, name = path.rpartition("/")
    is_plain = is_whole(path) and name.endswith((".metadata.json", ".metadata.json.gz"))
    return is_plain and place == present.rpartition("/")[0]


def find_by_predicate(update: _OverwriteFiles, predicate: BooleanExpression) -> None:
    """Have an update find the manifests of the files that it deletes by a predicate alone.

    The public `delete_by_predicate` leaves it to also look for the partitions of these files, and there is no such
    expression for NaN.
    """
    update.delete_by_predicate(predicate)
    update._build_delete_files_partition_predicate = lambda: None  # type: ignore[method-assign]


# For a file of rows; they take forty bytes each, and a few KB may have millions.
_MOST_DELETED = 10_000_000

# As in `lake.snapshot.open_parquet`.
_PARQUET = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"), pre_buffer=True)


class _Projection(ArrowProjectionVisitor):
    """Rows of a file in the columns of a table. The superclass makes empty ones of lists and maps of structs that are
    null.
    """

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        return _with_nulls(super().list(list_type, list_array, value_array), list_array)

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)


def _with_nulls(projected: pa.Array | None, stored: pa.Array | None) -> pa.Array | None:
    if projected is None or stored is None or projected.null_count == stored.null_count:
        return projected
    return pc.if_else(stored.is_valid(), projected, pa.scalar(None, projected.type))


def read_file(table: Table, schema: Schema, file: FileScanTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in their order, without those that other engines marked as deleted.

    The public `ArrowScan` reads lists and maps that are null as empty ones, and holds all rows of a file in memory.
    """
    data, seen = file.file, 0
    _check_deletes(table.io, file)
    deletes = _read_all_delete_files(table.io, [file]).get(data.file_path, [])
    deleted = pa.chunked_array([chunk for each in deletes for chunk in each.chunks], pa.int64())
    with table.io.new_input(data.file_path).open() as stream:
        fragment = _PARQUET.make_fragment(stream)
        stored = pyarrow_to_schema(fragment.physical_schema, table.name_mapping(), downcast_ns_timestamp_to_us=True)
        partition = _get_column_projection_values(
            data, schema, table.schema(), table.specs().get(data.spec_id), stored.field_ids
        )
        nested = (MapType, ListType)
        ids = {field_id for field_id in schema.field_ids if not isinstance(schema.find_type(field_id), nested)}
        stored = prune_columns(stored, ids, select_full_types=False)
        projection = _Projection(stored, True, projected_missing_fields=partition, allow_timestamp_tz_mismatch=True)
        names = [field.name for field in stored.fields]
        for rows in _stored_rows(fragment, names):
            refuse_julian(rows)
            staying = rows.filter(pc.invert(pc.is_in(positions(seen, rows.num_rows), value_set=deleted)))
            seen += rows.num_rows
            if staying.num_rows:
                accessor = ArrowAccessor(stored)
                yield pa.RecordBatch.from_struct_array(visit_with_partner(schema, staying, projection, accessor))


def _check_deletes(io: FileIO, file: FileScanTask) -> None:
    """Check that the deleted positions for a file, which are held at once, fit into memory.

    :raises TargetError: they do not
    """
    count = 0
    for each in file.delete_files:
        with io.new_input(each.file_path).open() as stream:
            count += pq.read_metadata(stream).num_rows
        if count > _MOST_DELETED:
            raise TargetError(
                f"File {file.file.file_path} has {count:,} deleted positions up to {each.file_path}, and at most "
                f"{_MOST_DELETED:,} are read: have the engine that writes the table compact it"
            )


def _stored_rows(fragment: ds.ParquetFileFragment, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, of one row group after another: a scanner reads several of them ahead."""
    for part in fragment.split_by_row_group():
        (group,) = part.row_groups
        at_once = rows_at_once(group.num_rows, group.total_byte_size)
        scanner = ds.Scanner.from_fragment(part, schema=fragment.physical_schema, columns=names, batch_size=at_once)
        yield from scanner.to_batches()


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Return columns with Iceberg's types; their ids have no meaning.

    The public functions for it want field ids in the metadata of Arrow's fields.
    """
    return Catalog._convert_schema_if_needed(columns)
