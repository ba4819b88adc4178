"""What Postgres says of a row that COPY cannot write."""

import pytest

from airflow_kafka_offsets.sinks.sql.postgres_copy import _failed_line


@pytest.mark.parametrize(
    "context",
    [
        "COPY orders_2, line 3, column id",
        'COPY orders_2, line 3: "7,\nCOPY orders_2, line 9"',
        "COPY orders_2, Zeile 3, Spalte id: »7«",
        "COPY orders_2, ligne 3, colonne id : « 7 »",
        "COPY orders_2, строка 3, столбец id",
        "COPY orders_2, línea 3",
        "orders_2のCOPY、行 3、列 id",
        "orders_2 복사, 3번째 줄, id 열",
        "PL/pgSQL-Funktion refuse() Zeile 1 bei RAISE\nCOPY orders_2, Zeile 3",
    ],
)
def test_the_line_is_found_in_any_language(context: str) -> None:
    assert _failed_line(context, "orders_2") == 3


@pytest.mark.parametrize(
    "context", ["", "COPY orders_2", "COPY orders_22, line 3", "PL/pgSQL function refuse() line 1 at RAISE"]
)
def test_copy_of_no_rows(context: str) -> None:
    assert _failed_line(context, "orders_2") is None
