"""A library that is missing is named with the extra that installs it."""

from __future__ import annotations

import importlib.util

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeltaTable, IcebergTable, ParquetFiles
from airflow_kafka_offsets.core import libraries
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Sink


@pytest.mark.parametrize(
    ("sink", "library", "extra"),
    [
        (DeltaTable("/tmp/t"), "deltalake", "delta"),
        (IcebergTable("s.t"), "pyiceberg", "iceberg"),
        (ParquetFiles("/tmp/t"), "obstore", "parquet"),
    ],
)
def test_a_sink_names_its_extra(sink: Sink, library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == library else find(name))
    with pytest.raises(
        ConfigurationError,
        match=rf"needs {library}: install the extra 'airflow-kafka-offsets\[{extra}\]' on",
    ):
        sink.connect(sa.create_engine("sqlite://"), {})
