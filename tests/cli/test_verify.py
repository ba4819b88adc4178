"""`kafka-offsets verify`: what was proved, or every violation."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, data, failed
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


class TestVerify:
    def test_a_group_that_is_as_it_has_to_be(
        self, cli: CommandLine, loaded_topic: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO"):
            (alone,) = data(cli, "verify", "loader", "--table", "target")
        proved = "1 partition, 1 committed batch, 5 records, 5 rows, 0 dead letters, 0 skipped offsets"
        assert f"The coverage of group 'loader' is proved: {proved}" in caplog.text
        assert "Coverage(" not in caplog.text
        for form in ("json", "table"):
            done = cli("verify", "loader", *DB, "--table", "target", "--output", form)
            sentence = (
                "Proved: every record of group 'loader' before its positions was loaded into 'target' exactly once"
            )
            assert f"{sentence}, or dead-lettered ({proved})" in done.stderr.splitlines()[-1]
        (compared,) = data(cli, "verify", "loader", "--table", "target", "--kafka-conn-id", "kafka_default")

        assert (alone["records"], alone["rows"], alone["reread"]) == (5, 5, None)
        assert compared["reread"] == 5

    def test_rows_that_the_next_load_duplicates_are_counted(self, cli: CommandLine, loaded_topic: str) -> None:
        cli("rewind", "loader", *DB, "--shift-by", "-2", "--execute", "--yes", "--reason", "a test")

        done = cli("verify", "loader", *DB, "--table", "target", "--output", "json")

        assert (done.status, done.json[0]["rows_after"]) == (0, 2)
        assert (
            "2 rows not before the positions, which a rewind moved back: the next load duplicates them" in done.stderr
        )
        assert (
            "kafka-offsets rewind loader --to-current --replace target --conn-id warehouse counts the rows"
            in done.stderr
        )

    def test_verify_notes_that_rows_were_not_checked(
        self, cli: CommandLine, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("CREATE TABLE plain (id BIGINT NOT NULL)"))
        inline_loader(name, sink=SqlTable("plain"), value_format=Json("id BIGINT NOT NULL"))

        done = cli("verify", "loader", *DB, "--table", "plain", "--output", "json")

        assert (done.status, done.json[0]["rows"], done.json[0]["output_checked"]) == (0, 5, False)
        assert (
            "Table 'plain' has no column _batch_id, _kafka_topic, _kafka_partition, _kafka_offset: history and "
            "positions are proved" in done.stderr
        )

    def test_violations_are_data_and_the_status_says_it(
        self, cli: CommandLine, inline_loader: Loader, loaded_topic: str
    ) -> None:
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM target WHERE _kafka_offset = 3"))

        done = cli("verify", "loader", *DB, "--table", "target", "--output", "json")

        assert "is violated" in failed(done, "verify")
        assert (done.json[0]["topic"], done.json[0]["batch_id"], done.json[0]["violations"]) == (loaded_topic, 1, 1)
