"""What is sent to the executors, and what lies in the staging directory, hold no credentials without each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark import SparkContext, cloudpickle

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.spark import driver
from airflow_kafka_offsets.spark.job import SECRETS_FILE, SentJob, StageJob, _secrets, split_job
from airflow_kafka_offsets.spark.progress import Display
from tests.spark.test_job import JOB

CANARY = "canary-7d1f"

CONFIG = {"bootstrap.servers": "a:1,b:2", "sasl.password": CANARY, "retries": 3, "ratio": 0.5, "on": True}


@pytest.fixture
def job(tmp_path: Path) -> StageJob:
    return replace(JOB, staging_uri=str(tmp_path), kafka_config=CONFIG)


def sent(job: SentJob) -> bytes:
    code: bytes = cloudpickle.dumps(lambda: job)  # type: ignore[no-untyped-call]
    _secrets.cache_clear()
    return code


def received(code: bytes) -> StageJob:
    function: Callable[[], SentJob] = cloudpickle.loads(code)
    return function().whole()


def test_executors_put_the_configuration_together(job: StageJob) -> None:
    arrived = received(sent(split_job(job)))
    assert dict(arrived.kafka_config) == CONFIG
    assert consumer_config(arrived.kafka_config, "loader", "read_committed")["sasl.password"] == CANARY
    assert arrived == job


def test_neither_half_holds_a_credential(job: StageJob, tmp_path: Path) -> None:
    code = sent(split_job(job))
    (file,) = tmp_path.iterdir()
    assert job.group_id.encode() in code
    for name in ("canary", "sasl", "bootstrap", "a:1"):
        assert name.encode() not in code
        assert name.encode() not in file.read_bytes()
        assert name.encode() not in bytes.fromhex(file.read_text())


def test_the_halves_of_two_attempts_do_not_fit_together(job: StageJob, tmp_path: Path) -> None:
    first = sent(split_job(job))
    half = (tmp_path / SECRETS_FILE).read_text()
    second = sent(split_job(job))
    assert (tmp_path / SECRETS_FILE).read_text() != half
    with pytest.raises(StagingError, match=r"kafka-config in .* is not as it was written"):
        received(first)
    assert dict(received(second).kafka_config) == CONFIG


def test_writer_of_the_directory_cannot_redirect_credentials(job: StageJob, tmp_path: Path) -> None:
    code = sent(split_job(job))
    half = bytearray.fromhex((tmp_path / SECRETS_FILE).read_text())
    half[-1] ^= 1
    (tmp_path / SECRETS_FILE).write_text(half.hex())
    with pytest.raises(StagingError, match="is not as it was written"):
        received(code)


def test_a_location_that_machines_do_not_share_is_named(job: StageJob, tmp_path: Path) -> None:
    code = sent(split_job(job))
    (tmp_path / SECRETS_FILE).unlink()
    with pytest.raises(StagingError, match="a location that all machines share"):
        received(code)


class Sent:
    """A session, a context and their data sets, which keep the functions that would be sent to executors, and run
    nothing.
    """

    def __init__(self) -> None:
        self.functions: list[Callable[..., object]] = []

    def parallelize(self, *_: object) -> Self:
        return self

    range = parallelize

    def mapPartitions(self, function: Callable[..., object], *_: str) -> Self:
        self.functions.append(function)
        return self

    mapInArrow = mapPartitions  # noqa: N815

    def collect(self) -> list[object]:
        return []


@pytest.mark.parametrize(
    "run",
    [lambda spark, job: driver.run(spark, job, Display()), lambda _, job: driver.Application({}).stage(job, Display())],
    ids=["session", "application"],
)
def test_no_code_that_is_sent_holds_a_credential(
    job: StageJob, run: Callable[[Any, StageJob], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, plain = Sent(), replace(job, transform=None)
    monkeypatch.setattr(SparkContext, "getOrCreate", lambda *_: sent)
    with pytest.raises(StagingError, match="3 of 3 slices were not read"):
        run(sent, plain)
    (function,) = sent.functions
    code = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    assert job.group_id.encode() in code
    assert CANARY.encode() not in code


def test_connections_of_formats_go_the_same_way(job: StageJob, tmp_path: Path) -> None:
    connections = {"registry": {"url": "https://registry", "bearer.auth.token": CANARY}}
    code = sent(split_job(replace(job, connections=connections)))
    assert b"canary" not in code
    assert not any(b"canary" in bytes.fromhex(file.read_text()) for file in tmp_path.iterdir())
    assert dict(received(code).connections) == connections
