"""A rewind meets open batches, positions that moved since its preview, and earlier tries of its task instance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_kafka_offsets.core.offsets import TopicPartition, parse_scope
from airflow_kafka_offsets.exceptions import (
    OpenBatchError,
    RewindConflictError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun, current_user
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.rewinding.execution import abandon_batch, executed_by
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.topics import delete_records
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names, rows
from tests.support.rewinds import TARGET, Rewinder, left_open, once

pytestmark = pytest.mark.server


class TestConflicts:
    @pytest.mark.broker
    def test_R31_an_open_batch_keeps_positions_where_they_are(self, rewinder: Rewinder, half: str) -> None:
        batch = left_open(rewinder, half)
        preview = rewinder.preview("to-offset", 50)
        assert preview.open_batch == batch

        with pytest.raises(OpenBatchError, match=rf"has the open batch {batch}, .* abandon batch {batch} together"):
            rewinder.execute(preview)
        with pytest.raises(OpenBatchError, match=rf"open batch {batch}, which is not batch {batch + 1}"):
            rewinder.execute(preview, abandon=batch + 1)
        assert rewinder.positions(half) == {0: 100}
        assert rewinder.history() == [(1, "load", "committed"), (batch, "load", "planned")]

        rewinder.execute(preview, abandon=batch, replace=TARGET, who="somebody")

        assert rewinder.history() == [
            (1, "load", "committed"),
            (batch, "load", "abandoned"),
            (batch + 1, "rewind", "committed"),
        ]
        rewinder.prove()
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_an_open_batch_can_be_abandoned_alone(self, rewinder: Rewinder, half: str) -> None:
        batch = left_open(rewinder, half)

        abandon_batch("loader", batch, engine=rewinder.loader.engine, who="somebody", reason="enough")

        users = current_user()
        if rewinder.loader.engine.dialect.name == "postgresql":
            users += f", database user {rewinder.loader.engine.url.username}"
        assert rows(rewinder.loader.engine, f"SELECT state, reason FROM offset_batches WHERE batch_id = {batch}") == [
            ("abandoned", f"abandoned by somebody ({users}): enough")
        ]
        with pytest.raises(OpenBatchError, match="it is abandoned"):
            abandon_batch("loader", batch, engine=rewinder.loader.engine)
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()

    def test_what_an_open_first_batch_began_and_a_rewind_passes_over_is_a_gap(
        self, rewinder: Rewinder, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 50))
        batch = left_open(rewinder, name)
        preview = rewinder.preview("to-offset", 20, name)
        assert preview.offsets_skipped == 20

        done = rewinder.execute(preview, abandon=batch)

        assert rows(rewinder.loader.engine, "SELECT batch_id, start_offset, end_offset, cause FROM offset_gaps") == [
            (done.batch_id, 0, 20, "passed over")
        ]
        rewinder.loader(name)
        assert rewinder.times(name) == once((20, 50))
        rewinder.prove()

    def test_R33_a_preview_of_positions_that_moved_is_refused(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 50))
        rewinder.loader(name)
        preview = rewinder.preview("to-offset", 20)
        produce(rewinder.loader.kafka, name, names(50, 10))
        rewinder.loader(name)

        with pytest.raises(
            RewindConflictError,
            match=rf"{name}\[0\]: position 50 in the preview, position 60 now\. Nothing was changed",
        ):
            rewinder.execute(preview, replace=TARGET)

        assert rewinder.positions(name) == {0: 60}
        assert rewinder.history() == [(1, "load", "committed"), (2, "load", "committed")]
        assert rewinder.times(name) == once((0, 60))
        rewinder.prove()

    def test_a_preview_from_before_another_rewind_is_refused(self, rewinder: Rewinder, half: str) -> None:
        preview = rewinder.preview("to-offset", 20)
        rewinder("to-offset", 50)
        rewinder("to-offset", 100)  # where it was

        with pytest.raises(RewindConflictError, match="were rewound since this preview was made"):
            rewinder.execute(preview)
        assert rewinder.positions(half) == {0: 100}

    def test_a_preview_of_a_group_that_began_meanwhile_is_refused(
        self, rewinder: Rewinder, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(rewinder.loader.kafka, name, names(0, 10))
        preview = rewinder.preview("to-offset", 5, name, new_group=True)
        rewinder.loader(name)

        with pytest.raises(RewindConflictError, match=rf"{name}\[0\]: no position in the preview, position 10 now"):
            rewinder.execute(preview)
        assert rewinder.positions(name) == {0: 10}

    def test_a_preview_is_executed_as_it_was_saved(self, rewinder: Rewinder, half: str) -> None:
        saved = json.dumps(rewinder.preview("to-datetime", "2026-03-01T12:00:00").as_dict())
        # What is in the topic by then is no matter.
        delete_records(rewinder.loader.kafka.bootstrap_servers, half, 10)

        rewinder.execute(RewindPreview.from_json(saved))

        assert rewinder.positions(half) == {0: 0}


class TestTries:
    """Of one task instance, as `KafkaRewindOperator` has them."""

    RUN = TaskRun("run-1", "dag", "rewind", -1, 1)

    def tried(
        self, rewinder: Rewinder, name: str, value: object = None, *scopes: str, replace: SqlTable | None = None
    ) -> bool:
        """
        :return: whether it rewound
        """
        scenario, engine = Scenario.of(name, value), rewinder.loader.engine
        scope = parse_scope(scopes)
        if executed_by(Ledger(engine), self.RUN, rewinder.group, scenario, scope=scope, replace=replace) is not None:
            return False
        rewinder(name, value, *scopes, run=self.RUN, replace=replace)
        return True

    def test_a_later_try_does_not_repeat_an_executed_rewind(self, rewinder: Rewinder, half: str) -> None:
        assert self.tried(rewinder, "shift-by", -10, half)
        assert not self.tried(rewinder, "shift-by", -10, half)
        rewinder.loader(half)
        assert not self.tried(rewinder, "shift-by", "-10", half)

        assert rewinder.positions(half) == {0: 200}

    def test_with_other_parameters_it_is_another_rewind(self, rewinder: Rewinder, half: str) -> None:
        first, second = {TopicPartition(half, 0): 7}, {TopicPartition(half, 0): 8}
        wishes: list[tuple[Any, ...]] = [
            ("shift-by", -10),
            ("shift-by", -20),
            ("shift-by", -20, half),
            ("shift-by", -20, f"{half}:0"),
            ("from-file", first),
            ("from-file", second),
            ("from-file", first),
        ]
        for wish in wishes:
            assert self.tried(rewinder, *wish), wish
            assert not self.tried(rewinder, *wish), wish
        assert rewinder.positions(half) == {0: 7}
        rewinder.loader(half)

        assert self.tried(rewinder, *wishes[-1], replace=TARGET)
        assert not self.tried(rewinder, *wishes[-1], replace=TARGET)
        rewinder.loader(half)
        assert rewinder.times(half) == once((0, 200))
        rewinder.prove()
