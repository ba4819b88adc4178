"""Dead letters whose replay into an external target dies between the two commits: each is one row, whatever is replayed
next.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_kafka_offsets import DeltaTable
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.dead_letters import replay as replay_module
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.exceptions import FencedError, LedgerError, OpenBatchError, TargetError
from airflow_kafka_offsets.ledger import dead_letter_batches
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed, settle_dead_letter_batches
from airflow_kafka_offsets.ledger.publications import Publication
from airflow_kafka_offsets.loading.stage import stage
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.staging.rows import Record
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.lake import NEXT, RUN, LakeGroup, ProcessDiedError, dying
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.rewinds import Rewinder

GOOD = [(1, offset) for offset in (0, 1, 3, 4, 5)]


engine = fixtures.sqlite_engine


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path) -> LakeGroup:
    """A topic whose third and last records are dead letters of batch 1."""
    name, uri = topic(), f"{tmp_path}/lake/orders"
    produce(kafka, name, [*names(0, 2), b"{not json", *names(3, 3), b"{not json either"])
    group = LakeGroup(
        inline_loader, name, DeltaTable(uri), lambda: pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())
    )
    group.load(RUN)
    return group


@pytest.fixture
def replayed(group: LakeGroup) -> Callable[..., list[Replayed]]:
    """Replay the dead letters at some offsets, with values that can be decoded."""

    def replayed(*offsets: int, value: bytes = b'{"id": 9, "name": "corrected"}') -> list[Replayed]:
        # Whichever batch has them now.
        values = {Record(group.topic, 0, offset): value for offset in offsets}
        corrected = {batch: values for batch in range(1, 9)}  # noqa: C420
        pipeline = group.loader.pipeline([group.topic], sink=group.sink)
        return replay_dead_letters(
            DeadLetterFilter("loader"), pipeline, engine=group.loader.engine, corrected=corrected
        )

    return replayed


@pytest.mark.parametrize("dies", ["before", "after"])
def test_another_selection_is_replayed_next(
    group: LakeGroup, replayed: Callable[..., list[Replayed]], dies: str
) -> None:
    with dying(LakeTarget, dies):
        replayed(2, 6)

    assert replayed(6) == ([Replayed(1, 2, 2, 0, 2)] if dies == "after" else [Replayed(1, 1, 1, 0, 3)])

    assert replayed(2, 6) == ([] if dies == "after" else [Replayed(1, 1, 1, 0, 4)])
    assert group.places() == [*GOOD, *([(2, 2), (2, 6)] if dies == "after" else [(3, 6), (4, 2)])]
    assert group.proved() == (7, 0)


def test_records_that_were_bad_then_are_no_rows_and_stay_dead_letters(
    group: LakeGroup, replayed: Callable[..., list[Replayed]]
) -> None:
    good, bad = b'{"id": 9, "name": "corrected"}', b"{bad still"
    corrected = {1: {Record(group.topic, 0, 2): good, Record(group.topic, 0, 6): bad}}
    pipeline = group.loader.pipeline([group.topic], sink=group.sink)
    with dying(LakeTarget, "after"):
        replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=group.loader.engine, corrected=corrected)

    # The same dead letters, and both are good now.
    assert replayed(2, 6) == [Replayed(1, 1, 1, 0, 2), Replayed(1, 1, 1, 0, 3)]

    assert group.places() == [*GOOD, (2, 2), (3, 6)]
    assert group.proved() == (7, 0)


def test_a_replay_that_comes_too_late_publishes_nothing(
    group: LakeGroup, replayed: Callable[..., list[Replayed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection to the database breaks before its external commit, and another replay is quicker."""
    commit, late = LakeTarget.commit, list[LakeTarget]()

    def pause(target: LakeTarget) -> None:
        late.append(target)
        raise ProcessDiedError

    with monkeypatch.context() as patch:
        patch.setattr(LakeTarget, "commit", pause)
        with pytest.raises(ProcessDiedError):
            replayed(2, 6)
    assert replayed(2) == [Replayed(1, 1, 1, 0, 3)]

    with pytest.raises(LedgerError, match="another attempt published batch 2"):
        commit(late[0])

    assert group.places() == [*GOOD, (3, 2)]
    assert group.proved() == (6, 1)


def test_a_load_goes_on_beside_it(group: LakeGroup, replayed: Callable[..., list[Replayed]]) -> None:
    with dying(LakeTarget, "after"):
        replayed(2, 6)
    produce(group.loader.kafka, group.topic, names(7, 1))

    assert group.load(NEXT).rows == 1

    assert replayed(2) == [Replayed(1, 2, 2, 0, 2)]
    assert group.places() == [*GOOD, (2, 2), (2, 6), (3, 7)]
    assert group.proved() == (8, 0)
    history = "SELECT kind, state, records, row_count FROM offset_batches ORDER BY batch_id"
    assert rows(group.loader.engine, history)[1:] == [("dead_letters", "committed", 2, 2), ("load", "committed", 1, 1)]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_replay_replaces_what_it_wrote(group: LakeGroup, replayed: Callable[..., list[Replayed]], dies: str) -> None:
    with dying(LakeTarget, dies):
        replayed(2, 6)

    done = group.replay({group.topic: {0: (1, 4)}}, NEXT, replace=True)

    assert (done.rows, done.dead_letters) == (2, 1)
    assert group.places() == [(1, 0), (1, 4), (1, 5), *([(2, 6)] if dies == "after" else []), (3, 1), (3, 3)]
    assert group.proved() == ((6, 1) if dies == "after" else (5, 2))


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_rewind_replaces_what_it_wrote(group: LakeGroup, replayed: Callable[..., list[Replayed]], dies: str) -> None:
    with dying(LakeTarget, dies):
        replayed(2, 6)

    done = Rewinder(group.loader)("to-offset", 1, replace=group.sink)

    assert (done.rows_removed, done.dead_letters_removed) == ((6, 0) if dies == "after" else (4, 2))
    group.load(NEXT)
    assert group.places() == [(1, 0), *((4, offset) for offset in (1, 3, 4, 5))]
    assert group.proved() == (5, 2)


def test_dead_letters_that_may_be_published_are_neither_dropped_nor_replaced_nor_replayed(
    group: LakeGroup, replayed: Callable[..., list[Replayed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with dying(LakeTarget, "after"):
        replayed(2)

    assert drop_dead_letters(DeadLetterFilter("loader"), engine=group.loader.engine) == 1
    with monkeypatch.context() as patch:
        # As if the replay had begun just now.
        for module in ("rewinding.execution", "dead_letters.replay"):
            patch.setattr(f"airflow_kafka_offsets.{module}.settle_dead_letter_batches", lambda *_: [])
        with pytest.raises(OpenBatchError, match=r"Batch 2, an open replay of group 'loader', may have published"):
            Rewinder(group.loader)("to-offset", 1, replace=group.sink)
        assert replayed(2) == []

    assert replayed(2) == [Replayed(1, 1, 1, 0, 2)]
    assert group.proved() == (6, 1)


def test_a_replay_of_nothing_that_can_be_decoded_commits_nothing(group: LakeGroup, replayed: Any) -> None:
    version = deltalake.DeltaTable(f"{group.sink.uri}").version()  # type: ignore[attr-defined]

    assert replayed(2, value=b"{bad still") == [Replayed(1, 0, 0, 1, 2)]

    assert deltalake.DeltaTable(f"{group.sink.uri}").version() == version  # type: ignore[attr-defined]
    assert group.proved() == (5, 2)


def test_dead_letters_of_a_target_that_was_dropped_are_replayed_again(
    group: LakeGroup, replayed: Callable[..., list[Replayed]]
) -> None:
    with dying(LakeTarget, "after"):
        replayed(2, 6)
    shutil.rmtree(group.sink.uri)  # type: ignore[attr-defined]
    with pytest.raises(TargetError, match="has no rows of group 'loader', whose batch 1 is in one of this name"):
        replayed(2, 6)

    # What the error says.
    Rewinder(group.loader)("to-earliest")
    (again,) = replayed(2, 6)

    assert again == Replayed(1, 2, 2, 0, again.replayed_by)
    assert group.places() == [(again.replayed_by, 2), (again.replayed_by, 6)]


def test_a_replay_that_another_one_abandoned_publishes_nothing(
    group: LakeGroup, replayed: Callable[..., list[Replayed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Publication.begin

    def overtaken(self: Publication, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        monkeypatch.setattr(Publication, "begin", begin)
        assert settle_dead_letter_batches(self.ledger, self.table, "loader") == []

    monkeypatch.setattr(Publication, "begin", overtaken)
    with pytest.raises(FencedError, match="a later replay of dead letters took over"):
        replayed(2, 6)

    assert group.places() == GOOD
    assert group.proved() == (5, 2)


@pytest.mark.parametrize(("remove", "left"), [("replay", 2), ("rewind", 1), ("drop", 1)])
def test_dead_letters_that_are_removed_after_they_were_decoded_are_not_published(
    group: LakeGroup,
    replayed: Callable[..., list[Replayed]],
    monkeypatch: pytest.MonkeyPatch,
    remove: str,
    left: int,
) -> None:
    def overtaken(*args: Any) -> Any:
        staged = stage(*args)
        with monkeypatch.context() as patch:
            # As if the other process had begun before this one.
            for module in ("replaying.replay", "rewinding.execution"):
                patch.setattr(f"airflow_kafka_offsets.{module}.settle_dead_letter_batches", lambda *_: [])
            if remove == "replay":
                group.replay({group.topic: {0: (2, 3)}}, NEXT, replace=True)
            elif remove == "rewind":
                Rewinder(group.loader)("to-offset", 6, replace=group.sink)
            else:
                of_one = DeadLetterFilter("loader", ranges=(OffsetRange(group.topic, 0, 2, 3, 3),))
                assert drop_dead_letters(of_one, engine=group.loader.engine) == 1
        return staged

    monkeypatch.setattr(replay_module, "stage", overtaken)
    with pytest.raises(LedgerError, match="were replayed or removed by another process meanwhile, or dropped"):
        replayed(2, 6)
    monkeypatch.setattr(replay_module, "stage", stage)

    assert group.places() == GOOD
    assert sum(done.records for done in replayed(2, 6)) == left
    group.load(NEXT)
    assert group.proved() == (5 + left, 2 - left)


@pytest.mark.parametrize("dies", ["before", "after"])
def test_two_processes_settle_it_at_once(
    group: LakeGroup, replayed: Callable[..., list[Replayed]], monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    with dying(LakeTarget, dies):
        replayed(2, 6)
    take_over = dead_letter_batches._take_over
    others: list[list[Replayed]] = []

    def overtaken(*args: Any, **options: Any) -> Any:
        claim = take_over(*args, **options)
        monkeypatch.setattr(dead_letter_batches, "_take_over", take_over)
        others.append(replayed())
        return claim

    monkeypatch.setattr(dead_letter_batches, "_take_over", overtaken)
    assert replayed() == []

    assert others == [[Replayed(1, 2, 2, 0, 2)] if dies == "after" else []]
    assert group.proved() == ((7, 0) if dies == "after" else (5, 2))


def test_a_user_may_abandon_it(group: LakeGroup, replayed: Callable[..., list[Replayed]]) -> None:
    with dying(LakeTarget, "after"):
        replayed(2, 6)

    abandon_batch("loader", 2, engine=group.loader.engine, reason="enough")

    assert replayed(2) == [Replayed(1, 1, 1, 0, 3)]
    assert group.places() == [*GOOD, (3, 2)]
    assert group.proved() == (6, 1)
