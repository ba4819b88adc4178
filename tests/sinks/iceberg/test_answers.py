"""The server of a REST catalog does not answer, answers slowly, or with more than fits into memory."""

from __future__ import annotations

import threading
import zlib
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import repeat

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import IcebergTable
from airflow_kafka_offsets.exceptions import ConfigurationError, DatabaseUnavailableError, KafkaOffsetsError
from airflow_kafka_offsets.sinks.iceberg import answers
from tests.support.http_server import serving


def refused_by(uri: str) -> KafkaOffsetsError:
    table = IcebergTable("shop.orders", {"type": "rest", "uri": uri}).connect(sa.create_engine("sqlite://"))
    with pytest.raises(KafkaOffsetsError) as refused:
        table.prepare(None)
    return refused.value


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"], ids=["silent", "slow"])
def test_a_server_that_does_not_answer_is_left_after_some_time(monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    monkeypatch.setattr(answers, "SECONDS", 0.3)
    end = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(part)
        # Bytes come as often as a limit for each wait would want them.
        while not end.wait(0.1) and part:
            handler.wfile.write(b"\n")
        end.wait()

    with serving(answer) as uri:
        try:
            error = refused_by(uri)
        finally:
            end.set()

    assert isinstance(error, DatabaseUnavailableError)
    assert "the answer takes more than 0.3 s" in str(error)


def compressed(handler: BaseHTTPRequestHandler, encoding: str) -> None:
    """Answer with zeros as long as they are read: a gigabyte of them has a megabyte."""
    handler.send_response(200)
    handler.send_header("Content-Encoding", encoding)
    handler.end_headers()
    packed, zeros = zlib.compressobj(wbits=31), bytes(1 << 20)
    try:
        for block in repeat(zeros, 1 << 10):
            handler.wfile.write(packed.compress(block))
        handler.wfile.write(packed.flush())
    except ConnectionError:
        handler.close_connection = True


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "br"])
def test_a_compressed_answer_takes_bounded_memory(encoding: str) -> None:
    with serving(partial(compressed, encoding=encoding)) as uri:
        error = refused_by(uri)

    assert isinstance(error, ConfigurationError)
    assert ("answers with too many bytes" if encoding == "gzip" else f"the encoding {encoding!r}") in str(error)


def moved(handler: BaseHTTPRequestHandler, to: str) -> None:
    handler.send_response(307)
    handler.send_header("Location", to)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def test_no_answer_leads_to_another_host() -> None:
    asked: list[str] = []

    def inside(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        moved(handler, "/")

    with serving(inside) as other, serving(partial(moved, to=other.replace("127.0.0.1", "localhost"))) as uri:
        error = refused_by(uri)

    assert "leads to another host" in str(error)
    assert asked == []
