"""Decode and transform records in a child process, with limits of time and memory, because they may crash it.

A library that decodes a record, or the code of a transform, may end its process (a segmentation fault, `os._exit`),
never return, or exhaust the memory. The batch is then halved until such records are alone: they are bad records of the
part `crash`, and their neighbours are loaded.

Parent and child use a socket: the parent sends the job once, then batches. The child imports the modules for decoding,
and forks a process that answers each batch with rows or an error. If that process ends, the child answers with the exit
status, and forks another.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import pyarrow as pa

from airflow_kafka_offsets.core.bisection import Failure, split_at_failures
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.plain import checked
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, StagingError
from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded
from airflow_kafka_offsets.formats.room import RoomError
from airflow_kafka_offsets.spark.decoding import CRASH, Decoding, DecodingHere, may_grow, room_of, time_limit
from airflow_kafka_offsets.spark.failures import from_note, to_note
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.transforms.transform import BatchFunction

MEMORY_BYTES = 2 << 30
"""The most memory of a child."""

# What halves of a batch get of its time at least: a record that never returns is found in four times the limit.
_LEAST_SHARE = 0.1

_GRACE_SECONDS = 5.0

# The exit status of a process whose parent sends nothing more.
_ALL_ANSWERED = 86

# Errors that say nothing of the records: a library is missing, or another server does not answer.
_NOT_OF_RECORDS = (KafkaOffsetsError, ImportError, OSError, KeyboardInterrupt)

# The path comes before the first import of what is not Python's own: this package may be in an archive that Spark sent.
_CHILD = """
import json, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = json.loads(connection.recv_bytes())
from airflow_kafka_offsets.spark.isolation import serve
serve(connection)
"""


class _CrashError(Exception):
    """The child ended, or raised an exception, while it had a batch; the message has the cause."""


@contextmanager
def decoding_of(
    job: StageJob, slice_: Slice, transform: BatchFunction | None, *, is_isolated: bool
) -> Iterator[Decoding]:
    """Return the decoding of a slice: in this process, and in a child for batches that fail here.

    :param transform: the function of the job's transform, if that runs here
    :param is_isolated: whether to decode all batches in a child, because a process with this slice has ended
    """
    with Isolation(job, slice_) as isolation:
        yield isolation if is_isolated else _Guarded(job, DecodingHere(job, slice_, transform), isolation)


class _Guarded:
    """Decodes batches in this process; if that raises, in a child.

    :param isolation: the decoding in a child
    """

    def __init__(self, job: StageJob, here: DecodingHere, isolation: Isolation) -> None:
        self._seconds, self._here, self._isolation, self._columns = job.decode_timeout, here, isolation, job.columns

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        if records.num_rows == 1 and may_grow(records, self._columns):
            # It may become rows or objects without end.
            return self._isolation(records)
        try:
            with time_limit(self._seconds):
                return self._here(records)
        except (*_NOT_OF_RECORDS, RoomError):
            raise
        except BaseException as error:  # panics of Rust are not Exceptions
            sys.stderr.write(f"{type(error).__name__} in a batch of records, which are decoded again one by one\n")
        return self._isolation(records)

    def schemas_read(self) -> tuple[ReadSchema, ...]:
        return tuple(_by_id([*self._here.schemas_read(), *self._isolation.schemas_read()]).values())


class Isolation:
    """Decodes and transforms batches of records of a slice in a child process. The first batch starts it; as a context
    manager, this ends it.
    """

    def __init__(self, job: StageJob, slice_: Slice) -> None:
        self._job, self._slice = job, slice_
        self._child: _Child | None = None
        self._schemas: dict[tuple[str, int], ReadSchema] = {}

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        rows: list[pa.RecordBatch] = []
        bad: list[BadRecord] = []
        most = self._job.max_dead_letters if self._job.has_dead_letters else 0

        def decode(start: int, stop: int) -> Decoded:
            # A record alone has the whole limit, by which it is judged.
            share = 1.0 if stop - start == 1 else max((stop - start) / records.num_rows, _LEAST_SHARE)
            decoded = self._ask(records.slice(start, stop - start), self._job.decode_timeout * share)
            return Decoded(decoded.rows, [record._replace(row=start + record.row) for record in decoded.bad])

        for run in split_at_failures(records.num_rows, decode, _CrashError):
            if isinstance(run, Failure):
                bad.append(BadRecord(run.position, f"{run.error}", CRASH))
            else:
                rows.append(run.result.rows)
                bad += run.result.bad
            if most is not None and len(bad) > most:
                # The load ends with one of these; each may take as long as the limit of time.
                break
        if sum(part.nbytes for part in rows) > room_of(records):
            raise RoomError
        if len(rows) == 1:
            # Large rows are not copied.
            return Decoded(rows[0], bad)
        return Decoded(pa.concat_batches(rows) if rows else pa.RecordBatch.from_pylist([]), bad)

    def schemas_read(self) -> tuple[ReadSchema, ...]:
        return tuple(self._schemas.values())

    def _ask(self, records: pa.RecordBatch, seconds: float) -> Decoded:
        """Have the child decode records.

        :param seconds: how long it may take
        :raises _CrashError: the child ended, or raised what is not an error of this package
        :raises RoomError: the rows take too much memory
        """
        if self._child is None:
            self._child = _Child(self._job, self._slice)
        try:
            decoded = self._answered(*self._child.ask(seconds, records), seconds)
            if not {record.row for record in decoded.bad} <= set(range(records.num_rows)):
                raise IndexError
            return decoded
        except (KafkaOffsetsError, _CrashError, RoomError):
            raise
        except Exception:
            # Its processes, or what they write, are not as they should be.
            self._end()
            raise _CrashError(f"{_what(self._job)} it ends the process") from None

    def _answered(self, answer: Mapping[str, Any], rows: memoryview, seconds: float) -> Decoded:
        """Return what a child answers; see `_ask` for errors, others mean that it is no answer."""
        if "error" in answer:
            raise from_note(answer)
        if "ended" in answer:
            raise _CrashError(_of_end(answer["ended"], seconds, self._job))
        if "large" in answer:
            raise RoomError
        if "raised" in answer:
            raise _CrashError(_of_raised(answer["raised"], self._job))
        schemas = _by_id(checked(ReadSchema, schema) for schema in answer["schemas"])
        decoded = Decoded(_from_bytes(rows), [checked(BadRecord, record) for record in answer["bad"]])
        self._schemas |= schemas
        return decoded

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _Child:
    """A child process that decodes the batches of a slice."""

    def __init__(self, job: StageJob, slice_: Slice) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # Isolated: it takes no module from the directory in which it runs.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CHILD, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Allocators that reserve much more than they use would meet the limit.
                env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"},
            )
        self._connection = Connection(ours.detach())
        self._connection.send_bytes(json.dumps(sys.path).encode())
        # It needs neither the other slices nor Kafka's credentials.
        self._connection.send_bytes(pickle.dumps((replace(job, tasks=(), kafka_config={}), slice_)))
        try:
            self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            self.end()
            raise StagingError(
                "The child process that decodes records does not start; its standard error says why"
            ) from error

    def ask(self, seconds: float, records: pa.RecordBatch) -> tuple[dict[str, Any], memoryview]:
        """Return the answer, and the rows as bytes.

        :param seconds: how long it may take
        :raises EOFError: the child has ended
        :raises OSError: the same, while it was written to
        :raises ValueError: the answer is none
        """
        _send(self._connection, {"seconds": seconds}, _to_bytes(records))
        return _receive(self._connection)

    def end(self) -> None:
        """End it."""
        self._connection.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(connection: Connection) -> None:
    """Answer a parent, until that closes the connection or ends."""
    job, slice_ = pickle.loads(connection.recv_bytes())  # noqa: S301 the parent's, over a socket of the two
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
    # A core dump would hold records.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Arrow imports pandas now, once, and not in the time of the first batch.
    pa.array([0])
    connection.send_bytes(b"ready")
    with suppress(OSError):  # the parent has ended
        while True:
            # Nothing was decoded in this process: it has no threads, which a fork would lack.
            if (process := os.fork()) == 0:
                _answer_batches(connection, job, slice_)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if status == _ALL_ANSWERED:
                break
            _send(connection, {"ended": status})
    # Without the end of the interpreter.
    os._exit(0)


def _answer_batches(connection: Connection, job: StageJob, slice_: Slice) -> NoReturn:
    """Answer batches, until the parent closes the connection or ends."""
    decode: Decoding | None = None
    while True:
        try:
            question, records = _receive(connection)
        except (EOFError, OSError):
            # Without the end of the interpreter, for which threads of libraries may wait.
            os._exit(_ALL_ANSWERED)
        answer: dict[str, Any] = {}
        rows: bytes | pa.Buffer = b""
        try:
            if decode is None:
                decode = DecodingHere(job, slice_, job.batch_function())
            batch = _from_bytes(records)
            with time_limit(question["seconds"]):
                decoded = decode(batch)
            bad = [record._asdict() for record in decoded.bad]
            answer = {"bad": bad, "schemas": [asdict(schema) for schema in decode.schemas_read()]}
            rows = _to_bytes(decoded.rows)
        except RoomError:
            answer = {"large": True}
        except KafkaOffsetsError as error:
            answer = to_note(error)
        except (ImportError, OSError) as error:
            answer = to_note(StagingError(f"{type(error).__name__}: {error}"))
        except BaseException as error:
            answer = {"raised": type(error).__name__}
        _send(connection, answer, rows)


def _send(connection: Connection, header: dict[str, Any], body: bytes | pa.Buffer = b"") -> None:
    """Send a header and a body in one call: if the process ends, it has sent both or none."""
    connection.send_bytes(b"".join([json.dumps(header).encode(), b"\n", body]))


def _receive(connection: Connection) -> tuple[dict[str, Any], memoryview]:
    message = connection.recv_bytes()
    end = message.index(b"\n")
    return json.loads(message[:end]), memoryview(message)[end + 1 :]


def _to_bytes(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _from_bytes(text: memoryview) -> pa.RecordBatch:
    with pa.ipc.open_stream(text) as reader:
        batch = reader.read_next_batch()
    # What a record has done to the memory of a child must not reach this process.
    batch.validate(full=True)
    return batch


def _by_id(schemas: Iterable[ReadSchema]) -> dict[tuple[str, int], ReadSchema]:
    return {(schema.part, schema.schema_id): schema for schema in schemas}


def _of_end(status: int, seconds: float, job: StageJob) -> str:
    """Return the reason for a bad record that ended a process."""
    if status == -signal.SIGALRM:
        return f"{_what(job)} it takes more than {seconds:g} s"
    ended = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    return f"{_what(job)} it ends the process {ended}"


def _of_raised(name: str, job: StageJob) -> str:
    """Return the reason for a bad record that raised an exception from outside this package."""
    if name == MemoryError.__name__:
        return f"{_what(job)} it takes more than {MEMORY_BYTES >> 20:,} MiB"
    return f"{_what(job)} it raises {name}"


def _what(job: StageJob) -> str:
    return "decoding" if job.batch_transform is None else "decoding and transforming"
