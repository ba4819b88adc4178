"""A replay into another table than the group's appends exactly its range, and leaves the group alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits, StateTables
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    ConfigurationError,
    DoubleLoadError,
)
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names, positions, rows
from tests.support.replays import RUN, Replayer, group_row, offsets, proved, states

pytestmark = pytest.mark.server


class TestIntoAnotherTable:
    @pytest.mark.broker
    def test_exactly_the_range_is_appended_and_the_group_is_not_touched(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader
        before = (positions(loader.engine), group_row(loader))

        result = replayer(orders, {orders: {0: (3, 7), 1: (18, 20)}}, reason="a bug in the transform")

        assert (result.batches, result.records, result.rows, result.complete) == ((2,), 6, 6, True)
        assert offsets(loader, "elsewhere") == {0: [3, 4, 5, 6], 1: [18, 19]}
        assert (positions(loader.engine), group_row(loader)) == before
        assert rows(
            loader.engine,
            "SELECT kind, state, attempt, records, row_count, target_table, scenario, reason FROM offset_batches"
            " WHERE batch_id = 2",
        ) == [
            (
                "replay",
                "committed",
                1,
                6,
                6,
                "elsewhere",
                f"offsets {orders}[0] 3..7, {orders}[1] 18..20",
                "a bug in the transform",
            )
        ]
        assert rows(
            loader.engine,
            "SELECT partition, start_offset, end_offset, records, how, replaced_start_offset, replaced_end_offset "
            "FROM offset_ranges"
            " WHERE batch_id = 2 ORDER BY partition",
        ) == [(0, 3, 7, 4, "replay", None, None), (1, 18, 20, 2, "replay", None, None)]
        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        proved(loader)

    def test_a_range_above_the_position_is_nobodys_business(self, replayer: Replayer, orders: str) -> None:
        produce(replayer.loader.kafka, orders, names(500, 5), 0)

        replayer(orders, {orders: {0: (20, 25)}})

        assert offsets(replayer.loader, "elsewhere") == {0: [20, 21, 22, 23, 24]}
        replayer.loader(orders)
        proved(replayer.loader)

    def test_a_group_that_never_loaded_can_replay(self, replayer: Replayer, topic: TopicFactory) -> None:
        name = topic()
        produce(replayer.loader.kafka, name, names(0, 5))

        assert replayer(name, {name: {0: (0, 5)}}, group_id="backfill").rows == 5

        assert positions(replayer.loader.engine) == {}

    def test_two_runs_append_twice_as_they_were_asked_to(self, replayer: Replayer, orders: str) -> None:
        for run in ("run-1", "run-2"):
            replayer(orders, {orders: {0: (0, 2)}}, run=replace(RUN, run_id=run))

        assert offsets(replayer.loader, "elsewhere") == {0: [0, 0, 1, 1]}

    def test_a_table_that_another_group_loads_these_topics_into_is_refused(
        self, replayer: Replayer, orders: str
    ) -> None:
        with pytest.raises(
            DoubleLoadError, match=r"Group 'loader' loads .* into table 'target': a replay of group 'other'"
        ):
            replayer(orders, {orders: {0: (0, 2)}}, group_id="other", sink=SqlTable("target"))

        assert states(replayer.loader) == [("load", "committed")]

    def test_replace_has_nothing_to_replace_there(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(ConfigurationError, match=r"that is in table 'target'; this replay is into 'elsewhere'"):
            replayer(orders, {orders: {0: (0, 2)}}, replace=True)

    def test_max_records_splits_it(self, replayer: Replayer, orders: str) -> None:
        result = replayer(orders, {orders: {0: (0, 20), 1: (0, 20)}}, limits=Limits(max_records=15))

        assert (len(result.batches), result.rows) == (3, 40)
        assert offsets(replayer.loader, "elsewhere") == {0: list(range(20)), 1: list(range(20))}

    def test_without_limits_it_has_the_batches_of_a_load(
        self, replayer: Replayer, orders: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow_kafka_offsets.core.options.MOST_RECORDS", 15)
        monkeypatch.setattr("airflow_kafka_offsets.core.options.MOST_OF_PARTITION", 1)
        whole = {orders: {0: (0, 20), 1: (0, 20)}}

        assert len(replayer(orders, whole).batches) == 3
        # What is replaced is never half there.
        assert len(replayer(orders, whole, sink=SqlTable("target"), replace=True).batches) == 1

    def test_an_empty_range_is_no_batch(self, replayer: Replayer, orders: str) -> None:
        assert replayer(orders, {orders: {0: (3, 3)}}) == LoadResult()

        assert states(replayer.loader) == [("load", "committed")]
        assert replayer.loader.launcher.jobs[1:] == []

    @pytest.mark.parametrize(
        ("option", "expected"),
        [
            (
                {"limits": Limits(max_records="{{ n }}")},  # type: ignore[arg-type]
                "Limits.max_records must be .*, or None for the usual size; got max_records='{{ n }}'",
            ),
            (
                {"limits": Limits(max_records=1, max_bytes=5)},
                r"A replay has no limits but max_records; got Limits\(max_records=1, max_bytes=5\)",
            ),
            ({"on_data_loss": "ignore"}, "on_data_loss must be one of fail, skip; got on_data_loss='ignore'"),
            ({"replace": "no"}, "replace must be True or False; got replace='no'"),
        ],
        ids=lambda option: next(iter(option)) if isinstance(option, dict) else "",
    )
    def test_an_option_that_cannot_work_is_refused(
        self, replayer: Replayer, option: Mapping[str, Any], expected: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=f"^{expected}$"):
            replayer("orders", {"orders": {0: (3, 4)}}, **option)

    def test_another_cluster_is_refused(self, replayer: Replayer, orders: str) -> None:
        with replayer.loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE consumer_groups SET cluster_id = 'other'"))

        with pytest.raises(ClusterChangedError):
            replayer(orders, {orders: {0: (3, 4)}})


def test_the_state_tables_may_be_elsewhere(replayer: Replayer, topic: TopicFactory) -> None:
    name = topic()
    produce(replayer.loader.kafka, name, names(0, 5))

    replayer(name, {name: {0: (1, 3)}}, state_tables=StateTables(prefix="mine_"))

    assert rows(replayer.loader.engine, "SELECT kind, epoch FROM mine_offset_batches") == [("replay", 1)]
