"""The decoder of the format Protobuf: the messages of one writer's schema, as the declared columns."""

from __future__ import annotations

import pyarrow as pa

from airflow_kafka_offsets.formats.protobuf_columns import rows_of
from airflow_kafka_offsets.formats.protobuf_fields import children_of, written
from airflow_kafka_offsets.formats.protobuf_reader import ProtobufReader
from airflow_kafka_offsets.formats.protobuf_schema import Message
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.wire_format import MismatchError, TwoReaders


class ProtobufDecoder(TwoReaders):
    """Decodes the messages of one writer's schema.

    :param message: that was written
    :param columns: the declared columns
    :param reader: the message from which the columns are taken, if they are

    :raises SchemaError: no message can become the columns
    """

    def __init__(self, message: Message, columns: pa.Schema, reader: Message | None) -> None:
        self._columns = columns
        try:
            self._children = children_of(columns, message, reader)
        except MismatchError as error:
            raise SchemaError(str(error).replace("field", "column", 1)) from None
        read = {node.field.number for node in written(self._children)}
        self._unread = [field.name for field in message.fields if field.number not in read]
        self._reader = ProtobufReader(message, self._children)

    @property
    def unread(self) -> list[str]:
        return self._unread

    @property
    def is_vectorized(self) -> bool:
        return self._reader.is_vectorized

    def read(self, values: pa.Array) -> list[pa.Array]:
        return rows_of(self._columns, self._children, self._reader.read(values), len(values))

    def read_each(self, values: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        found, wrong = self._reader.read_each(values)
        return rows_of(self._columns, self._children, found, len(values) - len(wrong)), wrong
