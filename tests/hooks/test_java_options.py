"""The options that the JVM of Spark's driver gets from a load."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.hooks.java import java_options
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from airflow_kafka_offsets.transforms.dataframe import DataFrameFunction
from airflow_kafka_offsets.transforms.transform import Transform
from tests.spark.test_job import JOB

QUICK = ["-XX:TieredStopAtLevel=1"]
IN_DATAFRAMES = DataFrameFunction("orders.net")


def options_of(monkeypatch: pytest.MonkeyPatch, offsets: int, transform: Transform | None) -> list[str]:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    job = replace(JOB, tasks=((Slice(0, "orders", 0, 0, offsets),),), transform=transform)
    return java_options(job, None, {})["SPARK_SUBMIT_OPTS"].split()


@pytest.mark.parametrize("transform", [None, ArrowTransform("orders.net")])
def test_a_driver_that_sees_no_row_is_never_optimized(
    monkeypatch: pytest.MonkeyPatch, transform: Transform | None
) -> None:
    assert options_of(monkeypatch, 1_000_001, transform) == QUICK


def test_a_transform_of_few_rows_is_not_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch, 1_000_000, IN_DATAFRAMES) == QUICK


def test_java_takes_the_options_for_a_transform_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(monkeypatch, 1_000_001, IN_DATAFRAMES)

    flags = subprocess.run(
        [shutil.which("java") or "java", *options, "-XX:TieredStopAtLevel=4", "-XX:+PrintFlagsFinal", "-version"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    found = {line.split()[1]: line.split()[3] for line in flags.splitlines() if " Tier4" in line}
    assert dict(option.removeprefix("-XX:").split("=") for option in options).items() <= found.items()
