"""Which columns of the rows go into which columns of a table, and what is missing where they do not."""

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.column_types import is_added, match, required

POSTGRES = postgresql.dialect()  # type: ignore[no-untyped-call]
SQLITE = sqlite.dialect()
UTC_MICROSECONDS = pa.timestamp("us", "UTC")


def table(*columns: sa.Column[object], schema: str | None = None) -> sa.Table:
    return sa.Table("orders", sa.MetaData(schema=schema), *columns)


def rows(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


class TestRequired:
    def test_a_column_that_nothing_fills_is_required(self) -> None:
        assert required(table(sa.Column("a", sa.Integer, nullable=False))) == ["a"]

    @pytest.mark.parametrize(
        "column",
        [
            sa.Column("a", sa.Integer),
            sa.Column("a", sa.Integer, nullable=False, server_default=sa.text("7")),
            sa.Column("a", sa.Integer, sa.Identity(), nullable=False),
            sa.Column("a", sa.Integer, sa.Computed("1 + 1"), nullable=False),
            sa.Column("a", sa.Integer, primary_key=True),
            sa.Column("_kafka_offset", sa.BigInteger, nullable=False),
            sa.Column("_batch_id", sa.BigInteger, nullable=False),
        ],
        ids=["nullable", "default", "identity", "computed", "serial", "kafka-offset", "batch-id"],
    )
    def test_a_column_that_the_database_or_this_package_fills_is_not(self, column: sa.Column[object]) -> None:
        assert required(table(column)) == []

    def test_a_key_that_is_not_numbered_by_the_database_is_required(self) -> None:
        keyed = table(
            sa.Column("a", sa.Integer, primary_key=True),
            sa.Column("b", sa.Text, primary_key=True),
            sa.Column("c", sa.Text),
        )
        assert required(keyed) == ["a", "b"]


def test_types_of_postgres_that_cut_texts_are_refused() -> None:
    for name in ("name", '"char"'):
        column = sa.Column("a", postgresql.base.ischema_names[name]())
        with pytest.raises(TargetError, match=r"column 'a' is of the type name or \"char\", which cut texts"):
            match(table(column), rows(a=pa.string()), POSTGRES)


class TestIsAdded:
    @pytest.mark.parametrize("name", [*row_columns(Json("a INT")).names[1:], "_batch_id"])
    def test_audit_columns_are_added_by_this_package(self, name: str) -> None:
        assert is_added(name)

    @pytest.mark.parametrize("name", ["a", "batch_id", "kafka_offset", "_batch"])
    def test_other_columns_are_not(self, name: str) -> None:
        assert not is_added(name)


class TestMatch:
    def test_columns_are_matched_by_name_and_not_by_place(self) -> None:
        target = table(sa.Column("b", sa.Text), sa.Column("a", sa.Integer))
        matched = match(target, rows(a=pa.int64(), b=pa.string()), POSTGRES)
        assert matched == pa.schema([("a", pa.int32()), ("b", pa.string())])

    def test_added_columns_are_written_where_the_table_has_them(self) -> None:
        target = table(
            sa.Column("a", sa.Integer), sa.Column("_kafka_offset", sa.BigInteger), sa.Column("_batch_id", sa.BigInteger)
        )
        matched = match(target, row_columns(Json("a INT")), POSTGRES)
        assert [column.name for column in matched] == ["a", "_kafka_offset", "_batch_id"]

    def test_a_nullable_column_that_the_rows_do_not_hold_is_left_to_the_database(self) -> None:
        target = table(sa.Column("a", sa.Integer), sa.Column("loaded_at", sa.DateTime))
        assert match(target, rows(a=pa.int32()), POSTGRES) == pa.schema([("a", pa.int32())])

    def test_a_column_that_the_table_lacks_is_refused_with_the_statement_that_adds_it(self) -> None:
        with pytest.raises(TargetError) as raised:
            match(
                table(sa.Column("a", sa.Integer), schema="shop"), rows(a=pa.int32(), b=pa.decimal128(10, 2)), POSTGRES
            )
        assert "Table 'shop.orders' does not fit the rows" in str(raised.value)
        assert "no column 'b' (ALTER TABLE shop.orders ADD COLUMN b NUMERIC(10, 2))" in str(raised.value)

    @pytest.mark.parametrize(
        ("arrow", "dialect", "added"),
        [
            (UTC_MICROSECONDS, POSTGRES, '"S%h".orders ADD COLUMN "b%c" TIMESTAMP WITH TIME ZONE'),
            (pa.binary(), POSTGRES, '"S%h".orders ADD COLUMN "b%c" BYTEA'),
            (pa.binary(), SQLITE, '"S%h".orders ADD COLUMN "b%c" BLOB'),
            (pa.timestamp("us"), mysql.dialect(), "`S%h`.orders ADD COLUMN `b%c` DATETIME(6)"),
        ],
        ids=["postgresql-instant", "postgresql-bytes", "sqlite-bytes", "mysql-time"],
    )
    def test_the_statement_that_adds_a_column_is_one_of_the_database(
        self, arrow: pa.DataType, dialect: Dialect, added: str
    ) -> None:
        with pytest.raises(TargetError) as raised:
            match(table(sa.Column("a", sa.Integer), schema="S%h"), rows(**{"b%c": arrow}), dialect)
        assert f"(ALTER TABLE {added})" in str(raised.value)

    def test_a_column_of_another_type_is_refused_with_both_types(self) -> None:
        with pytest.raises(TargetError, match="column 'a' is INTEGER, the rows hold STRING"):
            match(table(sa.Column("a", sa.Integer)), rows(a=pa.string()), POSTGRES)

    def test_a_column_that_the_table_needs_is_refused_by_name(self) -> None:
        target = table(sa.Column("a", sa.Integer), sa.Column("b", sa.Text, nullable=False))
        with pytest.raises(TargetError, match="it needs a value for 'b', which the rows do not hold"):
            match(target, rows(a=pa.int32()), POSTGRES)

    def test_every_fault_is_named_at_once(self) -> None:
        target = table(sa.Column("a", sa.Integer), sa.Column("d", sa.Text, nullable=False))
        with pytest.raises(TargetError) as raised:
            match(target, rows(a=pa.string(), b=pa.int32(), c=pa.string()), POSTGRES)
        for fault in ("column 'a' is INTEGER", "no column 'b'", "no column 'c'", "a value for 'd'"):
            assert fault in str(raised.value)

    def test_a_nested_column_that_the_table_lacks_is_refused_by_name(self) -> None:
        with pytest.raises(TargetError, match="'tags'"):
            match(table(sa.Column("a", sa.Integer)), rows(tags=pa.list_(pa.string())), POSTGRES)

    @pytest.mark.parametrize(
        "generated", [sa.Computed("a * 2"), sa.Identity(always=True)], ids=["computed", "identity"]
    )
    def test_a_column_that_the_database_always_generates_is_not_written(self, generated: sa.schema.SchemaItem) -> None:
        target = table(sa.Column("a", sa.Integer), sa.Column("b", sa.Integer, generated))
        with pytest.raises(TargetError, match="column 'b' is GENERATED ALWAYS"):
            match(target, rows(a=pa.int32(), b=pa.int32()), POSTGRES)
