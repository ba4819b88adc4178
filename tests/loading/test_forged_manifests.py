"""Manifests that somebody else wrote, with a checksum of their own: the load refuses them with an error of the package,
or commits nothing but what was staged, each row once.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.core.origin import OFFSET, PARTITION, TOPIC
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, StagedFileError
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter, record_batches
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, StagedFile, _digest
from airflow_kafka_offsets.staging.rows import schema_text
from devstack.topics import create_topic
from tests.support.clients import produce
from tests.support.examples import examples
from tests.support.inline import InlineLauncher
from tests.support.json_nodes import at, changed, nodes
from tests.support.loads import BESIDE_OTHERS, Loader, names, rows
from tests.support.memory_log import MemoryLog

VALUES = [value for name in names(0, 4) for value in (name, b"{not json")]


class ForgingLauncher(InlineLauncher):
    """Stages a batch, and replaces its manifest."""

    def __init__(self, forge: Callable[[Any], Any]) -> None:
        super().__init__()
        self._forge = forge

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        directory = StagingDirectory(job.staging_uri)
        plain = json.loads(directory.read_text(MANIFEST))
        del plain["sha256"]
        forged = self._forge(plain)
        if isinstance(forged, dict):
            forged = {"sha256": _digest(forged), **forged}
        directory.write_again(MANIFEST, json.dumps(forged))


class RewritingLauncher(InlineLauncher):
    """Stages a batch, and other files for its manifest."""

    def __init__(self, forge: Callable[[StagingDirectory, Manifest], Manifest]) -> None:
        super().__init__()
        self._forge = forge

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        directory = StagingDirectory(job.staging_uri)
        manifest = self._forge(directory, Manifest.from_json(directory.read_text(MANIFEST)))
        directory.write_again(MANIFEST, manifest.to_json())


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    """A database, and a topic `forged` in memory."""
    engine = sa.create_engine(f"sqlite:///{tmp_path_factory.mktemp('forged')}/warehouse.db", hide_parameters=True)
    with pytest.MonkeyPatch.context() as patch:
        log = MemoryLog().install(patch)
        create_topic(log.bootstrap_servers, "forged", 1)
        produce(log, "forged", VALUES)
        yield Loader(log, engine, InlineLauncher())
    engine.dispose()


NUMBERS = itertools.count(1)

ODD: list[Any] = [None, "", 0, -1, 1, 1.5, 1e999, 2**31, 2**63, 2**70, -(2**70), True, "x", [], {}, [[]], {"x": 1},
                  "/etc/passwd", "../x", "\ud800", "\0", "x" * 10_000]  # fmt: skip


@examples(200)
@given(data=st.data())
def test_a_forged_manifest_commits_nothing_but_what_was_staged(loader: Loader, data: Any) -> None:
    number = next(NUMBERS)

    def forge(plain: Any) -> Any:
        paths = sorted(nodes(plain), key=repr)
        path, how = data.draw(st.sampled_from(paths)), data.draw(st.sampled_from(["set", "remove", "twice"]))
        others = st.sampled_from(paths).map(lambda other: at(plain, other))
        return changed(plain, path, how, lambda: data.draw(st.sampled_from(ODD) | others))

    try:
        load(loader, number, ForgingLauncher(forge))
    except KafkaOffsetsError:
        assert loaded(loader.engine, number) == []
        load(loader, number, InlineLauncher())
        assert loaded(loader.engine, number) == list(range(4))
    else:
        found = loaded(loader.engine, number)
        assert found == sorted(set(found) & set(range(4)))


def test_a_branch_that_the_sink_does_not_have_is_refused(loader: Loader) -> None:
    number = next(NUMBERS)

    def forge(plain: Any) -> Any:
        for file in plain["files"]:
            file["branch"] = 0
        return plain

    with pytest.raises(StagedFileError, match="names a branch that the sink does not have"):
        load(loader, number, ForgingLauncher(forge))

    load(loader, number, InlineLauncher())
    assert loaded(loader.engine, number) == list(range(4))


@pytest.mark.parametrize(
    "columns", ["AAAA", "no Base64", schema_text(pa.schema([("id", pa.int64()), ("x", pa.int8())]))]
)
def test_columns_of_final_files_are_refused_for_a_table_and_the_batch_is_staged_again(
    loader: Loader, columns: str
) -> None:
    number = next(NUMBERS)

    def forge(plain: Any) -> Any:
        for file in plain["files"]:
            file["data"] = "x"
        return {**plain, "columns": columns}

    with pytest.raises(StagedFileError, match="names final files, and the sink has none"):
        load(loader, number, ForgingLauncher(forge))

    load(loader, number, InlineLauncher())
    assert loaded(loader.engine, number) == list(range(4))


@pytest.mark.parametrize(
    "forged",
    [
        {"consumer_group": pa.array(["other"])},
        {"batch_id": pa.array([1])},
        {"replayed_by": pa.array([1])},
        {"topic": pa.array(["salaries"])},
        {"partition": pa.array([1], pa.int32())},
        {"offset": pa.array([4])},
        {"offset": pa.array([2])},
    ],
    ids=["a group", "a batch", "a replay", "a topic", "a partition", "an offset after its slice", "one before it"],
)
def test_dead_letters_of_others_are_refused_and_the_batch_is_staged_again(
    loader: Loader, forged: dict[str, pa.Array]
) -> None:
    number = next(NUMBERS)

    def forge(directory: StagingDirectory, manifest: Manifest) -> Manifest:
        read = manifest.reads[1]  # offsets 3 to 6, of which 3 and 5 are bad
        assert read.dead_letters_file is not None
        one, *_ = record_batches(directory, read.dead_letters_file)
        columns = {name: one.column(name)[:1] for name in one.schema.names} | forged
        file = rewritten(directory, pa.RecordBatch.from_pydict(columns))
        read = replace(read, dead_letters=1, dead_letters_file=file)
        return replace(manifest, reads=(manifest.reads[0], read, *manifest.reads[2:]))

    with pytest.raises(
        StagedFileError, match=r"of another kind|holds other dead letters than those of forged\[0\] offsets"
    ):
        load(loader, number, RewritingLauncher(forge))
    with loader.engine.connect() as conn:
        of_others = "SELECT count(*) FROM dead_letters WHERE consumer_group = 'other' OR topic <> 'forged'"
        assert conn.scalar(sa.text(of_others)) == 0

    load(loader, number, InlineLauncher())
    assert loaded(loader.engine, number) == list(range(4))


@pytest.mark.parametrize("record", [("salaries", 0, 0), ("forged", 1, 0), ("forged", 0, 8)], ids=str)
def test_a_refused_row_of_another_record_is_no_dead_letter(loader: Loader, record: tuple[str, int, int]) -> None:
    """Its record would be read from Kafka, whichever topic it names."""
    number = next(NUMBERS)

    def forge(directory: StagingDirectory, manifest: Manifest) -> Manifest:
        (one,) = record_batches(directory, manifest.files[0])
        topic, partition, offset = record
        columns = {name: one.column(name)[:1] for name in one.schema.names}
        columns |= {TOPIC: pa.array([topic]), PARTITION: pa.array([partition], pa.int32()), OFFSET: pa.array([offset])}
        columns["id"] = pa.array([None], pa.int64())  # which the target refuses
        file = rewritten(directory, pa.RecordBatch.from_pydict(columns))
        return replace(manifest, files=(file, *manifest.files[1:]))

    with pytest.raises(StagedFileError, match="which is not in this batch"):
        load(loader, number, RewritingLauncher(forge))

    load(loader, number, InlineLauncher())
    assert loaded(loader.engine, number) == list(range(4))


def rewritten(directory: StagingDirectory, batch: pa.RecordBatch) -> StagedFile:
    with ArrowFileWriter(directory, f"part-{uuid.uuid4().hex}.arrow", batch.schema) as writer:
        writer.write(batch)
    return writer.file


def load(loader: Loader, number: int, launcher: InlineLauncher) -> None:
    replace(loader, launcher=launcher)(
        "forged",
        group_id=f"g{number}",
        sink=SqlTable(f"t{number}"),
        staging=Staging(slice_offsets=3),
        on_bad_record=DeadLetters(),
        **BESIDE_OTHERS,
    )


def loaded(engine: sa.Engine, number: int) -> list[int]:
    if not sa.inspect(engine).has_table(f"t{number}"):
        return []
    return sorted(found for (found,) in rows(engine, f'SELECT id FROM "t{number}"'))
