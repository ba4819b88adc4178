"""A StatsD server, as far as it receives."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def metrics() -> Iterator[tuple[int, Callable[[], dict[str, str]]]]:
    """Its port, and what gives the last value of each of this package's metrics that came since the last call."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        # What comes while nobody reads has room here.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)

        def received() -> dict[str, str]:
            found: dict[str, str] = {}
            with suppress(BlockingIOError):
                while True:
                    name, _, value = server.recv(65536).decode().removeprefix("airflow.").rpartition(":")
                    if name.startswith("kafka_offsets."):
                        found[name] = value
            return found

        yield server.getsockname()[1], received
