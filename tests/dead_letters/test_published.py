"""Dead letters whose replay into a target elsewhere dies between the two commits: each is one row, whatever is replayed
next.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_kafka_offsets import DeltaTable
from airflow_kafka_offsets.dead_letters.drop import drop_dead_letters
from airflow_kafka_offsets.dead_letters.replay import Replayed, replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import LedgerError, OpenBatchError
from airflow_kafka_offsets.ledger.published_dead_letters import begin_publishing_dead_letters, dead_letters_output
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.staging.refused import Record
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
        corrected = {Record(group.topic, 0, offset): value for offset in offsets}
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

    assert replayed(6) == ([Replayed(1, 2, 2, 0)] if dies == "after" else [Replayed(1, 1, 1, 0)])

    assert replayed(2, 6) == ([] if dies == "after" else [Replayed(1, 1, 1, 0)])
    assert group.places() == sorted([*GOOD, (1, 2), (1, 6)])
    assert group.proved() == (7, 0)


def test_records_that_were_bad_then_are_no_rows_and_stay_letters(
    group: LakeGroup, replayed: Callable[..., list[Replayed]]
) -> None:
    good, bad = b'{"id": 9, "name": "corrected"}', b"{bad still"
    corrected = {Record(group.topic, 0, 2): good, Record(group.topic, 0, 6): bad}
    pipeline = group.loader.pipeline([group.topic], sink=group.sink)
    with dying(LakeTarget, "after"):
        replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=group.loader.engine, corrected=corrected)

    # The same letters, and both are good now.
    assert replayed(2, 6) == [Replayed(1, 1, 1, 0), Replayed(1, 1, 1, 0)]

    assert group.places() == sorted([*GOOD, (1, 2), (1, 6)])
    assert group.proved() == (7, 0)


def test_a_replay_that_comes_too_late_publishes_nothing(
    group: LakeGroup, replayed: Callable[..., list[Replayed]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection to the database breaks before its commit elsewhere, and another replay is quicker."""
    commit, late = LakeTarget.commit, list[LakeTarget]()

    def pause(target: LakeTarget) -> None:
        late.append(target)
        raise ProcessDiedError

    with monkeypatch.context() as patch:
        patch.setattr(LakeTarget, "commit", pause)
        with pytest.raises(ProcessDiedError):
            replayed(2, 6)
    assert replayed(2) == [Replayed(1, 1, 1, 0)]

    with pytest.raises(LedgerError, match="Another attempt published batch 1"):
        commit(late[0])

    assert group.places() == sorted([*GOOD, (1, 2)])
    assert group.proved() == (6, 1)


def test_a_load_goes_on_beside_it(group: LakeGroup, replayed: Callable[..., list[Replayed]]) -> None:
    with dying(LakeTarget, "after"):
        replayed(2, 6)
    produce(group.loader.kafka, group.topic, names(7, 1))

    assert group.load(NEXT).rows == 1

    assert replayed(2) == [Replayed(1, 2, 2, 0)]
    assert group.places() == sorted([*GOOD, (1, 2), (1, 6), (2, 7)])
    assert group.proved() == (8, 0)
    (reason,) = rows(group.loader.engine, "SELECT reason FROM offset_batches WHERE batch_id = 1")
    assert "the end of a replay that was interrupted" in reason[0]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_replay_replaces_what_it_wrote(group: LakeGroup, replayed: Callable[..., list[Replayed]], dies: str) -> None:
    with dying(LakeTarget, dies):
        replayed(2, 6)

    done = group.replay({group.topic: {0: (1, 4)}}, NEXT, replace=True)

    assert (done.rows, done.dead_letters) == (2, 1)
    assert group.places() == [(1, 0), (1, 4), (1, 5), *([(1, 6)] if dies == "after" else []), (2, 1), (2, 3)]
    assert group.proved() == ((6, 1) if dies == "after" else (5, 2))


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_rewind_replaces_what_it_wrote(group: LakeGroup, replayed: Callable[..., list[Replayed]], dies: str) -> None:
    with dying(LakeTarget, dies):
        replayed(2, 6)

    done = Rewinder(group.loader)("to-offset", 1, replace=group.sink)

    assert (done.rows_removed, done.dead_letters_removed) == ((6, 0) if dies == "after" else (4, 2))
    group.load(NEXT)
    assert group.places() == [(1, 0), *((3, offset) for offset in (1, 3, 4, 5))]
    assert group.proved() == (5, 2)


def test_letters_that_may_be_published_are_neither_dropped_nor_replaced(
    group: LakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(group.loader.engine)
    output = dead_letters_output(ledger, group.sink.connect(ledger.engine), "loader", 1, "batch-1-x")
    begin_publishing_dead_letters(ledger, output, [Record(group.topic, 0, 2)])

    assert drop_dead_letters(DeadLetterFilter("loader"), engine=ledger.engine) == 1
    # As if the replay had begun just now.
    monkeypatch.setattr("airflow_kafka_offsets.rewinding.execution.finish_publishing_dead_letters", lambda *_: None)
    with pytest.raises(OpenBatchError, match=r"dead letters of batch 1 .* are being replayed"):
        Rewinder(group.loader)("to-offset", 1, replace=group.sink)
    with pytest.raises(LedgerError, match="replayed or removed by somebody else"):
        begin_publishing_dead_letters(ledger, output._replace(attempt="batch-1-y"), [Record(group.topic, 0, 2)])


def test_a_replay_of_nothing_that_can_be_decoded_commits_nothing(group: LakeGroup, replayed: Any) -> None:
    version = deltalake.DeltaTable(f"{group.sink.uri}").version()  # type: ignore[attr-defined]

    assert replayed(2, value=b"{bad still") == [Replayed(1, 0, 0, 1)]

    assert deltalake.DeltaTable(f"{group.sink.uri}").version() == version  # type: ignore[attr-defined]
    assert group.proved() == (5, 2)
