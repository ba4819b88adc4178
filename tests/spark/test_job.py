"""The job and the manifest, on their way to other processes."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.extra_columns import Header, whole_record
from airflow_kafka_offsets.formats.simple_formats import Json, Raw, Text
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.manifest import Manifest, SliceRead, StagedFile
from airflow_kafka_offsets.staging.rows import TargetColumns
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from airflow_kafka_offsets.transforms.dataframe import DataFrameFunction, TaskBody
from airflow_kafka_offsets.transforms.sql import Sql

COLUMNS = row_columns(Json("id BIGINT NOT NULL, price DECIMAL(10,2), `größe x` ARRAY<STRUCT<a: TIMESTAMP_NTZ>>"))

ARROW = with_values(ArrowTransform("shop.orders.clean", ["shop.prices"]), code="3.11:AA==", columns=COLUMNS)

JOB = StageJob(
    batch_id=2**40,
    group_id="größe 'x'",
    tasks=(
        (Slice(0, "orders", 0, 5, 10, leader_epoch=0),),
        (Slice(1, "orders", 3, 2**62, 2**62 + 7), Slice(2, "orders", 4, 0, 1)),
    ),
    kafka_config={"bootstrap.servers": "a:1,b:2", "sasl.password": '"ü\\', "retries": 3, "ratio": 0.5, "on": True},
    isolation_level="read_committed",
    record_format=Json("id BIGINT"),
    columns=COLUMNS,
    transform=DataFrameFunction("shop.orders.clean"),
    target=TargetColumns("shop.orders", ("id", "größe x"), ("id",)),
    fingerprint="f00d",
    staging_uri="/staging/batch-1",
    python_path=("/dags", "/more dags"),
    idle_timeout=1.5,
    progress_interval=0.25,
)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        replace(JOB, transform=None, target=TargetColumns("orders", None)),
        replace(JOB, tasks=(), python_path=(), kafka_config={}),
        replace(
            JOB,
            transform=with_values(
                ArrowTransform("shop.orders.clean", ["shop.prices"]), code="3.11:AA==", columns=COLUMNS
            ),
        ),
        replace(
            JOB,
            transform=with_values(Sql("SELECT id FROM records"), planned='SELECT "id" FROM "records"', columns=COLUMNS),
        ),
        replace(JOB, transform=TaskBody("clean", "3.11:AA==", "f00d", ["shop.prices"])),
        replace(JOB, has_dead_letters=True),
        replace(JOB, record_format=Raw(headers=True), columns=row_columns(Raw(headers=True))),
        replace(
            JOB, record_format=whole_record(Json("id INT"), Text("k"), {"t": "timestamp", "h": Header("h", "all")})
        ),
    ],
)
def test_a_job_arrives_as_it_was_sent(job: StageJob) -> None:
    assert StageJob.from_text(job.to_text()) == job


def test_columns_keep_their_types_and_what_may_be_null() -> None:
    columns = StageJob.from_text(JOB.to_text()).columns
    assert columns.equals(COLUMNS, check_metadata=True)
    assert not columns.field("id").nullable


@pytest.mark.parametrize("kind", [StageJob, LoadContext])
def test_secrets_are_not_in_the_text_of_what_holds_them(kind: type[StageJob] | type[LoadContext]) -> None:
    values: dict[str, Any] = dict.fromkeys((attribute.name for attribute in fields(kind)), "public")
    text = repr(kind(**values | {"kafka_config": {"sasl.password": "5ecret"}}))
    assert "public" in text
    assert "5ecret" not in text


def test_a_job_spans_the_offsets_of_its_slices() -> None:
    assert JOB.offsets == 13


def test_a_job_knows_every_column_of_a_target_or_that_there_is_none() -> None:
    unknown = replace(JOB, target=TargetColumns("orders", None))
    empty = replace(JOB, target=TargetColumns("orders", ()))
    assert StageJob.from_text(unknown.to_text()).target.known is None
    assert StageJob.from_text(empty.to_text()).target.known == ()


_texts = st.text(max_size=10)
_counts = st.integers(0, 2**63 - 1)
_files = st.builds(StagedFile, _texts, _counts, _counts, _texts)
_known = st.none() | _counts
_reads = st.builds(
    SliceRead,
    *(_counts, _texts, _counts, _counts, _counts),
    *(_known, _known, _known, _counts, _counts, st.none() | _files),
)


@given(
    manifest=st.builds(
        Manifest,
        _counts,
        st.text(max_size=5),
        st.lists(_files, max_size=3).map(tuple),
        st.lists(_reads, max_size=3).map(tuple),
    )
)
def test_a_manifest_survives_the_way_through_json(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_manifest_counts_the_rows_of_its_files() -> None:
    assert Manifest(1, "f00d", (StagedFile("a", 3, 100, "a1"), StagedFile("b", 4, 100, "b2")), ()).rows == 7


def test_half_a_manifest_is_an_error() -> None:
    text = Manifest(1, "f00d", (StagedFile("a", 3, 100, "a1"),), ()).to_json()
    with pytest.raises(json.JSONDecodeError):
        Manifest.from_json(text[: len(text) // 2])


@given(place=st.integers(0), bit=st.integers(0, 6))
def test_a_manifest_in_which_one_bit_was_flipped_is_an_error_or_says_the_same(place: int, bit: int) -> None:
    read = SliceRead(0, "orders", 3, 10, 20, 5, 1500, 3000, 80, 1, StagedFile("c", 1, 90, "c3"))
    manifest = Manifest(1, "f00d", (StagedFile("a", 3, 100, "a1"),), (read,))
    raw = bytearray(manifest.to_json().encode())
    raw[place % len(raw)] ^= 1 << bit
    try:
        found = Manifest.from_json(raw.decode())
    except (ValueError, KeyError):
        return
    # A blank between two values became another one.
    assert found == manifest
