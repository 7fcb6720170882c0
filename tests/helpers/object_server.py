"""A local HTTP server of objects that answers ranges, counts requests and fails on demand."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import struct
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FAULTS", "ObjectServer", "object_server"]


class ObjectServer(ThreadingHTTPServer):
    """The server and what the tests know of it.

    Attributes
    ----------
    objects, etags : dict
        Contents and ETags by path, with its slash.
    requests : list of (str, str)
        Method and Range header of every request, in order.
    stated : int or None
        The size that is said without a range, where it is not to be the true one.
    closing : threading.Event
        Set at the end; lets stalled answers go.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.faults: deque[tuple[str, Callable[[_Handler, bytes], None]]] = deque()
        self.closing = threading.Event()
        self.stated: int | None = None

    def put(self, content: bytes, path: str = "/object") -> str:
        """Make an object of `content` and return its URL."""
        self.objects[path] = content
        return f"http://127.0.0.1:{self.server_port}{path}"

    def fail(self, fault: str, times: int = 1, method: str = "GET") -> None:
        """Answer the next requests of a method with a fault: a name in FAULTS, or a status."""
        act = FAULTS.get(fault) or _status(int(fault))
        self.faults.extend([(method, act)] * times)

    @property
    def ranges(self) -> list[str]:
        """The Range headers of the requests that had one."""
        return [wanted for _, wanted in self.requests if wanted]

    def shutdown_request(self, request: socket.socket) -> None:
        """Close a connection; not by its end first, since a reset must stay one."""
        self.close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that go away are what is tested."""


class _Handler(BaseHTTPRequestHandler):
    server: ObjectServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_GET(self) -> None:
        self._answer("GET")

    def _answer(self, method: str) -> None:
        server = self.server
        server.requests.append((method, self.headers.get("Range", "")))
        fault = server.faults[0] if server.faults else None
        if fault and fault[0] == method:
            with contextlib.suppress(IndexError):  # taken by another request meanwhile
                server.faults.popleft()
            fault[1](self, server.objects.get(self.path, b""))
        elif self.path not in server.objects:
            self.plain(404)
        else:
            self.part(server.objects[self.path], body=method == "GET")

    def part(self, content: bytes, *, body: bool = True) -> None:
        """Answer as asked."""
        first, last = self.wanted(len(content))
        if first >= len(content) and content:
            self.plain(416, **{"Content-Range": f"bytes */{len(content)}"})
            return
        self.head(content, first, last)
        if body:
            self.send(content[first : last + 1])

    def wanted(self, size: int) -> tuple[int, int]:
        """Return the first and last byte that were asked for."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        return (int(found[1]), min(int(found[2]), size - 1)) if found else (0, size - 1)

    def head(self, content: bytes, first: int, last: int, *, stated: int | None = None) -> None:
        """Send the status and the headers of an answer with a part."""
        partly = "Range" in self.headers
        self.send_response(206 if partly else 200)
        if partly:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        if not partly and stated is None:
            stated = self.server.stated
        self.fields(last - first + 1 if stated is None else stated)

    def fields(self, size: int) -> None:
        """Send the headers that every answer with bytes has."""
        self.send_header("Content-Length", str(size))
        if self.path in self.server.etags:
            self.send_header("ETag", self.server.etags[self.path])
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def plain(self, status: int, **headers: str) -> None:
        """Answer with a status and no bytes."""
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def hang_up(self, *, reset: bool = False) -> None:
        """Close the connection after this answer, with a reset where asked."""
        self.close_connection = True
        if reset:
            at_once = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)

    def log_message(self, *arguments: object) -> None:
        """Keep quiet."""


def _stall(handler: _Handler, content: bytes) -> None:
    handler.server.closing.wait(60)
    handler.hang_up()


def _stall_midway(handler: _Handler, content: bytes) -> None:
    _send_half(handler, content)
    _stall(handler, content)


def _trickle(handler: _Handler, content: bytes) -> None:
    """Send a byte now and then, so that the connection is never idle for long."""
    first, last = handler.wanted(len(content))
    handler.head(content, first, last)
    for at in range(first, last + 1):
        handler.send(content[at : at + 1])
        if handler.server.closing.wait(0.1):
            break
    handler.hang_up()


def _reset(handler: _Handler, content: bytes) -> None:
    handler.hang_up(reset=True)


def _reset_midway(handler: _Handler, content: bytes) -> None:
    _send_half(handler, content)
    handler.hang_up(reset=True)


def _cut_off(handler: _Handler, content: bytes) -> None:
    """End the connection before all bytes came that the headers promise."""
    _send_half(handler, content)
    handler.hang_up()


def _short(handler: _Handler, content: bytes) -> None:
    """Send a shorter part than was asked for, in good order."""
    first, last = handler.wanted(len(content))
    shorter = (last - first) // 2
    handler.head(content, first, last, stated=shorter)
    handler.send(content[first : first + shorter])


def _whole(handler: _Handler, content: bytes) -> None:
    """Ignore the Range header, as a server may (RFC 9110, section 14.2)."""
    handler.send_response(200)
    handler.fields(len(content))
    handler.send(content)


def _shifted(handler: _Handler, content: bytes) -> None:
    """Send another part of the same length, and say so."""
    first, last = handler.wanted(len(content))
    by = 1 if last + 1 < len(content) else -1
    handler.head(content, first + by, last + by)
    handler.send(content[first + by : last + by + 1])


def _unnamed(handler: _Handler, content: bytes) -> None:
    """Send a part without saying which."""
    first, last = handler.wanted(len(content))
    handler.send_response(206)
    handler.fields(last - first + 1)
    handler.send(content[first : last + 1])


def _encoded(handler: _Handler, content: bytes) -> None:
    """Compress what was asked for as it is."""
    first, last = handler.wanted(len(content))
    body = gzip.compress(content[first : last + 1])
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
    handler.send_header("Content-Encoding", "gzip")
    handler.fields(len(body))
    handler.send(body)


def _endless(handler: _Handler, content: bytes) -> None:
    """Promise the part, and send without an end."""
    first, last = handler.wanted(len(content))
    handler.send_response(206)
    handler.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    part = bytes(1 << 20)
    with contextlib.suppress(OSError):
        while not handler.server.closing.is_set():
            handler.send(b"%x\r\n" % len(part) + part + b"\r\n")
    handler.hang_up()


def _send_half(handler: _Handler, content: bytes) -> None:
    first, last = handler.wanted(len(content))
    handler.head(content, first, last)
    handler.send(content[first : (first + last) // 2])


def _status(status: int) -> Callable[[_Handler, bytes], None]:
    return lambda handler, content: handler.plain(status)


FAULTS: dict[str, Callable[[_Handler, bytes], None]] = {
    "stall": _stall,
    "stall midway": _stall_midway,
    "trickle": _trickle,
    "reset": _reset,
    "reset midway": _reset_midway,
    "cut off": _cut_off,
    "short": _short,
    "whole": _whole,
    "shifted": _shifted,
    "unnamed": _unnamed,
    "encoded": _encoded,
    "endless": _endless,
}


@contextlib.contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Run a server in threads of this process."""
    with ObjectServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="object-server")
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()
