"""Plan, stage and commit through plain functions, on a real broker, real Spark and both kinds of database."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits, Staging, StateTables
from airflow_kafka_offsets.exceptions import DataLossError, RecordError, StagingError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from devstack.kafka import KafkaBroker
from tests.support import clients
from tests.support.clients import produce
from tests.support.loads import CountingLauncher, Loader, TopicFactory, assert_exactly_once, names, positions, rows

pytestmark = pytest.mark.server


RUN = TaskRun("run-1", dag_id="dag", task_id="task", map_index=-1, try_number=1)


def test_rows_and_positions_arrive_together(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    for partition in range(3):
        produce(kafka, name, names(partition * 100, 40), partition)

    result = loader(name)

    assert (result.records, result.rows) == (120, 120)
    assert positions(loader.engine) == {(name, 0): 40, (name, 1): 40, (name, 2): 40}
    assert rows(loader.engine, "SELECT id, name FROM target WHERE _kafka_partition = 1 AND _kafka_offset = 7") == [
        (107, "name-107")
    ]
    assert_exactly_once(loader.engine)


def test_a_second_load_adds_only_what_is_new(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    loader(name)
    produce(kafka, name, names(10, 5))

    assert loader(name).rows == 5

    assert_exactly_once(loader.engine)


def test_no_new_records_start_no_spark_and_leave_no_batch(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    loader(name)
    launched = len(loader.launcher.jobs)

    assert loader(name) == LoadResult()

    assert len(loader.launcher.jobs) == launched
    assert rows(loader.engine, "SELECT count(*) FROM offset_batches") == [(1,)]


def test_several_topics_move_together(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    first, second = topic(partitions=2), topic()
    produce(kafka, first, names(0, 10), 1)
    produce(kafka, second, names(100, 20))

    result = loader(first, second)

    assert len(result.batches) == 1
    assert positions(loader.engine) == {(first, 0): 0, (first, 1): 10, (second, 0): 20}
    assert_exactly_once(loader.engine)


def test_max_records_loads_in_several_batches(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    produce(kafka, name, names(0, 25), 0)
    produce(kafka, name, names(100, 5), 1)

    result = loader(name, limits=Limits(max_records=10))

    assert (len(result.batches), result.rows) == (3, 30)
    assert rows(loader.engine, "SELECT max(n) FROM (SELECT count(*) AS n FROM target GROUP BY _batch_id) c") == [(10,)]
    assert_exactly_once(loader.engine)


def test_slices_of_one_partition_are_read_side_by_side(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 1000))

    loader(name, staging=Staging(slice_offsets=150))

    assert [len(one) for one in loader.launcher.jobs[0].slices] == [142, 143, 143, 143, 143, 143, 143]
    assert_exactly_once(loader.engine)


def test_quiet_partitions_share_a_spark_task(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(partitions=70)
    for partition in range(70):
        produce(kafka, name, names(10 * partition, 2), partition)

    assert loader(name).rows == 140

    assert [len(task) for task in loader.launcher.jobs[0].tasks] == [64, 6]
    assert_exactly_once(loader.engine)


def test_latest_begins_at_the_end_and_loses_nothing_after_it(  # P20
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    assert loader(name, start="latest") == LoadResult()
    produce(kafka, name, names(10, 3))
    assert loader(name, start="latest").rows == 3

    assert rows(loader.engine, "SELECT min(id), count(*) FROM target") == [(10, 3)]
    assert rows(loader.engine, "SELECT kind, state FROM offset_batches ORDER BY batch_id") == [
        ("initialize", "committed"),
        ("load", "committed"),
    ]


class Crash(CountingLauncher):
    """Stages for real, then fails, as a worker that dies between staging and commit."""

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        raise RuntimeError("the worker dies")


def test_a_retry_replays_the_stored_range(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    dying = Crash(loader.launcher._spark)
    with pytest.raises(StagingError, match="the worker dies"):
        Loader(kafka, loader.engine, dying)(name, run=RUN)
    produce(kafka, name, names(10, 10))

    result = loader(name, run=RUN)

    # The range and the files of the first try, without the newer records; those are the next run's.
    assert loader.launcher.jobs == []
    assert result.rows == 10
    assert loader(name, run=TaskRun("run-2", "dag", "task", -1, 1)).rows == 10
    assert_exactly_once(loader.engine)


def test_a_task_cleared_after_success_loads_nothing_twice(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    loader(name, run=RUN)
    produce(kafka, name, names(10, 10))

    assert loader(name, run=RUN) == LoadResult()

    assert rows(loader.engine, "SELECT count(*) FROM target") == [(10,)]
    assert_exactly_once(loader.engine)


def test_staged_files_are_removed_after_the_commit(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, staging = topic(), tmp_path_factory.mktemp("staging")
    produce(kafka, name, names(0, 10))

    loader(name, staging=Staging(dir=str(staging)))

    assert loader.launcher.jobs[0].staging_uri.startswith(str(staging))
    assert list(staging.iterdir()) == []


def test_staging_of_a_failed_try_is_removed_by_the_next(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, staging = topic(), tmp_path_factory.mktemp("staging")
    produce(kafka, name, names(0, 10))
    with pytest.raises(StagingError):
        Loader(kafka, loader.engine, Crash(loader.launcher._spark))(name, staging=Staging(dir=str(staging)))
    assert len(list(staging.iterdir())) == 1

    loader(name, staging=Staging(dir=str(staging)))

    assert list(staging.iterdir()) == []


def test_a_record_that_is_not_json_is_named_and_nothing_is_written(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    produce(kafka, name, names(0, 20), 0)
    produce(kafka, name, [*names(20, 7), b"{not json", *names(30, 5)], 1)

    with pytest.raises(RecordError, match=f"topic '{name}' partition 1 offset 7"):
        loader(name)

    assert rows(loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(loader.engine) == {}
    assert rows(loader.engine, "SELECT state FROM offset_batches") == [("planned",)]


def test_a_batch_is_loaded_once_the_cause_is_mended(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 3), b'{"id": "three"}'])
    with pytest.raises(RecordError, match="field 'id' is declared as BIGINT, but holds string"):
        loader(name, value_format=Json("id BIGINT, name STRING"))

    loader(name, value_format=Json("name STRING"))

    assert_exactly_once(loader.engine)


def test_a_target_of_the_user_gets_the_columns_it_has(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (name VARCHAR(20), extra INTEGER DEFAULT 7, id INTEGER NOT NULL)"))

    loader(name)

    assert rows(loader.engine, "SELECT name, extra, id FROM target WHERE id = 3") == [("name-3", 7, 3)]


def test_state_tables_with_prefix_and_odd_names(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, state_tables = topic(), StateTables(prefix='od"d; -- ')
    produce(kafka, name, names(0, 10))

    loader(name, state_tables=state_tables, sink=SqlTable('ta"r;get.ä'))

    assert positions(loader.engine, Tables(prefix=state_tables.prefix)) == {(name, 0): 10}
    assert rows(loader.engine, 'SELECT count(*) FROM "ta""r;get.ä"') == [(10,)]


def test_skipped_records_are_a_gap_in_the_ledger(  # P08
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    from confluent_kafka import TopicPartition

    name = topic()
    produce(kafka, name, names(0, 10))
    loader(name)
    produce(kafka, name, names(10, 20))
    admin = clients.admin(kafka)
    for future in admin.delete_records([TopicPartition(name, 0, 20)]).values():
        future.result()

    with pytest.raises(
        DataLossError,
        match=rf"{name}\[0\]: position 10, beginning offset 20, 10 offsets gone.*rewind loader --shift-by 0",
    ):
        loader(name)
    loader(name, on_data_loss="skip")

    assert rows(loader.engine, "SELECT topic, partition, start_offset, end_offset, cause FROM offset_gaps") == [
        (name, 0, 10, 20, "expired")
    ]
    assert rows(loader.engine, "SELECT count(*), min(id), max(id) FROM target WHERE id >= 10") == [(10, 20, 29)]
    assert positions(loader.engine) == {(name, 0): 30}


def test_an_expired_log_without_records_moves_over_the_gap_without_spark(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    from confluent_kafka import TopicPartition

    name = topic()
    produce(kafka, name, names(0, 10))
    loader(name, limits=Limits(max_records=10))
    produce(kafka, name, names(10, 10))
    admin = clients.admin(kafka)
    for future in admin.delete_records([TopicPartition(name, 0, 20)]).values():
        future.result()
    launched = len(loader.launcher.jobs)

    loader(name, on_data_loss="skip")

    assert len(loader.launcher.jobs) == launched
    assert positions(loader.engine) == {(name, 0): 20}


def test_init_is_idempotent_and_says_so(loader: Loader) -> None:
    assert initialize(Ledger(loader.engine)) is True
    assert initialize(Ledger(loader.engine)) is False


def test_printed_ddl_is_what_init_would_make(loader: Loader) -> None:
    with loader.engine.begin() as conn:
        for statement in Tables().ddl(loader.engine.dialect).split(";\n"):
            if statement.strip():
                conn.exec_driver_sql(statement)

    assert initialize(Ledger(loader.engine)) is False
