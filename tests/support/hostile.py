"""What somebody writes into records and state tables who wants to do harm where they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.tables import Tables, UtcDateTime

HOSTILE = "\x1b]52;c;cm0gLXJm\x07\x9b2J\u202e\u2066\u2028\x85\r\n\ud800\0<script>alert(1)</script>{{ 7 * 7 }}%s\x7f"
"""A text that sets the clipboard of a terminal, turns the direction of text, ends lines and is no Unicode."""

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def controls(text: str) -> set[str]:
    """What a text has that is no visible character."""
    return set(_CONTROLS.findall(text))


def hostile_texts(max_size: int = 60) -> st.SearchStrategy[str]:
    """Texts of which most hold something that does harm."""
    pieces = ["\x1b[31m", "\x1b]0;t\x07", "\x9b2J", "\u202e", "\u2067", "\u2028", "\x85", "\r", "\n", "\0", "\ud800",
              "\x7f", "'", '"', "`", ";--", "%", "%s", "{", "{{ 1 }}", "<script>", "</pre>", "&", "\\", "/../", "NaN",
              "1e5", "-1", "[" * 30, '{"a": "\\ud800"}', "null", "[1]", "\U0001f600", "e\u0301", " "]  # fmt: skip
    joined = st.lists(st.sampled_from(pieces) | st.text(max_size=4), min_size=1, max_size=6).map("".join)
    return joined.map(lambda text: text[:max_size])


_INTEGERS = (-(2**31), -1001, -1, 0, 1, 2**31 - 1)
_LARGE = (*_INTEGERS, -(2**63), -(2**31) - 1, 2**31, 2**63 - 1)
_JSON = ('{"a": [[1]]}', "[[1, 2], [3]]", '[["h", "\\ud800"]]', '[["h", "AA=="]]', '{"t": {}}', "[" * 100_000, "1e999")
_OF_GROUP = ("group_id", "consumer_group", "batch_id")

INSTANTS = {
    "postgresql": ("infinity", "-infinity", "0044-03-15 00:00+00 BC", "10000-01-01 00:00+00", "0001-01-01 00:00+14"),
    "mysql": ("0000-00-00 00:00:00", "9999-12-31 23:59:59.999999", "0000-01-01 00:00:00"),
}
"""Instants that databases have, and Python has not."""


class HostileRows:
    """The rows of a group in all state tables, which another program changes.

    :param engine: their database
    :param group_id: the group
    """

    def __init__(self, engine: Engine, group_id: str) -> None:
        self._engine = engine
        tables = Tables.of()
        self._where: dict[sa.Table, sa.ColumnElement[bool]] = {}
        with engine.begin() as conn:
            batches = tables.offset_batches.c
            ids = conn.scalars(sa.select(batches.batch_id).where(batches.consumer_group == group_id)).all()
            place = {"batch_id": ids[0], "topic": "t", "partition": 0}
            conn.execute(
                tables.offset_gaps.insert().values(**place, start_offset=1, end_offset=2, cause="c", decision="d")
            )
            conn.execute(
                tables.replaced_output.insert().values(**place, replaced_batch_id=1, row_count=1, dead_letters=1)
            )
            erased = {"topic": "t", "partition": 0, "offset_value": 0, "topic_id": "", "decision": "d"}
            conn.execute(tables.erased_offsets.insert().values(consumer_group=group_id, **erased))
            conn.execute(tables.schema_texts.insert().values(digest="0", type="avro", texts="[]"))
            conn.execute(tables.batch_schemas.insert().values(batch_id=ids[0], part="value", schema_id=1, digest="0"))
            for table in tables.metadata.sorted_tables:
                if (name := next((name for name in _OF_GROUP if name in table.columns), None)) is not None:
                    column = table.columns[name]
                    self._where[table] = column.in_(ids) if name == "batch_id" else column == group_id
            self._where[tables.offset_batches] = batches.batch_id.in_(ids)
            self._where[tables.schema_texts] = tables.schema_texts.c.digest == "0"
            self._rows = {table: conn.execute(table.select().where(own)).all() for table, own in self._where.items()}
        assert all(self._rows.values())

    def changes(self) -> st.SearchStrategy[dict[sa.Column[Any], Any]]:
        """Values of some columns, of all but those that say which group a row is of."""
        columns = [
            column for table in self._rows for column in table.columns if column.name not in (*_OF_GROUP, "digest")
        ]
        picked = st.lists(st.sampled_from(columns), min_size=1, max_size=8, unique=True)
        return picked.flatmap(lambda columns: st.fixed_dictionaries({each: self._values(each) for each in columns}))

    def _values(self, column: sa.Column[Any]) -> st.SearchStrategy[Any]:
        dialect = self._engine.dialect.name
        found: st.SearchStrategy[Any]
        match column.type:
            case UtcDateTime():
                kind = "timestamptz " if dialect == "postgresql" else ""
                found = st.sampled_from(INSTANTS[dialect]).map(lambda instant: sa.text(f"{kind}'{instant}'"))
            case sa.LargeBinary():
                found = st.binary() | hostile_texts().map(lambda text: text.encode(errors="surrogatepass"))
            case sa.Integer():
                found = st.sampled_from(_LARGE if isinstance(column.type, sa.BigInteger) else _INTEGERS)
            case _:
                length = getattr(column.type, "length", None) or 100_000
                texts = hostile_texts() | st.sampled_from(_JSON) | st.just("x" * 100_000)
                # As a text that this package does not write, and the database can hold.
                found = texts.map(
                    lambda text: sa.literal(text.replace("\0", "").encode(errors="ignore").decode()[:length], sa.Text)
                )
        return found | st.just(None)

    def write(self, values: Mapping[sa.Column[Any], Any]) -> None:
        """Write values into all rows of the group, but for those that the database refuses."""
        with self._engine.begin() as conn:
            if conn.dialect.name != "postgresql":
                conn.exec_driver_sql("SET SESSION sql_mode = ''")
            for column, value in values.items():
                table = column.table
                with suppress(sa.exc.DBAPIError), conn.begin_nested():
                    conn.execute(table.update().where(self._where[table]).values({column: value}))

    def restore(self) -> None:
        """Write what was there before."""
        with self._engine.begin() as conn:
            for table, rows in self._rows.items():
                conn.execute(table.delete().where(self._where[table]))
                conn.execute(table.insert(), [dict(row._mapping) for row in rows])
