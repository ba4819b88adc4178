"""An HTTP proxy that breaks a chosen request before or after the server has it."""

import enum
import http.client
import http.server
import re
import threading
from collections.abc import Callable
from typing import Self


class Fault(enum.Enum):
    """What happens to a request."""

    CUT_BEFORE = enum.auto()
    """The server does not get it, and the connection is closed."""
    SWALLOW_ANSWER = enum.auto()
    """The server answers, and the connection is closed."""
    TIME_OUT = enum.auto()
    """The server answers, and the client gets a 504, as of a gateway that did not wait for that."""
    REFUSE = enum.auto()
    """The server does not get it, and the client gets a 503, as of a gateway that has no server."""


class HttpProxy:
    """Forwards requests to 127.0.0.1:``port`` to a server. It is a context manager.

    A fault applies once, to the next POST whose path is as given. After that the proxy only forwards.

    :param server_port: where the server listens on 127.0.0.1
    :param path: a regular expression
    """

    def __init__(self, server_port: int, path: str) -> None:
        self.triggered = threading.Event()
        """Set when the fault is applied, before the client can notice it; cleared when the next fault is requested."""
        self.requests: list[str] = []
        """Each request as it came, without its headers."""
        self._server_port = server_port
        self._path = re.compile(path)
        self._fault: Fault | None = None
        self._lock = threading.Lock()
        self._listener = _Listener(self)
        self.port: int = self._listener.server_address[1]
        # The poll interval bounds how long the shutdown takes. A connection wakes the thread at once.
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,), name="proxy", daemon=True)

    def arm(self, fault: Fault) -> None:
        """Apply a fault to the next POST."""
        with self._lock:
            self.triggered.clear()
            self._fault = fault

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()

    def _take_fault(self, method: str, path: str) -> Fault | None:
        """Return the fault for a request: one of them gets it, once."""
        if method != "POST" or self._path.fullmatch(path) is None:
            return None
        with self._lock:
            fault, self._fault = self._fault, None
            return fault

    def _serve(self, request: "_Handler") -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.requests.append(f"{request.command} {request.path} {body.decode(errors='replace')}")
        fault = self._take_fault(request.command, request.path)
        if fault not in (Fault.CUT_BEFORE, Fault.REFUSE):
            status, headers, answer = self._ask(request, body)
        if fault is None:
            return request.answer(status, headers, answer)
        self.triggered.set()
        if fault in (Fault.TIME_OUT, Fault.REFUSE):
            status = 504 if fault is Fault.TIME_OUT else 503
            return request.answer(status, {"Content-Type": "text/html"}, b"<html><body>gateway</body></html>")
        request.close_connection = True
        return None

    def _ask(self, request: "_Handler", body: bytes) -> tuple[int, dict[str, str], bytes]:
        server = http.client.HTTPConnection("127.0.0.1", self._server_port)
        try:
            # A body that the server compresses would be one more thing to forward as it is.
            headers = {name: value for name, value in request.headers.items() if name.lower() != "accept-encoding"}
            server.request(request.command, request.path, body, headers)
            answer = server.getresponse()
            own = ("content-length", "transfer-encoding", "connection")
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in own}
            return answer.status, kept, answer.read()
        finally:
            server.close()


class _Listener(http.server.ThreadingHTTPServer):
    """Accepts connections, with a thread for each."""

    def __init__(self, proxy: HttpProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Listener

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Return what handles a request of any method, such as `do_POST`."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return lambda: self.server.proxy._serve(self)

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""
