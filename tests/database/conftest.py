"""A table that transactions write to, and pauses that nobody waits for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kafka_offsets.database import transactions
from tests.support.transactions import Output


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path / "output.db")
    yield made
    made.engine.dispose()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; nobody waits for them."""
    asked: list[float] = []
    monkeypatch.setattr(transactions, "sleep", asked.append)
    return asked
