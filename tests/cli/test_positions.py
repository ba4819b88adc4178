"""`kafka-offsets export` and `mirror`: positions that leave the database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.scenarios import read_offsets
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, failed, leave_open
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


class TestExport:
    def test_positions_are_csv_that_a_rewind_reads(
        self, cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic(partitions=2)
        produce(kafka, name, names(0, 5), 1)
        inline_loader(name)

        done = cli("export", "loader", *DB)

        assert done.status == 0
        assert done.stdout == f"{name},0,0\n{name},1,5\n"
        assert read_offsets(done.stdout) == {TopicPartition(name, 0): 0, TopicPartition(name, 1): 5}

    def test_a_group_without_positions_is_an_error(self, cli: CommandLine, engine: Engine) -> None:
        initialize(Ledger(engine))
        claim_group(Ledger(engine), "empty", TaskRun("r"), cluster_id="c", lease=timedelta(0))
        done = cli("export", "empty", *DB)
        assert "nothing to export" in failed(done, "export")
        assert done.stdout == ""


def test_mirroring_a_group_without_positions_is_an_error(
    cli: CommandLine, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    leave_open(inline_loader, name)
    assert "nothing to mirror" in failed(cli("mirror", "loader", *DB, "--to", name), "mirror")
