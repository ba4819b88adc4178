"""Others append, compact, clean up and restore: between batches, and in the moment before a commit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeltaTable, Limits, Staging
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    StagedFileError,
    TargetError,
)
from airflow_kafka_offsets.sinks.delta.format import DeltaSnapshot
from airflow_kafka_offsets.sinks.delta.history import Log, publications, refuse_restored
from airflow_kafka_offsets.sinks.lake import attempts
from airflow_kafka_offsets.sinks.lake.snapshot import Change, KnownRollbacks, PublicationResult, UnknownOutcomeError
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from tests.support.clients import produce
from tests.support.lake import NEXT, LakeGroup, dying
from tests.support.loads import names, rows
from tests.support.rewinds import Rewinder


def append(uri: str) -> None:
    row = pa.table({"id": pa.array([-1], pa.int64()), "name": ["foreign"]})
    deltalake.write_deltalake(uri, row, mode="append", schema_mode="merge")


def compact(uri: str) -> None:
    deltalake.DeltaTable(uri).optimize.compact()


def vacuum(uri: str) -> None:
    compact(uri)
    deltalake.DeltaTable(uri).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)


def no_change(uri: str) -> None:
    """Nothing, as a control."""


FOREIGN = [append, compact, vacuum, no_change]


def before_commits(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object], times: int = 1) -> list[bool]:
    """Have something happen right before each of the first commits.

    :return: whether each commit succeeded
    """
    outcomes: list[bool] = []
    publish = DeltaSnapshot.commit

    def published(self: DeltaSnapshot, *args: Any) -> bool:
        if len(outcomes) < times:
            do()
        outcomes.append(publish(self, *args))
        return outcomes[-1]

    monkeypatch.setattr(DeltaSnapshot, "commit", published)
    return outcomes


def before_reads(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object], number: int) -> None:
    """Have something happen right before a file is read, the first one being number 1."""
    reads, seen = DeltaSnapshot._read, []

    def read(self: DeltaSnapshot, *args: Any) -> Iterator[pa.RecordBatch]:
        seen.append(args)
        if len(seen) == number:
            do()
        yield from reads(self, *args)

    monkeypatch.setattr(DeltaSnapshot, "_read", read)


def own(group: LakeGroup) -> list[int]:
    """The offsets of the rows that are not foreign."""
    return sorted(offset for offset in group.read()["_kafka_offset"].to_pylist() if offset is not None)


@pytest.mark.parametrize("foreign", FOREIGN)
def test_between_batches(group: LakeGroup, uri: str, foreign: Callable[[str], None]) -> None:
    group.load(limits=Limits(max_records=2))
    foreign(uri)
    produce(group.loader.kafka, group.topic, names(6, 2))
    group.load(NEXT)
    foreign(uri)

    assert own(group) == list(range(8))
    assert group.proved() == (8, 0)


@pytest.mark.parametrize("foreign", [append, compact, no_change])
def test_in_the_moment_of_a_load(
    group: LakeGroup, uri: str, foreign: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=2))
    produce(group.loader.kafka, group.topic, names(6, 2))
    outcomes = before_commits(monkeypatch, lambda: foreign(uri))

    group.load(NEXT)

    assert outcomes == ([True] if foreign is no_change else [False, True])
    assert own(group) == list(range(8))
    assert group.proved() == (8, 0)


@pytest.mark.parametrize("foreign", FOREIGN)
def test_in_the_moment_of_a_replay_that_replaces(
    group: LakeGroup, uri: str, foreign: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs alone would rebase the commit, and lose the removal of files that were compacted meanwhile."""
    group.load(limits=Limits(max_records=2))
    if foreign is vacuum:
        # It also takes away what was staged and is not committed.
        before_commits(monkeypatch, lambda: vacuum(uri), times=2)
        with pytest.raises(StagedFileError, match="damaged twice"):
            group.replay({group.topic: {0: (1, 5)}}, replace=True)
        assert own(group) == list(range(6))
        return
    before_commits(monkeypatch, lambda: foreign(uri))

    assert group.replay({group.topic: {0: (1, 5)}}, replace=True).rows == 4

    assert own(group) == list(range(6))
    assert [place for place in group.places() if place[0] == 4] == [(4, offset) for offset in (1, 2, 3, 4)]
    assert group.proved() == (6, 0)


def clean_up(uri: str) -> None:
    """As `vacuum`, but what no version names stays, such as staged files."""
    compact(uri)
    deltalake.DeltaTable(uri).vacuum(0, enforce_retention_duration=False, dry_run=False)


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("way", ["replay", "rewind"])
def test_files_that_are_compacted_while_rows_to_remove_are_looked_for(
    group: LakeGroup, uri: str, monkeypatch: pytest.MonkeyPatch, way: str, number: int
) -> None:
    group.load(limits=Limits(max_records=2))
    before_reads(monkeypatch, lambda: clean_up(uri), number)

    if way == "replay":
        assert group.replay({group.topic: {0: (1, 5)}}, replace=True).rows == 4
    else:
        assert Rewinder(group.loader)("to-offset", 3, replace=group.sink).rows_removed == 3
        assert own(group) == [0, 1, 2]
        group.load(NEXT)

    assert own(group) == list(range(6))
    assert group.proved() == (6, 0)


@pytest.mark.parametrize("foreign", [append, vacuum])
def test_a_version_stays_what_it_is_when_the_table_is_read_again(
    group: LakeGroup, uri: str, foreign: Callable[[str], None]
) -> None:
    """Another attempt may have published the batch in a later version, which a commit must not go on from."""
    group.load(limits=Limits(max_records=2))
    assert isinstance(group.sink, DeltaTable)
    snapshot = DeltaSnapshot(group.sink)
    foreign(uri)

    current = snapshot.refresh()

    assert current.version > snapshot.version
    output = Output(9, "loader", (), "series", "batch-9-x")
    change = Change(output, 9, PublicationResult(), None, [], snapshot.files())
    assert not snapshot.commit(change)
    assert len(snapshot.files()) == 3
    assert deltalake.DeltaTable(uri).version() == current.version


def test_rows_that_somebody_deletes_in_the_moment_of_their_removal(
    group: LakeGroup, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load()
    before_commits(monkeypatch, lambda: deltalake.DeltaTable(uri).delete("_kafka_offset = 2"))

    with pytest.raises(DatabaseBusyError, match="another writer changed rows"):
        group.replay({group.topic: {0: (1, 5)}}, replace=True)
    assert group.replay({group.topic: {0: (1, 5)}}, replace=True).rows == 4
    assert own(group) == list(range(6))


def test_a_replay_that_could_remove_no_row_is_not_planned(group: LakeGroup, uri: str) -> None:
    group.load()
    deltalake.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})

    with pytest.raises(TargetError, match=r"delta\.appendOnly=true\. Nothing was changed; set the property to false"):
        group.replay({group.topic: {0: (1, 5)}}, replace=True)

    assert rows(group.loader.engine, "SELECT kind, state FROM offset_batches") == [("load", "committed")]
    deltalake.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    assert group.replay({group.topic: {0: (1, 5)}}, replace=True).rows == 4


@pytest.mark.parametrize("way", ["rewind", "restore"])
def test_a_restore_is_noticed_before_anything_is_written(group: LakeGroup, uri: str, way: str) -> None:
    group.load(limits=Limits(max_records=2))
    table = deltalake.DeltaTable(uri)
    last = table.version()
    table.restore(last - 1)
    produce(group.loader.kafka, group.topic, names(6, 2))
    jobs = len(group.loader.launcher.jobs)

    with pytest.raises(TargetError, match=re.escape(f"Restore the table to version {last}")):
        group.load(NEXT)
    assert len(group.loader.launcher.jobs) == jobs

    if way == "rewind":
        Rewinder(group.loader)("to-offset", 4, replace=group.sink, abandon=4)
    else:
        deltalake.DeltaTable(uri).restore(last)
    group.load(NEXT)
    assert own(group) == list(range(8))
    assert group.proved() == (8, 0)


def test_an_abandoned_batch_may_be_restored_away(group: LakeGroup, uri: str) -> None:
    """The process died before positions moved, and the message says to abandon the batch."""
    group.load()
    produce(group.loader.kafka, group.topic, names(6, 2))
    with dying(LakeTarget, "after"):
        group.load(NEXT)
    table = deltalake.DeltaTable(uri)
    table.restore(table.version() - 1)
    with pytest.raises(
        TargetError, match="rewind the group, with replace, to where its rows end now, abandon the batch with"
    ):
        group.load(NEXT)
    Rewinder(group.loader)("to-offset", 6, abandon=2)

    assert group.load(NEXT).rows == 2

    assert own(group) == list(range(8))
    assert group.proved() == (8, 0)
    deltalake.DeltaTable(uri).restore(1)
    produce(group.loader.kafka, group.topic, names(8, 1))
    with pytest.raises(TargetError, match="was restored to a version before"):
        group.load(replace(NEXT, run_id="third"))


def test_a_restore_to_what_is_after_the_last_load_is_no_matter(group: LakeGroup, uri: str) -> None:
    group.load()
    version = deltalake.DeltaTable(uri).version()
    append(uri)
    deltalake.DeltaTable(uri).restore(version)
    produce(group.loader.kafka, group.topic, names(6, 2))

    group.load(NEXT)

    assert own(group) == list(range(8))


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    group: LakeGroup, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    publish = DeltaSnapshot.commit

    def unanswered(self: DeltaSnapshot, *args: Any) -> bool:
        if is_committed:
            publish(self, *args)
        raise UnknownOutcomeError("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaSnapshot, "commit", unanswered)
        if is_committed:
            assert group.load().rows == 6
        else:
            with pytest.raises(CommitUnknownError, match="the connection broke"):
                group.load()
    group.load()

    assert own(group) == list(range(6))
    assert group.proved() == (6, 0)


def test_a_group_whose_table_others_fill_all_the_time_gives_up(
    group: LakeGroup, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=3))
    monkeypatch.setattr(attempts, "PATIENCE_SECONDS", 0.0)
    produce(group.loader.kafka, group.topic, names(6, 2))
    with monkeypatch.context() as patch:
        before_commits(patch, lambda: append(uri), times=3)
        with pytest.raises(DatabaseBusyError, match=r"committed to .* before each of 1 attempts"):
            group.load(NEXT)
    group.load(NEXT)
    assert own(group) == list(range(8))


def test_files_that_others_compact_away_all_the_time_are_not_looked_for_without_end(
    group: LakeGroup, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=2))
    monkeypatch.setattr(attempts, "PATIENCE_SECONDS", 0.0)

    def gone(self: DeltaSnapshot, *args: Any) -> Iterator[pa.RecordBatch]:
        append(uri)
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr(DeltaSnapshot, "_read", gone)
        with pytest.raises(DatabaseBusyError, match=r"committed to .* before each of 1 attempts"):
            group.replay({group.topic: {0: (1, 5)}}, replace=True)
    assert group.replay({group.topic: {0: (1, 5)}}, replace=True).rows == 4


def test_a_verification_of_a_table_that_others_compact_can_be_repeated(
    group: LakeGroup, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.load(limits=Limits(max_records=2))
    before_reads(monkeypatch, lambda: clean_up(uri), 1)

    with pytest.raises(DatabaseUnavailableError, match=r"File '.*' of table .* is not there any more"):
        group.proved()
    assert group.proved() == (6, 0)


def test_a_target_commits_nothing_where_the_block_raises(group: LakeGroup, uri: str) -> None:
    group.load()
    version = deltalake.DeltaTable(uri).version()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LakeTarget, "remove", lambda self, replaced: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            group.replay({group.topic: {0: (1, 5)}}, replace=True)
    assert deltalake.DeltaTable(uri).version() == version


@pytest.mark.parametrize("root", ["file:{uri}/", "{uri}/", "s3://other/"], ids=["file", "path", "s3"])
def test_files_outside_of_the_location_are_named_and_hinder_no_load(group: LakeGroup, uri: str, root: str) -> None:
    """The log of a shallow clone names the files of another table."""
    group.load()
    for path in Path(uri, "_delta_log").glob("*.json"):
        actions = list(map(json.loads, path.read_text().splitlines()))
        for action in actions:
            if "add" in action:
                action["add"]["path"] = root.format(uri=uri) + action["add"]["path"]
        path.write_text("\n".join(map(json.dumps, actions)))
    jobs = len(group.loader.launcher.jobs)
    reason = re.escape(f"Table {group.sink.name!r} cannot be read: it names the file '{root.format(uri=uri)}")

    with pytest.raises(TargetError, match=reason):
        group.proved()
    with pytest.raises(TargetError, match=reason):
        group.replay({group.topic: {0: (2, 4)}}, replace=True)
    assert len(group.loader.launcher.jobs) == jobs

    produce(group.loader.kafka, group.topic, names(6, 1))
    assert group.load(NEXT, staging=Staging(retention=timedelta(microseconds=1))).rows == 1


def test_texts_of_other_programs_are_no_publications(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    good = {"series": "i.g", "batch": 1, "group": "g", "rows": 1, "removed": [[1, "t", 0, 1]], "columns": []}
    odd: list[dict[str, object]] = [
        {"batch": [1]},
        {"series": 5},
        {"series": None},
        {"rows": -1},
        {"removed": [[1]]},
        {"columns": [1]},
        {},
    ]
    texts = ["[" * 100_000, "{}", *(json.dumps({"kafka_offsets": {**good, **changes}}) for changes in odd)]
    for version, text in enumerate(texts):
        commit = json.dumps({"commitInfo": {"userMetadata": text, "timestamp": 1}})
        (tmp_path / "_delta_log" / f"{version:020}.json").write_text(commit)

    log = Log(len(texts) - 1, ObjectFiles(f"{tmp_path}", {}))
    assert len(list(log.commits())) == len(texts)
    assert [each.version for each in publications(log)] == [len(texts) - 1]


@pytest.mark.parametrize("kept", [-8, 100], ids=["footer", "cut"])
def test_a_damaged_checkpoint_is_told_of_the_table(tmp_path: Path, kept: int) -> None:
    table = DeltaTable(f"{tmp_path}/lake")
    connected = table.connect(sa.create_engine("sqlite://"))
    connected.prepare(pa.schema([("id", pa.int64())]))
    deltalake.DeltaTable(table.uri).create_checkpoint()
    (checkpoint,) = (tmp_path / "lake/_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:kept] + b"\xff\xff\xff\xffPAR1")

    with pytest.raises(
        DatabaseUnavailableError, match=r"^Table '.*/lake' cannot be read: [^\n]*\. Nothing was written$"
    ):
        connected.prepare(pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize("instant", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "no time"])
def test_a_restore_to_no_instant_is_one_to_before_everything(tmp_path: Path, instant: str) -> None:
    (tmp_path / "_delta_log").mkdir()
    text = {"series": "i.g", "batch": 1, "group": "g", "rows": 1, "removed": [], "columns": []}
    commits = [
        {"userMetadata": json.dumps({"kafka_offsets": text}), "timestamp": 1},
        {"operation": "RESTORE", "operationParameters": {"timestamp": instant}, "timestamp": 2},
    ]
    for version, commit in enumerate(commits):
        (tmp_path / "_delta_log" / f"{version:020}.json").write_text(json.dumps({"commitInfo": commit}))

    with pytest.raises(TargetError, match="was restored to a version before"):
        refuse_restored("orders", Log(1, ObjectFiles(f"{tmp_path}", {})), "g", KnownRollbacks(None))
