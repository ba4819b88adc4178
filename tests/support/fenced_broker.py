"""A broker that speaks as much of Kafka's protocol as a client needs to ask for the cluster, and that can be fenced:
then the cluster has no brokers, as while all of a real one's have missed their heartbeats.
"""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType

METADATA, API_VERSIONS = 3, 18
# The newest versions without fields of a length that varies.
_VERSIONS = {METADATA: 4, API_VERSIONS: 0}
_UNSUPPORTED_VERSION, _UNKNOWN_TOPIC = 35, 3


class FencedBroker:
    """A context manager; answers until its end."""

    CLUSTER_ID = "a-cluster"

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self.bootstrap_servers = f"127.0.0.1:{self._port}"
        self.is_fenced = False

    def __enter__(self) -> FencedBroker:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._connections):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            stream = connection.makefile("rb")
            while len(size := stream.read(4)) == 4:
                request = stream.read(struct.unpack(">i", size)[0])
                api, version, number = struct.unpack(">hhi", request[:8])
                answer = struct.pack(">i", number) + (
                    self._metadata(request) if api == METADATA else self._versions(version)
                )
                connection.sendall(struct.pack(">i", len(answer)) + answer)
        except OSError:  # closed, by either side
            return

    def _versions(self, version: int) -> bytes:
        error = 0 if version == _VERSIONS[API_VERSIONS] else _UNSUPPORTED_VERSION
        entries = b"".join(struct.pack(">hhh", api, newest, newest) for api, newest in _VERSIONS.items())
        return struct.pack(">hi", error, len(_VERSIONS)) + entries

    def _metadata(self, request: bytes) -> bytes:
        broker = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">ih", self._port, -1)
        brokers = [] if self.is_fenced else [broker]
        _, rest = _cut(request[8:])  # the client's id
        (count,), rest, topics = struct.unpack(">i", rest[:4]), rest[4:], []
        for _ in range(max(count, 0)):
            name, rest = _cut(rest)
            topics.append(struct.pack(">h", _UNKNOWN_TOPIC) + _text(name.decode()) + struct.pack(">bi", 0, 0))
        cluster = _text(self.CLUSTER_ID) + struct.pack(">i", 1 if brokers else -1)
        return struct.pack(">i", 0) + _array(brokers) + cluster + _array(topics)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(entries: list[bytes]) -> bytes:
    return struct.pack(">i", len(entries)) + b"".join(entries)


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Return a text at the beginning, and what follows."""
    end = 2 + max(struct.unpack(">h", data[:2])[0], 0)
    return data[2:end], data[end:]
