"""TLS for a Postgres server that is built without it: a proxy that answers SSLRequest."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from devstack.certificates import Certificate

_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_BYTES = 1 << 16


class PostgresTlsProxy:
    """Listens on 127.0.0.1, and connects each client to a server there.

    A client that does not ask for TLS is served without.

    :param port: of the server
    :param issued: the certificate
    :param directory: for its files
    """

    def __init__(self, port: int, issued: Certificate, directory: Path) -> None:
        self._server = ("127.0.0.1", port)
        certificate, key = directory / "certificate.pem", directory / "key.pem"
        certificate.write_text(issued.certificate)
        key.write_text(issued.key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not end an accept of another thread.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # A client that refuses the certificate ends the connection, which is all that it reports.
        with client, suppress(OSError):
            first = client.recv(len(_SSL_REQUEST), socket.MSG_WAITALL)
            if first == _SSL_REQUEST:
                client.sendall(b"S")
                client, first = self._context.wrap_socket(client, server_side=True), b""
            with client, socket.create_connection(self._server) as server:
                server.sendall(first)
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(_BYTES):
            target.sendall(content)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
