"""The columns of rows: their types in Spark's DDL, those that say which record a row came from, and values that they
cannot hold.

Spark parses DDL only in a session. Here the worker parses it, so that a mistake is found before Spark starts. Types and
their names are those of Spark SQL: https://spark.apache.org/docs/latest/sql-ref-datatypes.html

Dates and timestamps lie in the years 1 to 9999, in UTC. ISO 8601 reaches further with an offset, and Arrow has a year
0. Postgres stores such an instant, and then clients fail that read it, Python's drivers for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, RESERVED_PREFIX, TIMESTAMP, TOPIC
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sqlglot import exp

    from airflow_kafka_offsets.formats.record_format import RecordFormat

_COMMON: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    # Spark's TIMESTAMP is an instant.
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}
"""Types whose names are the same in Spark and in sqlglot."""

_SCALARS = _COMMON | {
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
}
"""The types that can be declared, by their names in sqlglot."""

_SPARK_NAMES = {kind: name for name, kind in _COMMON.items()} | {
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}

# Type names of other databases that sqlglot accepts. INT8 has eight bytes in some of them, and eight bits in others.
_FOREIGN = {
    "INT1": "TINYINT",
    "INT2": "SMALLINT",
    "INT4": "INT",
    "INT8": "BIGINT for eight bytes, TINYINT for eight bits",
    "INT16": "SMALLINT",
    "INT32": "INT",
    "INT64": "BIGINT",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "NUMBER": "DECIMAL(p,s)",
    "FIXED": "DECIMAL(p,s)",
    "VARCHAR2": "STRING",
}

# Arrow's C interface ends names at NUL, and plans of queries have lines.
_UNPRINTED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

KNOWN_TYPES = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, DATE, TIMESTAMP, "
    "TIMESTAMP_NTZ, ARRAY<…>, STRUCT<…>"
)


_FORM = f"Columns are written as 'name TYPE, name TYPE'; known types are {KNOWN_TYPES}"


def parse_ddl(ddl: str, *, binary: bool = False) -> pa.Schema:
    """Return the columns of a list in Spark DDL.

    :param binary: whether BINARY is a type that the format has
    :raises ConfigurationError: a column or a type cannot be used; the message names it
    """
    import sqlglot
    from sqlglot import exp

    if not ddl.strip():
        raise ConfigurationError("No columns are declared: give at least one, for example 'id BIGINT'")
    unreadable = f"The declared columns cannot be read as Spark DDL: {ddl!r}"
    try:
        statement = sqlglot.parse_one(f"CREATE TABLE declared ({ddl}\n)", read="spark")
    except sqlglot.errors.ParseError as error:
        near = error.errors[0].get("highlight") if error.errors else None
        raise ConfigurationError(f"{unreadable}, near {near!r}. {_FORM}") from None
    except (sqlglot.errors.SqlglotError, TypeError) as error:
        # sqlglot raises a TypeError for some clauses that a column cannot have: it calls itself with unknown arguments.
        raise ConfigurationError(f"{unreadable}: {error}") from None
    declared = statement.this
    is_more = statement.args.get("expression") is not None or statement.args.get("properties") is not None
    if not isinstance(declared, exp.Schema) or not declared.expressions or is_more:
        raise ConfigurationError(f"{unreadable}: it is not a single column list. {_FORM}")
    _refuse_foreign_types(ddl)
    fields = [_field(column, None, unreadable) for column in declared.expressions]
    _refuse_duplicates([field.name for field in fields], "Column")
    if not binary:
        for field in fields:
            _refuse_binary(field.type, field.name)
    return pa.schema(fields)


def _refuse_binary(kind: pa.DataType, path: str) -> None:
    if pa.types.is_binary(kind):
        raise ConfigurationError(f"Column {path!r}: unknown type 'BINARY'; known types are {KNOWN_TYPES}")
    if pa.types.is_list(kind):
        _refuse_binary(kind.value_type, path)
    for field in kind if pa.types.is_struct(kind) else ():
        _refuse_binary(field.type, f"{path}.{field.name}")


def count_types(kind: pa.DataType) -> int:
    """Return the number of types in a type, itself included."""
    return 1 + sum(count_types(kind.field(index).type) for index in range(kind.num_fields))


def spark_ddl(schema: pa.Schema) -> str:
    """Return columns as DDL that Spark reads, with every name quoted."""
    return ", ".join(
        f"{_quoted(field.name)} {spark_type(field.type)}{'' if field.nullable else ' NOT NULL'}" for field in schema
    )


def _refuse_foreign_types(ddl: str) -> None:
    """Refuse type names of other databases. Only the tokens show them: sqlglot has replaced them in the parsed columns.

    :param ddl: can be parsed
    :raises ConfigurationError: with the name of the type in Spark
    """
    import sqlglot
    from sqlglot.tokens import TokenType

    words = list(sqlglot.tokenize(ddl, read="spark"))
    quoted = (TokenType.IDENTIFIER, TokenType.STRING)
    for before, at, word in zip([None, None, *words], [None, *words], words, strict=False):
        begins_struct = before is not None and before.token_type == TokenType.STRUCT
        is_name = at is None or at.text == "," or (at.text == "<" and begins_struct)
        instead = _FOREIGN.get(word.text.upper())
        if instead is not None and not is_name and word.token_type not in quoted:
            raise ConfigurationError(f"{word.text!r} is not a type of Spark: write {instead}")


def _field(column: exp.Expression, parent: str | None, unreadable: str) -> pa.Field:
    """Return a column, or a field of a struct with the path `parent`."""
    from sqlglot import exp

    if not isinstance(column, exp.ColumnDef) or column.kind is None:
        raise ConfigurationError(f"{unreadable}: {column.sql('spark')!r} has no name, or no type. {_FORM}")
    if not isinstance(column.this, exp.Identifier) or not column.name:
        raise ConfigurationError(f"{unreadable}: {column.this.sql('spark')!r} is not the name of a column. {_FORM}")
    path = f"{parent}.{column.name}" if parent else column.name
    nullable = True
    for constraint in column.constraints:
        if isinstance(constraint.kind, exp.CommentColumnConstraint):
            continue
        if not isinstance(constraint.kind, exp.NotNullColumnConstraint) or parent:
            raise ConfigurationError(
                f"Column {path!r}: {constraint.sql('spark')!r} cannot be declared; only COMMENT can, and NOT NULL "
                "outside a STRUCT"
            )
        nullable = nullable and bool(constraint.kind.args.get("allow_null"))
    return pa.field(column.name, _arrow_type(column.kind, path, unreadable), nullable=nullable)


def _arrow_type(kind: exp.DataType, path: str, unreadable: str) -> pa.DataType:
    name = getattr(kind.this, "value", "INTERVAL")  # an interval of some fields is no name of a type
    if name == "DECIMAL":
        return _decimal([bound.name for bound in kind.expressions], path)
    if name == "ARRAY" and len(kind.expressions) == 1:
        return pa.list_(_arrow_type(kind.expressions[0], path, unreadable))
    if name == "STRUCT" and kind.expressions:
        fields = [_field(field, path, unreadable) for field in kind.expressions]
        _refuse_duplicates([field.name for field in fields], f"Column {path!r}: field")
        return pa.struct(fields)
    if name in _SCALARS and not kind.expressions:
        return _SCALARS[name]
    text = kind.sql("spark") if kind.expressions else name
    if name in _SCALARS or name in ("VARCHAR", "CHAR"):
        raise ConfigurationError(
            f"Column {path!r}: only DECIMAL takes numbers in parentheses. Declare text as STRING; the target's column "
            f"limits its length. Known types are {KNOWN_TYPES}"
        )
    raise ConfigurationError(f"Column {path!r}: unknown type {text!r}; known types are {KNOWN_TYPES}")


def _decimal(bounds: list[str], path: str) -> pa.DataType:
    if len(bounds) <= 2 and all(bound.isdecimal() for bound in bounds):
        precision, scale = (*map(int, bounds), 0, 0)[:2] if bounds else (10, 0)
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    raise ConfigurationError(
        f"Column {path!r}: DECIMAL({','.join(bounds)}) is not a type; a precision is 1 to 38, a scale at most the "
        "precision"
    )


def _refuse_duplicates(names: list[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ConfigurationError(f"{what} {name!r} is declared twice (names are compared without case)")
        seen.add(name.lower())


def spark_type(kind: pa.DataType) -> str:
    """Return the name of a type in Spark's DDL."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = (
            f"{_quoted(field.name)}: {spark_type(field.type)}{'' if field.nullable else ' NOT NULL'}"
            for field in kind.fields
        )
        return f"STRUCT<{', '.join(fields)}>"
    if kind not in _SPARK_NAMES:
        raise ConfigurationError(f"The columns of a format cannot have the type {kind}; known types are {KNOWN_TYPES}")
    return _SPARK_NAMES[kind]


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type for messages: that in Spark's DDL, where it has one."""
    try:
        return spark_type(kind)
    except ConfigurationError:
        return str(kind)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


ORIGIN_COLUMNS = pa.schema(
    [(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, pa.timestamp("us", "UTC"))]
)
"""The columns that say which record a row came from."""


def row_columns(record_format: RecordFormat) -> pa.Schema:
    """Return the columns of a decoded row.

    :raises ConfigurationError: a column of the format has a reserved name
    """
    columns = record_format.columns()
    for name in columns.names:
        _refuse_reserved(name)
    return pa.schema([*columns, *ORIGIN_COLUMNS])


def _refuse_reserved(name: str) -> None:
    if name.lower().startswith(RESERVED_PREFIX) or name.lower() == BATCH_ID:
        raise ConfigurationError(
            f"Column {name!r} cannot be declared: names that start with {RESERVED_PREFIX!r}, and {BATCH_ID!r}, are "
            "reserved for the origin columns"
        )


def check_new_column(column: pa.Field, *, is_taken: bool = False, others: Collection[str] = ()) -> None:
    """Check that rows can have a column beside others.

    :param is_taken: whether another one has its name, but perhaps for the case
    :param others: the paths of the others and of the fields within
    :raises ConfigurationError: they cannot
    """
    _refuse_reserved(column.name)
    paths = list(paths_of(column))
    if odd := [path for path in paths if _UNPRINTED.search(path)]:
        raise ConfigurationError(f"the name {odd[0]!r} has control characters, which not every engine keeps")
    if len(set(paths)) < len(paths):
        raise ConfigurationError("it has fields that points in their names make equal")
    if known := [path for path in paths if path in others]:
        raise ConfigurationError(f"another field has the path {known[0]!r}")
    parse_ddl(spark_ddl(pa.schema([column])), binary=True)
    if is_taken:
        raise ConfigurationError("another column has this name, or one that differs in case only")


def paths_of(field: pa.Field, prefix: str = "") -> Iterator[str]:
    """Yield the paths of a field and of those within, as Iceberg and Spark name them."""
    path = prefix + field.name
    yield path
    if pa.types.is_list(field.type):
        yield from paths_of(field.type.value_field.with_name("element"), f"{path}.")
    for part in field.type if pa.types.is_struct(field.type) else ():
        yield from paths_of(part, f"{path}.")


def format_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns of the format among those of a decoded row."""
    return pa.schema(list(columns)[: -len(ORIGIN_COLUMNS)])


def add_origin(rows: pa.RecordBatch, records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Return decoded rows with the columns that say which record each came from.

    :param records: the records that the rows were decoded from, one a row
    """
    origin = [
        pa.repeat(pa.scalar(topic), records.num_rows),
        pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows),
        records.column("offset"),
        records.column("timestamp"),
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *origin], schema=pa.schema([*rows.schema, *ORIGIN_COLUMNS]))


OUT_OF_YEARS = "it lies outside of the years 1 to 9999"

_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


def out_of_years(array: pa.Array) -> list[int]:
    """Return the indexes of dates and timestamps outside of the years 1 to 9999; none for an array of another type.

    :param array: dates of 32 bits or timestamps in microseconds; of a list or a struct, the indexes are those of its
        items
    """
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return out_of_years(array.flatten())
    if pa.types.is_struct(kind):
        return [index for child in array.flatten() for index in out_of_years(child)]
    if pa.types.is_date32(kind):
        numbers, (first, last) = array.cast(pa.int32()), _DAYS
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        numbers, (first, last) = array.cast(pa.int64()), _MICROSECONDS
    else:
        return []
    found = pc.min_max(numbers).as_py()
    if found["min"] is None or (found["min"] >= first and found["max"] <= last):
        return []
    indexes: list[int] = pc.indices_nonzero(pc.or_(pc.less(numbers, first), pc.greater(numbers, last))).to_pylist()
    return indexes


def has_type(kind: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type is a wanted one, or has a part that is."""
    return is_wanted(kind) or any(has_type(kind.field(index).type, is_wanted) for index in range(kind.num_fields))


def as_decimals(numbers: pa.Array, kind: pa.Decimal128Type) -> pa.Array:
    """Return integers or decimals as decimals of another type.

    For more digits after the point, Arrow's own cast multiplies in the type that it casts to, and many a number that
    overflows becomes another one.

    :raises pyarrow.ArrowInvalid: a number does not fit
    """
    if pa.types.is_integer(numbers.type):
        numbers = numbers.cast(pa.decimal128(20, 0))
    if kind.scale > numbers.type.scale:
        # In which 38 digits before the point have room, and 38 after it.
        numbers = numbers.cast(pa.decimal256(76, kind.scale))
    return numbers.cast(kind)


def relisted(array: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists with other items in place of those of `array.flatten()`.

    The array's own offsets cannot be used: those of a slice do not begin with 0, and a null list may have a length.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, items, type=kind, mask=array.is_null())
