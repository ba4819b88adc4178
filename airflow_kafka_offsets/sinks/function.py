"""The sink that calls a user's function, which writes the rows over the connection of the transaction that moves the
positions.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.exceptions import ConfigurationError, FunctionError
from airflow_kafka_offsets.sinks.sink import Connections, DatabaseTable, Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.function_target import ConnectedFunction
    from airflow_kafka_offsets.sinks.sql.table import SqlTable


@dataclass(frozen=True, slots=True)
class FunctionSink(Sink):
    """Call a function that writes the rows: `write(conn, batches, batch)`. What it writes over `conn` is committed with
    the positions.

    * `conn` is the SQLAlchemy connection of the transaction, which the function neither commits, rolls back nor closes.
    * `batches` yields `pyarrow.RecordBatch`: the columns of the rows, the origin columns (`_kafka_topic`, …), and
      `_batch_id`.
    * `batch` has `batch_id`, `group_id` and `ranges`.
    * It returns the number of rows for the history, or None for the number of given rows; then it has to read all of
      them.
    * It may raise `RecordError(reason, topic, partition, offset)` for a record that it refuses, or an ExceptionGroup of
      several. With `on_bad_record=DeadLetters()` they become dead letters, and the function is called again without
      their rows.

    It runs on the Airflow worker, once for each attempt to commit: only what it does over `conn` happens exactly once.

    All parameters are templated.

    :param write: its import path, `package.module.function`
    :param conn_id: the Airflow connection of the database, which holds the positions too
    :param remove: import path of a function `remove(conn, ranges, span)`, which deletes the rows of offsets that are
        loaded again, and returns their number by `(batch_id, topic, partition)`. Without it, nothing can be replaced
    :param table: a table to which the function appends each row once, with the origin columns: `verify` proves its
        rows. None proves positions and history only
    :param schema: the schema of the table; None is the connection's default
    """

    template_fields: ClassVar[tuple[str, ...]] = ("write", "conn_id", "remove", "table", "schema")

    write: str
    conn_id: str | None = None
    remove: str | None = None
    table: str | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        optional = (self.remove, self.table, self.schema)
        if not isinstance(self.write, str) or not all(each is None or isinstance(each, str) for each in optional):
            raise ConfigurationError(
                "FunctionSink needs the import path of a function, 'package.module.function', and texts for remove, "
                f"table and schema; got {self.write!r}, remove={self.remove!r}, table={self.table!r} and "
                f"schema={self.schema!r}"
            )

    @property
    def name(self) -> str:
        """The name for messages and the history."""
        return f"function://{self.write}"

    @property
    def tables(self) -> tuple[DatabaseTable, ...]:
        return () if self.table is None else (DatabaseTable(self.table, self.schema),)

    def qualified(self, conn: Connection, batches: sa.Table) -> FunctionSink:
        """Return the sink with the schema of the table whose rows are proved."""
        proved = self.proved_table()
        found = None if proved is None else proved.qualified(conn, batches)
        return self if found is None else replace(self, table=found.table, schema=found.schema)

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedFunction:
        """Return the functions for a database."""
        from airflow_kafka_offsets.sinks.function_target import ConnectedFunction

        proved = self.proved_table()
        return ConnectedFunction(self, None if proved is None else proved.connect(engine))

    def uris(self, engine: Engine) -> list[str]:
        """Return the URI of `table`; other targets of the function are unknown."""
        proved = self.proved_table()
        return [] if proved is None else proved.uris(engine)

    def proved_table(self) -> SqlTable | None:
        """Return the table whose rows `verify` proves."""
        from airflow_kafka_offsets.sinks.sql.table import SqlTable

        return None if self.table is None else SqlTable(self.table, self.schema)

    def write_function(self) -> Callable[..., Any]:
        """Return the function that writes.

        :raises FunctionError: it does not exist, or does not take what it is given
        """
        return _imported("FunctionSink", self.write, "conn", "batches", "batch")

    def remove_function(self) -> Callable[..., Any]:
        """Return the function that removes.

        :raises ConfigurationError: there is none
        """
        if self.remove is None:
            raise ConfigurationError(
                f"Only function {self.write!r} knows what it wrote for the offsets to replace. Nothing was changed; "
                "give FunctionSink(…, remove='package.module.function') a function that removes it, or delete it "
                "yourself and rewind without replacing"
            )
        return _imported("FunctionSink: remove", self.remove, "conn", "ranges", "span")


def _imported(what: str, path: str, *parameters: str) -> Callable[..., Any]:
    """Import a function of the user, and check that it can be called with arguments for these parameters."""
    from airflow_kafka_offsets.transforms.code import import_function

    function = import_function(path, f"{what}({path!r})", FunctionError)
    try:
        signature = inspect.signature(function)
    except ValueError:  # one of C may have none
        return function
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise FunctionError(
            f"Function {path!r} is called with ({', '.join(parameters)}), and takes {signature}: {error}"
        ) from None
    return function
