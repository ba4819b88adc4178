"""A SELECT over each batch of decoded records, in the pass that decodes them. datafusion runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.bisection import Run, is_panic, split_at_failures
from airflow_kafka_offsets.core.libraries import require_library
from airflow_kafka_offsets.core.templates import Templated, holds_template, with_values
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.transforms.transform import RECORDS, Transformed

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import BadRecord
    from airflow_kafka_offsets.transforms.transform import BatchFunction

_OPTIONS = {
    # Names are quoted where they are columns; what follows AS stays as it is written.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
    # Rows stay in order.
    "datafusion.execution.target_partitions": "1",
    # More than a batch has rows, if it is not one of large records. A filter reserves memory for so many values of each
    # column at once, however few there are.
    "datafusion.execution.batch_size": str(1 << 14),
    "datafusion.execution.time_zone": "+00:00",
}

_NODES = ("Projection", "Filter", "TableScan", "SubqueryAlias", "Unnest")

# The parts of datafusion's messages that hold no value of a record.
_SAFE = re.compile(
    r"Divide by zero|Arithmetic overflow(?: of a decimal)?|Cast error|Parser error|Compute error|Invalid argument error"
)
# The type that a value was to have: how a message ends, behind the value.
_INTO = re.compile(r"to (?:value of |type )([A-Z]\w*(?:\([^()]*\))?)(?: type)?$")


@dataclass(frozen=True)
class Sql(Templated):
    """A SELECT from `records`, which has the declared columns and the origin columns (`_kafka_topic`, …).

    It runs over each batch of records separately, so aggregates, DISTINCT, windows, ORDER BY, LIMIT, joins and
    subqueries are refused, and so are functions such as `random()` and `now()`. The origin columns are kept without
    being selected. Needs the extra `sql`.

    :param query: in the SQL of datafusion (templated)
    :ivar planned: the text that is run; added on the worker
    :ivar columns: what it returns; added on the worker
    :raises ConfigurationError: the text is refused; raised when the DAG is parsed, or of a template when it is rendered
    """

    kind: ClassVar[str] = "sql"
    template_fields: ClassVar[tuple[str, ...]] = ("query",)
    query: str
    planned: str = field(default="", repr=False, init=False)
    columns: pa.Schema | None = field(default=None, repr=False, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.query, str) or not self.query.strip():
            raise ConfigurationError(f"Sql needs the text of a SELECT from records; got {self.query!r}")
        if not holds_template(self.query):
            from airflow_kafka_offsets.transforms.sql_text import check

            check(self.query)

    @property
    def name(self) -> str:
        return self.query

    def fingerprint(self) -> str:
        return self.query

    def prepared(self, columns: pa.Schema) -> Sql:
        require_library("Sql", "datafusion", "sql", executors="datafusion")
        from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
        from airflow_kafka_offsets.transforms.columns import known_columns
        from airflow_kafka_offsets.transforms.sql_text import check, resolved, with_columns

        planned = resolved(self.query, check(self.query), columns.names)
        found = self._plan(planned, columns)
        dropped = [name for name in ORIGIN_COLUMNS.names if name not in found.names]
        if dropped:
            planned = with_columns(planned, dropped)
            found = self._plan(planned, columns)
        return with_values(self, planned=planned, columns=known_columns(found, self._what))

    def _plan(self, query: str, columns: pa.Schema) -> pa.Schema:
        """Return what a text selects, as datafusion plans it.

        :raises ConfigurationError: datafusion refuses it
        """
        import pyarrow as pa

        try:
            session = _session()
            session.register_record_batches(RECORDS, [[pa.RecordBatch.from_pylist([], schema=columns)]])
            frame = session.sql(query)
            nodes = list(_nodes(frame.logical_plan()))
            schema: pa.Schema = frame.schema()
        except Exception as error:
            # Of the text alone: there are no records.
            raise ConfigurationError(f"{self._what}: {shortened(' '.join(str(error).split()))}") from None
        if foreign := [node for node in nodes if not node.startswith(_NODES)]:
            raise ConfigurationError(
                f"{self._what} does something else than to select from one batch: {shortened(foreign[0])}"
            )
        return schema

    @property
    def _what(self) -> str:
        return f"Sql({shortened(self.query, 200)!r})"

    def result(self, columns: pa.Schema) -> pa.Schema | None:
        return self.columns

    def function(self, columns: pa.Schema) -> BatchFunction:
        assert self.columns is not None  # see `prepared`
        return _Function(self._what, self.planned, self.columns)


def _nodes(plan: Any) -> Iterator[str]:
    """Yield the nodes of a plan, each as datafusion describes it: its name comes first."""
    yield plan.display()
    for each in plan.inputs():
        yield from _nodes(each)


class _FailedError(Exception):
    """The text fails for a record."""


class _Function:
    """Runs the text over batches. If it raises, the batch is halved until the bad records are found."""

    def __init__(self, what: str, query: str, columns: pa.Schema) -> None:
        self._what, self._query, self._columns = what, query, columns
        self._session = _session()

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        from airflow_kafka_offsets.formats.record_format import BadRecord
        from airflow_kafka_offsets.transforms.columns import part_of

        good: list[pa.RecordBatch] = []
        bad: list[BadRecord] = []
        for part in split_at_failures(
            rows.num_rows, lambda first, end: self._run(part_of(rows, first, end)), _FailedError
        ):
            if isinstance(part, Run):
                good += part.result
            else:
                bad.append(BadRecord(part.position, f"{_reason(str(part.error))}, in {self._what}", "transform"))
        return Transformed(_joined(good, self._columns), bad)

    def _run(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return what rows become.

        :raises _FailedError: datafusion fails; has its message
        """
        from airflow_kafka_offsets.transforms.columns import cast, with_nulls

        try:
            # It also panics at a slice of structs.
            self._session.register_record_batches(RECORDS, [[with_nulls(rows)]])
            return [cast(part, self._columns) for part in self._session.sql(self._query).collect()]
        except (MemoryError, ImportError):
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise _FailedError(" ".join(str(error).split())) from None
        finally:
            self._session.deregister_table(RECORDS)


def _session() -> Any:
    from datafusion import SessionConfig, SessionContext

    return SessionContext(SessionConfig(_OPTIONS))


def _joined(parts: list[pa.RecordBatch], columns: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts, columns).combine_chunks()
    return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=columns)


def _reason(message: str) -> str:
    """Return the part of a datafusion message that holds no value of a record."""
    kind = _SAFE.search(message)
    into = _INTO.search(message)
    if kind is None:
        return "the record cannot be transformed"
    return f"{kind[0]}{f', to {into[1]}' if into else ''}"
