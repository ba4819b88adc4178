"""Fixtures of the tests of sinks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.support.clients import Kafka
from tests.support.loads import Loader


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def inline_loader(inline_loader: Loader) -> Iterator[Loader]:
    """Leaves no temporary table behind, in no connection."""
    yield inline_loader
    if inline_loader.engine.dialect.name == "mysql":  # which does not list them
        return
    with inline_loader.engine.connect() as conn:
        assert sa.inspect(conn).get_temp_table_names() == []
