"""Column types: Spark DDL to Arrow, and Arrow to Spark DDL.

Spark parses DDL only where a session runs; here it is parsed on the worker, so that a mistake is found before Spark
starts. Types and their names are those of Spark SQL: https://spark.apache.org/docs/latest/sql-ref-datatypes.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sqlglot import exp

_SCALARS: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "DATE": pa.date32(),
    # Spark's TIMESTAMP is an instant; sqlglot calls it by the name of its local time zone type.
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
}

KNOWN_TYPES = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, VARCHAR(n), DATE, TIMESTAMP, "
    "TIMESTAMP_NTZ, ARRAY<…>, STRUCT<…>"
)


def parse_ddl(ddl: str) -> pa.Schema:
    """Read a column list in Spark DDL.

    :raises ConfigurationError: with the column and the type that cannot be used
    """
    import sqlglot
    from sqlglot import exp

    if not ddl.strip():
        raise ConfigurationError("No columns are declared: give at least one, for example 'id BIGINT'")
    try:
        statement = sqlglot.parse_one(f"CREATE TABLE declared ({ddl}\n)", read="spark")
        columns = statement.this.expressions
    except sqlglot.errors.ParseError as error:
        near = error.errors[0].get("highlight") if error.errors else None
        raise ConfigurationError(
            f"The declared columns cannot be read as Spark DDL: {ddl!r}, near {near!r}. "
            f"Columns are written as 'name TYPE, name TYPE'; known types are {KNOWN_TYPES}"
        ) from error
    except (sqlglot.errors.SqlglotError, AttributeError) as error:
        raise ConfigurationError(f"The declared columns cannot be read as Spark DDL: {ddl!r}: {error}") from error
    if statement.args.get("expression") is not None or statement.args.get("properties") is not None:
        raise ConfigurationError(
            f"The declared columns cannot be read as Spark DDL: {ddl!r} is more than a column list"
        )
    fields: list[pa.Field] = []
    seen: set[str] = set()
    for column in columns:
        if not isinstance(column, exp.ColumnDef) or column.kind is None:
            raise ConfigurationError(
                f"The declared columns cannot be read as Spark DDL: {ddl!r}: {column.sql('spark')!r} has no type"
            )
        if column.name.lower() in seen:
            raise ConfigurationError(f"Column {column.name!r} is declared twice (names are compared without case)")
        seen.add(column.name.lower())
        fields.append(pa.field(column.name, _arrow_type(column.kind, column.name), nullable=_nullable(column)))
    return pa.schema(fields)


def spark_ddl(schema: pa.Schema) -> str:
    """The same columns as DDL that Spark reads, with every name quoted."""
    return ", ".join(
        f"{_quoted(field.name)} {_spark_type(field.type)}{'' if field.nullable else ' NOT NULL'}" for field in schema
    )


def _nullable(column: exp.ColumnDef) -> bool:
    from sqlglot import exp

    nullable = True
    for constraint in column.constraints:
        if isinstance(constraint.kind, exp.NotNullColumnConstraint) and not constraint.kind.args.get("allow_null"):
            nullable = False
        elif not isinstance(constraint.kind, (exp.CommentColumnConstraint, exp.NotNullColumnConstraint)):
            raise ConfigurationError(
                f"Column {column.name!r}: {constraint.sql('spark')!r} cannot be declared; only NOT NULL and COMMENT can"
            )
    return nullable


def _arrow_type(kind: exp.DataType, column: str) -> pa.DataType:
    name = kind.this.value
    if name in ("DECIMAL", "UDECIMAL"):
        bounds = [int(bound.name) for bound in kind.expressions] or [10, 0]
        precision, scale = (*bounds, 0)[:2]
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise ConfigurationError(
                f"Column {column!r}: DECIMAL({precision},{scale}) is out of range; precision is 1 to 38, scale at most "
                "the precision"
            )
        return pa.decimal128(precision, scale)
    if name == "ARRAY" and len(kind.expressions) == 1:
        return pa.list_(_arrow_type(kind.expressions[0], column))
    if name == "STRUCT" and kind.expressions:
        return pa.struct(
            [(field.name, _arrow_type(field.kind, f"{column}.{field.name}")) for field in kind.expressions]
        )
    if name in _SCALARS:
        return _SCALARS[name]
    raise ConfigurationError(f"Column {column!r}: unknown type {kind.sql('spark')!r}; known types are {KNOWN_TYPES}")


def _spark_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{_spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {_spark_type(field.type)}' for field in kind.fields)}>"
    names = {
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.string(): "STRING",
        pa.binary(): "BINARY",
        pa.date32(): "DATE",
        pa.timestamp("us", "UTC"): "TIMESTAMP",
        pa.timestamp("us"): "TIMESTAMP_NTZ",
    }
    return names[kind]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
