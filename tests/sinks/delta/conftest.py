"""Fixtures of the tests of Delta tables."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_kafka_offsets import DeltaTable
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.lake import LakeGroup
from tests.support.loads import Loader, TopicFactory, names

engine = fixtures.sqlite_engine


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"{tmp_path}/lake/orders"


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, uri: str) -> LakeGroup:
    """A topic of six records, and nothing loaded."""
    name = topic()
    produce(kafka, name, names(0, 6))
    return LakeGroup(inline_loader, name, DeltaTable(uri), lambda: read(uri))


def read(uri: str) -> pa.Table:
    """Return all rows of a table, as delta-rs reads them."""
    return pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())
