"""The schemas of formats with a registry: those of subjects, which the worker fetches, and those that tasks ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_kafka_offsets.formats.record_format import Connections
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
    from airflow_kafka_offsets.formats.wire_format import SchemaError

# Of each subject; tasks ask for older ones where a record has one.
_VERSIONS = 50

_NAMES = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON"}

T = TypeVar("T")


def require_libraries(record_format: str, extra: str, modules: Mapping[str, str], *, worker_only: str = "") -> None:
    """Check that what a format needs is installed.

    :param modules: the name of each library, by the module that it brings
    :param worker_only: a library that executors do not need
    :raises ConfigurationError: a library is missing
    """
    for module, library in modules.items():
        if not _is_installed(module):
            on_executors = [name for name in modules.values() if name != worker_only]
            raise ConfigurationError(
                f"The format {record_format} needs {library}: install the extra 'airflow-kafka-offsets[{extra}]' on "
                f"the worker, and {', '.join(on_executors)} where Spark's executors run"
            )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # That of the package that the module is in.
        return False


class SubjectSchemas(NamedTuple):
    """Schemas of subjects.

    :param host: that of the registry, for messages
    :param kind: of the schemas, as registries name it
    :param by_id: the schemas, by id
    :param latest: the id of the latest version, by subject; a subject without a schema of the kind is left out
    """

    host: str
    kind: str
    by_id: dict[str, RegisteredSchema]
    latest: dict[str, str]

    def common(self, subjects: Sequence[str], read: Callable[[str, RegisteredSchema], object]) -> str:
        """Return the id of the schema from which the columns of all subjects are taken.

        :param read: returns what has to be equal of the latest schemas
        :raises ConfigurationError: a subject has no schema, or they differ
        """
        if missing := [subject for subject in subjects if subject not in self.latest]:
            raise ConfigurationError(
                f"The schema registry at {self.host} has no {_NAMES[self.kind]} schema of subject {missing[0]!r}, from "
                "which the columns would be taken: declare the columns, or name another subject"
            )
        first, *others = [read(number, self.by_id[number]) for number in self.latest.values()]
        if any(other != first for other in others):
            raise ConfigurationError(
                f"The latest schemas of {', '.join(self.latest)} differ: declare the columns, or name one subject, of "
                "which all topics have the columns then"
            )
        return self.latest[subjects[0]]


def subjects_of(subject: str | None, topics: Sequence[str], part: str) -> list[str]:
    """Return the subjects of topics: those of their names, or the only one that a user names."""
    return [subject] if subject else [f"{topic}-{part}" for topic in topics]


def fetch_subjects(conn_id: str, connections: Connections, subjects: Sequence[str], kind: str) -> SubjectSchemas:
    """Return the schemas of subjects.

    :param kind: of the schemas: AVRO, PROTOBUF or JSON
    :raises ConfigurationError: the connection has no configuration
    :raises RegistryUnavailableError: the registry does not answer
    """
    from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry

    if conn_id not in connections:
        raise ConfigurationError(
            f"The schema registry {conn_id!r} has no configuration: give load or replay connections={{{conn_id!r}: "
            f"{{'url': …}}}}"
        )
    schemas: dict[str, RegisteredSchema] = {}
    latest: dict[str, str] = {}
    with closing(SchemaRegistry(connections[conn_id])) as registry:
        for subject in subjects:
            try:
                versions = registry.versions(subject)[-_VERSIONS:]
            except NotFoundError:
                versions = []
            for version in versions:
                number, registered = registry.version(subject, version)
                if registered.type == kind:
                    schemas[str(number)] = registered
                    latest[subject] = str(number)
        return SubjectSchemas(registry.host, kind, schemas, latest)


class TaskSchemas(Generic[T]):
    """Schemas by their ids in Confluent's wire format.

    :param known: those that the worker has fetched, as plain data
    :param config: of the registry, which is asked for others; None to ask for none
    :param kind: of the schemas
    :param plain: returns the plain data of a schema, by its id; raises a SchemaError if it has none
    :ivar read: the plain data of the schemas that were asked for, by id
    """

    def __init__(
        self,
        known: Mapping[str, T],
        config: Mapping[str, Any] | None,
        kind: str,
        plain: Callable[[int, RegisteredSchema], T],
    ) -> None:
        self._known, self._config, self._kind, self._plain = known, config, kind, plain
        self._asked: dict[int, T | SchemaError] = {}
        self.read: dict[int, T] = {}

    def __call__(self, prefix: bytes) -> T:
        """Return the plain data of the schema of values with a prefix.

        :raises SchemaError: the prefix is that of no schema
        :raises RegistryUnavailableError: the registry does not answer, so that nothing is known of the record
        """
        from airflow_kafka_offsets.formats.wire_format import schema_id

        number = schema_id(prefix)
        self.read[number] = found = self._known[str(number)] if str(number) in self._known else self._fetched(number)
        return found

    def _fetched(self, number: int) -> T:
        from airflow_kafka_offsets.formats.wire_format import SchemaError

        if self._config is None:
            raise SchemaError("it is not among the schemas that are known")
        if number not in self._asked:
            # Several prefixes may have the same id, and the answer of the registry is the same for all of them.
            try:
                self._asked[number] = self._fetch(number, self._config)
            except SchemaError as error:
                self._asked[number] = error
        found = self._asked[number]
        if isinstance(found, SchemaError):
            raise found
        return found

    def _fetch(self, number: int, config: Mapping[str, Any]) -> T:
        from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry
        from airflow_kafka_offsets.formats.wire_format import SchemaError

        with closing(SchemaRegistry(config)) as registry:
            try:
                found = registry.by_id(number)
            except NotFoundError:
                raise SchemaError(f"the schema registry at {registry.host} has none with this id") from None
        if found.type != self._kind:
            raise SchemaError(f"it is of the type {found.type}")
        return self._plain(number, found)
