"""Rewinds beside Kafka's own ConsumerGroupCommand on the same broker: the same offsets, and where not, why not.

The tool tells what it would do with a consumer group in Kafka; the same offsets are the positions of a group of ours.
Nothing is executed, so that one topic and one group serve all tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import TopicPartition, parse_scope
from airflow_kafka_offsets.exceptions import ConfigurationError, NoPositionError, UnknownTopicError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.measure import measure_lag
from airflow_kafka_offsets.lag.report import LagQuestion
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario, write_offsets
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from tests.support.clients import Transactions, produce
from tests.support.consumer_group_tool import BEGUN, COMMITTED, WITH_COMMIT, ConsumerGroupTool, Offsets, Subject
from tests.support.loads import TopicFactory, names
from tests.support.openings import KEPT, at, one_record_transactions

pytestmark = [pytest.mark.server, pytest.mark.broker]


@pytest.fixture(scope="module")
def engines(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    urls = {
        "postgresql": postgres.create_database("kafka_tool"),
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('kafka-tool')}/warehouse.db",
    }
    made = {name: sa.create_engine(url, hide_parameters=True) for name, url in urls.items()}
    yield made
    for one in made.values():
        one.dispose()
    postgres.drop_database("kafka_tool")


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, engines: dict[str, Engine]) -> Engine:
    """Holds the positions of group `loader`."""
    return engines[request.param]


@pytest.fixture(scope="module")
def subject(broker: KafkaBroker, engines: dict[str, Engine], _unique_name: Callable[[str], str]) -> Subject:
    return Subject(broker, _unique_name("topic"), engines)


@pytest.fixture(scope="module")
def tool(broker: KafkaBroker) -> Iterator[ConsumerGroupTool]:
    with ConsumerGroupTool(broker) as tool:
        yield tool


def ours(subject: Subject, engine: Engine, scenario: Scenario, *scopes: str, **options: Any) -> RewindPreview:
    return preview_rewind(
        "loader",
        scenario,
        engine=engine,
        kafka_config=subject.config,
        scope=parse_scope(scopes),
        **options,
    )


def new_offsets(preview: RewindPreview) -> Offsets:
    return {one.topic_partition: one.new.offset for one in preview.partitions if one.new is not None}


def iso(instant: datetime) -> str:
    """A date-time without a zone: UTC, for the tool as for us."""
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]


@pytest.mark.parametrize(
    ("partitions", "name", "value"),
    [
        pytest.param("", "to-earliest", None, id="to-earliest"),
        pytest.param("", "to-latest", None, id="to-latest"),
        # Inside the log of some, below that of others, above that of partition 5.
        pytest.param("", "to-offset", "25", id="to-offset-25"),
        pytest.param("", "to-offset", "70", id="to-offset-70"),
        pytest.param(WITH_COMMIT, "shift-by", "-35", id="shift-back-35"),
        pytest.param(WITH_COMMIT, "shift-by", "30", id="shift-by-30"),
        pytest.param("", "to-datetime", iso(BEGUN - timedelta(hours=1)), id="to-datetime-before-all"),
        pytest.param("", "to-datetime", iso(BEGUN + timedelta(seconds=44.5)), id="to-datetime-in-the-middle"),
        pytest.param("", "to-datetime", iso(BEGUN + timedelta(days=3)), id="to-datetime-after-the-last"),
        pytest.param("", "by-duration", "P1D", id="by-duration"),
        pytest.param(WITH_COMMIT, "to-current", None, id="to-current"),
        pytest.param("0,2", "to-earliest", None, id="scope-of-partitions"),
    ],
)
def test_the_new_offsets_are_those_of_kafkas_tool(
    tool: ConsumerGroupTool, subject: Subject, engine: Engine, partitions: str, name: str, value: str | None
) -> None:
    scope = f"{subject.topic}:{partitions}" if partitions else subject.topic
    theirs = tool.new_offsets(subject.group, "--topic", scope, f"--{name}", *([value] if value else []))
    assert len(theirs) == (len(partitions.split(",")) if partitions else 6)

    preview = ours(subject, engine, Scenario.of(name, value), scope)

    assert new_offsets(preview) == theirs


def test_a_marker_may_be_where_both_begin(  # T04
    tool: ConsumerGroupTool, subject: Subject, engine: Engine, broker: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic(**KEPT)
    one_record_transactions(broker, name, range(10))
    theirs = tool.new_offsets(subject.group, "--topic", name, "--to-datetime", iso(at(2)))

    assert new_offsets(ours(subject, engine, Scenario.of("to-datetime", iso(at(2))), name)) == theirs == {(name, 0): 1}


@pytest.mark.parametrize("shift", ["-1000", "1000"])
def test_offsets_that_kafkas_tool_clamps_are_clamped_and_noted(
    tool: ConsumerGroupTool, subject: Subject, engine: Engine, shift: str
) -> None:
    scope = f"{subject.topic}:{WITH_COMMIT}"
    theirs = tool.new_offsets(subject.group, "--topic", scope, "--shift-by", shift)

    preview = ours(subject, engine, Scenario.of("shift-by", shift), scope)

    assert new_offsets(preview) == theirs
    # The tool warns in its log, and its table and exit status look as if nothing were the matter.
    where = "before the beginning offset" if shift.startswith("-") else "beyond the end offset"
    assert [one.clamped for one in preview.partitions] == [True] * 5
    assert [one.note for one in preview.partitions] == [
        f"clamped: {COMMITTED[one.partition] + int(shift)} is {where}" for one in preview.partitions
    ]


def test_a_file_that_is_read_by_both(tool: ConsumerGroupTool, subject: Subject, engine: Engine, tmp_path: Path) -> None:
    # Inside, below, beyond the log.
    offsets = {(0, 70), (1, 5), (2, 99)}
    text = write_offsets({TopicPartition(subject.topic, partition): offset for partition, offset in offsets})
    path = tmp_path / "offsets.csv"
    path.write_text(text)
    theirs = tool.new_offsets(subject.group, "--topic", subject.topic, "--from-file", str(path))
    assert len(theirs) == 3

    assert new_offsets(ours(subject, engine, Scenario.of("from-file", text))) == theirs


class TestFiles:
    def test_the_tool_reads_the_positions_that_are_written_here(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine, tmp_path: Path
    ) -> None:
        current = ours(subject, engine, Scenario.of("to-current"), f"{subject.topic}:0,1,3,5")
        stored = {one.topic_partition: one.old.offset for one in current.partitions if one.old is not None}
        path = tmp_path / "offsets.csv"
        path.write_text(write_offsets(stored))

        theirs = tool.new_offsets(subject.group, "--topic", subject.topic, "--from-file", str(path))

        assert theirs == stored
        assert theirs == {(subject.topic, partition): COMMITTED[partition] for partition in (0, 1, 3, 5)}

    def test_a_file_that_kafkas_tool_exports_is_read(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine
    ) -> None:
        arguments = ("--group", subject.group, "--topic", subject.topic, "--to-offset", "25")
        theirs = tool.new_offsets(*arguments[1:])

        preview = ours(subject, engine, Scenario.of("from-file", tool.exported(*arguments)))

        assert new_offsets(preview) == theirs

    def test_lines_of_other_groups_in_an_export_are_left_out(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine
    ) -> None:
        text = tool.exported(
            *("--group", subject.group, "--group", "other"),
            *("--topic", f"{subject.topic}:{WITH_COMMIT}", "--to-current"),
        )
        assert text.count(f"{subject.group},{subject.topic},") == text.count(f"other,{subject.topic},") == 5

        scenario = Scenario.of("from-file", text, group_id=subject.group)

        # From the file, positions are clamped; to-current leaves that of partition 2 where it is.
        expected = {(subject.topic, partition): offset for partition, offset in (COMMITTED | {2: 30}).items()}
        assert new_offsets(ours(subject, engine, scenario)) == expected


def test_commits_that_kafkas_tool_describes_are_imported_and_shown(
    tool: ConsumerGroupTool, subject: Subject, engine: Engine
) -> None:
    described = re.findall(
        rf"^{subject.group}\s+{subject.topic}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s",
        tool("--group", subject.group, "--describe"),
        re.MULTILINE,
    )
    theirs = {int(partition): tuple(map(int, numbers)) for partition, *numbers in described}
    assert set(theirs) == set(COMMITTED)

    report = measure_lag(Ledger(engine), Cluster(subject.config), LagQuestion("loader"))

    found = {
        one.partition: (one.position, one.end, (one.lag or 0) + (one.lost or 0))
        for one in report.partitions
        if one.position is not None
    }
    assert found == theirs
    # The tool counts records that are gone as lag: nobody can work these off.
    (behind,) = [one for one in report.partitions if one.partition == 2]
    assert theirs[2] == (10, 60, 50)
    assert (behind.lag, behind.lost) == (30, 20)


class TestDifferencesOnPurpose:
    def test_all_topics_are_all_their_partitions_where_the_tool_leaves_out_those_without_a_commit(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine
    ) -> None:
        theirs = tool.new_offsets(subject.group, "--all-topics", "--to-earliest")
        assert sorted(theirs) == [(subject.topic, partition) for partition in sorted(COMMITTED)]

        # A partition that is left out would begin at its beginning with the next load, whatever the others were moved
        # to.
        assert new_offsets(ours(subject, engine, Scenario.of("to-earliest"))) == theirs | {(subject.topic, 4): 0}

    def test_to_current_without_a_position_is_left_alone_where_the_tool_goes_to_the_end(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine
    ) -> None:
        scope = f"{subject.topic}:4"
        assert tool.new_offsets(subject.group, "--topic", scope, "--to-current") == {(subject.topic, 4): 80}

        # Nobody asked to pass over 80 records that were never read.
        (one,) = ours(subject, engine, Scenario.of("to-current"), scope).partitions
        assert (one.old, one.new, one.note) == (None, None, "no position is stored")

    def test_a_shift_leaves_partitions_without_a_position_where_the_tool_refuses(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine
    ) -> None:
        with pytest.raises(RuntimeError, match=f"Cannot shift offset for partition {subject.topic}-4"):
            tool.new_offsets(subject.group, "--topic", subject.topic, "--shift-by", "-35")

        preview = ours(subject, engine, Scenario.of("shift-by", "-35"), subject.topic)
        assert [one.partition for one in preview.partitions if "left as it is" in one.note] == [4]
        with pytest.raises(
            NoPositionError, match=re.escape(f"there are none of {subject.topic}[4]. Nothing was changed")
        ):
            ours(subject, engine, Scenario.of("shift-by", "-35"), f"{subject.topic}:4")

    def test_a_scope_holds_for_a_file_too_where_the_tool_takes_all_of_the_file(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine, tmp_path: Path
    ) -> None:
        text = write_offsets({TopicPartition(subject.topic, 0): 70, TopicPartition(subject.topic, 1): 60})
        path = tmp_path / "offsets.csv"
        path.write_text(text)
        scope = f"{subject.topic}:0"
        theirs = tool.new_offsets(subject.group, "--topic", scope, "--from-file", str(path))
        assert theirs == {(subject.topic, 0): 70, (subject.topic, 1): 60}

        assert new_offsets(ours(subject, engine, Scenario.of("from-file", text), scope)) == {(subject.topic, 0): 70}

    def test_a_file_may_have_a_header_and_blank_lines_where_the_tool_stumbles(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine, tmp_path: Path
    ) -> None:
        text = f"topic,partition,offset\r\n\r\n{subject.topic},0,70\r\n"
        path = tmp_path / "offsets.csv"
        path.write_text(text)
        # Its exit status is 0 all the same.
        said = tool(
            *("--group", subject.group, "--reset-offsets", "--dry-run"),
            *("--topic", subject.topic, "--from-file", str(path)),
        )
        assert "Error: Executing consumer group command failed" in said

        assert new_offsets(ours(subject, engine, Scenario.of("from-file", text))) == {(subject.topic, 0): 70}

    def test_a_negative_offset_or_duration_is_an_error_where_the_tool_takes_an_end_of_the_log(
        self, tool: ConsumerGroupTool, subject: Subject
    ) -> None:
        scope = f"{subject.topic}:0"
        assert tool.new_offsets(subject.group, "--topic", scope, "--to-offset", "-5") == {(subject.topic, 0): 0}
        assert tool.new_offsets(subject.group, "--topic", scope, "--by-duration", "-P1D") == {(subject.topic, 0): 100}

        with pytest.raises(ConfigurationError, match="to-offset must not be negative; got -5"):
            Scenario.of("to-offset", "-5")
        with pytest.raises(ConfigurationError, match=r"by-duration needs a duration .* got '-P1D'"):
            Scenario.of("by-duration", "-P1D")

    def test_missing_topics_and_groups_are_errors_though_kafkas_tool_succeeds(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine
    ) -> None:
        # run_class raises for any other status.
        arguments = ("--group", subject.group, "--reset-offsets", "--dry-run", "--to-earliest", "--topic")
        assert f'The partitions "{subject.topic}-9" do not exist' in tool(*arguments, f"{subject.topic}:0,9")
        assert "This server does not host this topic-partition" in tool(*arguments, "no-such-topic")

        earliest = Scenario.of("to-earliest")
        with pytest.raises(
            UnknownTopicError, match=re.escape(f"no partition {subject.topic}[9] (the topic has 6: 0..5)")
        ):
            ours(subject, engine, earliest, f"{subject.topic}:0,9")
        with pytest.raises(UnknownTopicError, match="has no topic 'no-such-topic'"):
            ours(subject, engine, earliest, "no-such-topic")

    def test_an_open_transaction_ends_the_log_where_the_tool_goes_past_it(
        self, tool: ConsumerGroupTool, subject: Subject, engine: Engine, topic: TopicFactory
    ) -> None:
        # Offsets 0-2 committed, marker 3, an open transaction at 4, a record at 5.
        name, kafka = topic(), subject.kafka
        transactions = Transactions(kafka, name)
        transactions.commit(names(0, 3))
        transactions.begin(names(3, 1))
        produce(kafka, name, names(4, 1))
        wait_until(
            lambda: Cluster(subject.config).logs([name])[TopicPartition(name, 0)].end == 4, 30, "the last stable offset"
        )
        theirs = tool.new_offsets(subject.group, "--topic", name, "--to-latest")
        assert theirs == {(name, 0): 6}

        # What the transaction holds is loaded when it is committed: a position behind it would leave that out.
        committed = ours(subject, engine, Scenario.of("to-latest"), name)
        assert new_offsets(committed) == {(name, 0): 4}
        clamped = ours(subject, engine, Scenario.of("to-offset", 6), name)
        assert (new_offsets(clamped), clamped.partitions[0].clamped) == ({(name, 0): 4}, True)
        # A group that reads what is not committed has the tool's end.
        uncommitted = ours(subject, engine, Scenario.of("to-latest"), name, isolation_level="read_uncommitted")
        assert new_offsets(uncommitted) == theirs
        transactions.end()
