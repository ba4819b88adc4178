"""No record is twice in a table by groups, replays and names that mean the same table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_kafka_offsets import Coordination, DeltaTable
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DoubleLoadError,
    ForeignBatchError,
    KafkaOffsetsError,
    OlderLedgerError,
    StagingError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.replaying.replay import replay
from airflow_kafka_offsets.rewinding.execution import execute_rewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import Kafka, produce
from tests.support.inline import Fails, InlineLauncher
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, names, rows
from tests.support.replays import RUN, Interrupted, Replayer, die
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server

A, B, C = SqlTable("a"), SqlTable("b"), SqlTable("c")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@pytest.fixture
def orders(inline_loader: Loader, topic: TopicFactory) -> str:
    """A topic of ten records."""
    name = topic()
    produce(inline_loader.kafka, name, names(0, 10))
    return name


def counted(loader: Loader, table: str) -> list[int]:
    """How often each offset is in a table, from the first one on."""
    return [
        times for _, times in rows(loader.engine, f"SELECT _kafka_offset, count(*) FROM {table} GROUP BY 1 ORDER BY 1")
    ]


TARGETS = pytest.mark.parametrize(
    ("first", "second"),
    [(A, A), (A, [A, B]), ([A, B], A), ([A, B], [A, C]), ([B, A], [C, A])],
    ids=["the-same", "a-branch-is", "is-a-branch", "a-branch-of-each", "in-another-order"],
)


@TARGETS
def test_what_a_replay_appended_is_not_loaded_into_it(
    inline_loader: Loader, orders: str, first: Any, second: Any
) -> None:
    Replayer(inline_loader)(orders, {orders: {0: (0, 10)}}, sink=first)

    with pytest.raises(DoubleLoadError, match=rf"a replay of group 'loader', has appended {orders}\[0\] 0\.\.10"):
        inline_loader(orders, sink=second)

    assert counted(inline_loader, "a") == [1] * 10


def test_the_advice_does_not_pass_over_records_before_those_that_a_replay_appended(
    inline_loader: Loader, orders: str
) -> None:
    replayer = Replayer(inline_loader)
    replayer(orders, {orders: {0: (3, 7)}}, sink=A)
    with pytest.raises(DoubleLoadError, match=r"; or replay 0\.\.3 too, and let .* --to-offset 7 "):
        inline_loader(orders, sink=A)

    replayer(orders, {orders: {0: (0, 3)}}, sink=A)
    Rewinder(inline_loader)("to-offset", 7, f"{orders}:0")
    inline_loader(orders, sink=A)

    assert counted(inline_loader, "a") == [1] * 10


@TARGETS
def test_what_a_group_loads_is_not_replayed_into_it(
    inline_loader: Loader, orders: str, first: Any, second: Any
) -> None:
    inline_loader(orders, sink=first)

    for group in ("loader", "other"):
        with pytest.raises(DoubleLoadError, match="duplicate records"):
            Replayer(inline_loader)(orders, {orders: {0: (0, 10)}}, sink=second, group_id=group)

    assert counted(inline_loader, "a") == [1] * 10


@TARGETS
def test_a_group_under_another_name_is_refused(inline_loader: Loader, orders: str, first: Any, second: Any) -> None:
    inline_loader(orders, sink=first)

    with pytest.raises(DoubleLoadError) as refused:
        inline_loader(orders, sink=second, group_id="laoder")

    assert f"Group 'loader' has loaded {orders}[0] 0..10 into table 'a' with batch 1" in str(refused.value)
    assert f"rewind laoder --topic {orders} --to-group loader --new-group" in str(refused.value)
    assert not refused.value.retriable
    assert counted(inline_loader, "a") == [1] * 10


def test_a_group_that_takes_the_positions_over_goes_on(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    take_over(inline_loader, orders, "renamed")
    produce(inline_loader.kafka, orders, names(10, 5))

    assert inline_loader(orders, sink=A, group_id="renamed").rows == 5
    assert counted(inline_loader, "a") == [1] * 15
    with pytest.raises(DoubleLoadError, match=r"Group 'renamed' has loaded .* 10\.\.15 into table 'a' with batch"):
        inline_loader(orders, sink=A)
    assert counted(inline_loader, "a") == [1] * 15


def test_a_group_that_took_over_and_is_rewound_is_refused(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    take_over(inline_loader, orders, "renamed")
    produce(inline_loader.kafka, orders, names(10, 5))
    inline_loader(orders, sink=A, group_id="renamed")
    move(inline_loader, "renamed", Scenario.of("to-offset", "5"), replace=A)

    with pytest.raises(DoubleLoadError, match=r"Group 'loader' has loaded .* 5\.\.10 into table 'a'"):
        inline_loader(orders, sink=A, group_id="renamed")

    assert counted(inline_loader, "a") == [1] * 10


@pytest.mark.parametrize("taken_over", [True, False], ids=["the-same-load", "another-load"])
def test_a_replay_does_not_replace_what_another_group_has_loaded(
    inline_loader: Loader, orders: str, taken_over: bool
) -> None:
    inline_loader(orders, sink=A)
    if taken_over:
        take_over(inline_loader, orders, "new")
    else:
        move(inline_loader, "new", Scenario.of("to-latest"), scope={orders: None}, new_group=True)
    produce(inline_loader.kafka, orders, names(10, 5))
    inline_loader(orders, sink=A, group_id="new")
    replayed = Replayer(inline_loader)

    with pytest.raises(DoubleLoadError, match=r"Group 'loader' has loaded .* 8\.\.10 into table 'a' with batch 1"):
        replayed(orders, {orders: {0: (8, 12)}}, group_id="new", sink=A, replace=True)
    assert replayed(orders, {orders: {0: (10, 12)}}, group_id="new", sink=A, replace=True).rows == 2
    assert replayed(orders, {orders: {0: (8, 10)}}, group_id="loader", sink=A, replace=True).rows == 2
    assert counted(inline_loader, "a") == [1] * 15


def test_a_group_replays_what_it_loads_beside_others(inline_loader: Loader, orders: str) -> None:
    for group in ("one", "two"):
        inline_loader(orders, sink=A, group_id=group, **BESIDE_OTHERS)

    assert Replayer(inline_loader)(orders, {orders: {0: (2, 5)}}, group_id="one", sink=A, replace=True).rows == 3
    assert counted(inline_loader, "a") == [2] * 10


def test_what_a_group_has_replaced_is_loaded_again_as_what_it_has_loaded(inline_loader: Loader, orders: str) -> None:
    """A rewind that leaves the rows says that they will be duplicated, whoever of the group wrote them."""
    inline_loader(orders, sink=A)
    Replayer(inline_loader)(orders, {orders: {0: (3, 6)}}, sink=A, replace=True)
    move(inline_loader, "loader", Scenario.of("to-offset", "4"))

    assert inline_loader(orders, sink=A).rows == 6
    assert counted(inline_loader, "a") == [1] * 4 + [2] * 6


def test_a_replay_that_wrote_nothing_yet_hinders_no_load_after_a_rewind(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    with pytest.raises(StagingError):
        Replayer(inline_loader)(orders, {orders: {0: (2, 8)}}, sink=A, replace=True, launcher=Fails(), run=RUN)
    move(inline_loader, "loader", Scenario.of("to-earliest"), replace=A)

    assert inline_loader(orders, sink=A).rows == 10
    assert Replayer(inline_loader)(orders, {orders: {0: (2, 8)}}, sink=A, replace=True, run=RUN).rows == 6
    assert counted(inline_loader, "a") == [1] * 10
    verify("loader", sink=A, engine=inline_loader.engine)


def test_what_was_replaced_may_be_loaded_by_another_group(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    move(inline_loader, "loader", Scenario.of("to-earliest"), replace=A)

    assert inline_loader(orders, sink=A, group_id="other").rows == 10
    assert counted(inline_loader, "a") == [1] * 10


def test_groups_that_say_so_share_a_table(inline_loader: Loader, orders: str, caplog: pytest.LogCaptureFixture) -> None:
    for group in ("one", "two"):
        assert inline_loader(orders, sink=A, group_id=group, **BESIDE_OTHERS).rows == 10
    produce(inline_loader.kafka, orders, names(10, 1))
    assert inline_loader(orders, sink=A, group_id="one", **BESIDE_OTHERS).rows == 1

    with caplog.at_level(logging.WARNING):
        verify("one", sink=A, engine=inline_loader.engine)
    assert f"group 'two' has loaded {orders}[0] 0..10 into 'a'" in caplog.text
    preview = preview_rewind(
        "one", Scenario.of("to-offset", "4"), engine=inline_loader.engine, kafka_config=inline_loader.config
    )
    assert [move.note for move in preview.partitions] == [f"group 'two' has loaded {orders}[0] 4..10 into 'a'"]


def test_by_key_a_second_group_doubles_nothing(inline_loader: Loader, orders: str) -> None:
    by_key = SqlTable("a", upsert_key=("id",))
    inline_loader(orders, sink=by_key)
    inline_loader(orders, sink=by_key, group_id="other")

    assert counted(inline_loader, "a") == [1] * 10


def test_other_topics_may_go_into_one_table(inline_loader: Loader, orders: str, topic: TopicFactory) -> None:
    other = topic()
    produce(inline_loader.kafka, other, names(0, 3))
    inline_loader(orders, sink=A)

    assert inline_loader(other, sink=A, group_id="other").rows == 3


def test_a_replay_that_is_planned_keeps_a_first_load_out(inline_loader: Loader, orders: str) -> None:
    with pytest.raises(StagingError, match="no executor left"):
        Replayer(inline_loader)(orders, {orders: {0: (0, 10)}}, sink=A, launcher=Interrupted(die))

    for group in ("loader", "other"):
        with pytest.raises(
            DoubleLoadError,
            match=r"Batch 1, a replay of group 'loader', has planned to append .* abandon loader --batch 1 ",
        ) as error:
            inline_loader(orders, sink=A, group_id=group)
        assert "--to-offset" not in str(error.value)

    Replayer(inline_loader)(orders, {orders: {0: (0, 10)}}, sink=A)
    assert counted(inline_loader, "a") == [1] * 10


def test_a_first_load_that_is_planned_keeps_others_out(inline_loader: Loader, orders: str) -> None:
    dying = Loader(inline_loader.kafka, inline_loader.engine, Interrupted(die))
    with pytest.raises(StagingError, match="no executor left"):
        dying(orders, sink=A)

    with pytest.raises(DoubleLoadError, match=r"Group 'loader' has planned to load .* with batch 1.* abandon loader"):
        inline_loader(orders, sink=A, group_id="other")
    with pytest.raises(DoubleLoadError, match="Group 'loader' loads"):
        Replayer(inline_loader)(orders, {orders: {0: (0, 10)}}, sink=A, group_id="other")

    inline_loader(orders, sink=A)
    assert counted(inline_loader, "a") == [1] * 10


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_name_in_another_case_is_the_same_table_where_it_is_one(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)

    with pytest.raises(DoubleLoadError, match="duplicate records"):
        Replayer(inline_loader)(orders, {orders: {0: (0, 10)}}, sink=SqlTable("A"))
    with pytest.raises(DoubleLoadError):
        inline_loader(orders, sink=SqlTable("A", schema="main"), group_id="other")

    assert counted(inline_loader, "a") == [1] * 10
    inline_loader(orders, sink=SqlTable("keyed", upsert_key=("id",)), group_id="by_key")
    produce(inline_loader.kafka, orders, names(10, 1))
    assert inline_loader(orders, sink=SqlTable("Keyed", upsert_key=("id",)), group_id="by_key").rows == 1


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_name_without_a_schema_is_found_on_the_search_path(inline_loader: Loader, orders: str) -> None:
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA sales")
        conn.exec_driver_sql("CREATE TABLE sales.a (id BIGINT, name TEXT, _kafka_offset BIGINT, _batch_id BIGINT)")
    url = inline_loader.engine.url.update_query_dict({"options": "-csearch_path=public,sales"})
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    loader = replace(inline_loader, engine=engine)
    loader(orders, sink=A)

    with pytest.raises(DoubleLoadError, match="duplicate records"):
        Replayer(loader)(orders, {orders: {0: (0, 10)}}, sink=SqlTable("a", schema="sales"))
    with pytest.raises(DoubleLoadError):
        loader(orders, sink=SqlTable("a", schema="sales"), group_id="other")

    assert counted(loader, "sales.a") == [1] * 10


def test_a_table_of_another_group_is_not_taken_for_a_renamed_one(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    inline_loader(orders, sink=B, group_id="other")
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE a")

    with pytest.raises(ForeignBatchError, match="Group 'loader' loads into table 'a'"):
        inline_loader(orders, sink=B)

    assert counted(inline_loader, "b") == [1] * 10


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("place", [None, (0, 99), (7, 3)], ids=["nowhere", "beyond", "another partition"])
def test_a_row_that_names_a_batch_of_another_table_renames_nothing(
    inline_loader: Loader, orders: str, place: tuple[int, int] | None
) -> None:
    """Whoever may insert into a table may write any batch id into it."""
    inline_loader(orders, sink=A)
    partition, offset = place or (None, None)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE b AS SELECT * FROM a WHERE _kafka_offset = 3")
        conn.execute(
            sa.text("UPDATE b SET _kafka_topic = :topic, _kafka_partition = :partition, _kafka_offset = :offset"),
            {"topic": None if place is None else orders, "partition": partition, "offset": offset},
        )
        conn.exec_driver_sql("ALTER TABLE a RENAME TO kept")

    inline_loader(orders, sink=B, group_id="other")

    assert rows(inline_loader.engine, "SELECT target_table FROM offset_batches ORDER BY batch_id") == [("a",), ("b",)]


@pytest.mark.parametrize("sinks", [(A, B), ([A, C], [B, C])], ids=["one", "a-branch"])
def test_the_first_load_of_a_group_finds_that_a_table_was_renamed(
    inline_loader: Loader, orders: str, topic: TopicFactory, sinks: tuple[Any, Any]
) -> None:
    first, second = sinks
    inline_loader(orders, sink=first)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE a RENAME TO b")

    with pytest.raises(DoubleLoadError, match=r"Group 'loader' has loaded .* 0\.\.10 into table 'b'"):
        inline_loader(orders, sink=B, group_id="laoder")
    with pytest.raises(DoubleLoadError, match="duplicate records"):
        Replayer(inline_loader)(orders, {orders: {0: (3, 6)}}, sink=B)
    other = topic()
    produce(inline_loader.kafka, other, names(50, 1))
    assert inline_loader(other, sink=B, group_id="other").rows == 1
    produce(inline_loader.kafka, orders, names(10, 1))
    assert inline_loader(orders, sink=second).records == 1
    verify("loader", sink=second, engine=inline_loader.engine)


def test_a_load_into_several_tables_goes_on_with_one_that_was_renamed(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=[A, C])
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE a RENAME TO b")
    produce(inline_loader.kafka, orders, names(10, 1))

    assert inline_loader(orders, sink=[B, C]).records == 1
    verify("loader", sink=[B, C], engine=inline_loader.engine)
    with pytest.raises(ForeignBatchError):
        inline_loader(orders, sink=[A, SqlTable("d")])


def test_a_table_of_the_old_name_of_a_renamed_one_is_created(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE a RENAME TO old")
    produce(inline_loader.kafka, orders, names(10, 1))

    assert inline_loader(orders, sink=A).rows == 1


@pytest.mark.parametrize("case", ["one that was dropped", "one of a group that goes on", "two of a load"])
def test_a_table_that_was_renamed_to_a_known_name_is_not_loaded_again(
    inline_loader: Loader, orders: str, topic: TopicFactory, case: str
) -> None:
    """As names alone say, the group has loaded nothing into it."""
    loader, other = inline_loader, topic()
    produce(loader.kafka, other, names(50, 1))
    statements = ["ALTER TABLE a RENAME TO b"]
    if case == "one that was dropped":
        loader(other, sink=B, group_id="former")
        statements.insert(0, "DROP TABLE b")
    elif case == "one of a group that goes on":
        loader(orders, sink=B, group_id="blue")
        produce(loader.kafka, orders, names(10, 2))
        statements.insert(0, "DROP TABLE b")
    else:
        statements.append("ALTER TABLE c RENAME TO d")
    loader(orders, sink=[A, C] if case == "two of a load" else A, group_id="green")
    with loader.engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)
    before = counted(loader, "b")

    with pytest.raises(OlderLedgerError, match=r"of group 'green' into .* or another table was renamed to it"):
        loader(orders, sink=B, group_id="blue")
    assert counted(loader, "b") == before


def test_a_lake_table_behind_a_link_is_the_same_table(inline_loader: Loader, orders: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    inline_loader(orders, sink=DeltaTable(f"{tmp_path}/lake"))

    with pytest.raises(DoubleLoadError, match="Group 'loader' has loaded"):
        inline_loader(orders, sink=DeltaTable(f"{tmp_path}/link"), group_id="other")


def test_a_replay_finds_that_a_table_was_renamed(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE a RENAME TO b")

    with pytest.raises(DoubleLoadError, match="'loader' loads into table 'b': a replay into it would duplicate"):
        Replayer(inline_loader)(orders, {orders: {0: (3, 6)}}, sink=B)
    assert Replayer(inline_loader)(orders, {orders: {0: (3, 6)}}, sink=B, replace=True).rows == 3
    assert counted(inline_loader, "b") == [1] * 10


def test_a_rewind_finds_that_a_table_was_renamed(inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, sink=A)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE a RENAME TO b")

    move(inline_loader, "loader", Scenario.of("to-offset", "4"), replace=B)
    assert counted(inline_loader, "b") == [1] * 4
    assert inline_loader(orders, sink=B).rows == 6


def test_a_table_is_renamed_for_all_its_groups(inline_loader: Loader, orders: str, topic: TopicFactory) -> None:
    others = [topic() for _ in range(2)]
    for number, name in enumerate(others):
        produce(inline_loader.kafka, name, names(0, 2))
        inline_loader(name, group_id=f"other-{number}", sink=A if number else [A, C])
    inline_loader(orders, sink=A)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE a RENAME TO b")
    produce(inline_loader.kafka, orders, names(10, 1))

    assert inline_loader(orders, sink=B).rows == 1
    for number, name in enumerate(others):
        produce(inline_loader.kafka, name, names(2, 1))
        assert inline_loader(name, group_id=f"other-{number}", sink=B if number else [B, C]).rows == (
            1 if number else 2
        )


AGAIN = SqlTable("a", schema="…")
GROUPS, SINKS = ("one", "two"), (A, AGAIN, [A, B], [B, C], C)


@pytest.mark.hypothesis
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["load", "replay", "replace", "rewind", "take over", "produce"]),
            st.sampled_from(GROUPS),
            st.sampled_from(SINKS),
            st.integers(0, 9),
        ),
        min_size=3,
        max_size=8,
    )
)
def test_no_mixture_doubles_a_record(inline_loader: Loader, topic: TopicFactory, steps: list[Any]) -> None:
    """Groups, sets of targets, names of one table, loads, replays and rewinds: what is accepted doubles nothing."""
    name = topic()
    produce(inline_loader.kafka, name, names(0, 10))
    initialize(Ledger(inline_loader.engine))
    with inline_loader.engine.begin() as conn:
        for table in "abc":
            conn.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
    end, appended = 10, [0]
    for number, (what, some, sink, offset) in enumerate(steps):
        group = f"{some} of {name}"
        if sink == AGAIN:
            sink = replace(AGAIN, schema=sa.inspect(inline_loader.engine).default_schema_name)
        try:
            if what == "load":
                inline_loader(name, group_id=group, sink=sink)
            elif what == "rewind":
                move(inline_loader, group, Scenario.of("to-offset", str(offset)), replace=sink)
            elif what == "take over":
                other = f"{next(each for each in GROUPS if each != some)} of {name}"
                # Where the other one is behind, it is a rewind that doubles, as its preview says.
                move(inline_loader, group, Scenario.of("to-group", other), is_ahead, scope={name: None}, new_group=True)
            elif what == "produce":
                produce(inline_loader.kafka, name, names(end, 2))
                end += 2
            else:
                done = replay(
                    inline_loader.pipeline([name], group_id=group, sink=sink),
                    {name: {0: (offset, end - offset % 3)}},
                    kafka_config=inline_loader.config,
                    engine=inline_loader.engine,
                    launcher=InlineLauncher(),
                    replace=what == "replace",
                    # Two runs append twice as they are asked to.
                    run=TaskRun("run", "dag", f"{group}-{offset}" if what == "replace" else "replay", -1, number + 1),
                )
                appended += done.batches if what == "replay" else ()
        except KafkaOffsetsError:
            continue
    for table in {*"abc"} & {*sa.inspect(inline_loader.engine).get_table_names()}:
        those = ", ".join(map(str, appended))
        found = rows(
            inline_loader.engine,
            f"SELECT _kafka_offset FROM {table} GROUP BY 1 "
            f"HAVING count(*) > 1 AND count(*) > count(*) FILTER (WHERE _batch_id IN ({those}))",
        )
        assert found == [], f"records are twice in {table} after {steps}"


def take_over(loader: Loader, topic: str, group: str) -> None:
    """Give a new group the positions of `loader`."""
    move(loader, group, Scenario.of("to-group", "loader"), scope={topic: None}, new_group=True)


def is_ahead(preview: RewindPreview) -> bool:
    return not preview.offsets_reread


def move(
    loader: Loader,
    group: str,
    scenario: Scenario,
    only: Callable[[RewindPreview], bool] = lambda _: True,
    *,
    replace: Any = None,
    **options: Any,
) -> None:
    """
    :param only: whether a preview is executed
    """
    preview = preview_rewind(group, scenario, engine=loader.engine, kafka_config=loader.config, **options)
    if only(preview):
        execute_rewind(preview, engine=loader.engine, replace=replace, reason="a test")


def test_the_parameter_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="other_groups"):
        Coordination(other_groups="perhaps")  # type: ignore[arg-type]
