"""Record batches that no client would make, written with Kafka's protocol itself.

https://kafka.apache.org/documentation/#recordbatch, and the request Produce of version 7 in
https://kafka.apache.org/protocol#The_Messages_Produce
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

# Polynomial of CRC-32C, with its bits in reverse.
_CASTAGNOLI = 0x82F63B78

_PRODUCE, _VERSION = 0, 7

# The broker has not heard of the topic yet, or is not yet its leader.
_SOON = (3, 5, 6)


def produce_batch(bootstrap_servers: str, topic: str, records: Sequence[tuple[int, bytes]]) -> None:
    """Write records in one batch to partition 0.

    :param records: for each, what it says of its offset, relative to the first one, and its value
    """
    batch = _batch(b"".join(_record(offset, value) for offset, value in records), len(records))
    end = time.monotonic() + 30
    while (error := _sent(bootstrap_servers, topic, batch)) in _SOON and time.monotonic() < end:
        time.sleep(0.1)
    assert error == 0, f"the broker refuses the batch: error {error}"


def _record(offset: int, value: bytes) -> bytes:
    # Attributes, the timestamp relative to the first one, the offset, no key, the value, no headers.
    body = b"\0" + _varint(0) + _varint(offset) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    """Return a number with a sign, zigzag, seven bits a byte."""
    rest = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _batch(records: bytes, count: int) -> bytes:
    now = int(time.time() * 1000)
    # Attributes, the last offset, the first and the last timestamp, no producer's id, epoch and sequence.
    body = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count) + records
    # The leader's epoch, and the version of the format.
    rest = struct.pack(">ib", -1, 2) + struct.pack(">I", _crc32c(body)) + body
    return struct.pack(">qi", 0, len(rest)) + rest


def _crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (_CASTAGNOLI if found & 1 else 0)
    return found ^ 0xFFFFFFFF


def _sent(bootstrap_servers: str, topic: str, batch: bytes) -> int:
    """Send a batch, and return the code of the broker's error; 0 for none."""
    host, port = bootstrap_servers.split(":")
    name = struct.pack(">h", len(topic)) + topic.encode()
    partition = struct.pack(">iii", 1, 0, len(batch)) + batch
    # No transaction, all replicas, ten seconds, one topic.
    body = struct.pack(">hhii", -1, -1, 10_000, 1) + name + partition
    header = struct.pack(">hhi", _PRODUCE, _VERSION, 1) + struct.pack(">h", 4) + b"test"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    # The request's number, one topic, its name, one partition, its number, the error.
    return int(struct.unpack_from(">h", answer, 4 + 4 + len(name) + 4 + 4)[0])
