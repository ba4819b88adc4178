"""The decoder of the format Protobuf: the messages of one writer's schema, as the declared columns."""

from __future__ import annotations

import pyarrow as pa

from airflow_kafka_offsets.formats.protobuf_columns import rows_of
from airflow_kafka_offsets.formats.protobuf_fields import MismatchError, children_of, written
from airflow_kafka_offsets.formats.protobuf_reader import ProtobufReader
from airflow_kafka_offsets.formats.protobuf_schema import Message
from airflow_kafka_offsets.formats.wire_format import FEW_VALUES, HalvingDecoder, SchemaError, UnreadableError


class ProtobufDecoder(HalvingDecoder):
    """Decodes the messages of one writer's schema.

    A message is good if one of the two readers takes it: the quick one does not know all that may be in a message.

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

    def columns_of(self, values: pa.Array) -> list[pa.Array]:
        return rows_of(self._columns, self._children, self._read(values), len(values))

    def bad_among(self, values: pa.Array) -> dict[int, str]:
        _, wrong = self._reader.read_each(values)
        return {place: reason for place, reason in wrong.items() if not self._is_read_alone(values[place : place + 1])}

    def _is_read_alone(self, value: pa.Array) -> bool:
        if not self.is_vectorized:
            return False
        try:
            self._reader.read(value)
        except UnreadableError:
            return False
        return True

    def _read(self, values: pa.Array) -> dict[str, pa.Array]:
        if self.is_vectorized:
            try:
                return self._reader.read(values)
            except UnreadableError:
                if len(values) > FEW_VALUES:
                    raise
        columns, wrong = self._reader.read_each(values)
        if wrong:
            raise UnreadableError(next(iter(wrong.values())))
        return columns
