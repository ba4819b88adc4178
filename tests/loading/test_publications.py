"""A target that commits before the state tables do: whatever dies between the two commits, every row is there once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Sql, Staging, replay
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import OlderLedgerError, VerificationError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.install import installation_id
from airflow_kafka_offsets.ledger.overview import GroupSummary, group_summaries
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.verification.facts import Coverage
from airflow_kafka_offsets.verification.verify import verify
from tests.support import fixtures
from tests.support.archive import ArchivedRows
from tests.support.clients import Kafka, produce
from tests.support.external_archive import ExternalArchive, ProcessDiedError
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.rewinds import Rewinder

RUN = TaskRun("run", "dag", "task", -1, 1)
AGAIN = replace(RUN, try_number=2)
DEATHS = ["before", "after"]


engine = fixtures.sqlite_engine


@pytest.fixture
def sink(tmp_path: Path) -> ExternalArchive:
    return ExternalArchive("orders", path=str(tmp_path / "elsewhere.db"))


@pytest.fixture
def orders(kafka: Kafka, topic: TopicFactory) -> str:
    """A topic of six records, the third a dead letter."""
    name = topic()
    produce(kafka, name, [*names(0, 2), b"{not json", *names(3, 3)])
    return name


class Group:
    """Loads of a topic into a sink, and what is there afterwards."""

    def __init__(self, loader: Loader, orders: str, sink: ExternalArchive) -> None:
        self.loader, self.orders, self.sink = loader, orders, sink

    def load(self, *, dies: str | None = None, run: TaskRun = AGAIN, **options: Any) -> LoadResult:
        sink = replace(self.sink, dies=dies)
        return self.loader(self.orders, sink=sink, run=run, on_bad_record=DeadLetters(), **options)

    def dying_load(self, dies: str, **options: Any) -> None:
        with pytest.raises(ProcessDiedError):
            self.load(dies=dies, run=RUN, **options)

    def replay(self, *, dies: str | None = None, run: TaskRun = AGAIN) -> LoadResult:
        return replay(
            self.loader.pipeline([self.orders], sink=replace(self.sink, dies=dies), on_bad_record=DeadLetters()),
            {self.orders: {0: (1, 5)}},
            kafka_config=self.loader.config,
            engine=self.loader.engine,
            launcher=self.loader.launcher,
            replace=True,
            run=run,
        )

    def archived(self) -> list[tuple[int, int]]:
        """Batch and offset of every row."""
        with self.sink.database().connect() as conn:
            return sorted((batch, offset) for batch, _, offset in ArchivedRows(self.sink, conn).places())

    def verified(self) -> Coverage:
        return verify("loader", sink=self.sink, engine=self.loader.engine, kafka_config=self.loader.config)

    def proved(self) -> tuple[int, int]:
        coverage = self.verified()
        assert rows(self.loader.engine, "SELECT count(*) FROM offset_batches WHERE publish_started_at IS NOT NULL") == [
            (0,)
        ]
        return coverage.rows, coverage.dead_letters

    def position(self) -> int | None:
        return positions(self.loader.engine).get((self.orders, 0))


@pytest.fixture
def group(inline_loader: Loader, orders: str, sink: ExternalArchive) -> Group:
    return Group(inline_loader, orders, sink)


ALL = [(1, offset) for offset in (0, 1, 3, 4, 5)]


@pytest.mark.parametrize("dies", DEATHS)
def test_a_load_that_dies_between_the_commits_is_finished_by_the_next_try(group: Group, dies: str) -> None:
    group.dying_load(dies)
    assert (group.archived(), group.position()) == (ALL if dies == "after" else [], None)

    done = group.load()

    assert (done.rows, done.dead_letters) == (5, 1)
    assert (group.archived(), group.position()) == (ALL, 6)
    assert group.proved() == (5, 1)


def test_published_batch_is_committed_although_the_pipeline_changed(group: Group) -> None:
    group.dying_load("after")

    done = group.load(transform=Sql("SELECT * FROM records WHERE id < 3"))

    assert (done.rows, len(group.loader.launcher.jobs)) == (5, 1)
    assert group.proved() == (5, 1)


def test_published_batch_is_staged_again_when_its_files_are_lost(group: Group, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    group.dying_load("after", staging=Staging(dir=str(staging)))
    (manifest,) = staging.glob("*/manifest.json")
    manifest.unlink()

    assert group.load(staging=Staging(dir=str(staging))).rows == 5
    assert group.proved() == (5, 1)


@pytest.mark.parametrize("dies", DEATHS)
def test_an_abandoned_batch_is_taken_back_by_the_next_load(group: Group, dies: str) -> None:
    group.dying_load(dies)
    abandon_batch("loader", 1, engine=group.loader.engine)
    assert group.archived() == (ALL if dies == "after" else [])

    group.load()

    # Batch 2 keeps the position where the first one began.
    assert group.archived() == [(3, offset) for _, offset in ALL]
    assert group.proved() == (5, 1)


@pytest.mark.parametrize("dies", DEATHS)
def test_a_replay_that_dies_between_the_commits_replaces_once(group: Group, dies: str) -> None:
    group.load()
    with pytest.raises(ProcessDiedError):
        group.replay(dies=dies, run=RUN)

    done = group.replay()

    assert (done.rows, done.dead_letters) == (3, 1)
    assert group.archived() == [(1, 0), (1, 5), (2, 1), (2, 3), (2, 4)]
    assert rows(group.loader.engine, "SELECT sum(row_count) FROM replaced_output") == [(3,)]
    assert group.proved() == (5, 1)


def test_a_replay_is_not_taken_for_published_because_a_later_load_is(group: Group) -> None:
    group.load()
    with pytest.raises(ProcessDiedError):
        group.replay(dies="before", run=RUN)
    produce(group.loader.kafka, group.orders, names(6, 1))
    group.load(run=TaskRun("next"))

    assert group.replay().rows == 3

    assert group.archived() == [(1, 0), (1, 5), (2, 1), (2, 3), (2, 4), (3, 6)]
    assert group.proved() == (6, 1)


def test_batch_between_two_commits_is_shown(group: Group) -> None:
    def shown() -> GroupSummary:
        with group.loader.engine.connect() as conn:
            _, (summary,) = group_summaries(conn, Tables.of())
        return summary

    group.dying_load("after")
    (batch,) = shown().between
    assert batch[:3] == (1, "staged", "elsewhere://orders")
    assert (open_batch := shown().open) is not None
    assert open_batch.batch_id == 1

    abandon_batch("loader", 1, engine=group.loader.engine)
    assert [(batch.state, batch.batch_id) for batch in shown().between] == [("abandoned", 1)]

    group.load()
    assert shown().between == ()


def test_verify_knows_what_is_between_two_commits(group: Group) -> None:
    group.load(run=TaskRun("first"))
    produce(group.loader.kafka, group.orders, names(6, 2))
    group.dying_load("after")

    coverage = group.verified()
    assert (coverage.rows, coverage.open_batch, coverage.published) == (5, 2, [2])
    assert coverage.text.endswith("the target has the rows of batch 2 already, which the load commits, or its next run")

    abandon_batch("loader", 2, engine=group.loader.engine)
    with pytest.raises(
        VerificationError, match="2 rows of batch 2, which was published and is abandoned: the next load or replay"
    ):
        group.verified()

    group.load()
    assert group.verified().published == []
    assert group.proved() == (7, 1)


def test_rows_that_a_rewind_replaces_go_after_its_commit_or_with_the_next_load(group: Group) -> None:
    group.load()
    with pytest.raises(ProcessDiedError):
        Rewinder(group.loader)("to-offset", 2, replace=replace(group.sink, dies="before"))
    assert (group.position(), len(group.archived())) == (2, 5)
    assert rows(group.loader.engine, "SELECT row_count FROM replaced_output") == [(3,)]

    group.load()

    assert group.archived() == [(1, 0), (1, 1), (3, 3), (3, 4), (3, 5)]
    assert group.proved() == (5, 1)


@pytest.mark.parametrize("dies", DEATHS)
def test_a_dead_letter_whose_replay_dies_between_the_commits_is_one_row(group: Group, dies: str) -> None:
    group.load()

    def replayed(dies: str | None) -> list[int]:
        pipeline = group.loader.pipeline([group.orders], sink=replace(group.sink, dies=dies))
        dead_letters = replay_dead_letters(
            DeadLetterFilter("loader"),
            pipeline,
            engine=group.loader.engine,
            corrected={1: {record(group): b'{"id": 2, "name": "corrected"}'}},
        )
        return [dead_letter.rows for dead_letter in dead_letters]

    with pytest.raises(ProcessDiedError):
        replayed(dies)
    assert replayed(None) == [1]

    assert group.archived() == [*ALL, (2 if dies == "after" else 3, 2)]
    assert group.proved() == (6, 0)


def record(group: Group) -> Any:
    from airflow_kafka_offsets.staging.rows import Record

    return Record(group.orders, 0, 2)


def test_state_tables_that_are_older_than_the_target_are_refused(group: Group) -> None:
    group.load()
    ledger = Ledger(group.loader.engine)
    ledger.tables.metadata.drop_all(group.loader.engine)

    with pytest.raises(OlderLedgerError):
        group.load()


def test_state_tables_have_one_name_each(tmp_path: Path) -> None:
    from airflow_kafka_offsets.ledger.install import create_missing

    found = set()
    for number in range(2):
        ledger = Ledger(sa.create_engine(f"sqlite:///{tmp_path}/{number}.db"))
        create_missing(ledger)
        found.add(installation_id(ledger))
        assert installation_id(ledger) in found
    assert len(found) == 2
