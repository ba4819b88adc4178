"""The tries of a task instance share the batches of its replay."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import (
    BatchClosedError,
    DoubleLoadError,
    ForeignBatchError,
    StagingError,
)
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names, rows
from tests.support.mariadb import do
from tests.support.replays import ELSEWHERE, RUN, Interrupted, Replayer, die, offsets, proved, states
from tests.support.rewinds import TARGET

pytestmark = pytest.mark.server


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

    def test_a_row_that_names_another_topic_is_not_loaded(
        self, replayer: Replayer, orders: str, topic: TopicFactory
    ) -> None:
        """Who may write the state tables may not read topics through a task."""
        loader, other = replayer.loader, topic(partitions=2)
        produce(loader.kafka, other, names(0, 5))
        with pytest.raises(StagingError):
            replayer(orders, {orders: {0: (0, 5)}}, run=RUN, launcher=Interrupted(die))
        do(loader.engine, f"UPDATE offset_ranges SET topic = '{other}', topic_id = NULL, end_epoch = NULL")

        with pytest.raises(ForeignBatchError, match=rf"Batch 2 of group 'loader' is of '{other}', of which this task"):
            replayer(orders, {orders: {0: (0, 5)}}, run=replace(RUN, try_number=2))

        assert offsets(loader, "elsewhere") == {}

    def test_other_bounds_give_up_what_is_open(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(StagingError):
            replayer(orders, {orders: {0: (0, 5)}}, run=RUN, launcher=Interrupted(die))

        replayer(orders, {orders: {0: (3, 8)}}, run=RUN)

        assert states(replayer.loader)[1:] == [("replay", "abandoned"), ("replay", "committed")]
        assert offsets(replayer.loader, "elsewhere") == {0: [3, 4, 5, 6, 7]}

    @pytest.mark.parametrize("replacing", [True, False], ids=["replace", "elsewhere"])
    def test_a_part_that_was_given_up_is_planned_again(self, replayer: Replayer, orders: str, replacing: bool) -> None:
        loader = replayer.loader
        options: dict[str, Any] = {"limits": Limits(max_records=5), "replace": replacing}
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
            DoubleLoadError, match=r"\[0\] 4..8 would be replayed .* batch 2 of the same run replayed 0..5"
        ):
            replayer(orders, {orders: {0: (4, 8)}}, run=replace(RUN, map_index=map_index))

        assert offsets(replayer.loader, "elsewhere") == {0: [0, 1, 2, 3, 4]}

    def test_a_batch_that_was_given_up_cannot_commit(self, replayer: Replayer, orders: str) -> None:
        loader = replayer.loader
        give_up = Interrupted(lambda: abandon_batch("loader", 2, engine=loader.engine, who="somebody"))

        with pytest.raises(BatchClosedError, match=r"Batch 2 .* is not open any more"):
            replayer(orders, {orders: {0: (0, 5)}}, run=RUN, launcher=give_up)

        assert offsets(loader, "elsewhere") == {}

    def test_files_of_open_batches_stay_and_those_of_abandoned_ones_go(
        self, replayer: Replayer, orders: str, tmp_path: Path
    ) -> None:
        options: dict[str, Any] = {
            "staging": Staging(dir=str(tmp_path / "staging"), retention=timedelta(microseconds=1)),
        }
        with pytest.raises(StagingError):
            replayer(orders, {orders: {0: (0, 5)}}, run=RUN, launcher=Interrupted(die), **options)
        (directory,) = (tmp_path / "staging").iterdir()

        replayer.loader(orders, **options)
        assert list((tmp_path / "staging").iterdir()) == [directory]

        abandon_batch("loader", 2, engine=replayer.loader.engine, who="somebody")
        replayer.loader(orders, **options)
        assert list((tmp_path / "staging").iterdir()) == []
