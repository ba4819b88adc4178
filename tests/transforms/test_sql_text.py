"""What a `Sql` may say is decided when the DAG is parsed: one SELECT that makes the same rows of a record in each
attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from datafusion import SessionConfig, SessionContext

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.transforms.sql import Sql
from airflow_kafka_offsets.transforms.sql_text import VOLATILE, check, resolved, with_columns

REFUSED = {
    "SELECT sum(amount) AS total FROM records": "sum() is refused",
    "SELECT customer FROM records GROUP BY customer": "GROUP BY is refused",
    "SELECT count(*) AS n FROM records": "count() is refused",
    "SELECT approx_percentile_cont(amount, 0.5) AS m FROM records": "is refused: a transform sees one batch",
    "SELECT string_agg(customer, ',') AS c FROM records": "is refused: a transform sees one batch",
    "SELECT customer FROM records HAVING amount > 1": "HAVING is refused",
    "SELECT DISTINCT customer FROM records": "DISTINCT is refused",
    "SELECT DISTINCT ON (customer) customer FROM records": "DISTINCT is refused",
    "SELECT row_number() OVER (ORDER BY id) AS n FROM records": "a window is refused",
    "SELECT lag(id) OVER w AS n FROM records WINDOW w AS (ORDER BY id)": "WINDOW is refused",
    "SELECT id FROM records ORDER BY id": "ORDER BY is refused",
    "SELECT id FROM records LIMIT 3": "LIMIT is refused",
    "SELECT id FROM records OFFSET 3": "OFFSET is refused",
    "SELECT id FROM records FETCH FIRST 3 ROWS ONLY": "LIMIT is refused",
    "SELECT a.id FROM records a JOIN records b ON a.id = b.id": "JOIN is refused",
    "SELECT a.id FROM records a, records b": "JOIN is refused",
    "SELECT a.id FROM records a CROSS JOIN UNNEST([1, 2]) b": "JOIN is refused",
    "SELECT id FROM records UNION ALL SELECT id FROM records": "UNION needs more than one SELECT",
    "SELECT id FROM records EXCEPT SELECT id FROM records": "EXCEPT needs more than one SELECT",
    "SELECT id FROM records WHERE id = (SELECT max(id) FROM records)": "a subquery is refused",
    "SELECT id FROM records WHERE EXISTS (SELECT 1)": "a subquery is refused",
    "SELECT id FROM (SELECT id FROM records) r": "its FROM must be records",
    "WITH r AS (SELECT 1) SELECT id FROM records": "WITH is refused",
    "SELECT id FROM records; SELECT id FROM records": "it has 2 statements",
    "SELECT id FROM orders": "its FROM must be records",
    "SELECT id FROM other.records": "its FROM must be records",
    "SELECT id FROM records TABLESAMPLE (10 PERCENT)": "is refused",
    "SELECT 1 AS one": "its FROM must be records",
    "DELETE FROM records": "it must be a SELECT; got DELETE",
    "COPY records TO '/tmp/x'": "it must be a SELECT; got COPY",
    "SELECT id INTO other FROM records": "INTO is refused",
    "SELECT id FROM records WHERE id = $1": "is a parameter",
    "SELECT id FROM records WHERE id = ?": "is a parameter",
    "SELECT now() AS at FROM records": "a retry would make other rows of the same records",
    "SELECT random() AS r FROM records": "a retry would make other rows of the same records",
    "SELECT current_timestamp AS at FROM records": "a retry would make other rows of the same records",
    "SELECT uuid() AS key FROM records": "a retry would make other rows of the same records",
    "SELECT today() AS day FROM records": "a retry would make other rows of the same records",
    "SELECT amount * 2 FROM records": "amount * 2 needs a name: amount * 2 AS name",
    "SELECT id AS _kafka_offset FROM records": "_kafka_offset is a reserved name",
    "SELECT id AS _Batch_Id FROM records": "_Batch_Id is a reserved name",
    "SELECT * REPLACE (7 AS _kafka_offset) FROM records": "_kafka_offset is a reserved name",
    "SELECT records.* REPLACE (7 AS _Kafka_Offset) FROM records": "_Kafka_Offset is a reserved name",
    "SELECT FROM WHERE": "it cannot be read",
    "select id fro records": "it cannot be read",
}


@pytest.mark.parametrize("query", REFUSED)
def test_a_text_that_needs_more_than_one_record_is_refused_when_the_dag_is_parsed(query: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(REFUSED[query])) as raised:
        Sql(query)
    assert str(raised.value).startswith("Sql(")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM records",
        "SELECT id, amount * 2 AS double FROM records WHERE amount > 1",
        'SELECT r."orderId", r.* FROM Records AS r WHERE r.amount IS DISTINCT FROM 2;',
        "SELECT CASE WHEN id % 2 = 0 THEN 'even' ELSE 'odd' END AS kind FROM records -- of each",
        "SELECT upper(customer) AS customer, arrow_cast(id, 'Int16') AS id FROM records",
        "SELECT extract(year FROM created) AS year, 'now()' AS text FROM records WHERE customer IN ('a', 'b')",
    ],
)
def test_anything_else_may_be_written(query: str) -> None:
    assert Sql(query).query == query


@pytest.mark.parametrize("given", ["", " ", None, 7])
def test_empty_sql_is_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs the text of a SELECT"):
        Sql(given)


def test_a_template_is_checked_when_it_is_rendered() -> None:
    class Task:
        def render_template(self, text: str, context: Any) -> str:
            return text.replace("{{ ds }}", "2026-01-01").replace("{{ more }}", "LIMIT 1")

    context = {"task": Task()}
    query = Sql("SELECT id, '{{ ds }}' AS day FROM records")
    assert query.resolve(context) == Sql("SELECT id, '2026-01-01' AS day FROM records")
    with pytest.raises(ConfigurationError, match="LIMIT is refused"):
        Sql("SELECT id FROM records {{ more }}").resolve(context)


def test_columns_are_named_as_they_are_declared() -> None:
    query = (
        "SELECT ORDERID, r.Größe AS Size, \"orderID\" AS o, place.Town AS t, other FROM Records R WHERE 'ü' < r.größe"
    )
    assert resolved(query, check(query), ["orderId", "größe", "place"]) == (
        'SELECT "orderId", "R"."größe" AS Size, "orderId" AS o, "place".Town AS t, other FROM "records" "R" '
        'WHERE \'ü\' < "R"."größe"'
    )


def test_columns_are_added_before_the_from_of_the_select() -> None:
    query = "SELECT extract(year FROM a) AS y, a IS DISTINCT FROM b AS d FROM records WHERE a IS DISTINCT FROM 'FROM'"
    assert with_columns(query, ["x", "y"]) == query.replace(" FROM records", '\n, "x", "y" FROM records')


def functions() -> Iterator[dict[str, Any]]:
    session = SessionContext(SessionConfig({"datafusion.catalog.information_schema": "true"}))
    routines = session.sql("SELECT routine_name, function_type, is_deterministic FROM information_schema.routines")
    for batch in routines.collect():
        yield from batch.to_pylist()


def test_the_functions_that_are_refused_are_those_of_datafusion() -> None:
    found = list(functions())
    several = {row["routine_name"] for row in found if row["function_type"] in ("AGGREGATE", "WINDOW")}
    assert {"array_agg", "bit_and", "row_number", "var_sample"} <= several
    for name in several:
        assert_refused_by_name(name)
    volatile = {
        row["routine_name"] for row in found if row["function_type"] == "SCALAR" and not row["is_deterministic"]
    }
    assert volatile <= VOLATILE


@pytest.mark.parametrize("name", sorted(VOLATILE))
def test_a_function_with_another_result_in_each_attempt_is_refused_by_its_name(name: str) -> None:
    assert_refused_by_name(name)


def assert_refused_by_name(name: str) -> None:
    for argument in ("", "id", "id, 0.5"):
        with pytest.raises(ConfigurationError):
            Sql(f"SELECT {name}({argument}) AS x FROM records")
