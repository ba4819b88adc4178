"""TCP proxies in front of Postgres and MariaDB that break a connection before or after its COMMIT."""

import abc
import contextlib
import enum
import re
import socket
import socketserver
import struct
import threading
from io import BufferedIOBase, BufferedReader
from typing import Self

_CHUNK = 256 * 1024

# Startup messages that request encryption. The proxy refuses it, so that it can read the messages.
_ENCRYPTION_REQUESTS = {80877103, 80877104}

# At the beginning of a statement. Not "END", which blocks of PL/pgSQL have as well.
_COMMIT = re.compile(rb"(?:^|;)\s*COMMIT(?:\s+(?:WORK|TRANSACTION))?\s*(?:;|$)", re.IGNORECASE)

# The last message of an answer: its type and length. One byte of state follows.
_READY_FOR_QUERY = b"Z" + struct.pack("!I", 5)

# In MariaDB's protocol.
_COM_QUERY = b"\x03"
_LONGEST_COMMIT = 64
# Of the second byte of a server's capabilities.
_OFFERS_ENCRYPTION = 0x08


class _Fault(enum.Enum):
    SWALLOW_ANSWER = enum.auto()
    CUT_BEFORE = enum.auto()


class DatabaseProxy:
    """Forwards connections to 127.0.0.1:``port`` to a database. It is a context manager.

    A fault applies once, to the next COMMIT of any client. After that the proxy only forwards.
    Clients that pipeline statements are not supported.

    :param server_port: where the database listens on 127.0.0.1
    """

    _session: "type[_Session]"

    def __init__(self, server_port: int) -> None:
        self.triggered = threading.Event()
        """Set when the fault is applied, before the client can notice it; cleared when the next fault is requested."""
        self._server_port = server_port
        self._refusing = False
        self._fault: _Fault | None = None
        self._lock = threading.Lock()
        self._sessions: set[_Session] = set()
        self._listener = _Listener(self)
        self.port: int = self._listener.server_address[1]
        # The poll interval bounds how long the shutdown takes. A connection wakes the thread at once.
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), name="proxy", daemon=True)

    def swallow_commit_answer(self) -> None:
        """Forward the next COMMIT, wait for the server's answer, and close the connection instead of forwarding it."""
        self._arm(_Fault.SWALLOW_ANSWER)

    def cut_before_commit(self) -> None:
        """Close the connection, on both sides, instead of forwarding the next COMMIT."""
        self._arm(_Fault.CUT_BEFORE)

    def refuse(self) -> None:
        """Close new connections at once. Existing ones stay open."""
        self._refusing = True

    def accept(self) -> None:
        """Forward new connections again, after :meth:`refuse`."""
        self._refusing = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._thread.join()
        with self._lock:
            self._refusing = True
            for session in self._sessions:
                session.close()
        # Waits for the threads of the sessions.
        self._listener.server_close()

    def _arm(self, fault: _Fault) -> None:
        with self._lock:
            self.triggered.clear()
            self._fault = fault

    def _take_fault(self) -> _Fault | None:
        """Return the fault for a COMMIT: one client gets it, once."""
        with self._lock:
            fault, self._fault = self._fault, None
            return fault

    def _serve(self, client: socket.socket) -> None:
        """Serve one connection from start to end."""
        # The client's connection is closed if the server is down or goes away, and when the proxy ends.
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._server_port)) as server,
            BufferedReader(client.makefile("rb", 0), _CHUNK) as requests,
        ):
            session = self._session(self, client, server, requests)
            with self._lock:
                if self._refusing:
                    return
                self._sessions.add(session)
            try:
                session.run()
            finally:
                with self._lock:
                    self._sessions.discard(session)


class _Listener(socketserver.ThreadingTCPServer):
    """Accepts connections, with a thread for each. Closing the listener waits for the threads."""

    def __init__(self, proxy: DatabaseProxy) -> None:
        self._proxy = proxy
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)

    def verify_request(self, request: object, client_address: object) -> bool:
        return not self._proxy._refusing

    def finish_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self._proxy._serve(request)


class _Session(abc.ABC):
    """A client's connection, and the connection to the server for it."""

    def __init__(
        self,
        proxy: DatabaseProxy,
        client: socket.socket,
        server: socket.socket,
        requests: BufferedIOBase,
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._requests = requests
        self._swallowing = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        """Forward in both directions until one side ends."""
        answers = threading.Thread(target=self._forward_answers, name="proxy answers", daemon=True)
        answers.start()
        try:
            self._forward_startup()
            self._forward_requests()
        finally:
            self.close()
            answers.join()

    def close(self) -> None:
        """Close both connections, which wakes the threads that read from them."""
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @abc.abstractmethod
    def _forward_startup(self) -> None:
        """Forward the first messages, where they have a form of their own."""

    @abc.abstractmethod
    def _forward_requests(self) -> None:
        """Forward the client's messages until it ends, or a fault ends the connection."""

    @abc.abstractmethod
    def _is_answered(self, answer: bytes) -> bool:
        """Return whether bytes of the server end with the end of an answer."""

    def _forward_statement(self, message: bytes, is_commit: bool) -> bool:
        """Forward a message with a statement; return False where a fault ends the connection instead."""
        fault = self._proxy._take_fault() if is_commit else None
        if fault is _Fault.CUT_BEFORE:
            self._proxy.triggered.set()
            return False
        if fault is _Fault.SWALLOW_ANSWER:
            # Set before the server can answer.
            self._swallowing = True
        self._server.sendall(message)
        return True

    def _forward_body(self, header: bytes, length: int) -> None:
        """Forward the bytes of a message as they arrive: rows of COPY come in large messages."""
        pending = header
        while length:
            part = self._requests.read1(min(length, _CHUNK))
            if not part:
                return
            self._server.sendall(pending + part)
            pending = b""
            length -= len(part)
        if pending:
            self._server.sendall(pending)

    def _forward_answers(self) -> None:
        swallowed = b""
        with contextlib.suppress(OSError):
            while answer := self._server.recv(_CHUNK):
                if not self._swallowing:
                    self._client.sendall(answer)
                    continue
                swallowed += answer
                # The client had all earlier answers when it sent COMMIT.
                if self._is_answered(swallowed):
                    self._proxy.triggered.set()
                    break
        self.close()


class _PostgresSession(_Session):
    def _forward_startup(self) -> None:
        """Forward the first messages, which have no type."""
        while len(header := self._requests.read(8)) == 8:
            length, code = struct.unpack("!II", header)
            if code not in _ENCRYPTION_REQUESTS:
                self._server.sendall(header + self._requests.read(length - 8))
                return
            self._client.sendall(b"N")

    def _forward_requests(self) -> None:
        while len(header := self._requests.read(5)) == 5:
            kind, length = struct.unpack("!cI", header)
            if kind not in (b"Q", b"P"):
                self._forward_body(header, length - 4)
                continue
            body = self._requests.read(length - 4)
            if len(body) < length - 4 or not self._forward_statement(header + body, _carries_commit(kind, body)):
                return

    def _is_answered(self, answer: bytes) -> bool:
        return answer[-6:-1] == _READY_FOR_QUERY


class _MariaDbSession(_Session):
    def _forward_startup(self) -> None:
        pass  # its messages have the form of all others

    def _forward_answers(self) -> None:
        greeting = bytearray(self._server.recv(_CHUNK))
        # Of a server that offers encryption, as MySQL does. After its version: a number, and the salt of the password.
        if (end := greeting.find(b"\0", 5)) > 0:
            flags = end + 1 + 4 + 8 + 1
            greeting[flags + 1] &= ~_OFFERS_ENCRYPTION
        with contextlib.suppress(OSError):
            self._client.sendall(greeting)
        super()._forward_answers()

    def _forward_requests(self) -> None:
        while len(header := self._requests.read(4)) == 4:
            length, number = int.from_bytes(header[:3], "little"), header[3]
            if number or length > _LONGEST_COMMIT:  # rows, or a statement that is no COMMIT
                self._forward_body(header, length)
                continue
            body = self._requests.read(length)
            is_commit = body[:1] == _COM_QUERY and _COMMIT.search(body[1:]) is not None
            if len(body) < length or not self._forward_statement(header + body, is_commit):
                return

    def _is_answered(self, answer: bytes) -> bool:
        # The answer of COMMIT is one packet.
        return len(answer) >= 4 + int.from_bytes(answer[:3], "little")


class PostgresProxy(DatabaseProxy):
    """A proxy in front of Postgres."""

    _session = _PostgresSession


class MariaDbProxy(DatabaseProxy):
    """A proxy in front of MariaDB."""

    _session = _MariaDbSession


def _carries_commit(kind: bytes, body: bytes) -> bool:
    """Return whether a Query (its text) or a Parse (a name, then the text) is a COMMIT."""
    text = body.split(b"\0")[0 if kind == b"Q" else 1]
    return _COMMIT.search(text) is not None
