"""The room that rows take for texts which a schema holds once: defaults, and the names of an enum.

A byte of a record, or none, may stand for 10,000 characters. So their bytes are counted before rows get them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.formats.avro_schema import LARGEST_VECTORIZED

_left: ContextVar[float] = ContextVar("room", default=math.inf)


class RoomError(Exception):
    """The rows of records take too much memory together: decode fewer records, or leave out a single one."""


@contextmanager
def limited_room(size: int) -> Iterator[None]:
    """Let the functions of this module raise a RoomError in the block where rows get more bytes by them."""
    token = _left.set(size)
    try:
        yield
    finally:
        _left.reset(token)


@contextmanager
def room_of_result(error_type: type[Exception]) -> Iterator[None]:
    """Give back the room that the block took, if it ends with such an error, because its rows are thrown away."""
    left = _left.get()
    try:
        yield
    except error_type:
        _left.set(left)
        raise


def _check(size: int) -> None:
    if size > _left.get():
        raise RoomError


def _take(size: int) -> None:
    _check(size)
    _left.set(_left.get() - size)


def named(places: pa.Array, names: pa.StringArray) -> pa.StringArray:
    """Return the names at places.

    :raises IndexError: there is no such place
    """
    if len(places) * names.nbytes > _left.get():
        _check(pc.sum(pc.binary_length(names).take(places)).as_py() or 0)
    found = names.take(places)
    _take(found.nbytes)
    return found


def repeated(value: pa.Array, count: int) -> pa.Array:
    """Return the only value of an array a number of times."""
    _take(value.nbytes * count)
    return value.take(pa.array([0] * count, pa.int64()))


def filled(array: pa.Array, value: pa.Array) -> pa.Array:
    """Return an array with the only value of another one in place of nulls."""
    _take(value.nbytes * array.null_count)
    if not pa.types.is_nested(array.type):
        return pc.fill_null(array, value[0])
    places = pc.if_else(array.is_valid(), pa.array(range(len(array)), pa.int64()), len(array))
    return pa.concat_arrays([array, value]).take(places)


def most_bytes(kind: pa.DataType, count: int, size: int) -> int:
    """Return how many bytes values of a type take at most in Arrow, texts apart.

    :param count: of values
    :param size: of the bytes that they are read from: each may be an item of a list
    """
    return count * _room(kind) + size * _largest_item(kind)


def _largest_item(kind: pa.DataType) -> int:
    """Return how many bytes an item of a list takes at most."""
    parts = [kind.field(index).type for index in range(kind.num_fields)]
    own = _room(parts[0]) if pa.types.is_list(kind) else 0
    return max([own, *map(_largest_item, parts)])


def _room(kind: pa.DataType) -> int:
    """Return how many bytes a null takes."""
    if pa.types.is_struct(kind):
        return sum(_room(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        # What Avro has as a fixed type is read as one.
        return LARGEST_VECTORIZED
    return 8
