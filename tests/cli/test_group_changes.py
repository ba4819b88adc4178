"""`kafka-offsets groups delete` and `groups rename`: what goes, what stays, and what the next load does."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Coordination, DeadLetters
from airflow_kafka_offsets.exceptions import DoubleLoadError, ForeignBatchError, VerificationError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import Kafka, produce
from tests.support.command_line import DB, CommandLine, data, failed, leave_open
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.replays import Replayer

pytestmark = pytest.mark.server

WHY = ("--execute", "--yes", "--reason", "a test", "--who", "ana")
DELETE = ("groups", "delete", "loader", *DB)
RENAME = ("groups", "rename", "loader", "shop", *DB)


@pytest.fixture
def orders(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, cli: CommandLine) -> str:
    """A topic of six records, one of them a dead letter, which group `loader` has loaded."""
    name = topic()
    produce(kafka, name, [*names(0, 5), b"nothing"])
    inline_loader(name, on_bad_record=DeadLetters())
    return name


def listed(cli: CommandLine) -> list[str]:
    return [row["group"] for row in data(cli, "groups")]


def last(cli: CommandLine, group: str) -> tuple[str, str, str, str]:
    newest = data(cli, "history", group)[0]
    return newest["kind"], newest["scenario"], newest["who"], newest["reason"]


def test_a_preview_of_a_deletion_tells_of_dead_letters_only_if_there_are_some(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, cli: CommandLine
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    inline_loader(name)

    done = cli(*DELETE)

    assert "1 position is removed, which 'rewind --undo' restores; rows in 'target' stay. Its history" in done.stderr


@pytest.mark.parametrize("command", [DELETE, RENAME], ids=["delete", "rename"])
def test_a_preview_changes_nothing(cli: CommandLine, orders: str, command: tuple[str, ...]) -> None:
    done = cli(*command, "--output", "json")

    (shown,) = done.json
    assert (shown["target"], shown["partitions"], shown["dead_letters"]) == ("target", 1, 1)
    assert "rows in 'target' stay" in done.stderr
    assert ("which nothing restores" in done.stderr) == (command == DELETE)
    assert "Nothing was changed; add --execute" in done.stderr
    assert listed(cli) == ["loader"]
    assert len(data(cli, "history", "loader")) == shown["batches"]


def test_a_deleted_group_leaves_rows_and_history(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    before = data(cli, "history", "loader")

    done = cli(*DELETE, *WHY)

    assert done.status == 0, done.stderr
    assert "'rewind --undo' restores the positions, and no contents of dead letters" in done.stderr
    assert (listed(cli), positions(inline_loader.engine)) == ([], {})
    assert data(cli, "history", "loader")[1:] == before
    assert last(cli, "loader") == ("delete", "delete", "ana", "a test")
    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(5,)]
    ((key, value, error),) = rows(inline_loader.engine, 'SELECT "key", value, error FROM dead_letters')
    assert (key, value) == (None, None)
    assert error.startswith("dropped by ana at ")
    assert error.endswith("with the group: a test")
    for command in (
        "groups delete loader",
        "show loader",
        "lag loader",
        "export loader",
        "verify loader --table target",
    ):
        refused = cli(*command.split(), *DB)
        assert refused.status == 1
        assert (
            "Group 'loader' was deleted, by batch 2 of its history: 'kafka-offsets rewind loader --undo'"
            in refused.stderr
        )


@pytest.mark.parametrize("group", ["loader", "another"])
def test_records_of_a_deleted_group_are_not_loaded_twice(
    cli: CommandLine, orders: str, inline_loader: Loader, group: str
) -> None:
    cli(*DELETE, *WHY)

    with pytest.raises(DoubleLoadError, match=r"Group 'loader', which was deleted, has loaded .* rewind loader --undo"):
        inline_loader(orders, group_id=group, on_bad_record=DeadLetters())

    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(5,)]
    assert "loader" not in listed(cli)


@pytest.mark.parametrize("elsewhere", ["table", "topic"])
def test_records_of_a_deleted_group_are_not_loaded_twice_after_a_new_group_of_its_name(
    cli: CommandLine, orders: str, inline_loader: Loader, kafka: Kafka, topic: TopicFactory, elsewhere: str
) -> None:
    cli(*DELETE, *WHY)
    other = topic()
    produce(kafka, other, names(0, 3))
    if elsewhere == "table":
        inline_loader(orders, on_bad_record=DeadLetters(), sink=SqlTable("other"))
    else:
        inline_loader(other)

    with pytest.raises(DoubleLoadError, match=r"Group 'loader', which was deleted, has loaded") as refused:
        inline_loader(orders, group_id="third", on_bad_record=DeadLetters())

    assert "--undo" not in str(refused.value)  # the new group has positions now
    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(5 if elsewhere == "table" else 8,)]


def test_a_deletion_is_undone(cli: CommandLine, orders: str, inline_loader: Loader, kafka: Kafka) -> None:
    cli(*DELETE, *WHY)
    produce(kafka, orders, names(6, 3))

    undone = cli("rewind", "loader", *DB, "--undo", *WHY)

    assert undone.status == 0, undone.stderr
    assert positions(inline_loader.engine) == {(orders, 0): 6}
    assert listed(cli) == ["loader"]
    assert inline_loader(orders, on_bad_record=DeadLetters()).records == 3
    assert verify("loader", sink=SqlTable("target"), engine=inline_loader.engine).rows == 8


def test_a_replay_of_a_deleted_group_appends_no_record_beside_its_rows(
    cli: CommandLine, orders: str, inline_loader: Loader
) -> None:
    cli(*DELETE, *WHY)

    with pytest.raises(DoubleLoadError, match=r"Group 'loader' has loaded .* before it was deleted: a replay"):
        Replayer(inline_loader)(orders, {orders: {0: (0, 2)}}, sink=SqlTable("target"))

    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(5,)]


def test_a_deletion_is_undone_after_a_replay(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    cli(*DELETE, *WHY)
    Replayer(inline_loader)(orders, {orders: {0: (0, 2)}})
    assert cli("rewind", "loader", *DB, "--undo", *WHY).status == 0

    assert verify("loader", sink=SqlTable("target"), engine=inline_loader.engine).rows == 5
    with pytest.raises(ForeignBatchError, match="loads into table 'target'"):
        inline_loader(orders, sink=SqlTable("third"), on_bad_record=DeadLetters())
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target WHERE _kafka_offset = 3"))
    with pytest.raises(VerificationError):
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine)


@pytest.mark.parametrize("removed", ["undone in part", "undone, and that undone"])
def test_records_that_a_group_has_loaded_are_not_loaded_again_where_it_has_no_position(
    cli: CommandLine, orders: str, inline_loader: Loader, kafka: Kafka, topic: TopicFactory, removed: str
) -> None:
    other, undo = topic(), ("rewind", "loader", *DB, "--undo", *WHY)
    produce(kafka, other, names(0, 3))
    inline_loader(orders, other, on_bad_record=DeadLetters())
    cli(*DELETE, *WHY)
    done = [cli(*undo, "--topic", orders)] if removed == "undone in part" else [cli(*undo), cli(*undo)]
    assert [each.status for each in done] == [0] * len(done)

    with pytest.raises(DoubleLoadError, match=r"Group 'loader' has no position of .*, before it was deleted") as twice:
        inline_loader(orders, other, on_bad_record=DeadLetters())

    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(8,)]
    told = re.search(
        r"kafka-offsets (rewind loader --topic (\S+):0 --to-offset \d) --conn-id CONN_ID", str(twice.value)
    )
    assert told is not None
    assert cli(*told[1].split(), *DB, *WHY).status == 0
    produce(kafka, told[2], names(10, 1))
    assert inline_loader(told[2], on_bad_record=DeadLetters()).rows == 1
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM consumed_offsets"))
    again = Coordination(other_groups="allow")
    assert inline_loader(other, on_bad_record=DeadLetters(), coordination=again).rows in (3, 4)


def test_a_new_group_of_the_name_is_proved_from_its_beginning(
    cli: CommandLine, orders: str, inline_loader: Loader
) -> None:
    cli(*DELETE, *WHY)
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE target"))

    elsewhere = inline_loader(orders, on_bad_record=DeadLetters(), coordination=Coordination(other_groups="allow"))

    assert elsewhere.records == 6
    assert listed(cli) == ["loader"]
    coverage = verify("loader", sink=SqlTable("target"), engine=inline_loader.engine)
    assert (coverage.records, coverage.rows, coverage.dead_letters) == (6, 5, 1)


def test_a_new_group_of_the_name_may_load_into_another_table(
    cli: CommandLine, orders: str, inline_loader: Loader
) -> None:
    cli(*DELETE, *WHY)

    assert inline_loader(orders, on_bad_record=DeadLetters(), sink=SqlTable("other")).records == 6
    assert verify("loader", sink=SqlTable("other"), engine=inline_loader.engine).rows == 5


def test_a_renamed_group_goes_on_under_its_new_name(
    cli: CommandLine, orders: str, inline_loader: Loader, kafka: Kafka
) -> None:
    done = cli(*RENAME, *WHY)
    produce(kafka, orders, names(6, 3))

    assert done.status == 0, done.stderr
    assert listed(cli) == ["shop"]
    assert last(cli, "shop") == ("rename", "renamed from 'loader'", "ana", "a test")
    assert last(cli, "loader") == ("renamed", "renamed to 'shop'", "ana", "a test")
    assert "was renamed to 'shop', by batch" in failed(cli("verify", "loader", *DB, "--table", "target"), "verify")
    with pytest.raises(
        DoubleLoadError, match=r"Group 'shop' has loaded .* was renamed to 'shop', .*: use that name as"
    ):
        inline_loader(orders, on_bad_record=DeadLetters())
    assert inline_loader(orders, group_id="shop", on_bad_record=DeadLetters()).records == 3
    coverage = verify("shop", sink=SqlTable("target"), engine=inline_loader.engine)
    assert (coverage.rows, coverage.dead_letters) == (8, 1)
    assert [row["records"] for row in data(cli, "dead-letters", "list", "shop")] == [1]


def test_a_group_gets_its_old_name_back(cli: CommandLine, orders: str, inline_loader: Loader, kafka: Kafka) -> None:
    assert cli(*RENAME, *WHY).status == 0

    back = cli("groups", "rename", "shop", "loader", *DB, *WHY)
    produce(kafka, orders, names(6, 3))

    assert back.status == 0, back.stderr
    assert listed(cli) == ["loader"]
    assert inline_loader(orders, on_bad_record=DeadLetters()).records == 3
    assert verify("loader", sink=SqlTable("target"), engine=inline_loader.engine).rows == 8


def test_a_name_with_a_history_is_refused(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    inline_loader(orders, group_id="shop", on_bad_record=DeadLetters(), sink=SqlTable("other"))

    assert "have positions or a history of group 'shop'" in failed(cli(*RENAME, *WHY), "groups")
    assert listed(cli) == ["loader", "shop"]


@pytest.mark.parametrize("command", [DELETE, RENAME], ids=["delete", "rename"])
class TestRefused:
    def test_while_a_run_holds_the_group(self, cli: CommandLine, engine: Engine, command: tuple[str, ...]) -> None:
        initialize(Ledger(engine))
        claim_group(Ledger(engine), "loader", TaskRun("run-1", "dag", "task"), cluster_id="c", lease=timedelta(hours=1))

        line = failed(cli(*command, *WHY), "groups")

        assert "is held by dag 'dag' task 'task' run 'run-1'" in line
        assert "Nothing was changed" in line

    def test_while_a_batch_is_open(
        self, cli: CommandLine, inline_loader: Loader, kafka: Kafka, topic: TopicFactory, command: tuple[str, ...]
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 3))
        leave_open(inline_loader, name)

        assert "has batch 1 (planned)" in failed(cli(*command, *WHY), "groups")
        assert listed(cli) == ["loader"]

    def test_between_two_commits(self, cli: CommandLine, orders: str, engine: Engine, command: tuple[str, ...]) -> None:
        with engine.begin() as conn:
            conn.execute(sa.text("UPDATE offset_batches SET publish_started_at = planned_at"))

        assert "is between two commits" in failed(cli(*command, *WHY), "groups")

    def test_a_group_that_there_is_not(self, cli: CommandLine, orders: str, command: tuple[str, ...]) -> None:
        other = tuple("lodr" if word == "loader" else word for word in command)
        assert "have no group 'lodr'; they have 'loader'" in failed(cli(*other, *WHY), "groups")


def test_a_group_whose_lake_table_has_its_name_is_not_renamed(cli: CommandLine, orders: str, engine: Engine) -> None:
    with engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_batches SET target_table = 'iceberg://shop.orders'"))

    line = failed(cli(*RENAME, *WHY), "groups")
    assert "loads into 'iceberg://shop.orders', whose commits have the name of the group" in line
    assert "rewind shop --to-group loader" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("delete",), "groups delete takes GROUP"),
        (("rename", "loader"), "groups rename takes GROUP and NEW_NAME"),
        (("list", "loader"), "groups list takes no group"),
        (("list", "--execute"), "--execute is for groups delete and groups rename"),
        (("rename", "loader", " "), "group_id"),
        (("delete", "loader", "--execute", "--yes"), "A change needs --reason"),
    ],
)
def test_wrong_arguments_are_usage_errors(cli: CommandLine, arguments: tuple[str, ...], says: str) -> None:
    done = cli("groups", *arguments, *DB)
    assert done.status == 2
    assert says in done.stderr
