"""What the next attempt may do with an open batch, and what it must not; on both kinds of database."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import DataLossError, ForeignBatchError, StagingError, TopicRecreatedError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import Kafka, produce
from tests.support.command_line import leave_open
from tests.support.inline import Fails
from tests.support.loads import CountingLauncher, Loader, TopicFactory, assert_exactly_once, names, positions, rows
from tests.support.openings import die_after_the_plan
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


def recreate(kafka: KafkaBroker, name: str) -> None:
    delete_topic(kafka.bootstrap_servers, name)
    create_topic(kafka.bootstrap_servers, name, 1, {})


def test_an_open_batch_of_another_load_is_not_touched(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    orders, customers = topic(), topic()
    produce(kafka, orders, names(0, 10))
    produce(kafka, customers, names(100, 1))
    die_after_the_plan(loader, orders)

    with pytest.raises(ForeignBatchError, match=rf"open batch 1, of topics {orders} into table 'target'"):
        loader(customers, sink=SqlTable("customers"))
    with pytest.raises(ForeignBatchError, match=r"this load is of .* into 'elsewhere'"):
        loader(orders, sink=SqlTable("elsewhere"))

    assert positions(loader.engine) == {}
    assert loader(orders).rows == 10
    assert_exactly_once(loader.engine)


def test_an_open_batch_of_a_topic_that_is_no_more_can_be_given_up(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name, deleted = topic(), topic()
    for one in (name, deleted):
        produce(kafka, one, names(0, 5))
    with pytest.raises(StagingError):
        Loader(kafka, inline_loader.engine, Fails())(name, deleted)
    delete_topic(kafka.bootstrap_servers, deleted)

    with pytest.raises(ForeignBatchError, match="kafka-offsets abandon loader --batch 1 "):
        inline_loader(name)
    abandon_batch("loader", 1, engine=inline_loader.engine)

    assert inline_loader(name).rows == 5


@pytest.mark.parametrize(("run", "try_number"), [("run", 2), ("later", 1)])
def test_the_history_has_the_try_whose_log_has_the_commit(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, run: str, try_number: int
) -> None:
    name, planner = topic(), TaskRun("run", "dag", "task", -1, 1)
    produce(kafka, name, names(0, 5))
    leave_open(inline_loader, name, run=planner)

    inline_loader(name, run=replace(planner, run_id=run, try_number=2))

    # The history names the run that planned the batch.
    assert rows(inline_loader.engine, "SELECT run_id, try_number FROM offset_batches") == [("run", try_number)]


def test_a_group_loads_into_one_table(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, moved = topic(), SqlTable("moved")
    produce(kafka, name, names(0, 3))
    inline_loader(name)
    produce(kafka, name, names(3, 2))

    with pytest.raises(
        ForeignBatchError,
        match=rf"loads into table 'target', last with batch 1; .* 'moved', .* --topic {name} --to-group loader "
        "--new-group",
    ):
        inline_loader(name, sink=moved)
    assert positions(inline_loader.engine) == {(name, 0): 3}
    # It has no positions of another topic that could be copied.
    with pytest.raises(ForeignBatchError, match=r"this load is into 'moved'. Nothing was loaded. .* own group_id\.$"):
        inline_loader(topic(), sink=moved)

    # The way out that the error names.
    Rewinder(inline_loader, "moved")("to-group", "loader", name, new_group=True)
    assert inline_loader(name, group_id="moved", sink=moved).rows == 2
    assert rows(inline_loader.engine, "SELECT id FROM moved ORDER BY id") == [(3,), (4,)]
    verify("moved", sink=moved, engine=inline_loader.engine, kafka_config=inline_loader.config)


def test_a_table_is_the_same_with_and_without_its_default_schema(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    default = sa.inspect(inline_loader.engine).default_schema_name
    for number, schema in enumerate([None, default, None]):
        produce(kafka, name, names(number, 1))
        # Of the same load are the batch that is left open, and the one that is committed.
        with pytest.raises(StagingError):
            Loader(kafka, inline_loader.engine, Fails())(name)
        assert inline_loader(name, sink=SqlTable("target", schema=schema)).rows == 1
    assert_exactly_once(inline_loader.engine)


def test_a_topic_recreated_while_a_batch_is_open_is_not_read(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    die_after_the_plan(loader, name)
    recreate(kafka, name)
    produce(kafka, name, names(1000, 50))

    with pytest.raises(TopicRecreatedError, match=rf"{name}\[0\]"):
        loader(name)

    assert loader.launcher.jobs == []
    assert rows(loader.engine, "SELECT count(*) FROM target") == [(0,)]


def test_a_topic_recreated_while_spark_reads_is_not_committed(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    class Recreates(CountingLauncher):
        def __call__(self, job: StageJob) -> None:
            recreate(kafka, name)
            produce(kafka, name, names(1000, 50))
            super().__call__(job)

    with pytest.raises(TopicRecreatedError, match=rf"{name}\[0\]"):
        Loader(kafka, loader.engine, Recreates(loader.launcher._spark))(name)

    assert rows(loader.engine, "SELECT count(*) FROM target") == [(0,)]


def test_an_open_batch_whose_start_expired_is_an_error_or_planned_anew(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    loader(name)
    produce(kafka, name, names(10, 20))
    die_after_the_plan(loader, name)
    delete_records(kafka.bootstrap_servers, name, 20)

    with pytest.raises(DataLossError, match=rf"{name}\[0\]: position 10, beginning offset 20, 10 offsets gone"):
        loader(name)
    assert loader(name, on_data_loss="skip").rows == 10

    assert positions(loader.engine) == {(name, 0): 30}
    assert rows(loader.engine, "SELECT state FROM offset_batches ORDER BY batch_id") == [
        ("committed",),
        ("abandoned",),
        ("committed",),
    ]
    assert rows(loader.engine, "SELECT start_offset, end_offset FROM offset_gaps") == [(10, 20)]


def test_records_that_expire_before_the_second_run_are_not_lost_in_silence(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    loader(name)  # the partition is empty, and is remembered all the same
    produce(kafka, name, names(0, 10))
    delete_records(kafka.bootstrap_servers, name, 4)

    with pytest.raises(
        DataLossError, match=rf"{name}\[0\]: position 0, beginning offset 4, 4 offsets gone.*rewind loader --shift-by 0"
    ):
        loader(name)
