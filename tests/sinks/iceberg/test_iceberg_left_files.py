"""Data files that failed attempts left are removed after the retention; never one that a snapshot names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.core.attempts import attempt_name
from airflow_kafka_offsets.ledger.install import installation_id
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from tests.support.iceberg import IcebergGroup
from tests.support.rewinds import Rewinder

SOON = datetime.now(UTC) + timedelta(days=1)
BEFORE = datetime.now(UTC) - timedelta(days=1)


def data(group: IcebergGroup) -> dict[str, Path]:
    root = Path(group.table.location().removeprefix("file://")) / "data"
    return {str(path.relative_to(root)): path for path in root.rglob("*.parquet")}


def leave(group: IcebergGroup, batch_id: int) -> Path:
    """Leave a file beside those of a batch, as an attempt that was killed does."""
    some = next(path for name, path in data(group).items() if name.startswith(f"batch-{batch_id}-"))
    installation = installation_id(Ledger(group.loader.engine))
    left = some.parent.parent / attempt_name(installation, batch_id) / "x" / "left.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(some.read_bytes())
    return left


def test_only_files_of_the_batch_that_no_snapshot_names_are_removed(group: IcebergGroup, sink: IcebergTable) -> None:
    assert sink.writes_files
    group.load(limits=Limits(max_records=4))
    Rewinder(group.loader)("to-offset", 6, replace=sink)
    before, left, other = set(data(group)), leave(group, 2), leave(group, 3)
    engine = group.loader.engine
    installation = installation_id(Ledger(engine))

    assert sink.connect(engine).remove_leftovers(2, BEFORE, installation) == 0
    assert sink.connect(engine).remove_leftovers(2, SOON, installation) == 1

    assert (left.exists(), other.exists()) == (False, True)
    assert sink.connect(engine).remove_leftovers(3, SOON, installation) == 1
    assert set(data(group)) == before
    assert group.proved() == (5, 1, 6)
