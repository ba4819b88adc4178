"""Old loads are compacted: their ranges become those of the last one, and whatever reads them still says the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger import compaction
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.batches import captured_targets
from airflow_kafka_offsets.ledger.compaction import Compacted, compact_history
from airflow_kafka_offsets.ledger.overview import TaskResult, read_task_result
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.loading.load import _compact
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.replaying.replay_batches import batch_of
from airflow_kafka_offsets.rewinding.history import state_before
from tests.support.ledgers import GROUP, NEW, OLD, T0, T1, TOPIC_ID, Database

NOW = timedelta(microseconds=1)
LAST_RUN = TaskRun("last", "dag", "load", -1, 1)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users have a hundred batches or more."""
    monkeypatch.setattr(compaction, "_AT_LEAST", 2)


class History:
    """Loads of two partitions, each by a run of its own."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.at: dict[TopicPartition, int] = {}
        self.runs = 0

    def load(self, counts: dict[TopicPartition, int], *, dead_letters: int = 0, gap: int = 0) -> int:
        """Load as many records of each partition; return the id of the batch.

        :param gap: offsets that are skipped before them
        """
        self.runs += 1
        ranges, gaps, reads = [], [], {}
        for tp, count in counts.items():
            start, how = self.at.get(tp, 0), "stored" if tp in self.at else "earliest"
            if gap:
                gaps.append(Gap(*tp, start, start + gap, "expired", "skip"))
                start, how = start + gap, "skipped-gap"
            end = self.at[tp] = start + count
            ranges.append(OffsetRange(*tp, start, end, end + 100, TOPIC_ID, how, self.runs, self.runs + 1))
            # Of what another partition has the room for, nothing is read.
            if count:
                reads[tp] = RangeRead(count, OLD + self.runs * NOW, NEW + self.runs * NOW, 10 * count, dead_letters)
        held = self.db.claim(TaskRun(f"run-{self.runs}", "dag", "load", -1, 1))
        batch = self.db.plan(held, Plan(tuple(ranges), tuple(gaps)))
        self.db.commit(held, batch, reads)
        self.db.change("UPDATE offset_batches SET dead_letters = ? WHERE batch_id = ?", dead_letters, batch.batch_id)
        held.release()
        return batch.batch_id

    def compact(self, retention: timedelta = NOW) -> int:
        held = self.db.claim(LAST_RUN)
        compacted = compact_history(held, retention)
        held.release()
        return compacted

    def ranges(self, *columns: str) -> list[tuple[object, ...]]:
        query = f"SELECT {', '.join(columns)} FROM offset_ranges ORDER BY batch_id, topic, partition"
        return [tuple(row.values()) for row in self.db.rows(query)]

    def spans(self) -> list[tuple[int, int]]:
        with self.db.ledger.connect() as conn:
            return list(Compacted.of(conn, self.db.tables, GROUP).spans)


@pytest.fixture
def history(db: Database) -> History:
    return History(db)


def loads(history: History, count: int) -> list[int]:
    return [history.load({T0: 10}) for _ in range(count)]


PLACE = ("batch_id", "partition", "start_offset", "end_offset")


def test_the_last_batch_gets_one_range_of_each_partition(history: History) -> None:
    history.load({T0: 10})
    history.load({T0: 5, T1: 3})
    last = history.load({T0: 1})

    assert history.compact() == 3

    assert history.ranges(*PLACE, "target_offset", "records", "bytes", "how", "leader_epoch", "end_epoch") == [
        (last, 0, 0, 16, 116, 16, 160, "earliest", 1, 4),
        (last, 1, 0, 3, 103, 3, 30, "earliest", 2, 3),
    ]
    (first, _), (second, _) = history.ranges("first_timestamp", "last_timestamp"), history.ranges("batch_id", "how")
    assert [str(moment)[-6:] for moment in first] == ["123001", "000003"]
    assert second == (last, "earliest")
    assert [row["records"] for row in history.db.rows("SELECT records FROM offset_batches")] == [10, 8, 1]
    assert history.spans() == [(1, last)]


def test_a_partition_of_which_a_batch_reads_nothing(history: History) -> None:
    history.load({T0: 10, T1: 0})
    last = history.load({T0: 0, T1: 3})

    assert history.compact() == 2

    assert history.ranges(*PLACE, "records") == [(last, 0, 0, 10, 10), (last, 1, 0, 3, 3)]


def test_a_later_compaction_goes_on_with_the_last_batch(history: History) -> None:
    loads(history, 3)
    history.compact()
    loads(history, 3)

    # The last one of before among them.
    assert history.compact() == 4

    assert history.ranges(*PLACE) == [(6, 0, 0, 60)]
    assert history.spans() == [(1, 6)]


def test_recent_batches_stay(history: History) -> None:
    loads(history, 3)

    assert history.compact(timedelta(days=1)) == 0

    assert [batch_id for batch_id, *_ in history.ranges(*PLACE)] == [1, 2, 3]


def test_few_batches_are_left_to_a_later_load(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    loads(history, 3)
    monkeypatch.setattr(compaction, "_AT_LEAST", 4)

    assert history.compact() == 0


def test_batches_of_the_task_instance_stay(history: History) -> None:
    loads(history, 3)
    held = history.db.claim(TaskRun("run-3", "dag", "load", -1, 2))

    assert compact_history(held, NOW) == 2

    assert history.ranges(*PLACE) == [(2, 0, 0, 20), (3, 0, 20, 30)]


@pytest.mark.parametrize("what", ["dead letters", "gap", "another target", "a transform", "not read", "replaced"])
def test_what_something_else_refers_to_stays(history: History, what: str) -> None:
    loads(history, 2)
    different = history.load({T0: 10}, dead_letters=int(what == "dead letters"), gap=int(what == "gap"))
    set_to = {
        "another target": "offset_batches SET target_table = 'other'",
        "a transform": "offset_batches SET transform = 'shop.clean'",
        "not read": "offset_ranges SET records = NULL",
    }.get(what)
    if set_to is not None:
        history.db.change(f"UPDATE {set_to} WHERE batch_id = ?", different)
    loads(history, 2)
    if what == "replaced":
        start, end = next(row[2:] for row in history.ranges(*PLACE) if row[0] == different)
        rewind = history.load({T1: 1})
        history.db.change("UPDATE offset_batches SET kind = 'replay' WHERE batch_id = ?", rewind)
        history.db.change(
            "UPDATE offset_ranges SET partition = 0, replaced_start_offset = ?, replaced_end_offset = ?"
            " WHERE batch_id = ?", start, end, rewind,
        )  # fmt: skip

    history.compact()

    ids = [row[0] for row in history.ranges(*PLACE)]
    assert ids[:3] == [2, different, different + 2]
    assert history.spans() == [(1, 2), (different + 1, different + 2)]


def test_abandoned_loads_are_left_out(history: History) -> None:
    loads(history, 2)
    abandoned = history.load({T0: 10})
    history.at[T0] -= 10
    history.db.change("UPDATE offset_batches SET state = 'abandoned' WHERE batch_id = ?", abandoned)
    history.db.change("UPDATE consumed_offsets SET offset_value = 20")
    last = loads(history, 2)[-1]

    assert history.compact() == 4

    assert history.ranges(*PLACE) == [(abandoned, 0, 20, 30), (last, 0, 0, 40)]


def test_what_cannot_be_compacted_is_not_read_again(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        history.load({T0: 1}, dead_letters=1)
    loads(history, 5)
    monkeypatch.setattr(compaction, "_BATCHES_AT_ONCE", 3)

    # Each begins with the last batch of the one before.
    assert [history.compact() for _ in range(4)] == [0, 0, 3, 3]

    assert history.spans() == [(5, 9)]


def test_a_cleared_task_of_compacted_batches_finds_them_loaded(history: History) -> None:
    loads(history, 4)
    history.compact()

    cleared = history.db.claim(TaskRun("run-2", "dag", "load", -1, 2))

    assert captured_targets(cleared) == {T0: 40}
    assert captured_targets(replace(cleared, owner=TaskRun("new", "dag", "load", -1, 1))) is None


def test_the_result_of_a_task_has_no_ranges_of_others(history: History) -> None:
    loads(history, 4)
    history.load({T0: 10}, dead_letters=1)
    history.compact()

    def result(run: int) -> TaskResult:
        return read_task_result(history.db.ledger, GROUP, TaskRun(f"run-{run}", "dag", "load", -1, 2), "load", None)

    assert [(result(run).batches, result(run).records, result(run).ranges) for run in (2, 4)] == [
        ((2,), 10, None),
        ((4,), 10, None),
    ]
    assert result(5).ranges == {T0: (40, 50)}


def test_as_many_ranges_are_read_as_have_room(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        history.load({T0: 1, T1: 1})
    monkeypatch.setattr(compaction, "_RANGES_AT_ONCE", 1)

    # Of two batches at least: each begins with the last batch of the one before.
    assert [history.compact() for _ in range(4)] == [2, 2, 2, 0]

    assert history.spans() == [(1, 4)]
    assert history.ranges(*PLACE) == [(4, 0, 0, 4), (4, 1, 0, 4), (5, 0, 4, 5), (5, 1, 4, 5)]


@pytest.mark.parametrize("column", ["records", "end_offset"])
def test_rows_that_another_program_wrote_fail_no_load(
    history: History, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    loads(history, 3)
    history.db.change(f"UPDATE offset_ranges SET {column} = 'soon' WHERE batch_id = 2")
    before = history.db.dump()
    held = history.db.claim(LAST_RUN)

    _compact(held, LoadOptions(limits=Limits(history_retention=NOW)))

    held.release()
    assert "The history of group 'orders_loader' was not compacted; the next load does it" in caplog.text
    assert [line for line in history.db.dump() if "offset_" in line] == [line for line in before if "offset_" in line]


def test_the_state_before_the_first_batch_is_known_and_not_that_between_them(history: History) -> None:
    history.load({T0: 10}, dead_letters=1)
    loads(history, 4)
    history.compact()

    assert state_before(history.db.ledger, GROUP, 2)[T0].offset == 10
    for between in (3, 4, 5):
        with pytest.raises(ConfigurationError, match="Batches 2 to 5 of group 'orders_loader' were compacted"):
            state_before(history.db.ledger, GROUP, between)


def test_the_ranges_of_one_of_them_cannot_be_replayed(history: History) -> None:
    different = history.load({T0: 10}, dead_letters=1)
    loads(history, 3)
    history.compact()

    for compacted in (2, 3, 4):
        with pytest.raises(ConfigurationError, match=r"Batches 2 to 4 .* Name offsets or a span of time"):
            batch_of(history.db.ledger, GROUP, compacted)
    assert batch_of(history.db.ledger, GROUP, different).offsets == 10


def test_the_batches_of_a_span() -> None:
    found = Compacted([(1, 4), (7, 9)])

    def spans(batch_ids: Iterable[int]) -> list[tuple[int, int] | None]:
        return [found.span_of(batch_id) for batch_id in batch_ids]

    assert spans(range(11)) == [None, *[(1, 4)] * 4, None, None, *[(7, 9)] * 3, None]
