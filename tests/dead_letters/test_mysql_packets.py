"""MariaDB and MySQL close a connection over which a larger statement than `max_allowed_packet` comes."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


def test_contents_that_are_larger_are_left_out(log: Kafka, mariadb_engine: Engine, topic: TopicFactory) -> None:
    name = topic()
    produce(log, name, [*names(0, 2), b"{" + b"'" * 9_000_000, b"{bad", *names(2, 1)])

    result = Loader(log, mariadb_engine, InlineLauncher())(name, on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (3, 2)
    found = rows(mariadb_engine, "SELECT offset_value, error_class, length(value), error FROM dead_letters ORDER BY 1")
    assert [row[:3] for row in found] == [(2, "size", None), (3, "value", 4)]
    assert "max_allowed_packet of the database is too small" in found[0][3]
