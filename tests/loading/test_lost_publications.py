"""A batch that a target elsewhere has, whose staged files are lost and whose records expired: its rows are the only
copy, and stay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_kafka_offsets import DeltaTable, Limits
from airflow_kafka_offsets.exceptions import DataLossError, OpenBatchError
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.manifest import MANIFEST
from airflow_kafka_offsets.verification.verify import verify
from devstack.topics import delete_records
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.lake import RUN, LakeGroup, dying
from tests.support.loads import Loader, TopicFactory, names, rows

ALL = [(1, offset) for offset in (0, 1, 3, 4, 5)]


engine = fixtures.sqlite_engine


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path) -> LakeGroup:
    """A topic of six records, the third a dead letter."""
    name, uri = topic(), f"{tmp_path}/lake/orders"
    produce(kafka, name, [*names(0, 2), b"{not json", *names(3, 3)])
    return LakeGroup(
        inline_loader, name, DeltaTable(uri), lambda: pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())
    )


def lose(group: LakeGroup, before: int) -> None:
    """Lose the staged files of what may be published, and the records before an offset."""
    ((uri,),) = rows(group.loader.engine, "SELECT staging_uri FROM offset_batches WHERE publish_started_at IS NOT NULL")
    (Path(uri) / MANIFEST).unlink()
    delete_records(group.loader.kafka.bootstrap_servers, group.topic, before)


@pytest.mark.parametrize("before", [2, 6])
def test_the_positions_of_a_load_follow_it(group: LakeGroup, before: int, caplog: pytest.LogCaptureFixture) -> None:
    with dying(LakeTarget, "after"):
        group.load(RUN)
    lose(group, before)

    # A dead letter would be lost.
    with pytest.raises(DataLossError):
        group.load()
    done = group.load(on_data_loss="skip")

    assert (done.batches, done.records, done.rows, done.dead_letters) == ((1,), 5, 5, 0)
    assert "its 1 dead letter cannot be had any more" in caplog.text
    assert (group.places(), group.position()) == (ALL, 6)
    assert rows(group.loader.engine, "SELECT state, records, row_count FROM offset_batches") == [("committed", 5, 5)]
    verify("loader", sink=group.sink, engine=group.loader.engine)


def test_lost_publication_without_dead_letters_loses_nothing(group: LakeGroup) -> None:
    with dying(LakeTarget, "after"):
        group.load(RUN, limits=Limits(max_records=2))
    lose(group, 2)

    assert group.load().rows == 5

    # The second batch was planned ahead, with two offsets.
    assert group.places() == [(1, 0), (1, 1), (2, 3), (3, 4), (3, 5)]
    assert group.proved() == (5, 1)


def test_records_that_expire_while_it_is_staged_again_do_not_have_it_abandoned(group: LakeGroup) -> None:
    with dying(LakeTarget, "after"):
        group.load(RUN, limits=Limits(max_records=2))
    lose(group, 0)
    kafka = group.loader.kafka

    class Expires(InlineLauncher):
        def __call__(self, job: StageJob) -> None:
            delete_records(kafka.bootstrap_servers, group.topic, 2)
            super().__call__(job)

    with pytest.raises(DataLossError):
        replace(group, loader=Loader(kafka, group.loader.engine, Expires())).load(on_data_loss="skip")

    assert group.load(on_data_loss="skip").rows == 5
    # The second batch was planned ahead, with two offsets.
    assert group.places() == [(1, 0), (1, 1), (2, 3), (3, 4), (3, 5)]
    assert group.proved() == (5, 1)


def test_a_replay_follows_it_with_what_it_replaced(group: LakeGroup) -> None:
    group.load()
    bounds = {group.topic: {0: (3, 5)}}
    with dying(LakeTarget, "after"):
        group.replay(bounds, RUN, replace=True)
    lose(group, 6)

    assert group.replay(bounds, replace=True, on_data_loss="skip").rows == 2

    assert group.places() == [(1, 0), (1, 1), (1, 5), (2, 3), (2, 4)]
    assert rows(group.loader.engine, "SELECT sum(row_count) FROM replaced_output") == [(2,)]
    verify("loader", sink=group.sink, engine=group.loader.engine)


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_replay_that_may_have_replaced_rows_is_not_abandoned(group: LakeGroup, dies: str) -> None:
    group.load()
    bounds = {group.topic: {0: (3, 5)}}
    with dying(LakeTarget, dies):
        group.replay(bounds, RUN, replace=True)

    with pytest.raises(OpenBatchError, match=r"cannot be abandoned: .* finish the replay: .*run the same replay again"):
        abandon_batch("loader", 2, engine=group.loader.engine)

    assert group.replay(bounds, replace=True).rows == 2
    assert group.places() == [(1, 0), (1, 1), (1, 5), (2, 3), (2, 4)]
    assert group.proved() == (5, 1)
