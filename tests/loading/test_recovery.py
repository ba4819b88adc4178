"""What the next attempt may do with an open batch, and what it must not; on both kinds of database."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    ForeignBatchError,
    RecordError,
    StagingError,
    TargetError,
    TopicRecreatedError,
    TransformError,
)
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.formats.raw import Raw
from airflow_kafka_offsets.kafka.reader import consumer_config, read
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import Kafka, produce
from tests.support.inline import Fails
from tests.support.loads import (
    CountingLauncher,
    Loader,
    TopicFactory,
    assert_exactly_once,
    names,
    positions,
    rows,
)
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


class Dies(CountingLauncher):
    """Spark that ends before it has staged anything."""

    def __call__(self, job: StageJob) -> None:
        raise RuntimeError("no executor left")


def die_after_the_plan(loader: Loader, *topics: str) -> None:
    with pytest.raises(StagingError, match="no executor left"):
        Loader(loader.kafka, loader.engine, Dies(loader.launcher._spark))(*topics)


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

    with pytest.raises(ForeignBatchError, match="airflow kafka-offsets abandon loader --batch 1 "):
        inline_loader(name)
    abandon_batch("loader", 1, engine=inline_loader.engine)

    assert inline_loader(name).rows == 5


def test_a_group_loads_into_one_table(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, moved = topic(), SqlTable("moved")
    produce(kafka, name, names(0, 3))
    inline_loader(name)
    produce(kafka, name, names(3, 2))

    with pytest.raises(
        ForeignBatchError,
        match=rf"loads into table 'target', last with batch 1; .* 'moved', .* --topic {name} --to-group loader --new-group",
    ):
        inline_loader(name, sink=moved)
    assert positions(inline_loader.engine) == {(name, 0): 3}

    # The way out that the error names.
    Rewinder(inline_loader, "moved")("to-group", "loader", name, new_group=True)
    assert inline_loader(name, group_id="moved", sink=moved).rows == 2
    assert rows(inline_loader.engine, "SELECT id FROM moved ORDER BY id") == [(3,), (4,)]
    verify("moved", sink=moved, engine=inline_loader.engine, kafka_config=inline_loader.config)


def test_a_table_is_the_same_with_and_without_its_default_schema(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    default = inline_loader.engine.dialect.name.replace("postgresql", "public").replace("sqlite", "main")
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

    with pytest.raises(DataLossError, match=rf"{name}\[0\]: position 0, beginning offset 4, 4 offsets gone"):
        loader(name)


def test_corrected_columns_are_staged_anew(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT, name VARCHAR(30) CHECK (name <> 'name-7'))"))
    with pytest.raises(RecordError, match=r"offset 7 .*(CHECK|check)"):
        loader(name)

    result = loader(name, value_format=Json("id BIGINT"))

    assert result.rows == 10
    assert rows(loader.engine, "SELECT count(*), count(name) FROM target") == [(10, 0)]


def test_a_corrected_target_is_enough_where_the_rows_were_right(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT)"))
        conn.execute(sa.text("INSERT INTO target VALUES (3, 'in the way')"))
    with pytest.raises(RecordError, match="offset 3"):
        loader(name)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target"))

    assert loader(name).rows == 10

    assert len(loader.launcher.jobs) == 1, "the staged files were not used"


def test_missing_files_are_staged_anew(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, staging = topic(), tmp_path_factory.mktemp("staging")
    produce(kafka, name, names(0, 10))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT, _kafka_offset BIGINT)"))
        conn.execute(sa.text("INSERT INTO target VALUES (3, 'in the way', -1)"))
    with pytest.raises(RecordError):
        loader(name, staging_dir=str(staging))
    for part in staging.glob("*/part-*.arrow"):
        part.unlink()
    with loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target"))

    assert loader(name, staging_dir=str(staging)).rows == 10

    assert list(staging.iterdir()) == []


@pytest.mark.parametrize("location", ["{staged}", "nosuch://bucket/batch-1", "{precious}"])
def test_what_cannot_be_read_or_is_no_staging_directory_is_staged_anew_and_left_alone(
    inline_loader: Loader,
    kafka: KafkaBroker,
    topic: TopicFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    location: str,
) -> None:
    name, staging, precious = topic(), tmp_path / "staging", tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    produce(kafka, name, names(0, 10))
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT)"))
        conn.execute(sa.text("INSERT INTO target VALUES (3, 'in the way')"))
    with pytest.raises(RecordError):
        inline_loader(name, staging_dir=str(staging))
    (staged,) = staging.iterdir()
    for directory in (staged, precious):
        (directory / "manifest.json").write_text('{"batch_id": 1, "from_the_future": ')
    uri = location.format(staged=staged, precious=precious)
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_batches SET staging_uri = :uri"), {"uri": uri})
        conn.execute(sa.text("DELETE FROM target"))

    assert inline_loader(name, staging_dir=str(staging)).rows == 10

    assert f"in {uri} cannot be read, and it is staged again" in caplog.text
    assert (f"{uri} of batch 1 is left as it is" in caplog.text) == (uri != str(staged))
    assert sorted(precious.iterdir()) == [precious / "file", precious / "manifest.json"]
    assert list(staging.iterdir()) == ([] if uri == str(staged) else [staged])


def ten_of_them(records: DataFrame) -> DataFrame:
    return records.sparkSession.createDataFrame(records.take(10), records.schema)


def test_a_transform_that_takes_some_records_is_refused(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 100))

    with pytest.raises(TransformError, match="stops reading early"):
        loader(name, transform=f"{__name__}.ten_of_them", slice_offsets=25)

    assert positions(loader.engine) == {}


def test_bytes_survive_beside_types_that_postgres_reads_as_text(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    values = [bytes(range(256)), b"a\\\\b", b"x\\101y", b"\\x4142", b""]
    produce(kafka, name, values)
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (value BYTEA, note JSON, _kafka_offset BIGINT)"))

    postgres_loader(name, value_format=Raw(), transform=f"{__name__}.with_a_note")

    loaded = rows(postgres_loader.engine, "SELECT value FROM target ORDER BY _kafka_offset")
    assert [bytes(value) for (value,) in loaded] == values


def with_a_note(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return records.drop("key").withColumn("note", functions.lit("{}"))


def test_what_postgres_refuses_at_the_end_is_told_without_the_row(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [b'{"id": 1, "name": "secret-value"}'])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE known (name TEXT PRIMARY KEY)"))
        conn.execute(sa.text("CREATE TABLE target (id BIGINT, name TEXT REFERENCES known)"))

    with pytest.raises(TargetError, match="violates foreign key constraint") as raised:
        postgres_loader(name)

    assert "secret-value" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("staging_dir", "message"),
    [
        ("staging/here", "must be an absolute path or a URI; got staging_dir='staging/here'"),
        ("s3://KEY:SECRET@bucket/staging", "must not hold credentials"),
    ],
)
def test_a_staging_directory_that_cannot_work_is_refused(
    postgres_loader: Loader, topic: TopicFactory, staging_dir: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        postgres_loader(topic(), staging_dir=staging_dir)

    assert "SECRET" not in str(raised.value)


def test_a_read_outlasts_polls_that_bring_nothing(tmp_path: Path) -> None:
    with KafkaBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders", 1, {})
        produce(broker, "orders", names(0, 50_000))
        config = consumer_config({"bootstrap.servers": broker.bootstrap_servers}, "reader", "read_committed")
        batches = read(Slice(0, "orders", 0, 0, 50_000), config)
        count = next(batches).num_rows
        # What is prefetched runs out, and for a while nothing comes.
        broker.kill()
        broker.start()

        count += sum(batch.num_rows for batch in batches)

    assert count == 50_000
