"""The metadata files of an Iceberg table say what is not so."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.encoder import BinaryEncoder

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.iceberg.checked_metadata import (
    CheckedBzip2,
    CheckedDecoder,
    CheckedDeflate,
    CheckedZstandard,
)
from tests.support.examples import examples
from tests.support.iceberg import iceberg_sink, open_table
from tests.support.lake import publish_rows

ROWS = pa.record_batch({"id": pa.array([1, 2, 3])})


def zigzag(number: int) -> bytes:
    stream = io.BytesIO()
    BinaryEncoder(stream).write_int(number)
    return stream.getvalue()


@examples(200)
@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300), st.booleans(), st.floats(allow_nan=False))
def test_values_are_those_that_pyiceberg_wrote(number: int, data: bytes, flag: bool, ratio: float) -> None:
    stream = io.BytesIO()
    encoder = BinaryEncoder(stream)
    encoder.write_int(number)
    encoder.write_bytes(data)
    encoder.write_boolean(flag)
    encoder.write_double(ratio)
    decoder = CheckedDecoder(stream.getvalue())
    assert [decoder.read_int(), decoder.read_bytes(), decoder.read_boolean(), decoder.read_double()] == [
        *(number, data, flag, ratio)
    ]
    assert decoder.tell() == len(stream.getvalue())
    with pytest.raises(EOFError):
        decoder.read_int()


@pytest.mark.parametrize(
    ("data", "read", "error"),
    [
        (zigzag(60_000) + b"abc", CheckedDecoder.read_bytes, EOFError),
        (zigzag(3_000_000_000) + b"x", CheckedDecoder.read_bytes, EOFError),
        (zigzag(-4) + b"abc", CheckedDecoder.skip_bytes, ValueError),
        (zigzag(4) + b"abc", CheckedDecoder.skip_bytes, EOFError),
        (b"\xff" * 9, CheckedDecoder.read_int, EOFError),
        (b"\xff" * 1_000_000, CheckedDecoder.read_int, ValueError),
        (b"abc", CheckedDecoder.read_double, EOFError),
    ],
)
def test_nothing_behind_a_block_is_read(
    data: bytes, read: Callable[[CheckedDecoder], object], error: type[Exception]
) -> None:
    with pytest.raises(error, match="an Avro file"):
        read(CheckedDecoder(data))


@pytest.mark.parametrize(
    ("codec", "compress"),
    [
        (CheckedDeflate, lambda data: zlib.compress(data)[2:-1]),
        (CheckedBzip2, bz2.compress),
        (CheckedZstandard, zstandard.compress),
    ],
)
def test_a_block_decompresses_to_so_many_times_its_bytes(
    codec: type[CheckedDeflate], compress: Callable[[bytes], bytes]
) -> None:
    varied = b"".join(b"s3://bucket/warehouse/orders/data/%d.parquet" % number for number in range(5_000))
    assert codec.decompress(compress(varied)) == varied
    assert codec.decompress(compress(b"")) == b""
    with pytest.raises(ValueError, match="decompresses to more than 200 times its bytes"):
        codec.decompress(compress(bytes(100 << 20)))
    with pytest.raises(ValueError, match="is damaged"):
        codec.decompress(b"\xff" * 100)


@pytest.mark.parametrize("content", [b"a text\n" * 10, b"Obj\x01" + zigzag(1) + zigzag(3_000_000_000) + b"x", b""])
def test_a_manifest_list_that_is_none_ends_the_commit(tmp_path: Path, content: bytes) -> None:
    sink = iceberg_sink("sql", tmp_path)
    table = sink.connect(sa.create_engine("sqlite://"))
    publish_rows(table, ROWS, tmp_path)
    snapshot = open_table(sink, sa.create_engine("sqlite://")).current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).write_bytes(content)

    with pytest.raises(TargetError, match=r"cannot be written to: .*Nothing was written"):
        publish_rows(table, ROWS, tmp_path, batch_id=2)


@pytest.mark.parametrize("is_large", [False, True])
def test_compressed_metadata_has_a_bound(tmp_path: Path, is_large: bool) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/positions.db")
    table = iceberg_sink("positions", tmp_path).connect(engine)
    table.prepare(ROWS.schema)
    with engine.begin() as conn:
        present = Path(
            conn.scalars(sa.text("SELECT metadata_location FROM iceberg_tables")).one().removeprefix("file://")
        )
        metadata = present.read_bytes() + b" " * (is_large << 28)
        compressed = present.with_name("00001.gz.metadata.json")
        compressed.write_bytes(gzip.compress(metadata))
        conn.execute(sa.text("UPDATE iceberg_tables SET metadata_location = :place"), {"place": f"file://{compressed}"})

    if is_large:
        with pytest.raises(TargetError, match="decompresses to more than 200 times its bytes"):
            table.prepare(ROWS.schema)
    else:
        assert table.prepare(ROWS.schema).known == ("id", "_batch_id")
