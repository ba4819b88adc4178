"""A replay into the group's own table: with `replace` or an `upsert_key`, and before the positions only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DoubleLoadError,
    StagingError,
    VerificationError,
)
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, in_dialect, names, positions, rows
from tests.support.replays import Interrupted, Replayer, die, offsets, proved, states
from tests.support.rewinds import TARGET, Rewinder

pytestmark = pytest.mark.server


class TestIntoTheGroupsTable:
    def test_replay_into_the_groups_table_is_refused_with_alternatives(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(DoubleLoadError, match=r"replace=True, .* upsert_key, or into another table"):
            replayer(orders, {orders: {0: (0, 5)}}, sink=SqlTable("target"))

        assert states(replayer.loader) == [("load", "committed")]
        assert len(replayer.loader.launcher.jobs) == 1

    def test_groups_table_is_recognised_by_each_name(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader
        schema = {"postgresql": "public", "sqlite": "main"}.get(loader.engine.dialect.name, loader.engine.url.database)
        spelled = SqlTable("target", schema)
        with pytest.raises(DoubleLoadError, match=r"'loader' loads into table '\w+.target': a replay into it"):
            replayer(orders, {orders: {0: (0, 5)}}, sink=spelled)
        with pytest.raises(DoubleLoadError, match=r"Group 'loader' loads .*: a replay of group 'other'"):
            replayer(orders, {orders: {0: (0, 5)}}, sink=spelled, group_id="other")

        replayer(orders, {orders: {0: (0, 5)}}, sink=spelled, replace=True)
        Rewinder(loader)("to-offset", 3, f"{orders}:0", replace=spelled)
        loader(orders, sink=spelled)
        replayer(orders, {orders: {0: (10, 15)}}, sink=TARGET, replace=True)

        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        for sink in (TARGET, spelled):
            verify("loader", sink=sink, engine=loader.engine, kafka_config=loader.config)

    @pytest.mark.broker
    def test_replaced_rows_are_there_once_with_an_account_of_the_old_ones(
        self, replayer: Replayer, orders: str
    ) -> None:
        loader = replayer.loader
        produce(loader.kafka, orders, names(500, 5), 0)
        loader(orders)
        before = (positions(loader.engine), rows(loader.engine, "SELECT generation, lease_owner FROM consumer_groups"))

        result = replayer(orders, {orders: {0: (15, 23), 1: (0, 1)}}, sink=SqlTable("target"), replace=True)

        assert result.rows == 9
        assert offsets(loader) == {0: list(range(25)), 1: list(range(20))}
        assert rows(loader.engine, "SELECT _batch_id, count(*) FROM target GROUP BY 1 ORDER BY 1") == [
            (1, 34),
            (2, 2),
            (3, 9),
        ]
        assert rows(
            loader.engine,
            "SELECT batch_id, replaced_batch_id, partition, row_count FROM replaced_output ORDER BY 2, 3",
        ) == [(3, 1, 0, 5), (3, 1, 1, 1), (3, 2, 0, 3)]
        assert rows(
            loader.engine,
            "SELECT replaced_start_offset, replaced_end_offset FROM offset_ranges WHERE batch_id = 3 "
            "ORDER BY partition",
        ) == [(15, 23), (0, 1)]
        assert (
            positions(loader.engine),
            rows(loader.engine, "SELECT generation, lease_owner FROM consumer_groups"),
        ) == before
        proved(loader)

    def test_dead_letters_are_replaced_too(self, replayer: Replayer, topic: TopicFactory) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, [*names(0, 2), b'{"id": "x"}', *names(3, 2)])
        aside: dict[str, Any] = {"on_bad_record": DeadLetters()}
        loader(name, **aside)

        result = replayer(name, {name: {0: (1, 4)}}, sink=SqlTable("target"), replace=True, **aside)

        assert (result.rows, result.dead_letters) == (2, 1)
        assert rows(loader.engine, "SELECT batch_id, offset_value FROM dead_letters") == [(2, 2)]
        assert rows(loader.engine, "SELECT row_count, dead_letters FROM replaced_output") == [(2, 1)]
        proved(loader)

    def test_dead_letters_that_were_lost_are_not_missed_once_all_was_replaced(
        self, replayer: Replayer, topic: TopicFactory
    ) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, [*names(0, 2), b'{"id": "x"}', *names(3, 2)])
        aside: dict[str, Any] = {"on_bad_record": DeadLetters()}
        loader(name, **aside)
        with loader.engine.begin() as conn:
            for table in ("dead_letters", "target"):
                conn.execute(sa.text(f"DELETE FROM {table}"))
        replayer(name, {name: {0: (0, 3)}}, sink=TARGET, replace=True, **aside)
        with pytest.raises(VerificationError, match="rows are missing"):
            proved(loader)

        replayer(name, {name: {0: (0, 5)}}, sink=TARGET, replace=True, **aside)

        assert rows(loader.engine, "SELECT batch_id, offset_value FROM dead_letters") == [(3, 2)]
        proved(loader)

    def test_a_replay_is_replaced_by_the_next_one(self, replayer: Replayer, orders: str) -> None:
        for end in (10, 5):
            replayer(orders, {orders: {0: (0, end)}}, sink=SqlTable("target"), replace=True)

        assert offsets(replayer.loader) == {0: list(range(20)), 1: list(range(20))}
        proved(replayer.loader)

    def test_an_upsert_key_needs_no_replace(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name, keyed = topic(), SqlTable("target", upsert_key=("id",))
        produce(inline_loader.kafka, name, names(0, 5))
        inline_loader(name, sink=keyed)

        assert Replayer(inline_loader)(name, {name: {0: (1, 3)}}, sink=keyed).rows == 2

        assert offsets(inline_loader) == {0: [0, 1, 2, 3, 4]}
        assert rows(inline_loader.engine, "SELECT _batch_id FROM target ORDER BY id") == [(1,), (2,), (2,), (1,), (1,)]

    def test_replay_of_unread_offsets_is_refused(self, replayer: Replayer, orders: str) -> None:
        produce(replayer.loader.kafka, orders, names(500, 5), 0)

        with pytest.raises(
            DoubleLoadError, match=r"will load these offsets itself.*\[0\] 18..22: position 20 is stored"
        ):
            replayer(orders, {orders: {0: (18, 22)}}, sink=SqlTable("target"), replace=True)

        assert states(replayer.loader) == [("load", "committed")]

    def test_replay_of_a_group_without_positions_does_not_name_them(
        self, replayer: Replayer, topic: TopicFactory
    ) -> None:
        name, loader = topic(), replayer.loader
        produce(loader.kafka, name, names(0, 3))
        with pytest.raises(StagingError):
            replace(loader, launcher=Interrupted(die))(name)

        with pytest.raises(DoubleLoadError, match=r"no position is stored. Nothing was written. Run the load first"):
            replayer(name, {name: {0: (0, 3)}}, sink=TARGET, replace=True)

    def test_a_replay_may_end_at_the_position_and_no_offset_later(self, replayer: Replayer, orders: str) -> None:
        produce(replayer.loader.kafka, orders, names(500, 1), 0)

        with pytest.raises(DoubleLoadError, match=r"\[0\] 18..21: position 20 is stored"):
            replayer(orders, {orders: {0: (18, 21)}}, sink=TARGET, replace=True)
        assert replayer(orders, {orders: {0: (18, 20)}}, sink=TARGET, replace=True).rows == 2

        replayer.loader(orders)
        assert offsets(replayer.loader) == {0: list(range(21)), 1: list(range(20))}

    def test_replay_of_unread_offsets_of_a_group_from_latest_is_refused(
        self, replayer: Replayer, topic: TopicFactory
    ) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, names(0, 10))
        loader(name, start="latest")
        produce(loader.kafka, name, names(10, 10))

        with pytest.raises(
            DoubleLoadError, match=r"'loader' loads into table 'target': a replay into it would duplicate"
        ):
            replayer(name, {name: {0: (5, 20)}}, sink=TARGET)
        with pytest.raises(DoubleLoadError, match=r"will load these offsets itself.* 5..20: position 10 is stored"):
            replayer(name, {name: {0: (5, 20)}}, sink=TARGET, replace=True)
        with pytest.raises(DoubleLoadError, match=r"Group 'loader' loads .*: a replay of group 'other'"):
            replayer(name, {name: {0: (5, 10)}}, sink=TARGET, group_id="other")
        with pytest.raises(ConfigurationError, match=r"that is in table 'target'; this replay is into 'elsewhere'"):
            replayer(name, {name: {0: (5, 10)}}, replace=True)
        # What lies before the position is nobody's but the replay's.
        replayer(name, {name: {0: (5, 10)}}, sink=TARGET, replace=True)

        loader(name, start="latest")
        assert offsets(loader) == {0: list(range(5, 20))}
        proved(loader)

    def test_before_the_first_load_there_is_nothing_to_replace(self, replayer: Replayer, topic: TopicFactory) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, names(0, 10))

        with pytest.raises(ConfigurationError, match=r"group 'loader' loaded, and it has loaded nothing yet"):
            replayer(name, {name: {0: (0, 10)}}, sink=TARGET, replace=True)

        assert states(loader) == []
        loader(name)
        assert offsets(loader) == {0: list(range(10))}
        proved(loader)

    def test_a_load_of_what_was_appended_before_the_first_one_is_refused(
        self, replayer: Replayer, topic: TopicFactory
    ) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, names(0, 12))
        replayer(name, {name: {0: (6, 10)}}, sink=TARGET)
        verify("loader", sink=TARGET, engine=loader.engine)

        with pytest.raises(
            DoubleLoadError, match=rf"Batch 1, a replay .* {name}\[0\] 6..10 .* --topic {name}:0 --to-offset 10 "
        ):
            loader(name)

        assert states(loader) == [("replay", "committed")]
        # The way out that it names.
        Rewinder(loader)("to-offset", 10, f"{name}:0")
        assert loader(name).rows == 2
        assert offsets(loader) == {0: list(range(6, 12))}
        proved(loader)

    def test_verify_finds_rows_appended_before_the_first_load(self, replayer: Replayer, topic: TopicFactory) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, names(0, 10))
        replayer(name, {name: {0: (6, 10)}})
        loader(name)
        with loader.engine.begin() as conn:  # as a version without the refusal left it
            conn.execute(sa.text("INSERT INTO target SELECT * FROM elsewhere"))
            conn.execute(sa.text("UPDATE offset_batches SET target_table = 'target' WHERE batch_id = 1"))

        with pytest.raises(
            VerificationError, match=r"\[0\]: offsets 6..10 were appended .* by batch 1, a replay"
        ) as told:
            proved(loader)
        assert [(one.offset, one.batch_id) for one in told.value.violations] == [(6, 1)]
        # The way out that it names.
        replayer(name, {name: {0: (6, 10)}}, sink=TARGET, replace=True)
        assert offsets(loader) == {0: list(range(10))}
        proved(loader)

    def test_a_position_that_went_back_meanwhile_is_found_out_by_the_commit(
        self, replayer: Replayer, orders: str
    ) -> None:
        loader = replayer.loader

        def rewind() -> None:
            with loader.engine.begin() as conn:
                moved = "UPDATE consumed_offsets SET offset_value = 4 WHERE partition = 0"
                conn.execute(sa.text(in_dialect(conn.engine, moved)))

        with pytest.raises(DoubleLoadError, match=r"\[0\] 3..7: position 4 is stored"):
            replayer(orders, {orders: {0: (3, 7)}}, sink=SqlTable("target"), replace=True, launcher=Interrupted(rewind))

        assert states(loader)[1] == ("replay", "staged")
        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        assert rows(loader.engine, "SELECT count(*) FROM replaced_output") == [(0,)]
