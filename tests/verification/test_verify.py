"""`verify` proves what loads leave, and names what is wrong with it, on both kinds of database."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy as sa
from airflow.sdk import RetryAction
from pyspark.sql import DataFrame
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import PartitionLog
from airflow_kafka_offsets.core.offsets import TopicPartition as Partition
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    ConfigurationError,
    LedgerError,
    TopicRecreatedError,
    VerificationError,
    Violation,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy
from airflow_kafka_offsets.operators.verify import KafkaVerifyOperator
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.findings import Coverage
from airflow_kafka_offsets.verification.verify import verify
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records
from tests.support.airflow_runs import DAGS, airflow_uri
from tests.support.clients import Kafka, produce, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server

ON_ONE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
"""For what the kind of database has no part in."""

LEFT_OUT: dict[str, Any] = {"on_bad_record": "dead_letter"}


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


def verified(loader: Loader, **options: Any) -> Coverage:
    return verify("loader", sink=SqlTable("target"), engine=loader.engine, **options)


def reread(loader: Loader, **options: Any) -> Coverage:
    return verified(loader, kafka_config=loader.config, **options)


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            assert conn.execute(sa.text(statement)).rowcount, statement


def produce_at(kafka: KafkaBroker, topic: str, timestamps: Sequence[int]) -> None:
    """Records of partition 0 with timestamps of their own, in milliseconds."""
    writer = producer(kafka)
    for value, timestamp in zip(names(0, len(timestamps)), timestamps, strict=True):
        writer.produce(topic, value, partition=0, timestamp=timestamp)
    assert writer.flush(30) == 0


@pytest.fixture
def two_batches(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> str:
    """Batch 1: offsets 0..10 of partition 0, of which 7 is a dead letter, and 0..5 of partition 1; batch 2: 10..15."""
    name = topic(partitions=2)
    produce(kafka, name, [*names(0, 7), b"{not json", *names(8, 2)])
    produce(kafka, name, names(100, 5), 1)
    inline_loader(name, **LEFT_OUT)
    produce(kafka, name, names(10, 5))
    inline_loader(name, **LEFT_OUT)
    return name


# --- what loads leave ---


@pytest.mark.broker
def test_topics_batches_dead_letters_and_gaps_are_proved(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    first, second = topic(partitions=2), topic()
    produce(kafka, first, [*names(0, 9), b"{not json"])
    produce(kafka, second, names(100, 5))
    inline_loader(first, second, max_records=8, **LEFT_OUT)
    produce(kafka, first, names(10, 6))
    delete_records(kafka.bootstrap_servers, first, 12)
    inline_loader(first, second, on_data_loss="skip")

    expected = Coverage(
        "loader",
        partitions=3,
        batches=4,  # of which one only stored the position of the empty partition
        records=19,
        rows=18,
        dead_letters=1,
        gaps=2,
        open_batch=None,
        output_checked=True,
    )
    assert verified(inline_loader) == expected
    # Four of the first topic are still there, and all of the second.
    assert asdict(reread(inline_loader)) == asdict(expected) | {"reread": 9}


@ON_ONE
def test_an_open_batch_is_told(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, two_batches: str
) -> None:
    produce(kafka, two_batches, [b"{not json"])
    with pytest.raises(Exception, match="cannot be loaded"):
        inline_loader(two_batches)

    assert verified(inline_loader).open_batch == 3


def test_another_group_in_the_same_table_is_not_looked_at(
    inline_loader: Loader, kafka: KafkaBroker, two_batches: str
) -> None:
    inline_loader(two_batches, group_id="other", **LEFT_OUT)
    do(inline_loader.engine, "DELETE FROM target WHERE _batch_id = 3 AND _kafka_offset < 3")

    assert verified(inline_loader).rows == 19
    with pytest.raises(VerificationError, match="holds 11 rows of batch 3"):
        verify("other", sink=SqlTable("target"), engine=inline_loader.engine)


def test_names_are_quoted(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, tables, sink = topic(), Tables(prefix='od"d; -- '), SqlTable('ta"r;get.ä')
    produce(kafka, name, names(0, 10))
    inline_loader(name, tables=tables, sink=sink)

    found = verify("loader", sink=sink, engine=inline_loader.engine, tables=tables, kafka_config=inline_loader.config)

    assert (found.rows, found.reread) == (10, 10)


def only_even(records: DataFrame) -> DataFrame:
    return records.where("id % 2 = 0")


def twice_without_origin(records: DataFrame) -> DataFrame:
    return records.union(records).select("id", "name")


@pytest.mark.broker  # Spark runs the transform, in processes of its own
def test_rows_of_a_transform_are_counted_and_not_looked_for_in_kafka(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    plain = Loader(kafka, loader.engine, InlineLauncher())
    produce(kafka, name, names(0, 4))
    plain(name)
    produce(kafka, name, names(4, 10))
    loader(name, transform=f"{__name__}.only_even")
    produce(kafka, name, names(14, 3))
    plain(name)

    found = reread(plain)
    assert (found.records, found.rows, found.reread) == (17, 12, 7)

    produce(kafka, name, names(17, 2))
    with loader.engine.begin() as conn:
        table = sa.Table("target", sa.MetaData(), autoload_with=conn)
        for column in ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp"):
            if not table.c[column].nullable and conn.dialect.name == "postgresql":
                conn.execute(sa.text(f"ALTER TABLE target ALTER {column} DROP NOT NULL"))
    loader(name, transform=f"{__name__}.twice_without_origin")
    assert verified(plain).rows == 16
    do(loader.engine, "DELETE FROM target WHERE _batch_id = 4 AND id = 17")
    with pytest.raises(VerificationError, match="holds 2 rows of batch 4, which wrote 4"):
        verified(plain)


@ON_ONE
@pytest.mark.parametrize(
    ("columns", "checked"),
    [("_batch_id BIGINT", True), ("_kafka_offset BIGINT", False)],
    ids=["batch", "nothing"],
)
def test_a_target_with_fewer_columns_proves_less_and_says_so(
    inline_loader: Loader,
    kafka: KafkaBroker,
    topic: TopicFactory,
    caplog: pytest.LogCaptureFixture,
    columns: str,
    checked: bool,
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text(f"CREATE TABLE target (id BIGINT NOT NULL, name TEXT, {columns})"))
    inline_loader(name)

    found = verified(inline_loader)
    assert (found.rows, found.output_checked) == (10, checked)
    with pytest.raises(
        ConfigurationError, match=r"has no column .*_kafka_topic, _kafka_partition.*cannot be looked for"
    ):
        reread(inline_loader)
    do(inline_loader.engine, "DELETE FROM target WHERE id = 3")
    if checked:
        with pytest.raises(VerificationError, match="holds 9 rows of batch 1, which wrote 10"):
            verified(inline_loader)
    else:
        caplog.clear()
        with caplog.at_level("INFO"):
            verified(inline_loader)
        assert (
            "Table 'target' has no column _batch_id, _kafka_topic, _kafka_partition: history and positions are proved, its "
            "rows were not" in caplog.text
        )
        assert "is proved:" not in caplog.text


@ON_ONE
@pytest.mark.parametrize("key", [(), ("id",)], ids=["no-batch-column", "upsert-key"])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_table_that_the_group_does_not_load_into_proves_nothing(
    inline_loader: Loader, topic: TopicFactory, key: tuple[str, ...], start: str
) -> None:
    name, sink = topic(), SqlTable("target", upsert_key=key)
    produce(inline_loader.kafka, name, names(0, 10))
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE other (id BIGINT NOT NULL)"))
    inline_loader(name, sink=sink, start=start)

    with pytest.raises(ConfigurationError, match=r"'loader' loads into table 'target', as batch 1 .* named is 'other'"):
        verify("loader", sink=SqlTable("other", upsert_key=key), engine=inline_loader.engine)
    # Another spelling is no other table.
    verify("loader", sink=SqlTable("target", "main", upsert_key=key), engine=inline_loader.engine)


@ON_ONE
def test_the_number_of_statements_does_not_grow(inline_loader: Loader, kafka: KafkaBroker, two_batches: str) -> None:
    statements: list[str] = []
    sa.event.listen(inline_loader.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    verified(inline_loader)
    few = len(statements)
    produce(kafka, two_batches, names(15, 5))
    inline_loader(two_batches, max_records=1)
    statements.clear()

    assert verified(inline_loader).batches == 7
    assert len(statements) == few


@pytest.mark.parametrize("before", ["FROM offset_batches", "FROM target"], ids=["history", "rows"])
def test_a_load_that_commits_meanwhile_is_no_violation(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, before: str
) -> None:
    name = topic()
    engine = inline_loader.engine
    produce(kafka, name, names(0, 10))
    inline_loader(name)
    if engine.dialect.name == "sqlite":  # in its other modes nobody commits while somebody reads
        with engine.connect() as conn:
            conn.exec_driver_sql("PRAGMA journal_mode = WAL")
    produce(kafka, name, names(10, 5))
    loads: list[int] = []

    def load_once(conn: object, cursor: object, statement: str, *_: object) -> None:
        if before in statement and not loads:
            loads.append(0)
            loads.append(inline_loader(name).rows)

    sa.event.listen(engine, "before_cursor_execute", load_once)
    found = reread(inline_loader)
    assert loads == [0, 5]
    assert (found.batches, found.rows, found.reread) == (1, 10, 10)

    sa.event.remove(engine, "before_cursor_execute", load_once)
    assert reread(inline_loader).rows == 15


# --- violations, made by hand ---


class Broken(NamedTuple):
    """What somebody does to the database, and what must then be said of which partition, offset and batch."""

    statements: list[str]
    message: str
    place: tuple[int, int, int]


BROKEN = {
    "row-deleted": Broken(
        ["DELETE FROM target WHERE _kafka_partition = 0 AND _kafka_offset = 3"],
        r"\[0\]: table 'target' holds 8 rows of batch 1, offsets 0\.\.10, which wrote 9: rows are missing\.$",
        (0, 0, 1),
    ),
    "row-twice": Broken(
        ["INSERT INTO target SELECT * FROM target WHERE _kafka_partition = 1 AND _kafka_offset = 3"],
        r"\[1\]: table 'target' holds 6 rows of batch 1, offsets 0\.\.5, which wrote 5: there are too many\.$",
        (1, 0, 1),
    ),
    "offset-twice": Broken(
        ["UPDATE target SET _kafka_offset = 12 WHERE _kafka_offset = 11"],
        r"holds 5 rows of batch 2, offsets 10\.\.15, but only 4 different offsets",
        (0, 10, 2),
    ),
    "offset-outside": Broken(
        ["UPDATE target SET _kafka_offset = 9 WHERE _kafka_offset = 11"],
        r"holds rows of batch 2 at offset 9, outside of what it loaded, 10\.\.15\.$",
        (0, 9, 2),
    ),
    "dead-letter-loaded": Broken(
        ["UPDATE target SET _kafka_offset = 7 WHERE _kafka_partition = 0 AND _kafka_offset = 6"],
        r"\[0\]: offset 7 was loaded twice, batch 1 has it as a row and as a dead letter\.$",
        (0, 7, 1),
    ),
    "batch-unknown": Broken(
        ["DELETE FROM offset_ranges WHERE batch_id = 2", "DELETE FROM offset_batches WHERE batch_id = 2"],
        r"\[0\]: table 'target' holds 5 rows of batch 2, which the state tables do not know.* There is 1 other violation",
        (0, 10, 2),
    ),
    "batch-not-committed": Broken(
        ["UPDATE offset_batches SET state = 'abandoned' WHERE batch_id = 2"],
        r"holds 5 rows of batch 2, which is abandoned and not committed",
        (0, 10, 2),
    ),
    "position-moved": Broken(
        ["UPDATE consumed_offsets SET offset_value = 12 WHERE partition = 0"],
        r"\[0\]: position 12 is stored, but the history ends at offset 15 with batch 2: the records before it would be "
        r"loaded again.* There is 1 other violation\.$",
        (0, 12, 2),
    ),
    "position-removed": Broken(
        ["DELETE FROM consumed_offsets WHERE partition = 1"],
        r"\[1\]: the history ends at offset 5 with batch 1, but no position is stored",
        (1, 5, 1),
    ),
    "range-removed": Broken(
        ["DELETE FROM offset_ranges WHERE batch_id = 1 AND partition = 0"],
        r"holds rows of batch 1, which loaded nothing of this partition by the history \(9\)",
        (0, 0, 1),
    ),
    "dead-letter-removed": Broken(
        ["DELETE FROM dead_letters"],
        r"\[0\]: dead_letters holds 0 records of batch 1, offsets 0\.\.10, which dead-lettered 1\.$",
        (0, 0, 1),
    ),
    "table-emptied": Broken(
        ["DELETE FROM target"],
        r"holds 0 rows of batch 1, offsets 0\.\.10, which wrote 9.* There are 2 other violations",
        (0, 0, 1),
    ),
}


@contextmanager
def put_back(engine: Engine) -> Iterator[None]:
    """Every table holds afterwards what it holds now: a load for each thing to break would take a minute."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as conn:
        contents = {table: conn.execute(table.select()).mappings().all() for table in metadata.sorted_tables}
    yield
    with engine.begin() as conn:
        for table, content in contents.items():
            conn.execute(table.delete())
            if content:
                conn.execute(table.insert(), [dict(row) for row in content])


def test_what_was_broken_by_hand_is_named(inline_loader: Loader, two_batches: str) -> None:
    for name, broken in BROKEN.items():
        with put_back(inline_loader.engine):
            do(inline_loader.engine, *broken.statements)
            with pytest.raises(VerificationError) as raised:
                verified(inline_loader)
        error = raised.value
        assert re.search(broken.message, str(error)), (name, str(error))
        assert (error.topic, error.partition, error.offset, error.batch_id) == (two_batches, *broken.place), name
    assert verified(inline_loader).rows == 19


@ON_ONE
def test_what_a_rewind_passed_over_is_in_the_history(inline_loader: Loader, two_batches: str) -> None:
    engine = inline_loader.engine
    produce(inline_loader.kafka, two_batches, names(15, 10))
    rewinder = Rewinder(inline_loader)
    rewinder("to-offset", 20, f"{two_batches}:0")
    rewinder("to-offset", 3, f"{two_batches}:0")
    # Up to 15 it was loaded.
    rewinder("to-offset", 18, f"{two_batches}:0")
    assert rewinder.gaps() == [(0, 15, 20, "passed over"), (0, 15, 18, "passed over")]
    assert verified(inline_loader).gaps == 8

    for batch, first, last in ((3, 15, 20), (5, 15, 18)):
        with put_back(engine):
            do(engine, f"DELETE FROM offset_gaps WHERE batch_id = {batch}")
            with pytest.raises(VerificationError) as broken:
                verified(inline_loader)
            (violation,) = broken.value.violations
            assert f"offsets {first}..{last}, which were never loaded, are in no recorded gap" in violation.words
            assert (violation.topic, violation.partition, violation.batch_id) == (two_batches, 0, batch)
    verified(inline_loader)


def test_a_table_that_is_gone_is_named(inline_loader: Loader, two_batches: str) -> None:
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE target"))

    with pytest.raises(VerificationError, match="has no table 'target': it was dropped"):
        verified(inline_loader)


# --- what only Kafka can tell ---


def lose_unnoticed(engine: Engine, offset: int) -> None:
    """Delete a row of batch 1, and make the history agree."""
    do(
        engine,
        f"DELETE FROM target WHERE _batch_id = 1 AND _kafka_partition = 0 AND _kafka_offset = {offset}",
        "UPDATE offset_ranges SET records = records - 1 WHERE batch_id = 1 AND partition = 0",
        "UPDATE offset_batches SET row_count = row_count - 1, records = records - 1 WHERE batch_id = 1",
    )


def test_records_that_history_and_target_forgot_are_found_in_kafka(inline_loader: Loader, two_batches: str) -> None:
    assert reread(inline_loader).reread == 20
    lose_unnoticed(inline_loader.engine, 4)
    lose_unnoticed(inline_loader.engine, 9)

    assert verified(inline_loader).rows == 17
    with pytest.raises(
        VerificationError,
        match=r"\[0\]: the record at offset 4, which was loaded by batch 1, is neither in table 'target' nor a dead letter, "
        r"as is 1 more up to offset 15",
    ) as raised:
        reread(inline_loader)
    assert (raised.value.partition, raised.value.offset, raised.value.batch_id) == (0, 4, 1)


@ON_ONE
@pytest.mark.broker
def test_retention_may_go_on_while_kafka_is_read(
    inline_loader: Loader, kafka: KafkaBroker, two_batches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Cluster.logs
    asked: list[Sequence[str]] = []

    def logs_then_retention(cluster: Cluster, topics: Sequence[str]) -> dict[Partition, PartitionLog]:
        found = ask(cluster, topics)
        if not asked:
            delete_records(kafka.bootstrap_servers, two_batches, 6)
        asked.append(topics)
        return found

    monkeypatch.setattr(Cluster, "logs", logs_then_retention)

    assert reread(inline_loader).reread == 14
    assert len(asked) == 2


@ON_ONE
def test_another_topic_or_another_cluster_is_not_compared(
    inline_loader: Loader, kafka: KafkaBroker, two_batches: str
) -> None:
    engine = inline_loader.engine
    do(engine, "UPDATE offset_ranges SET topic_id = 'other'", "UPDATE consumed_offsets SET topic_id = 'other'")
    with pytest.raises(TopicRecreatedError, match=r"position 15 belongs to topic id other"):
        reread(inline_loader)

    do(engine, "UPDATE consumer_groups SET cluster_id = 'other'")
    with pytest.raises(ClusterChangedError, match="belong to Kafka cluster 'other'"):
        reread(inline_loader)


# --- what cannot be verified ---


@ON_ONE
def test_a_group_that_nobody_knows_is_told_with_those_that_are_known(inline_loader: Loader, two_batches: str) -> None:
    with pytest.raises(ConfigurationError, match="know no group 'laoder'; they know 'loader'"):
        verify("laoder", sink=SqlTable("target"), engine=inline_loader.engine)


def test_state_tables_are_needed_and_not_made(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="has no table 'offsets_schema_version'"):
        verify("loader", sink=SqlTable("target"), engine=engine)
    assert sa.inspect(engine).get_table_names() == []

    initialize(engine, Tables())
    with pytest.raises(ConfigurationError, match="know no group 'loader'; they know none"):
        verify("loader", sink=SqlTable("target"), engine=engine)
    do(engine, "UPDATE offsets_schema_version SET version = 99")
    with pytest.raises(LedgerError, match="schema version 99"):
        verify("loader", sink=SqlTable("target"), engine=engine)


# --- in Airflow ---


@pytest.mark.broker  # the task runs in a process of its own
def test_the_operator_hands_on_what_was_proved(
    postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    Loader(kafka, postgres_engine, InlineLauncher())(name)
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "warehouse": airflow_uri(postgres_engine),
    }
    with AirflowHome(dags=DAGS, connections=connections) as home:
        run = home.run("dags", "test", "verify_under_test")
        with contextlib.closing(sqlite3.connect(home.directory / "airflow.db")) as metadata:
            pushed = metadata.execute("SELECT value FROM xcom WHERE key = 'return_value'").fetchall()

    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    coverage = Coverage("loader", 1, 1, 10, 10, 0, 0, None, True, reread=10)
    assert [json.loads(value) for (value,) in pushed] == [asdict(coverage)]


def test_the_operator_says_what_it_needs_and_is_not_retried_in_vain() -> None:
    sink = SqlTable("target", conn_id="warehouse")
    operator = KafkaVerifyOperator(task_id="verify", group_id="loader", sink=sink)

    assert isinstance(operator.retry_policy, KafkaOffsetsRetryPolicy)
    error = VerificationError("loader", (Violation("something is wrong"),))
    assert operator.retry_policy.evaluate(error, 1, 3).action is RetryAction.FAIL
    with pytest.raises(ConfigurationError, match="The sink 'target' has no conn_id"):
        KafkaVerifyOperator(task_id="verify", group_id="loader", sink=SqlTable("target"))


def test_a_long_history_is_not_held_in_memory(postgres_engine: Engine) -> None:
    tables = Tables()
    initialize(postgres_engine, tables)
    claim_group(postgres_engine, tables, "loader", TaskRun("run"), cluster_id="cluster", lease=timedelta(minutes=1))
    held: list[str] = []

    @sa.event.listens_for(postgres_engine, "after_cursor_execute")
    def after(conn: object, cursor: object, statement: str, *_: object) -> None:
        of_history = "ORDER BY" in statement and "pg_catalog" not in statement
        if of_history and not isinstance(cursor, psycopg.ServerCursor):
            held.append(statement)

    verify("loader", sink=SqlTable("target"), engine=postgres_engine)

    assert held == [], "the client fetched all rows of these at once"
