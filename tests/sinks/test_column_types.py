"""Which Arrow type fits which database type, and which types the columns of a created table have."""

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import TypeEngine

from airflow_kafka_offsets.database.tables import AnyBytes, ExactText
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.column_types import created_table, match, wire_type

POSTGRES = postgresql.dialect()  # type: ignore[no-untyped-call]
SQLITE = sqlite.dialect()
UTC_MICROSECONDS = pa.timestamp("us", "UTC")


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
            (pa.decimal128(10, 2), sa.Numeric(12, 4), pa.decimal128(38, 2)),
            (pa.decimal128(10, 4), sa.Numeric(12, 2), pa.decimal128(38, 2)),
            (pa.decimal128(10, 2), sa.Numeric(), pa.decimal128(38, 2)),
            (pa.int64(), sa.Numeric(60, 30), pa.decimal128(38, 0)),
            (pa.int64(), mysql.INTEGER(unsigned=True), pa.int64()),
            (pa.int32(), mysql.BIGINT(unsigned=True), pa.decimal128(38, 0)),
            (pa.decimal128(20, 0), mysql.BIGINT(unsigned=True), pa.decimal128(38, 0)),
            (pa.float64(), mysql.FLOAT(), pa.float32()),
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
            (pa.decimal128(20, 2), sa.Numeric(30, 4), pa.decimal128(38, 2)),
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
    def test_unsupported_column_has_no_wire_type(self, arrow: pa.DataType, column: TypeEngine[object]) -> None:
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
            (pa.string(), ExactText),
            (pa.large_string(), ExactText),
            (pa.date32(), sa.Date),
            (pa.binary(), AnyBytes),
        ],
        ids=str,
    )
    def test_a_column_gets_the_type_that_holds_all_its_values(
        self, arrow: pa.DataType, made: type[TypeEngine[object]]
    ) -> None:
        assert type(created_table("orders", None, pa.schema([("a", arrow)])).c.a.type) is made

    def test_a_decimal_keeps_precision_and_scale(self) -> None:
        made = created_table("orders", None, pa.schema([("a", pa.decimal128(12, 3))])).c.a.type
        assert isinstance(made, sa.Numeric)
        assert (made.precision, made.scale) == (12, 3)

    @pytest.mark.parametrize(("precision", "made"), [(15, "NUMERIC(15, 2)"), (16, "TEXT")], ids=["exact", "rounded"])
    def test_a_decimal_that_sqlite_would_round_is_text_there(self, precision: int, made: str) -> None:
        column = created_table("orders", None, pa.schema([("a", pa.decimal128(precision, 2))])).c.a
        assert column.type.compile(dialect=SQLITE) == made
        assert column.type.compile(dialect=POSTGRES) == f"NUMERIC({precision}, 2)"

    @pytest.mark.parametrize(("arrow", "timezone"), [(UTC_MICROSECONDS, True), (pa.timestamp("us"), False)])
    def test_an_instant_gets_a_time_zone_and_a_local_time_none(self, arrow: pa.DataType, timezone: bool) -> None:
        made = created_table("orders", None, pa.schema([("a", arrow)])).c.a.type
        assert isinstance(made, sa.DateTime)
        assert made.timezone is timezone

    def test_not_null_stays_not_null(self) -> None:
        made = created_table("orders", None, row_columns(Json("a INT NOT NULL, b INT")))
        assert (made.c.a.nullable, made.c.b.nullable) == (False, True)

    def test_the_batchs_id_comes_last_and_is_never_null(self) -> None:
        made = created_table("orders", None, pa.schema([("a", pa.int64())]))
        assert made.columns.keys() == ["a", "_batch_id"]
        assert isinstance(made.c["_batch_id"].type, sa.BigInteger)
        assert not made.c["_batch_id"].nullable

    def test_a_record_may_be_loaded_again_after_a_rewind(self) -> None:
        assert list(created_table("orders", None, row_columns(Json("a INT NOT NULL"))).primary_key) == []

    def test_created_table_is_in_the_given_schema(self) -> None:
        assert created_table("orders", "shop", pa.schema([("a", pa.int64())])).fullname == "shop.orders"

    @pytest.mark.parametrize("arrow", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())])], ids=str)
    def test_a_nested_column_is_refused_by_name(self, arrow: pa.DataType) -> None:
        with pytest.raises(TargetError, match=r"Column 'a' is (ARRAY|STRUCT).*transform"):
            created_table("orders", None, pa.schema([("a", arrow)]))

    def test_the_rows_it_was_made_of_fit_it(self) -> None:
        columns = row_columns(
            Json(
                "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(10,2), i STRING, "
                "j DATE, k TIMESTAMP, l TIMESTAMP_NTZ"
            )
        )
        matched = match(created_table("orders", None, columns), columns, POSTGRES)
        assert [column.name for column in matched] == [*columns.names, "_batch_id"]

    def test_created_table_has_valid_ddl(self) -> None:
        made = created_table("orders", None, row_columns(Json("id BIGINT NOT NULL, price DECIMAL(10,2)")))
        engine = sa.create_engine("sqlite://")
        with engine.begin() as conn:
            made.create(conn)
            assert sa.inspect(conn).has_table("orders")
        engine.dispose()
