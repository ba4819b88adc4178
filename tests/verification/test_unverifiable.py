"""Groups and tables of which nothing can be proved."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError, LedgerError, TargetError
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.fan_out_target import FanOutRows
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.sinks.target_rows import Detail, TargetRows
from airflow_kafka_offsets.verification.verify import describe_unchecked, verify
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.verifying import LEFT_OUT, ON_ONE, do

pytestmark = pytest.mark.server


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

    with pytest.raises(ConfigurationError, match=r"'loader' loads into 'target', by batch 1 .* not into 'other'"):
        verify("loader", sink=SqlTable("other", upsert_key=key), engine=inline_loader.engine)
    # Another spelling is no other table.
    verify("loader", sink=SqlTable("target", "main", upsert_key=key), engine=inline_loader.engine)


@ON_ONE
@pytest.mark.parametrize("exists", [True, False])
def test_a_misspelt_table_is_no_lost_one(inline_loader: Loader, two_batches: str, exists: bool) -> None:
    inline_loader(two_batches, group_id="others", sink=SqlTable("others" if exists else "elsewhere"), **LEFT_OUT)

    with pytest.raises(ConfigurationError, match=r"'loader' loads into 'target', by batch 2 .* not into 'others'"):
        verify("loader", sink=SqlTable("others"), engine=inline_loader.engine)


@ON_ONE
def test_a_misspelt_key_leaves_no_row_unchecked(inline_loader: Loader, two_batches: str) -> None:
    with pytest.raises(TargetError, match="'target' has no column 'nope', which upsert_key names"):
        verify("loader", sink=SqlTable("target", upsert_key=("nope",)), engine=inline_loader.engine)


class Rows(TargetRows):
    """Rows of one of several targets."""

    def __init__(self, detail: Detail, limit: str) -> None:
        self.said = (detail, limit)

    detail = property(lambda self: self.said[0])
    limit = property(lambda self: self.said[1])


def test_of_several_targets_those_are_named_that_are_proved() -> None:
    branches = {"a": Rows("batches", "A has batches"), "b": Rows("nothing", "B is keyed"), "c": Rows("offsets", "")}

    assert describe_unchecked(FanOutRows(branches)) == (
        "B is keyed: history, positions and the rows of 'a', 'c' are proved, the other rows were not checked; the "
        "number of rows is that of the history"
    )
    assert "B is keyed: history and positions are proved, the rows" in describe_unchecked(branches["b"])


@ON_ONE
def test_a_group_that_nobody_knows_is_told_with_those_that_are_known(inline_loader: Loader, two_batches: str) -> None:
    with pytest.raises(ConfigurationError, match="have no group 'laoder'; they have 'loader'"):
        verify("laoder", sink=SqlTable("target"), engine=inline_loader.engine)


def test_state_tables_are_needed_and_not_made(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="has no table 'offsets_schema_version'"):
        verify("loader", sink=SqlTable("target"), engine=engine)
    assert sa.inspect(engine).get_table_names() == []

    initialize(Ledger(engine))
    with pytest.raises(ConfigurationError, match="have no group 'loader'; they have none"):
        verify("loader", sink=SqlTable("target"), engine=engine)
    do(engine, "UPDATE offsets_schema_version SET version = 99")
    with pytest.raises(LedgerError, match="schema version 99"):
        verify("loader", sink=SqlTable("target"), engine=engine)
