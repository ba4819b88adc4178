"""Replays: bounded ranges beside the loads of a group, on both kinds of database. No record twice, no position moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import BatchBounds, TimeBounds, replay
from airflow_kafka_offsets.core.planning import OnDataLoss
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    ConfigurationError,
    DataLossError,
    DoubleLoadError,
    FencedError,
    GroupBusyError,
    PositionConflictError,
    StagingError,
    TopicRecreatedError,
    VerificationError,
)
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import Kafka, produce, producer
from tests.support.dying_load import REPLAY_POINTS, DyingLoad, Load, Replay
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.rewinds import TARGET, Rewinder

pytestmark = pytest.mark.server

RUN = TaskRun("run-1", "dag", "task", -1, 1)
ELSEWHERE = SqlTable("elsewhere")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


@dataclass
class Replayer:
    """Replays into the table `elsewhere`, unless told otherwise, what a loader loads into `target`."""

    loader: Loader

    def __call__(
        self,
        topic: str,
        bounds: Any,
        *,
        run: TaskRun | None = None,
        replace: bool = False,
        reason: str | None = None,
        max_records: int | None = None,
        on_data_loss: OnDataLoss = "fail",
        launcher: InlineLauncher | None = None,
        **options: Any,
    ) -> LoadResult:
        return replay(
            self.loader.pipeline([topic], **({"sink": ELSEWHERE} | options)),
            bounds,
            kafka_config=self.loader.config,
            engine=self.loader.engine,
            launcher=launcher or self.loader.launcher,
            max_records=max_records,
            on_data_loss=on_data_loss,
            replace=replace,
            reason=reason,
            run=run,
        )


@pytest.fixture
def replayer(inline_loader: Loader) -> Replayer:
    return Replayer(inline_loader)


@pytest.fixture
def orders(inline_loader: Loader, topic: TopicFactory) -> str:
    """Two partitions of twenty records, of which the loader has loaded all."""
    name = topic(partitions=2)
    for partition in range(2):
        produce(inline_loader.kafka, name, names(100 * partition, 20), partition)
    inline_loader(name)
    return name


def offsets(loader: Loader, table: str = "target") -> dict[int, list[int]]:
    """The offsets that a table holds, by partition."""
    found: dict[int, list[int]] = {}
    for partition, offset in rows(loader.engine, f"SELECT _kafka_partition, _kafka_offset FROM {table} ORDER BY 1, 2"):
        found.setdefault(partition, []).append(offset)
    return found


def group_row(loader: Loader) -> list[tuple[Any, ...]]:
    return rows(loader.engine, "SELECT generation, epoch, lease_owner, lease_expires_at FROM consumer_groups")


def states(loader: Loader) -> list[tuple[Any, ...]]:
    return rows(loader.engine, "SELECT kind, state FROM offset_batches ORDER BY batch_id")


def proved(loader: Loader) -> None:
    verify("loader", sink=SqlTable("target"), engine=loader.engine, kafka_config=loader.config)


def url(loader: Loader) -> str:
    return loader.engine.url.render_as_string(hide_password=False)


class Interrupted(InlineLauncher):
    """Something happens right before the records are read."""

    def __init__(self, what: Callable[[], object]) -> None:
        super().__init__()
        self.what = what

    def __call__(self, job: StageJob) -> None:
        self.what()
        super().__call__(job)


def die() -> None:
    raise RuntimeError("no executor left")


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
            "SELECT partition, start_offset, end_offset, records, how, replaced_from, replaced_to FROM offset_ranges"
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
        result = replayer(orders, {orders: {0: (0, 20), 1: (0, 20)}}, max_records=15)

        assert (len(result.batches), result.rows) == (3, 40)
        assert offsets(replayer.loader, "elsewhere") == {0: list(range(20)), 1: list(range(20))}

    def test_an_empty_range_is_no_batch(self, replayer: Replayer, orders: str) -> None:
        assert replayer(orders, {orders: {0: (3, 3)}}) == LoadResult()

        assert states(replayer.loader) == [("load", "committed")]
        assert replayer.loader.launcher.jobs[1:] == []

    @pytest.mark.parametrize(
        ("option", "expected"),
        [
            ({"max_records": 0}, "max_records must be an int of at least 1, or None for no limit; got max_records=0"),
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


class TestIntoTheGroupsTable:
    def test_it_is_refused_with_the_ways_out(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(DoubleLoadError, match=r"replace=True, .* upsert_key, or into another table"):
            replayer(orders, {orders: {0: (0, 5)}}, sink=SqlTable("target"))

        assert states(replayer.loader) == [("load", "committed")]
        assert len(replayer.loader.launcher.jobs) == 1

    def test_it_is_known_by_every_name(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader
        schema = "public" if loader.engine.dialect.name == "postgresql" else "main"
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
            loader.engine, "SELECT replaced_from, replaced_to FROM offset_ranges WHERE batch_id = 3 ORDER BY partition"
        ) == [(15, 23), (0, 1)]
        assert (
            positions(loader.engine),
            rows(loader.engine, "SELECT generation, lease_owner FROM consumer_groups"),
        ) == before
        proved(loader)

    def test_dead_letters_are_replaced_too(self, replayer: Replayer, topic: TopicFactory) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, [*names(0, 2), b'{"id": "x"}', *names(3, 2)])
        aside: dict[str, Any] = {"on_bad_record": "dead_letter"}
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
        aside: dict[str, Any] = {"on_bad_record": "dead_letter"}
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

    def test_what_the_group_will_load_itself_is_refused(self, replayer: Replayer, orders: str) -> None:
        produce(replayer.loader.kafka, orders, names(500, 5), 0)

        with pytest.raises(
            DoubleLoadError, match=r"will load these offsets itself.*\[0\] 18..22: position 20 is stored"
        ):
            replayer(orders, {orders: {0: (18, 22)}}, sink=SqlTable("target"), replace=True)

        assert states(replayer.loader) == [("load", "committed")]

    def test_what_the_group_will_load_from_the_end_on_is_refused(self, replayer: Replayer, topic: TopicFactory) -> None:
        loader, name = replayer.loader, topic()
        produce(loader.kafka, name, names(0, 10))
        loader(name, start="latest")
        produce(loader.kafka, name, names(10, 10))

        with pytest.raises(DoubleLoadError, match=r"'loader' loads into table 'target': a replay into it would put"):
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

    def test_what_was_appended_before_the_first_load_is_found_by_verify(
        self, replayer: Replayer, topic: TopicFactory
    ) -> None:
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
                conn.execute(sa.text("UPDATE consumed_offsets SET offset_value = 4 WHERE partition = 0"))

        with pytest.raises(DoubleLoadError, match=r"\[0\] 3..7: position 4 is stored"):
            replayer(orders, {orders: {0: (3, 7)}}, sink=SqlTable("target"), replace=True, launcher=Interrupted(rewind))

        assert states(loader)[1] == ("replay", "staged")
        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        assert rows(loader.engine, "SELECT count(*) FROM replaced_output") == [(0,)]


class TestCommittedLate:
    """A replay that is committed after batches which were planned after it: their ids do not tell what is in the table."""

    @pytest.mark.parametrize("with_replace", [False, True], ids=["rewind", "rewind-with-replace"])
    def test_after_a_rewind_and_its_load(self, replayer: Replayer, orders: str, with_replace: bool) -> None:
        loader = replayer.loader

        def meanwhile() -> None:
            Rewinder(loader)("to-offset", 5, f"{orders}:0", replace=TARGET if with_replace else None)
            loader(orders)

        launcher = Interrupted(meanwhile)
        result = replayer(orders, {orders: {0: (2, 9)}}, replace=True, sink=TARGET, launcher=launcher)

        assert (result.batches, result.rows) == ((2,), 7)
        assert states(loader) == [(kind, "committed") for kind in ("load", "replay", "rewind", "load")]
        # What the load wrote meanwhile of offsets 5 to 8 is replaced, like what was there before.
        kept = [*range(20)] if with_replace else [*range(20), *range(9, 20)]
        assert offsets(loader)[0] == sorted(kept)
        proved(loader)
        produce(loader.kafka, orders, names(900, 3))
        loader(orders)
        proved(loader)
        # Nothing of that hides a row that is missing.
        with loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE target SET _kafka_offset = 3 WHERE _batch_id = 2 AND _kafka_offset = 6"))
            conn.execute(sa.text("UPDATE target SET id = -1 WHERE _batch_id = 2"))
        with pytest.raises(VerificationError):
            proved(loader)

    def test_after_another_replay(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader
        other = replace(RUN, run_id="run-2")

        def meanwhile() -> None:
            replayer(orders, {orders: {0: (5, 12), 1: (0, 3)}}, replace=True, sink=TARGET, run=other)

        replayer(orders, {orders: {0: (2, 9)}}, replace=True, sink=TARGET, launcher=Interrupted(meanwhile))

        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        of_batch = dict(
            rows(loader.engine, "SELECT _batch_id, count(*) FROM target WHERE _kafka_partition = 0 GROUP BY _batch_id")
        )
        assert of_batch == {1: 10, 2: 7, 3: 3}
        proved(loader)

    def test_into_another_table(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader

        def meanwhile() -> None:
            Rewinder(loader)("to-offset", 5, f"{orders}:0", replace=TARGET)
            loader(orders)

        replayer(orders, {orders: {0: (2, 9)}}, launcher=Interrupted(meanwhile))

        assert offsets(loader, "elsewhere") == {0: list(range(2, 9))}
        assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
        proved(loader)

    def test_with_an_upsert_key(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name, sink = topic(), SqlTable("target", upsert_key=("id",))
        produce(inline_loader.kafka, name, names(0, 10))
        inline_loader(name, sink=sink)

        def meanwhile() -> None:
            Rewinder(inline_loader)("to-offset", 5, replace=sink)
            inline_loader(name, sink=sink)

        Replayer(inline_loader)(name, {name: {0: (2, 9)}}, sink=sink, launcher=Interrupted(meanwhile))

        assert offsets(inline_loader) == {0: list(range(10))}
        verify("loader", sink=sink, engine=inline_loader.engine)


class TestBounds:
    @pytest.mark.broker
    def test_between_two_instants(self, replayer: Replayer, topic: TopicFactory) -> None:
        name = topic(retention_ms="-1")
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        minutes = [0, 1, 2, 9, 3, 4, 5]
        writer = producer(replayer.loader.kafka)
        for minute, value in zip(minutes, names(0, len(minutes)), strict=True):
            at = int((noon + timedelta(minutes=minute)).timestamp() * 1000)
            writer.produce(name, value, partition=0, timestamp=at)
        assert writer.flush(30) == 0

        replayer(name, TimeBounds("2026-01-01T12:02:00Z", noon + timedelta(minutes=4)))

        # Up to the first record at or after the bound: by offsets, whatever lies behind it.
        assert offsets(replayer.loader, "elsewhere") == {0: [2]}
        replayer(name, TimeBounds("2026-01-01T12:05:00"), sink=SqlTable("other"))
        assert offsets(replayer.loader, "other") == {0: [3, 4, 5, 6]}
        assert replayer(name, TimeBounds("2026-01-01T13:00:00"), sink=SqlTable("other")) == LoadResult()

    def test_the_tries_of_a_task_instance_share_the_end_of_the_log(self, replayer: Replayer, orders: str) -> None:
        bounds = TimeBounds("2026-01-01")
        with pytest.raises(StagingError):
            replayer(orders, bounds, run=RUN, launcher=Interrupted(die))
        produce(replayer.loader.kafka, orders, names(500, 5), 0)

        replayer(orders, bounds, run=replace(RUN, try_number=2))

        assert offsets(replayer.loader, "elsewhere") == {0: list(range(20)), 1: list(range(20))}

    def test_the_ranges_of_a_batch(self, replayer: Replayer, orders: str) -> None:
        produce(replayer.loader.kafka, orders, names(500, 5), 0)
        replayer.loader(orders)

        replayer(orders, BatchBounds(2), sink=SqlTable("target"), replace=True)

        assert rows(replayer.loader.engine, "SELECT _batch_id, count(*) FROM target GROUP BY 1 ORDER BY 1") == [
            (1, 40),
            (3, 5),
        ]
        proved(replayer.loader)

    def test_a_batch_of_another_group_is_not_known(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(ConfigurationError, match="Group 'other' has no batch 1"):
            replayer(orders, BatchBounds(1), group_id="other")

    def test_a_batch_of_an_earlier_topic_is_refused(self, replayer: Replayer, orders: str) -> None:
        servers = replayer.loader.kafka.bootstrap_servers
        delete_topic(servers, orders)
        create_topic(servers, orders, 2, {})
        produce(replayer.loader.kafka, orders, names(900, 30), 0)
        produce(replayer.loader.kafka, orders, names(950, 30), 1)

        with pytest.raises(TopicRecreatedError):
            replayer(orders, BatchBounds(1))

    def test_what_is_not_in_kafka_is_an_error(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(
            ConfigurationError, match=r"\[0\] 5..21: the log ends at offset 20; .*\[7\] 0..1: the topic has no"
        ):
            replayer(orders, {orders: {0: (5, 21), 7: (0, 1)}}, on_data_loss="skip")

        assert states(replayer.loader) == [("load", "committed")]

    @pytest.mark.broker
    def test_what_has_expired_is_an_error_or_a_gap(self, replayer: Replayer, orders: str) -> None:
        delete_records(replayer.loader.kafka.bootstrap_servers, orders, 5)
        bounds = {orders: {0: (2, 9), 1: (0, 2)}}
        with pytest.raises(DataLossError, match=r"\[0\]: offsets 2..5 are gone"):
            replayer(orders, bounds, sink=SqlTable("target"), replace=True)

        replayer(orders, bounds, sink=SqlTable("target"), replace=True, on_data_loss="skip")

        assert rows(replayer.loader.engine, "SELECT batch_id, start_offset, end_offset FROM offset_gaps") == [(2, 2, 5)]
        # What cannot be read again is not removed.
        assert offsets(replayer.loader) == {0: list(range(20)), 1: list(range(20))}
        assert rows(replayer.loader.engine, "SELECT count(*) FROM target WHERE _batch_id = 2") == [(6,)]

    def test_what_expires_before_it_is_read_is_planned_anew(
        self, replayer: Replayer, orders: str, tmp_path: Path
    ) -> None:
        servers = replayer.loader.kafka.bootstrap_servers
        expire = Interrupted(lambda: delete_records(servers, orders, 5))
        options: dict[str, Any] = {"max_records": 5, "staging_dir": str(tmp_path / "staging"), "on_data_loss": "skip"}

        result = replayer(orders, {orders: {0: (2, 12)}}, launcher=expire, run=RUN, **options)

        assert offsets(replayer.loader, "elsewhere") == {0: list(range(5, 12))}
        assert states(replayer.loader)[1:] == [
            ("replay", "abandoned"),
            ("replay", "committed"),
            ("replay", "committed"),
        ]
        assert rows(replayer.loader.engine, "SELECT batch_id, start_offset, end_offset FROM offset_gaps") == [(4, 2, 5)]
        # Whoever comes later finds all parts, and removes what the first attempt left.
        again = replayer(orders, {orders: {0: (2, 12)}}, run=RUN, **options)
        assert (sorted(again.batches), again.rows) == (sorted(result.batches), 7)
        assert list((tmp_path / "staging").iterdir()) == []


class TestTries:
    def test_a_clear_after_success_does_nothing(
        self, replayer: Replayer, orders: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = replayer(orders, {orders: {0: (0, 5)}}, run=RUN)
        jobs = len(replayer.loader.launcher.jobs)

        with caplog.at_level("INFO"):
            again = replayer(orders, {orders: {0: (0, 5)}}, run=replace(RUN, try_number=2))

        assert again == first
        assert len(replayer.loader.launcher.jobs) == jobs
        assert "already replayed by batch 2" in caplog.text
        assert offsets(replayer.loader, "elsewhere") == {0: [0, 1, 2, 3, 4]}

    def test_other_bounds_give_up_what_is_open(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(StagingError):
            replayer(orders, {orders: {0: (0, 5)}}, run=RUN, launcher=Interrupted(die))

        replayer(orders, {orders: {0: (3, 8)}}, run=RUN)

        assert states(replayer.loader)[1:] == [("replay", "abandoned"), ("replay", "committed")]
        assert offsets(replayer.loader, "elsewhere") == {0: [3, 4, 5, 6, 7]}

    @pytest.mark.parametrize("replacing", [True, False], ids=["replace", "elsewhere"])
    def test_a_part_that_was_given_up_is_planned_again(self, replayer: Replayer, orders: str, replacing: bool) -> None:
        loader = replayer.loader
        options: dict[str, Any] = {"max_records": 5, "replace": replacing}
        if replacing:
            options["sink"] = TARGET
        failing = Interrupted(lambda: die() if len(failing.jobs) == 1 else None)
        with pytest.raises(StagingError):
            replayer(orders, {orders: {0: (0, 15)}}, run=RUN, launcher=failing, **options)
        assert states(loader)[1:] == [("replay", state) for state in ("committed", "planned", "planned")]
        for _ in range(2):
            part = rows(loader.engine, "SELECT min(batch_id) FROM offset_batches WHERE state = 'planned'")[0][0]
            abandon_batch("loader", part, engine=loader.engine, who="somebody")

        result = replayer(orders, {orders: {0: (0, 15)}}, run=replace(RUN, try_number=2), **options)

        assert (result.rows, result.batches) == (15, (2, 5, 6))
        assert offsets(loader, options.get("sink", ELSEWHERE).name)[0] == list(range(20 if replacing else 15))
        if replacing:
            assert rows(loader.engine, "SELECT count(*) FROM target WHERE _batch_id = 1") == [(25,)]
        # Once they are, they are not planned again.
        again = replayer(orders, {orders: {0: (0, 15)}}, run=replace(RUN, try_number=3), **options)
        assert again == result
        proved(loader)

    @pytest.mark.parametrize("map_index", [-1, 1], ids=["cleared", "mapped"])
    def test_a_run_never_appends_an_offset_twice(self, replayer: Replayer, orders: str, map_index: int) -> None:
        replayer(orders, {orders: {0: (0, 5)}}, run=RUN)

        with pytest.raises(
            DoubleLoadError, match=r"\[0\] 4..8 is to be replayed .* batch 2 of the same run replayed 0..5"
        ):
            replayer(orders, {orders: {0: (4, 8)}}, run=replace(RUN, map_index=map_index))

        assert offsets(replayer.loader, "elsewhere") == {0: [0, 1, 2, 3, 4]}

    def test_a_batch_that_was_given_up_cannot_commit(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader
        give_up = Interrupted(lambda: abandon_batch("loader", 2, engine=loader.engine, who="somebody"))

        with pytest.raises(PositionConflictError, match=r"Batch 2 .* is not open any more"):
            replayer(orders, {orders: {0: (0, 5)}}, run=RUN, launcher=give_up)

        assert offsets(loader, "elsewhere") == {}

    def test_files_of_open_batches_stay_and_those_of_abandoned_ones_go(
        self, replayer: Replayer, orders: str, tmp_path: Path
    ) -> None:
        options: dict[str, Any] = {
            "staging_dir": str(tmp_path / "staging"),
            "staging_retention": timedelta(microseconds=1),
        }
        with pytest.raises(StagingError):
            replayer(orders, {orders: {0: (0, 5)}}, run=RUN, launcher=Interrupted(die), **options)
        (directory,) = (tmp_path / "staging").iterdir()

        replayer.loader(orders, **options)
        assert list((tmp_path / "staging").iterdir()) == [directory]

        abandon_batch("loader", 2, engine=replayer.loader.engine, who="somebody")
        replayer.loader(orders, **options)
        assert list((tmp_path / "staging").iterdir()) == []


WAYS = pytest.mark.parametrize(
    ("table", "replacing"), [("elsewhere", False), ("target", True)], ids=["append", "replace"]
)


def a_replay(loader: Loader, topic: str, tmp_path: Path, table: str, replacing: bool) -> Replay:
    return Replay(
        url(loader),
        loader.kafka.bootstrap_servers,
        (topic,),
        RUN,
        {"sink": SqlTable(table), "staging_dir": str(tmp_path / "staging"), "slice_offsets": 8},
        {topic: {0: (2, 18), 1: (0, 10)}},
        replacing,
    )


def assert_replayed_once(loader: Loader, replacing: bool) -> None:
    if not replacing:
        assert offsets(loader, "elsewhere") == {0: list(range(2, 18)), 1: list(range(10))}
    assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
    assert rows(loader.engine, "SELECT state, count(*) FROM offset_batches WHERE kind = 'replay' GROUP BY state") == [
        ("committed", 1)
    ]
    proved(loader)


@WAYS
@pytest.mark.parametrize("point", sorted(REPLAY_POINTS))
@pytest.mark.broker
def test_killed_at_any_point_and_tried_again(
    inline_loader: Loader, orders: str, tmp_path: Path, point: str, table: str, replacing: bool
) -> None:
    doomed = a_replay(inline_loader, orders, tmp_path, table, replacing)
    with DyingLoad(doomed, point) as process:
        process.reach(point)
        process.kill()

    with DyingLoad(replace(doomed, run=replace(RUN, try_number=2))) as process:
        result = process.result()

    assert isinstance(result, LoadResult), result
    assert (result.records, result.rows) == (26, 26)
    assert_replayed_once(inline_loader, replacing)


@pytest.mark.long
@WAYS
@pytest.mark.parametrize("point", sorted(REPLAY_POINTS.keys() - {"inside the transaction of a replay"}))
@pytest.mark.broker
def test_a_try_that_wakes_after_a_later_one_changes_nothing(
    inline_loader: Loader, orders: str, tmp_path: Path, point: str, table: str, replacing: bool
) -> None:
    first = a_replay(inline_loader, orders, tmp_path, table, replacing)
    with DyingLoad(first, point) as sleeper:
        sleeper.reach(point)
        with DyingLoad(replace(first, run=replace(RUN, try_number=2))) as second:
            done = second.result()
        assert isinstance(done, LoadResult), done
        sleeper.go_on()
        told = sleeper.result()

    overtaken = point not in ("before planning a replay", "after COMMIT", "before clean-up", "during clean-up")
    assert isinstance(told, FencedError if overtaken else LoadResult), told
    assert_replayed_once(inline_loader, replacing)


@WAYS
@pytest.mark.broker
def test_beside_a_load_that_is_at_work(
    inline_loader: Loader, orders: str, tmp_path: Path, table: str, replacing: bool
) -> None:
    produce(inline_loader.kafka, orders, names(500, 5), 0)
    load = Load(url(inline_loader), inline_loader.kafka.bootstrap_servers, (orders,), TaskRun("load", "dag", "load"))
    with DyingLoad(load, "after the manifest") as loading:
        loading.reach("after the manifest")
        before = group_row(inline_loader)
        with DyingLoad(a_replay(inline_loader, orders, tmp_path, table, replacing)) as process:
            assert isinstance(process.result(), LoadResult)
        assert group_row(inline_loader) == before
        assert positions(inline_loader.engine) == {(orders, 0): 20, (orders, 1): 20}
        loading.go_on()
        result = loading.result()

    assert isinstance(result, LoadResult), result
    assert positions(inline_loader.engine) == {(orders, 0): 25, (orders, 1): 20}
    assert offsets(inline_loader) == {0: list(range(25)), 1: list(range(20))}
    proved(inline_loader)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@WAYS
@pytest.mark.broker
def test_only_a_commit_into_the_groups_table_keeps_its_loads_out(
    inline_loader: Loader, orders: str, tmp_path: Path, table: str, replacing: bool
) -> None:
    point = "inside the transaction of a replay"
    produce(inline_loader.kafka, orders, names(500, 5), 0)
    with DyingLoad(a_replay(inline_loader, orders, tmp_path, table, replacing), point) as process:
        process.reach(point)
        if replacing:
            with pytest.raises(GroupBusyError):
                inline_loader(orders, on_busy="fail")
        else:
            assert inline_loader(orders, on_busy="fail").rows == 5
        process.go_on()
        assert isinstance(process.result(), LoadResult)

    inline_loader(orders)
    assert offsets(inline_loader) == {0: list(range(25)), 1: list(range(20))}
    proved(inline_loader)


def test_the_state_tables_may_be_elsewhere(replayer: Replayer, topic: TopicFactory) -> None:
    name = topic()
    produce(replayer.loader.kafka, name, names(0, 5))

    replayer(name, {name: {0: (1, 3)}}, tables=Tables(prefix="mine_"))

    assert rows(replayer.loader.engine, "SELECT kind, epoch FROM mine_offset_batches") == [("replay", 1)]
