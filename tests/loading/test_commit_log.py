"""What the log says of a commit."""

from __future__ import annotations

import logging
import re

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.formats.simple_formats import Json
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory
from tests.support.memory_log import MemoryLog


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return MemoryLog().install(monkeypatch)


def test_a_commit_says_how_many_rows_a_second_it_took(
    kafka: Kafka, engine: Engine, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    produce(kafka, name, [b'{"id": 1}', b'{"id": 2}'])

    with caplog.at_level(logging.INFO, "airflow_kafka_offsets"):
        Loader(kafka, engine, InlineLauncher())(name, value_format=Json("id BIGINT"))

    (line,) = [message for message in caplog.messages if message.startswith("Committed batch")]
    assert re.search(r"2 records, 2 rows into .* in [\d.]+ s \([\d,]*[1-9][\d,]* rows/s\): ", line), line


def test_the_first_commit_warns_of_a_misspelt_column(
    kafka: Kafka, engine: Engine, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    for is_first in (True, False):
        caplog.clear()
        produce(kafka, name, [b'{"id": 1, "customer": "x"}', None])
        Loader(kafka, engine, InlineLauncher())(name, value_format=Json("id BIGINT, custmer STRING, amount DOUBLE"))
        assert ("'amount', 'custmer' are null" in caplog.text) is is_first
