"""Which Arrow column fits which database column, and what a created table gets."""

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.formats.row_columns import row_columns
from airflow_kafka_offsets.sinks.sql.column_types import created_table, is_added, match, required, wire_type

POSTGRES = postgresql.dialect()  # type: ignore[no-untyped-call]
SQLITE = sqlite.dialect()
UTC_MICROSECONDS = pa.timestamp("us", "UTC")


def table(*columns: sa.Column[object], schema: str | None = None) -> sa.Table:
    return sa.Table("orders", sa.MetaData(schema=schema), *columns)


def rows(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


class TestWireType:
    @pytest.mark.parametrize(
        ("arrow", "column", "wire"),
        [
            (pa.bool_(), sa.Boolean(), pa.bool_()),
            (pa.int64(), sa.SmallInteger(), pa.int16()),
            (pa.int8(), sa.Integer(), pa.int32()),
            (pa.int64(), sa.Integer(), pa.int32()),
            (pa.int32(), sa.BigInteger(), pa.int64()),
            (pa.int64(), mysql.TINYINT(), pa.int32()),
            (pa.float64(), sa.REAL(), pa.float32()),
            (pa.float32(), sa.Double(), pa.float64()),
            (pa.float32(), sa.Float(), pa.float64()),
            (pa.int64(), sa.Double(), pa.float64()),
            (pa.decimal128(10, 2), sa.Double(), pa.float64()),
            (pa.decimal128(10, 2), sa.Numeric(12, 4), pa.decimal128(38, 4)),
            (pa.decimal128(10, 2), sa.Numeric(), pa.decimal128(10, 2)),
            (pa.int64(), sa.Numeric(20, 0), pa.decimal128(38, 0)),
            (pa.int64(), sa.Numeric(), pa.decimal128(38, 0)),
            (pa.string(), sa.Text(), pa.string()),
            (pa.string(), sa.String(20), pa.string()),
            (pa.large_string(), sa.Text(), pa.string()),
            (pa.date32(), sa.Date(), pa.date32()),
            (UTC_MICROSECONDS, sa.DateTime(timezone=True), UTC_MICROSECONDS),
            (UTC_MICROSECONDS, sa.DateTime(), pa.timestamp("us")),
            (pa.timestamp("us"), sa.DateTime(timezone=True), UTC_MICROSECONDS),
            (pa.timestamp("us"), sa.DateTime(), pa.timestamp("us")),
            (pa.binary(), sa.LargeBinary(), pa.binary()),
            (pa.binary(), postgresql.BYTEA(), pa.binary()),
        ],
        ids=str,
    )
    def test_a_column_that_fits_is_handed_over_as_the_database_wants_it(
        self, arrow: pa.DataType, column: TypeEngine[object], wire: pa.DataType
    ) -> None:
        assert wire_type(arrow, column, POSTGRES) == wire

    @pytest.mark.parametrize(
        ("arrow", "column", "wire"),
        [
            (pa.int32(), sa.SmallInteger(), pa.int64()),
            (pa.int64(), sa.Integer(), pa.int64()),
            (pa.float64(), sa.REAL(), pa.float64()),
            (pa.float32(), sa.Float(), pa.float64()),
            (pa.decimal128(20, 2), sa.Text(), pa.decimal128(20, 2)),
            (pa.decimal128(20, 2), sa.Numeric(30, 4), pa.decimal128(38, 4)),
            (pa.int64(), sa.Text(), None),
            (pa.string(), sa.Integer(), None),
        ],
        ids=str,
    )
    def test_sqlites_types_have_the_widths_that_it_gives_them(
        self, arrow: pa.DataType, column: TypeEngine[object], wire: pa.DataType | None
    ) -> None:
        assert wire_type(arrow, column, SQLITE) == wire

    @pytest.mark.parametrize(
        "column", [postgresql.UUID(), postgresql.JSONB(), postgresql.INET(), sa.JSON(), sa.Time()], ids=repr
    )
    def test_text_goes_to_any_type_that_only_the_database_can_read(self, column: TypeEngine[object]) -> None:
        assert wire_type(pa.string(), column, POSTGRES) == pa.string()

    @pytest.mark.parametrize(
        ("arrow", "column"),
        [
            (pa.string(), sa.Integer()),
            (pa.string(), sa.Boolean()),
            (pa.string(), sa.Numeric()),
            (pa.string(), sa.Double()),
            (pa.string(), sa.Date()),
            (pa.string(), sa.DateTime()),
            (pa.string(), sa.LargeBinary()),
            (pa.int64(), sa.Text()),
            (pa.int64(), sa.Boolean()),
            (pa.int64(), sa.DateTime()),
            (pa.bool_(), sa.Integer()),
            (pa.float64(), sa.Integer()),
            (pa.float64(), sa.Numeric()),
            (pa.decimal128(10, 0), sa.Integer()),
            (pa.date32(), sa.DateTime()),
            (UTC_MICROSECONDS, sa.Date()),
            (pa.binary(), sa.Text()),
            (pa.int64(), postgresql.JSONB()),
            (pa.binary(), postgresql.UUID()),
            (pa.list_(pa.int64()), sa.Text()),
            (pa.struct([("a", pa.int64())]), postgresql.JSONB()),
        ],
        ids=str,
    )
    def test_what_does_not_fit_has_none(self, arrow: pa.DataType, column: TypeEngine[object]) -> None:
        assert wire_type(arrow, column, POSTGRES) is None


class TestCreatedTable:
    @pytest.mark.parametrize(
        ("arrow", "made"),
        [
            (pa.bool_(), sa.Boolean),
            (pa.int8(), sa.SmallInteger),
            (pa.int16(), sa.SmallInteger),
            (pa.int32(), sa.Integer),
            (pa.int64(), sa.BigInteger),
            (pa.float32(), sa.REAL),
            (pa.float64(), sa.Double),
            (pa.string(), sa.Text),
            (pa.large_string(), sa.Text),
            (pa.date32(), sa.Date),
            (pa.binary(), sa.LargeBinary),
        ],
        ids=str,
    )
    def test_a_column_gets_the_type_that_holds_all_its_values(
        self, arrow: pa.DataType, made: type[TypeEngine[object]]
    ) -> None:
        assert type(created_table("orders", None, rows(a=arrow)).c.a.type) is made

    def test_a_decimal_keeps_precision_and_scale(self) -> None:
        made = created_table("orders", None, rows(a=pa.decimal128(12, 3))).c.a.type
        assert isinstance(made, sa.Numeric)
        assert (made.precision, made.scale) == (12, 3)

    @pytest.mark.parametrize(("precision", "made"), [(15, "NUMERIC(15, 2)"), (16, "TEXT")], ids=["exact", "rounded"])
    def test_a_decimal_that_sqlite_would_round_is_text_there(self, precision: int, made: str) -> None:
        column = created_table("orders", None, rows(a=pa.decimal128(precision, 2))).c.a
        assert column.type.compile(dialect=SQLITE) == made
        assert column.type.compile(dialect=POSTGRES) == f"NUMERIC({precision}, 2)"

    @pytest.mark.parametrize(("arrow", "timezone"), [(UTC_MICROSECONDS, True), (pa.timestamp("us"), False)])
    def test_an_instant_gets_a_time_zone_and_a_local_time_none(self, arrow: pa.DataType, timezone: bool) -> None:
        made = created_table("orders", None, rows(a=arrow)).c.a.type
        assert isinstance(made, sa.DateTime)
        assert made.timezone is timezone

    def test_not_null_stays_not_null(self) -> None:
        made = created_table("orders", None, row_columns(Json("a INT NOT NULL, b INT")))
        assert (made.c.a.nullable, made.c.b.nullable) == (False, True)

    def test_the_batchs_id_comes_last_and_is_never_null(self) -> None:
        made = created_table("orders", None, rows(a=pa.int64()))
        assert made.columns.keys() == ["a", "_batch_id"]
        assert isinstance(made.c["_batch_id"].type, sa.BigInteger)
        assert not made.c["_batch_id"].nullable

    def test_a_record_may_be_loaded_again_after_a_rewind(self) -> None:
        assert list(created_table("orders", None, row_columns(Json("a INT NOT NULL"))).primary_key) == []

    def test_it_is_in_the_schema_that_was_asked_for(self) -> None:
        assert created_table("orders", "shop", rows(a=pa.int64())).fullname == "shop.orders"

    @pytest.mark.parametrize("arrow", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())])], ids=str)
    def test_a_nested_column_is_refused_by_name(self, arrow: pa.DataType) -> None:
        with pytest.raises(TargetError, match=r"Column 'a' is (list|struct).*transform"):
            created_table("orders", None, rows(a=arrow))

    def test_the_rows_it_was_made_of_fit_it(self) -> None:
        columns = row_columns(
            Json(
                "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(10,2), i STRING, "
                "j DATE, k TIMESTAMP, l TIMESTAMP_NTZ"
            )
        )
        matched = match(created_table("orders", None, columns), columns, POSTGRES)
        assert [column.name for column in matched] == [*columns.names, "_batch_id"]

    def test_it_can_be_made(self) -> None:
        made = created_table("orders", None, row_columns(Json("id BIGINT NOT NULL, price DECIMAL(10,2)")))
        engine = sa.create_engine("sqlite://")
        with engine.begin() as conn:
            made.create(conn)
            assert sa.inspect(conn).has_table("orders")
        engine.dispose()


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
            (pa.timestamp("us"), mysql.dialect(), "`S%h`.orders ADD COLUMN `b%c` DATETIME"),
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
        with pytest.raises(TargetError, match="column 'a' is INTEGER, the rows hold string"):
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

    def test_a_column_that_the_database_computes_is_not_written(self) -> None:
        target = table(sa.Column("a", sa.Integer), sa.Column("twice", sa.Integer, sa.Computed("a * 2")))
        with pytest.raises(TargetError, match="'twice'"):
            match(target, rows(a=pa.int32(), twice=pa.int32()), POSTGRES)
