"""The statements of an upsert on MySQL and MariaDB.

`ON DUPLICATE KEY UPDATE` takes any unique index for the key, and does not tell rows that it inserts from rows that it
leaves. So rows are replaced by one statement and inserted by another.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from airflow_kafka_offsets.database.mysql import error_number
from airflow_kafka_offsets.sinks.sql.refused_rows import savepoint
from airflow_kafka_offsets.sinks.sql.upsert import Upsert

_PLACE = "_kafka_place"

_DUPLICATE = 1062


@dataclass(frozen=True, slots=True)
class MySqlUpsert(Upsert):
    """The statements of one upsert.

    Temporary tables are created and dropped without an implicit COMMIT. They last until the session ends, which may be
    in a pool.

    :param temporaries: the names of those that are there
    """

    temporaries: list[str] = field(default_factory=list)

    @property
    def place(self) -> sa.ColumnElement[Any]:
        return sa.literal_column(_PLACE)

    def temporary(self, query: sa.Select[Any]) -> sa.Table:
        names = [column.name for column in query.selected_columns]
        # Of an outer join, all columns may be null; they keep the types, character sets and collations of the target.
        nothing = sa.select(sa.literal_column("1")).subquery("_kafka_nothing")
        types = sa.select(*(self.table.columns[name] for name in names)).where(sa.false())
        compiled = types.select_from(nothing.outerjoin(self.table, sa.false())).compile(dialect=self.conn.dialect)
        table = _empty(f"_upsert_{token_hex(8)}", query)
        self.temporaries.append(table.name)
        # Of another engine, rows would stay where the transaction returns to a savepoint.
        self.conn.exec_driver_sql(
            f"CREATE TEMPORARY TABLE {table.name} ({_PLACE} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE = "
            f"InnoDB AS {compiled}"
        )
        self.conn.execute(table.insert().from_select(names, query))
        return table

    def drop(self, table: sa.Table) -> None:
        # Without TEMPORARY, the statement would commit.
        self.conn.exec_driver_sql(f"DROP TEMPORARY TABLE {table.name}")
        self.temporaries.remove(table.name)

    def clean_up(self) -> None:
        if self.temporaries and not self.conn.invalidated:
            # An error that is raised already is the one to raise; tables of a session that is lost are gone.
            with suppress(DBAPIError):
                self.conn.exec_driver_sql(f"DROP TEMPORARY TABLE IF EXISTS {', '.join(self.temporaries)}")
            self.temporaries.clear()

    def merge(self, newest: sa.Select[Any]) -> int:
        rows = self.temporary(newest)
        for is_last in (False, False, True):
            try:
                with savepoint(self.conn):
                    count = self._replace_and_insert(rows)
                break
            except IntegrityError as error:
                # Perhaps of a key that another transaction has inserted meanwhile: its row is there to be replaced now.
                if is_last or error_number(error.orig) != _DUPLICATE:
                    raise
        self.drop(rows)
        return count

    def _replace_and_insert(self, rows: sa.Table) -> int:
        """Write rows, those of known keys and those of new ones; fail where another transaction has just inserted one
        of the latter.
        """
        old, new = self.table.columns, rows.columns
        same = sa.and_(*(old[name] == new[name] for name in self.key))
        # Locked: a row that is to be replaced stays until it is.
        known = self.temporary(sa.select(*(new[name] for name in self.key)).join(self.table, same).with_for_update())
        replaced = self.table.update().values({old[name]: new[name] for name in self.written})
        count = self.conn.execute(replaced.where(same, self.is_not_older(old, new))).rowcount
        is_known = known.select().where(*(known.c[name] == new[name] for name in self.key)).exists()
        inserted = self.conn.execute(
            self.table.insert().from_select(self.names, sa.select(*self.of(rows)).where(~is_known)),
            execution_options={"preserve_rowcount": True},
        )
        self.drop(known)
        return int(count) + int(inserted.rowcount)


def _empty(name: str, query: sa.Select[Any]) -> sa.Table:
    return sa.Table(name, sa.MetaData(), *(sa.Column(column.name, column.type) for column in query.selected_columns))
