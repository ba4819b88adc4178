"""The SQL that `Sql` accepts: one SELECT from `records` that handles each record by itself, and is deterministic.

sqlglot parses the text. datafusion runs it, with the names of columns and of `records` resolved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.tokens import TokenType

from airflow_kafka_offsets.core.origin import BATCH_ID, RESERVED_PREFIX
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.transforms.transform import RECORDS

# Their names are values without parentheses, too.
_CLOCKS = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}

VOLATILE = _CLOCKS | {"file_row_index", "input_file_name", "now", "rand", "random", "today", "uuid"}
"""Functions whose result is another one in the next attempt."""

# Functions of several rows that sqlglot does not know as such.
_OF_SEVERAL_ROWS = {
    "approx_median", "approx_percentile_cont", "approx_percentile_cont_with_weight", "bit_and", "bit_or", "bit_xor",
    "covar", "mean", "quantile_cont", "row_number", "var", "var_population", "var_sample",
}  # fmt: skip

_WHY_BATCHES = "a transform sees one batch of records at a time, and batches are arbitrary"
_WHY_ATTEMPTS = "a retry would make other rows of the same records"

# The parts of a SELECT, by sqlglot's names of them. Newer versions end some with an underscore.
_ALLOWED = {"expressions", "from", "where", "kind", "hint"}
_PARTS = {
    "group": "GROUP BY",
    "joins": "JOIN",
    "laterals": "LATERAL",
    "order": "ORDER BY",
    "sort": "SORT BY",
    "windows": "WINDOW",
}


def check(query: str) -> exp.Select:
    """Return the parsed text of a `Sql`.

    :raises ConfigurationError: it needs more than one batch, is not a single SELECT from `records`, or is not
        deterministic
    """
    try:
        statements = [statement for statement in sqlglot.parse(query) if statement is not None]
    except sqlglot.errors.SqlglotError as error:
        raise _refusal(query, f"it cannot be read: {str(error).splitlines()[0]}") from None
    if len(statements) != 1:
        raise _refusal(query, f"it has {len(statements)} statements, and must be one SELECT")
    (select,) = statements
    if isinstance(select, exp.SetOperation):
        raise _refusal(query, f"{select.key.upper()} needs more than one SELECT; {_WHY_BATCHES}")
    if not isinstance(select, exp.Select):
        raise _refusal(query, f"it must be a SELECT; got {select.key.upper()}")
    for name, value in select.args.items():
        part = name.rstrip("_")
        if value and part not in _ALLOWED:
            raise _refusal(query, f"{_PARTS.get(part, part.upper())} is refused: {_WHY_BATCHES}")
    _check_source(query, select)
    for node in select.walk():
        if isinstance(node, exp.Func):
            _check_function(query, node)
        elif node is not select:
            _check_node(query, node)
    _check_names(query, select)
    return select


def _check_source(query: str, select: exp.Select) -> None:
    table = _table(select)
    if not isinstance(table, exp.Table) or table.name.lower() != RECORDS or table.args.get("db") is not None:
        raise _refusal(query, f"its FROM must be {RECORDS}, the name of the decoded records, and nothing else")
    more = [part for part, value in table.args.items() if value and part not in ("this", "alias")]
    if more:
        raise _refusal(query, f"{more[0].upper()} is refused: {_WHY_BATCHES}")


def _table(select: exp.Select) -> Any:
    source = select.args.get("from_") or select.args.get("from")
    return source.this if source is not None else None


def _check_node(query: str, node: exp.Expression) -> None:
    is_parameter = isinstance(node, exp.Identifier) and not node.quoted and node.name.startswith("$")
    if isinstance(node, exp.Query):
        raise _refusal(query, f"a subquery is refused: {_WHY_BATCHES}")
    if isinstance(node, exp.Window | exp.WithinGroup):
        raise _refusal(query, f"a window is refused: {_WHY_BATCHES}")
    if is_parameter or isinstance(node, exp.Placeholder | exp.Parameter):
        raise _refusal(query, f"{node.sql()} is a parameter, for which there is no value")
    if isinstance(node, exp.Column) and node.name.lower() in _CLOCKS:
        raise _refusal(query, f"{node.name}: {_WHY_ATTEMPTS}")


def _check_function(query: str, function: exp.Func) -> None:
    own = [function.name] if isinstance(function, exp.Anonymous) else function.sql_names()
    names = {name.lower() for name in own}
    if volatile := names & VOLATILE:
        raise _refusal(query, f"{min(volatile)}() is refused: {_WHY_ATTEMPTS}")
    if isinstance(function, exp.AggFunc) or names & _OF_SEVERAL_ROWS:
        raise _refusal(query, f"{own[0].lower()}() is refused: {_WHY_BATCHES}")


def _check_names(query: str, select: exp.Select) -> None:
    for item in select.expressions:
        if not isinstance(item, exp.Column | exp.Star | exp.Alias):
            raise _refusal(query, f"{item.sql()} needs a name: {item.sql()} AS name")
        # Of a star, those of REPLACE.
        for alias in [item] if isinstance(item, exp.Alias) else item.find_all(exp.Alias):
            name = alias.alias.lower()
            if name == BATCH_ID or name.startswith(RESERVED_PREFIX):
                raise _refusal(
                    query,
                    f"{alias.alias} is a reserved name: the origin columns are kept as they are",
                )


def resolved(query: str, select: exp.Select, columns: Iterable[str]) -> str:
    """Return the text with columns named as they are declared: names are compared without case, as Spark does.

    :param select: what `check` returned
    """
    declared = {name.lower(): name for name in columns}
    table = _table(select)
    names: dict[int, tuple[int, str]] = {}

    def name(identifier: Any, new: str) -> None:
        names[identifier.meta["start"]] = (identifier.meta["end"] + 1, '"' + new.replace('"', '""') + '"')

    name(table.this, RECORDS)
    qualifier = table.alias or RECORDS
    if table.args.get("alias") is not None:
        name(table.args["alias"].this, qualifier)
    for column in select.find_all(exp.Column):
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
        if parts and len(column.parts) > 1 and parts[0].name.lower() == qualifier.lower():
            name(parts.pop(0), qualifier)
        if parts and parts[0].name.lower() in declared:
            name(parts[0], declared[parts[0].name.lower()])
    for start, (end, new) in sorted(names.items(), reverse=True):
        query = query[:start] + new + query[end:]
    return query


def with_columns(query: str, columns: Iterable[str]) -> str:
    """Return a checked text that also selects columns, on a line of their own: a comment may end the one before."""
    depth, before = 0, None
    for token in sqlglot.tokenize(query):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        # IS DISTINCT FROM compares.
        if token.token_type == TokenType.FROM and depth == 0 and before != TokenType.DISTINCT:
            added = "".join(f', "{name}"' for name in columns)
            return f"{query[: token.start].rstrip()}\n{added} {query[token.start :]}"
        before = token.token_type
    raise AssertionError(query)


def _refusal(query: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"Sql({shortened(query, 200)!r}): {reason}")
