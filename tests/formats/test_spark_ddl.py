"""Declared columns: Spark DDL to Arrow, and back."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.columns import check_new_column, parse_ddl, spark_ddl
from tests.support.examples import examples

UTC_MICROSECONDS = pa.timestamp("us", "UTC")

# The types that the message about an unknown one lists, with Spark's own spelling of each.
KNOWN = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL(12,3)": pa.decimal128(12, 3),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": UTC_MICROSECONDS,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "ARRAY<INT>": pa.list_(pa.int32()),
    "STRUCT<`a`: INT, `b`: STRING>": pa.struct([("a", pa.int32()), ("b", pa.string())]),
}

# Other names that Spark SQL has for some of them.
ALIASES = {
    "BYTE": pa.int8(),
    "SHORT": pa.int16(),
    "INTEGER": pa.int32(),
    "LONG": pa.int64(),
    "REAL": pa.float32(),
    "NUMERIC(5,2)": pa.decimal128(5, 2),
    "DEC(5,2)": pa.decimal128(5, 2),
    "DECIMAL": pa.decimal128(10, 0),
    "DECIMAL(5)": pa.decimal128(5, 0),
    "TIMESTAMP_LTZ": UTC_MICROSECONDS,
    "bigint": pa.int64(),
}


def only_type(ddl_type: str) -> pa.DataType:
    return parse_ddl(f"a {ddl_type}").field("a").type


@pytest.mark.parametrize("ddl_type", KNOWN)
def test_a_known_type_has_its_arrow_type(ddl_type: str) -> None:
    assert only_type(ddl_type) == KNOWN[ddl_type]


@pytest.mark.parametrize("ddl_type", KNOWN)
def test_a_known_type_comes_back_as_the_ddl_that_spark_reads(ddl_type: str) -> None:
    assert spark_ddl(parse_ddl(f"a {ddl_type} NOT NULL, b {ddl_type}")) == f"`a` {ddl_type} NOT NULL, `b` {ddl_type}"


@pytest.mark.parametrize("ddl_type", ALIASES)
def test_another_name_of_a_type_means_the_same(ddl_type: str) -> None:
    assert only_type(ddl_type) == ALIASES[ddl_type]


@pytest.mark.parametrize(
    ("ddl", "instead"),
    [
        ("a INT8", "'INT8' is not a type of Spark: write BIGINT for eight bytes"),
        ("a int4 NOT NULL", "'int4' is not a type of Spark: write INT"),
        ("a STRUCT<int8: float8>", "'float8' is not a type of Spark: write DOUBLE"),
        ("a ARRAY<INT2>", "'INT2' is not a type of Spark: write SMALLINT"),
        ("a STRING, b NUMBER(10,2)", "'NUMBER' is not a type of Spark: write DECIMAL"),
    ],
)
def test_a_type_of_another_database_is_refused_with_sparks_name_for_it(ddl: str, instead: str) -> None:
    with pytest.raises(ConfigurationError, match=instead):
        parse_ddl(ddl)


def test_columns_and_fields_may_be_named_like_such_types() -> None:
    columns = parse_ddl("int8 STRING COMMENT 'int8', number STRUCT<int4: STRING, `int2` INT>, `FLOAT8` DECIMAL(3, 1)")
    assert columns.names == ["int8", "number", "FLOAT8"]
    assert [field.name for field in columns.field("number").type] == ["int4", "int2"]


def test_types_nest() -> None:
    assert only_type("ARRAY<STRUCT<at: TIMESTAMP, lines: ARRAY<DECIMAL(5,2)>>>") == pa.list_(
        pa.struct([("at", UTC_MICROSECONDS), ("lines", pa.list_(pa.decimal128(5, 2)))])
    )


def test_a_struct_may_be_written_without_colons() -> None:
    assert only_type("STRUCT<a INT, b STRING>") == only_type("STRUCT<a: INT, b: STRING>")


def test_columns_keep_their_order() -> None:
    assert parse_ddl("z INT, a INT, m INT").names == ["z", "a", "m"]


def test_columns_are_nullable_unless_declared_otherwise() -> None:
    schema = parse_ddl("a INT, b INT NOT NULL, c INT NULL, d INT NOT NULL COMMENT 'the d'")
    assert [field.nullable for field in schema] == [True, False, True, False]


@pytest.mark.parametrize("comment", ["COMMENT 'the key, (never null)'", "-- a note", "/* a note */"])
def test_comments_change_nothing(comment: str) -> None:
    assert parse_ddl(f"a INT {comment}") == parse_ddl("a INT")


def test_a_name_in_backticks_may_hold_anything() -> None:
    assert parse_ddl("`a``b` INT, `x y` INT, `a.b/c` INT, `ünï;--` INT").names == ["a`b", "x y", "a.b/c", "ünï;--"]


def test_a_name_without_backticks_may_hold_letters_of_any_language() -> None:
    assert parse_ddl("größe INT").names == ["größe"]


_names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("`'\"\\;()<>:,.- "), min_size=1, max_size=8
)
_types = st.recursive(
    st.sampled_from([kind for kind in KNOWN.values() if not pa.types.is_nested(kind)]),
    lambda inner: (
        inner.map(pa.list_)
        | st.lists(st.tuples(_names, inner), min_size=1, max_size=3, unique_by=lambda one: one[0].lower()).map(
            pa.struct
        )
    ),
    max_leaves=6,
)
_fields = st.builds(pa.field, _names, _types, nullable=st.booleans())
_schemas = st.lists(_fields, min_size=1, max_size=4, unique_by=lambda field: field.name.lower()).map(pa.schema)


@examples(300)
@given(schema=_schemas)
def test_any_schema_survives_the_way_to_spark_ddl_and_back(schema: pa.Schema) -> None:
    assert parse_ddl(spark_ddl(schema)) == schema


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("id MAP<STRING, INT>", r"Column 'id': unknown type 'MAP<STRING, INT>'; known types are BOOLEAN, TINYINT"),
        ("id BINARY", r"Column 'id': unknown type 'BINARY'"),
        ("id INTERVAL", r"Column 'id': unknown type 'INTERVAL'"),
        ("id INTERVAL DAY", r"Column 'id': unknown type 'INTERVAL'"),
        ("id INTERVAL YEAR TO MONTH", r"Column 'id': unknown type 'INTERVAL'"),
        ("id VARCHAR(20)", r"Column 'id': only DECIMAL takes numbers in parentheses.*Declare text as STRING"),
        ("id STRUCT<a: CHAR(2)>", r"Column 'id\.a': only DECIMAL takes"),
        ("id STRING(2)", r"Column 'id': only DECIMAL takes"),
        ("id TIMESTAMP_NTZ(3)", r"Column 'id': only DECIMAL takes"),
        ("id JSON", r"Column 'id': unknown type 'JSON'"),
        ("id ARRAY<VARIANT>", r"Column 'id': unknown type 'VARIANT'"),
        ("id STRUCT<a: STRUCT<b: BINARY>>", r"Column 'id\.a\.b': unknown type 'BINARY'"),
        ("id ARRAY", r"Column 'id': unknown type 'ARRAY'"),
        ("id STRUCT", r"Column 'id': unknown type 'STRUCT'"),
        ("id INT UNSIGNED", r"Column 'id': unknown type"),
        ("id TIME", r"Column 'id': unknown type 'TIME'"),
        ("id UUID", r"Column 'id': unknown type 'UUID'"),
        ("id strng", r"'id strng', near 'strng'.*known types are BOOLEAN"),
    ],
)
def test_an_unknown_type_is_refused_with_its_column_and_the_known_ones(ddl: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        parse_ddl(ddl)


@pytest.mark.parametrize("ddl_type", ["DECIMAL(39)", "DECIMAL(0)", "DECIMAL(5,6)", "DECIMAL(39,2)"])
def test_a_decimal_that_spark_cannot_hold_is_refused_with_its_column(ddl_type: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Column 'price': DECIMAL\(.*\) is not a type"):
        parse_ddl(f"price {ddl_type}")


@pytest.mark.parametrize("ddl_type", ["DECIMAL(a,b)", "DECIMAL(-1)", "DECIMAL(5,2,1)", "DECIMAL(5.5)"])
def test_a_decimal_with_bounds_that_are_none_is_refused(ddl_type: str) -> None:
    with pytest.raises(ConfigurationError, match="price"):
        parse_ddl(f"price {ddl_type}")


@pytest.mark.parametrize("ddl", ["a INT, a STRING", "a INT, A INT", "a INT, b INT, `a` INT"])
def test_a_column_that_is_declared_twice_is_refused_whatever_its_case(ddl: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Column '[aA]' is declared twice"):
        parse_ddl(ddl)


@pytest.mark.parametrize("ddl", ["s STRUCT<a: INT, a: STRING>", "s ARRAY<STRUCT<a: INT, A: INT>>"])
def test_a_field_that_a_struct_declares_twice_is_refused(ddl: str) -> None:
    with pytest.raises(ConfigurationError, match="declared twice"):
        parse_ddl(ddl)


@pytest.mark.parametrize("ddl", ["", "   ", "\n\t"])
def test_no_columns_are_refused_with_an_example(ddl: str) -> None:
    with pytest.raises(ConfigurationError, match="give at least one, for example 'id BIGINT'"):
        parse_ddl(ddl)


@pytest.mark.parametrize(
    "ddl",
    [
        "id",
        "id INT name STRING",
        "INT",
        "id: INT, name: STRING",
        "'",
        "`id INT",
        "id INT)",
        "id INT;",
        "; id INT",
        "id STRUCT<>",
        "id ARRAY<>",
        "id ARRAY<INT",
        "id STRUCT<INT, STRING>",
        "id STRUCT<a: INT NOT NULL",
        ")(",
        "id INT\x00",
    ],
)
def test_broken_ddl_is_refused_and_repeated(ddl: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_ddl(ddl)
    assert repr(ddl) in str(raised.value) or "Column 'id" in str(raised.value)


@pytest.mark.parametrize(
    "ddl",
    [
        "id INT) USING parquet",
        "id INT) AS SELECT * FROM (x",
        "id INT); SELECT (1",
        "id INT); DROP TABLE orders; --",
        "id INT) LOCATION '/tmp' --",
    ],
)
def test_more_than_a_column_list_is_refused(ddl: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_ddl(ddl)


@pytest.mark.parametrize(
    ("ddl", "named"),
    [
        ("id INT PRIMARY KEY", "PRIMARY KEY"),
        ("id INT DEFAULT 1", "DEFAULT 1"),
        ("id INT CHECK (id > 0)", "CHECK"),
        ("id INT GENERATED ALWAYS AS (1)", "GENERATED"),
        ("id STRING COLLATE UTF8_LCASE", "COLLATE"),
        ("id INT, PRIMARY KEY (id)", "PRIMARY KEY"),
    ],
)
def test_a_constraint_that_nobody_would_enforce_is_refused(ddl: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse_ddl(ddl)


def test_a_nested_not_null_is_kept_or_refused_but_never_dropped() -> None:
    try:
        inner = only_type("STRUCT<a: INT NOT NULL>").field("a")
    except ConfigurationError:
        return
    assert not inner.nullable


@pytest.mark.parametrize("ddl", ["a.b INT", "`` INT"])
def test_a_column_without_a_name_of_its_own_is_refused(ddl: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_ddl(ddl)


_tokens = ["a", "b", "INT", "STRING", "DECIMAL(5,2)", "STRUCT<", "ARRAY<", ">", ":", ",", "(", ")", "NOT", "NULL"]
_tokens += ["COMMENT", "'x'", "`", "--", "/*", "*/", ";", "1", ".", "SELECT", "AS", "PRIMARY KEY", "DEFAULT", "\n", '"']


@examples(500)
@example(ddl=")DEFAULT COMMENT")
@given(ddl=st.text(max_size=30) | st.lists(st.sampled_from(_tokens), max_size=12).map(" ".join))
def test_any_text_is_columns_or_a_configuration_error(ddl: str) -> None:
    try:
        schema = parse_ddl(ddl)
    except ConfigurationError:
        return
    assert len(schema) >= 1
    assert all(schema.names)


@pytest.mark.parametrize("name", ["id\0", "nul\0x", "x\nFAKE", "\x1b[31m", "a\u2028b", "a\x85b"])
def test_a_field_whose_name_has_control_characters_is_not_added(name: str) -> None:
    nested = pa.list_(pa.struct([(name, pa.string())]))
    for column in (pa.field(name, pa.string()), pa.field("s", nested)):
        with pytest.raises(ConfigurationError, match="has control characters"):
            check_new_column(column, is_taken=False)
    check_new_column(pa.field("größe 1..%", pa.string()), is_taken=False)
