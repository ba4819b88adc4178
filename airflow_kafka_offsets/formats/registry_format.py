"""The base of formats whose records have schemas: their columns, the subjects that the worker fetches from a schema
registry, and the schemas that tasks ask for. A DAG file imports this module.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args
from weakref import finalize

from airflow_kafka_offsets.core.libraries import require_library
from airflow_kafka_offsets.core.templates import Templated, with_values
from airflow_kafka_offsets.core.text import first_few, shortened
from airflow_kafka_offsets.exceptions import REGISTRY, ConfigurationError, StagingError, TargetError, about
from airflow_kafka_offsets.formats.plain_ddl import check_literal
from airflow_kafka_offsets.formats.record_format import (
    ColumnsFrom,
    Connections,
    Decoder,
    OnNewField,
    RefusedSchemasError,
    SchemaError,
)
from airflow_kafka_offsets.formats.schema_limits import MOST_BYTES, Budget

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema, SchemaRegistry
    from airflow_kafka_offsets.formats.wire_format import SchemaDecoder

log = logging.getLogger(__name__)

# Of each subject; tasks ask for older ones where a record has one.
_VERSIONS = 50

# Of the versions of all subjects, of which each has its newest one in any case: parsed, they are many times as large.
_MOST_CHARACTERS = 5 * MOST_BYTES

# In a slice: whoever writes records can give each another id.
_MOST_REFUSED = 100

# Of the schemas that the records of a slice name, and that the worker does not know: they go into the history.
_MOST_READ_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RegistryFormat(Templated, ABC):
    """A format whose records have schemas. In Confluent's wire format, a record begins with the id of its schema in a
    registry.

    :param ddl: the columns as Spark DDL; None for those of the reader's schema (templated)
    :param registry_conn_id: an Airflow connection of type `generic` or `http`; None if records have no schema id
        (templated)
    :param subject: the subject whose schemas are fetched before Spark starts; None is the name of the topic with
        `-value` or `-key` (templated)
    :param columns_from: if no columns are declared, `schema` for all fields of the reader's schema, or `target` for
        those that the target has as columns
    :ivar on_new_field: what to do with fields without a column; the worker fills it in
    :ivar schemas: schemas by id, in a form that JSON can hold; the worker fills them in
    :ivar stored: those of the history, which are used only if the registry does not know an id: who may write the
        state tables, or staged files, may have written them
    :ivar latest: the id of the reader's schema, if it is the latest of the subject; the worker fills it in
    :ivar versions: the newest version of each subject that has one; the worker fills it in
    :ivar left_out: the fields of older schemas that cannot be columns, with reasons; the worker fills them in
    :ivar registry_host: of the registry; the worker fills it in
    """

    kind: ClassVar[str]
    """Its name in messages, and that of its extra."""
    schema_name: ClassVar[str]
    """The name of its schemas, for messages."""
    schema_type: ClassVar[str]
    """The type of its schemas in a registry: AVRO, PROTOBUF or JSON."""
    libraries: ClassVar[Mapping[str, str]]
    """The name of each library that the worker and the executors need, by the module that it brings."""
    worker_libraries: ClassVar[Mapping[str, str]] = {}
    """Those that only the worker needs."""

    ddl: str | None = None
    registry_conn_id: str | None = None
    subject: str | None = None
    columns_from: ColumnsFrom = field(default="schema", kw_only=True)
    on_new_field: OnNewField = field(default="ignore", repr=False, init=False)
    schemas: dict[str, Any] = field(default_factory=dict, repr=False, init=False)
    stored: dict[str, Any] = field(default_factory=dict, repr=False, init=False)
    latest: str | None = field(default=None, repr=False, init=False)
    versions: dict[str, int] = field(default_factory=dict, repr=False, init=False)
    left_out: dict[str, str] = field(default_factory=dict, repr=False, init=False)
    registry_host: str | None = field(default=None, repr=False, init=False)

    def __post_init__(self) -> None:
        self.check_parameters()
        if self.ddl is not None:
            check_literal(self.ddl, binary=self.schema_type != "JSON")

    @property
    def reads_headers(self) -> bool:
        return False

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections that the worker and the tasks need."""
        return (self.registry_conn_id,) if self.registry_conn_id is not None else ()

    @abstractmethod
    def fingerprint(self) -> str:
        """Return what decides how a record is decoded. Known schemas do not: in a registry, and within a context of it,
        an id always means the same one.
        """

    @property
    def id_space(self) -> tuple[str | None, str]:
        """The connection of the registry, and the context, in which the ids of schemas mean something."""
        from airflow_kafka_offsets.formats.schema_registry import context_of

        return self.registry_conn_id, context_of(self.subject or "")

    @property
    def stored_kind(self) -> str:
        """The kind, and a digest of the id space, by which the history knows what its ids meant: 20 characters."""
        digest = hashlib.sha256(json.dumps(self.id_space).encode()).hexdigest()
        return f"{self.kind}:{digest[:8]}"

    @abstractmethod
    def check_parameters(self) -> None:
        """Check that the records have schemas.

        :raises ConfigurationError: the parameters do not say which
        """

    def check_schema(self) -> None:
        """Check a schema among the parameters.

        :raises ConfigurationError: it cannot be used
        """

    @abstractmethod
    def plain_schemas(self, registered: Mapping[str, RegisteredSchema]) -> Mapping[str, Any]:
        """Return schemas in a form that JSON can hold; a `SchemaError` in the place of one that cannot be used."""

    @abstractmethod
    def schema_columns(self) -> pa.Schema | None:
        """Return the columns of the reader's schema; None where that is not known.

        :raises SchemaError: a field has no column
        """

    @abstractmethod
    def field_types(self) -> Mapping[str, Callable[[Budget], pa.DataType]]:
        """Return the fields of all known schemas, those of the reader's schema and of newer ones first. Each has a
        function that returns the type of its column, or raises a SchemaError. It takes from a budget in any case.
        """

    @abstractmethod
    def decoders(self, columns: pa.Schema) -> Callable[[bytes, Any], SchemaDecoder]:
        """Return a function from prefix and schema to the decoder of values; it may raise a SchemaError."""

    @property
    def takes_latest(self) -> bool:
        """Whether the reader's schema is the latest one of the subject."""
        return self.ddl is None

    @property
    def given_schema(self) -> Any:
        """The schema of all records where there is no registry, in a form that JSON can hold."""
        raise NotImplementedError

    @property
    def given_prefix_length(self) -> int:
        """The number of bytes before a value where there is no registry."""
        return 0

    def prefix_length(self, head: bytes) -> int:
        """Return the number of bytes before a value where there is a registry; see `PrefixedDecoder`."""
        from airflow_kafka_offsets.formats.wire_format import WIRE_PREFIX

        return WIRE_PREFIX

    def with_given_schema(self) -> Self:
        """Return the format with the schema that its parameters name, where there is no registry."""
        return self

    def latest_form(self) -> object:
        """Return the part of a schema that must be the same in the latest schemas of several subjects."""
        return self.columns()

    def slow_reason(self, schema: Any) -> str | None:
        """Return why values of a schema are decoded one by one; None where they are not."""
        return None

    def columns(self) -> pa.Schema:
        """Return the columns as an Arrow schema.

        :raises ConfigurationError: the DDL or the schema cannot be used, or nothing says what the columns are
        """
        from airflow_kafka_offsets.formats.columns import parse_ddl

        self._check()
        if self.ddl is not None:
            return parse_ddl(self.ddl, binary=self.schema_type != "JSON")
        try:
            columns = self.schema_columns()
        except SchemaError as error:
            has_id = self.latest is not None and self.registry_conn_id is not None
            number = f" {self.latest}" if has_id else ""
            raise ConfigurationError(
                f"The columns cannot be taken from the {self.schema_name}{number}: {error}"
            ) from error
        if columns is None:
            raise ConfigurationError(
                f"{type(self).__name__} without columns needs a schema, which load and replay read from the registry "
                "or the parameters"
            )
        return columns

    def _check(self) -> None:
        self.check_schema()
        has_ddl = self.ddl is not None
        if self.columns_from not in get_args(ColumnsFrom) or (self.columns_from == "target" and has_ddl):
            raise ConfigurationError(
                "A format has declared columns, or columns_from='schema' or 'target'; got "
                f"columns_from={self.columns_from!r}{' with declared columns' if has_ddl else ''}"
            )

    def prepared(self, topics: Sequence[str], part: str, connections: Connections) -> Self:
        """Return the format with all that columns and decoders need, as plain data. Called on the worker.

        :param topics: whose records will be decoded
        :param part: `key` or `value`
        :raises ConfigurationError: something is missing, a library or a schema for example
        :raises RegistryUnavailableError: the registry does not answer
        """
        self._check()
        self._require_libraries()
        if self.registry_conn_id is None:
            found = self.with_given_schema()
            known = {f"The {self.schema_name}": found.given_schema}
        else:
            subjects = [self.subject] if self.subject else [f"{topic}-{part}" for topic in topics]
            found = self._with_subjects(subjects, self.registry_conn_id, connections)
            known = {f"Schema {number}": schema for number, schema in found.schemas.items()}
        for what, schema in known.items():
            if reason := found.slow_reason(schema):
                log.info("%s is decoded record by record, which takes longer: %s", what, reason)
        return found

    def _require_libraries(self) -> None:
        what, extra = f"The format {type(self).__name__}", self.kind.replace("_", "-")
        for module, library in (*self.libraries.items(), *self.worker_libraries.items()):
            require_library(what, module, extra, library=library, executors=", ".join(self.libraries.values()))

    @about(REGISTRY)
    def _with_subjects(self, subjects: Sequence[str], conn_id: str, connections: Connections) -> Self:
        from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry

        if conn_id not in connections:
            raise ConfigurationError(
                f"The schema registry {conn_id!r} has no configuration: give load or replay connections={{{conn_id!r}: "
                f"{{'url': …}}}}"
            )
        registered: dict[str, RegisteredSchema] = {}
        latest: dict[str, str] = {}
        newest: dict[str, int] = {}
        with closing(SchemaRegistry(connections[conn_id])) as registry:
            host = registry.host
            for subject in subjects:
                try:
                    versions = registry.versions(subject)[-_VERSIONS:]
                except NotFoundError:
                    versions = []
                newest |= {subject: versions[-1]} if versions else {}
                left = _MOST_CHARACTERS // len(subjects)
                found: dict[str, RegisteredSchema] = {}
                for version in reversed(versions):
                    try:
                        number, schema = registry.version(subject, version)
                    except (SchemaError, NotFoundError) as error:
                        is_needed = self.takes_latest and version == versions[-1]
                        self._leave_out(f"Version {version} of subject {subject!r}", error, is_needed)
                        continue
                    if schema.type == self.schema_type:
                        left -= schema.bytes
                        if found and left < 0:
                            break
                        found[str(number)] = schema
                        latest.setdefault(subject, str(number))
                registered |= reversed(found.items())
        needed = latest.values() if self.takes_latest else ()
        with_schemas = with_values(
            self, schemas=self.usable_schemas(registered, needed), versions=newest, registry_host=host
        )
        return with_schemas._with_latest(subjects, latest, host) if self.takes_latest else with_schemas

    def _leave_out(self, what: str, error: Exception, is_needed: bool) -> None:
        """Log that a schema is left out, so that records with it are bad.

        :raises ConfigurationError: it is needed
        """
        reason = f"{what} is not a usable {self.schema_name}: {error}"
        if is_needed:
            raise ConfigurationError(reason) from error
        log.warning("%s. Records with it are bad", reason)

    def _with_latest(self, subjects: Sequence[str], latest: Mapping[str, str], host: str) -> Self:
        """Return the format with the schema from which the columns of all subjects are taken.

        :ivar latest: the id of the latest schema of each subject; a subject without a schema of the type is left out
        """
        if missing := [subject for subject in subjects if subject not in latest]:
            raise ConfigurationError(
                f"The schema registry at {host} has no {self.schema_name} of subject {missing[0]!r}, which defines "
                "the columns: declare the columns, or name another subject"
            )
        found = {number: with_values(self, latest=number) for number in latest.values()}
        first, *others = [each.latest_form() for each in found.values()]
        if any(other != first for other in others):
            raise ConfigurationError(
                f"The latest schemas of {', '.join(latest)} differ: declare the columns, or name one subject, whose "
                "columns all topics get"
            )
        return found[latest[subjects[0]]]

    def usable_schemas(self, registered: Mapping[str, RegisteredSchema], needed: Collection[str]) -> dict[str, Any]:
        """Return schemas in a form that JSON can hold, without those that cannot be used.

        :param needed: the ids of those without which no record can be decoded
        :raises ConfigurationError: one of these cannot be used
        """
        found = dict(self.plain_schemas(registered))
        for number, schema in list(found.items()):
            if isinstance(schema, SchemaError):
                self._leave_out(f"Schema {number}" if number.isdecimal() else "The text", schema, number in needed)
                del found[number]
        return found

    def with_fields(
        self,
        on_new_field: OnNewField,
        target: str,
        target_columns: Callable[[], Sequence[str] | None],
        others: Collection[str] = (),
        added_check: Callable[[], Callable[[pa.Field], None]] | None = None,
    ) -> Self:
        """Return the format with the columns that its schemas, the target and the user's choice give it: a declared one
        as it was declared, another as the newest schema with its field has it. Fields of older schemas that cannot be
        columns are left out, and records with these schemas are bad.

        :param on_new_field: where it is not `ignore`, the decoder raises `new_field_error` for records with other
            fields
        :param target: its name, for messages
        :param target_columns: returns the names of its columns, or None if it does not exist
        :param others: the names of columns that are not of this format
        :param added_check: returns what raises a TargetError or a ConfigurationError for a column that the target
            cannot have; None where a transform decides its columns
        :raises ConfigurationError: the target, which is to decide the columns, does not exist, has none of the fields,
            or has a column whose name is that of a field but for the case; or a field of the newest schema cannot be a
            column
        """
        import pyarrow as pa

        from airflow_kafka_offsets.formats.columns import count_types, paths_of

        types = self.field_types()
        newest = with_values(self, schemas={number: self.schemas[number] for number in self._newest}).field_types()
        if self.columns_from == "target":
            given, names = pa.schema([]), _names_of_target(target, target_columns(), types, newest)
        else:
            given = self.columns()
            names = given.names
        if on_new_field == "add":
            names = list(dict.fromkeys([*names, *types]))
        columns, budget, left_out = [], Budget(), {}
        # For the work, also where it leads to no column: many fields may lead to the same type.
        work = {True: Budget(), False: Budget()}
        # A list that Arrow makes anew each time it is asked for.
        own = set(given.names)
        taken = {name.lower() for name in (*own, *others)}
        paths = set[str]()
        older_check = cache(lambda: _check_of_older_fields(taken, paths, target_columns, added_check))
        for name in names:
            if name in own:
                columns.append(given.field(name))
                paths.update(paths_of(columns[-1]))
                continue
            try:
                column = pa.field(name, types[name](work[name in newest]))
                budget.take(0, count_types(column.type))
                if name not in newest:
                    older_check()(column)
            except (SchemaError, ConfigurationError, TargetError) as error:
                if name in newest:
                    raise ConfigurationError(
                        f"A field of the schemas cannot become a column: {error}, or leave it out with "
                        "on_new_field='ignore'"
                    ) from error
                left_out[name] = str(error).rstrip(".")
            else:
                columns.append(column)
                taken.add(name.lower())
                paths.update(paths_of(column))
        changes = {"columns_from": "schema", "on_new_field": on_new_field}
        return with_values(self, **changes)._with_columns(pa.schema(columns), left_out)

    def without(self, left_out: Mapping[str, str]) -> Self:
        """Return the format without fields of older schemas: records with these are bad.

        :param left_out: the fields, with reasons
        """
        import pyarrow as pa

        if not left_out:
            return self
        return self._with_columns(pa.schema([each for each in self.columns() if each.name not in left_out]), left_out)

    def _with_columns(self, columns: pa.Schema, left_out: Mapping[str, str]) -> Self:
        from airflow_kafka_offsets.formats.columns import spark_ddl

        if left_out:
            log.warning(
                "Fields of older schemas cannot become columns: %s. Records with these schemas are bad",
                first_few((f"{name!r} ({reason})" for name, reason in left_out.items()), most=3),
            )
        return with_values(self, ddl=spark_ddl(columns), left_out={**self.left_out, **left_out})

    @property
    def _newest(self) -> set[str]:
        """The ids of the schema that was registered last, and of the reader's schema."""
        return {*list(self.schemas)[-1:], *([] if self.latest is None else [self.latest])}

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder that knows the schemas that were fetched, and asks for no other."""
        return self.connected_decoder(columns, {})

    def connected_decoder(self, columns: pa.Schema, connections: Connections) -> Decoder:
        """Return a decoder, which asks the registry for schemas that are not known."""
        from airflow_kafka_offsets.formats.wire_format import PrefixedDecoder

        decoder_of = self.decoders(columns)
        if self.registry_conn_id is None:
            return PrefixedDecoder(
                columns,
                lambda prefix: decoder_of(prefix, self.given_schema),
                lambda _: self.given_prefix_length,
                has_ids=False,
                on_new_field=self.on_new_field,
            )
        schemas = TaskSchemas(self, connections.get(self.registry_conn_id))
        return PrefixedDecoder(
            columns,
            lambda prefix: decoder_of(prefix, schemas(prefix)),
            self.prefix_length,
            on_new_field=self.on_new_field,
            left_out=self.left_out,
            schemas_read=schemas.read,
            is_new=schemas.is_new,
        )


def _check_of_older_fields(
    taken: Collection[str],
    paths: Collection[str],
    target_columns: Callable[[], Sequence[str] | None],
    added_check: Callable[[], Callable[[pa.Field], None]] | None,
) -> Callable[[pa.Field], None]:
    """Return what raises for a field of an older schema that cannot be a column; see `RegistryFormat.with_fields`.

    :param taken: the names of other columns, in lower case
    :param paths: of their fields
    """
    from airflow_kafka_offsets.formats.columns import check_new_column

    spellings: dict[str, set[str]] = {}
    for name in (target_columns() or ()) if added_check is not None else ():
        spellings.setdefault(name.lower(), set()).add(name)
    check_added = None if added_check is None else added_check()

    def check(column: pa.Field) -> None:
        lower = column.name.lower()
        is_taken = lower in taken or bool(spellings.get(lower, set()) - {column.name})
        check_new_column(column, is_taken=is_taken, others=paths)
        if check_added is not None:
            check_added(column)

    return check


def _names_of_target(
    target: str, columns: Sequence[str] | None, known: Mapping[str, object], newest: Mapping[str, object]
) -> list[str]:
    """Return the columns of a target that are fields; see `RegistryFormat.with_fields`."""
    if columns is None:
        raise ConfigurationError(
            f"columns_from='target' takes the columns of {target!r}, which does not exist: create it, or declare the "
            "columns. Plain files are no target with columns"
        )
    by_lower = {name.lower(): name for name in newest}
    for name in columns:
        if name not in known and name.lower() in by_lower:
            raise ConfigurationError(
                f"Column {name!r} of {target!r} would stay null: its name and the name of field "
                f"{by_lower[name.lower()]!r} differ in case only. Rename the column, or the field by a transform"
            )
    names = [name for name in columns if name in known]
    if not names:
        raise ConfigurationError(
            f"columns_from='target' takes the columns of {target!r}, which has none of the fields: "
            f"{first_few(map(repr, known))}"
        )
    return names


class TaskSchemas:
    """Schemas by their ids in Confluent's wire format, as plain data.

    :param record_format: that knows those that the worker has fetched
    :param config: of the registry, which is asked for others; None to ask for none
    :ivar read: the schemas that were asked for, by id
    """

    def __init__(self, record_format: RegistryFormat, config: Mapping[str, Any] | None) -> None:
        self._format, self._config = record_format, config
        self._refused: dict[int, str] = {}
        self._new: dict[int, bool] = {}
        self._bytes = 0
        self.read: dict[int, Any] = {}

    def __call__(self, prefix: bytes) -> Any:
        """Return the schema of values with a prefix.

        :raises SchemaError: the prefix is that of no schema
        :raises RefusedSchemasError: so are those of too many other ids
        :raises RegistryUnavailableError: the registry does not answer, so that nothing is known of the record
        """
        from airflow_kafka_offsets.formats.wire_format import schema_id

        number = schema_id(prefix)
        if number not in self.read:
            self.read[number] = self._found(number)
        return self.read[number]

    def is_new(self, number: int) -> bool:
        """Return whether the next load fetches the schema with an id, which this one did not: it is a newer version of
        a subject. Any is, where the registry does not say its versions, or where no subject has one.

        :raises RegistryUnavailableError: the registry does not answer
        """
        from airflow_kafka_offsets.formats.schema_registry import without_context

        newest = self._format.versions
        if not newest or self._config is None:
            return True
        if number not in self._new:
            found = self._registry.versions_of(number)
            # Registries name a subject of a context with it, or not.
            known = {without_context(name): version for name, version in newest.items()}
            self._new[number] = found is None or any(
                version > known.get(without_context(name), version) for name, version in found
            )
        return self._new[number]

    def _found(self, number: int) -> Any:
        # Several prefixes may have the same id, and the answer of the registry is the same for all of them.
        if str(number) in self._format.schemas:
            return self._format.schemas[str(number)]
        if self._config is None:
            raise SchemaError("it is not among the schemas that are known")
        if number not in self._refused:
            if len(self._refused) == _MOST_REFUSED:
                raise RefusedSchemasError(
                    f"schema {number}: {_MOST_REFUSED} other schema ids in the slice are unusable, the last one "
                    f"because {list(self._refused.values())[-1]}. Either the registry was restored from a backup "
                    "without its newest schemas: register them again with their ids. Or a producer writes ids that "
                    "it made up: correct it, abandon the batch, and make the records dead letters in small batches, "
                    f"with Limits(max_records={_MOST_REFUSED})"
                )
            try:
                return self._fetch(number)
            except SchemaError as error:
                # Without its traceback, which would keep all that it has seen.
                self._refused[number] = str(error)
        raise SchemaError(self._refused[number])

    def _fetch(self, number: int) -> Any:
        from airflow_kafka_offsets.formats.schema_registry import ForbiddenError, NotFoundError

        try:
            found = self._registry.by_id(number)
        except ForbiddenError as error:
            # That of a subject that the load may not read, where it may read others.
            if not (self._format.versions or self._format.stored or self.read):
                raise
            raise SchemaError(shortened(str(error))) from None
        except NotFoundError:
            if str(number) in self._format.stored:
                return self._format.stored[str(number)]
            raise SchemaError(f"the schema registry at {self._registry.host} has none with this id") from None
        if found.type != self._format.schema_type:
            raise SchemaError(f"it is of the type {shortened(found.type, 40)!r}")
        try:
            plain = self._format.plain_schemas({str(number): found})[str(number)]
        except StagingError as error:
            # A later load has it from the worker, if any has.
            if self.is_new(number):
                raise
            raise SchemaError(shortened(str(error))) from None
        if isinstance(plain, SchemaError):
            raise plain
        self._bytes += found.bytes
        if self._bytes > _MOST_READ_BYTES:
            raise RefusedSchemasError(
                f"schema {number}: the schemas that the records of the slice name have more than "
                f"{_MOST_READ_BYTES >> 20} MiB together. Abandon the batch, and load in small batches, with "
                "Limits(max_records=100)"
            )
        return plain

    @cached_property
    def _registry(self) -> SchemaRegistry:
        from airflow_kafka_offsets.formats.schema_registry import SchemaRegistry, context_of

        registry = SchemaRegistry(self._config or {}, context_of(self._format.subject or ""))
        finalize(self, registry.close)
        return registry
