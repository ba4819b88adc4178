"""A format and a transform that do to their process what a value tells them."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded, Decoder


def recurse() -> None:
    recurse()


def loop() -> None:
    while True:
        time.sleep(60)


class PanicError(BaseException):
    """Like the exception of a Rust library that panics, it is no Exception."""


def panic() -> None:
    raise PanicError("at src/lib.rs:1")


def refuse() -> None:
    raise ValueError("secret")


def allocate() -> None:
    sys.stderr.write(str(len(b"x" * (8 << 30))))


DEEDS = {
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "leave": sys.exit,
    "loop": loop,
    "allocate": allocate,
    "recurse": recurse,
    "panic": panic,
    "refuse": refuse,
}


def do(text: str) -> None:
    """Do what a text says; most do nothing."""
    if (deed := DEEDS.get(text)) is not None:
        deed()


def obey(records: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that does what the names of records say."""
    for name in records.column("name").to_pylist():
        do(name)
    return records


@dataclass(frozen=True)
class Orders:
    """Text that is obeyed; `bad` is a bad record."""

    kind: ClassVar[str] = "orders"

    @property
    def reads_headers(self) -> bool:
        return False

    def fingerprint(self) -> str:
        return self.kind

    def columns(self) -> pa.Schema:
        return pa.schema([("name", pa.string())])

    def decoder(self, columns: pa.Schema) -> Decoder:
        def decode(records: pa.RecordBatch) -> Decoded:
            values = [value.decode() for value in records.column("value").to_pylist()]
            for value in values:
                do(value)
            good = pa.array([value for value in values if value != "bad"], pa.string())
            bad = [BadRecord(row, "it is bad") for row, value in enumerate(values) if value == "bad"]
            return Decoded(pa.RecordBatch.from_arrays([good], schema=columns), bad)

        return decode
