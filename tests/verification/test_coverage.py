"""What `verify` proves of what loads leave, on both kinds of database."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame

from airflow_kafka_offsets import Limits, StateTables
from airflow_kafka_offsets.exceptions import ConfigurationError, VerificationError
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.facts import Coverage
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, names
from tests.support.verifying import LEFT_OUT, ON_ONE, do, reread, verified

pytestmark = pytest.mark.server


@pytest.mark.broker
def test_topics_batches_dead_letters_and_gaps_are_proved(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    first, second = topic(partitions=2), topic()
    produce(kafka, first, [*names(0, 9), b"{not json"])
    produce(kafka, second, names(100, 5))
    inline_loader(first, second, limits=Limits(max_records=8), **LEFT_OUT)
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
    inline_loader(two_batches, group_id="other", **LEFT_OUT, **BESIDE_OTHERS)
    do(inline_loader.engine, "DELETE FROM target WHERE _batch_id = 3 AND _kafka_offset < 3")

    assert verified(inline_loader).rows == 19
    with pytest.raises(VerificationError, match="holds 11 rows of batch 3"):
        verify("other", sink=SqlTable("target"), engine=inline_loader.engine)


def test_names_are_quoted(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, tables, sink = topic(), Tables(prefix='od"d; -- '), SqlTable('ta"r;get.ä')
    produce(kafka, name, names(0, 10))
    inline_loader(name, state_tables=StateTables(prefix=tables.prefix), sink=sink)

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
    assert (found.records, found.rows, found.reread, found.by_number) == (17, 12, 7, 1)
    assert "of 1 batch only the number of rows was compared" in found.text

    produce(kafka, name, names(17, 2))
    with loader.engine.begin() as conn:
        table = sa.Table("target", sa.MetaData(), autoload_with=conn)
        for column in ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp"):
            if not table.c[column].nullable and conn.dialect.name == "postgresql":
                conn.execute(sa.text(f"ALTER TABLE target ALTER {column} DROP NOT NULL"))
    loader(name, transform=f"{__name__}.twice_without_origin")
    assert (verified(plain).rows, verified(plain).by_number) == (16, 2)
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
        ConfigurationError, match=r"has no column .*_kafka_topic, _kafka_partition.*cannot be looked up"
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
            "Table 'target' has no column _batch_id, _kafka_topic, _kafka_partition: history and positions are proved, "
            "the rows were not" in caplog.text
        )
        assert "is proved:" not in caplog.text


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
