"""Keys, values and headers as they are."""

import pyarrow as pa

from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.formats.simple_formats import Raw
from tests.support.decoding import decoded_as, record_batch


class TestRaw:
    def test_key_and_value_pass_through_unchanged(self) -> None:
        values = [b"\x00\xff", None, b""]
        keys = [None, b"k", b""]
        batch = record_batch(values, key=pa.array(keys, pa.binary()))
        decoded = decoded_as(Raw(), batch).rows
        assert decoded.column("value").to_pylist() == values
        assert decoded.column("key").to_pylist() == keys
        assert decoded.column("_kafka_offset").to_pylist() == [1000, 1002, 1004]

    def test_headers_pass_through_in_order_and_with_duplicates(self) -> None:
        kind = row_columns(Raw(headers=True)).field("headers").type
        headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], []]
        batch = record_batch([b"x", b"y"], key=pa.array([None, None], pa.binary()), headers=pa.array(headers, kind))
        decoded = decoded_as(Raw(headers=True), batch).rows
        assert decoded.column("headers").to_pylist() == headers

    def test_a_record_whose_headers_cannot_be_read_is_bad_where_they_are_asked_for(self) -> None:
        kind = row_columns(Raw(headers=True)).field("headers").type
        batch = record_batch(
            [b"x", b"y", b"z"],
            key=pa.array([None] * 3, pa.binary()),
            headers=pa.array([[], None, []], kind),
        )
        rows, bad = decoded_as(Raw(headers=True), batch)
        assert bad == [BadRecord(1, "the key of a header is not UTF-8", "header")]
        assert rows.column("value").to_pylist() == [b"x", b"z"]
        assert rows.column("_kafka_offset").to_pylist() == [1000, 1004]
        assert decoded_as(Raw(), batch).bad == ()
