"""One file, served once to Perfetto's page in a browser on this machine.

Perfetto's page fetches a trace that ``url=`` names. It may do so from the loopback at
port 9001 and nowhere else: its content security policy names that port. Other users of
this machine reach that port too, so the address has a part that nobody can guess, and
only a request of that page is answered, once.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from shutil import copyfileobj
from typing import TYPE_CHECKING
from urllib.parse import quote

from traceq.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "https://ui.perfetto.dev"
HOST, PORT = "127.0.0.1", 9001


@dataclass
class Served:
    """A file that one page may fetch by its exact name."""

    file: Path
    page: str = PAGE
    """The origin of the page that may read it."""
    fetched: threading.Event = field(default_factory=threading.Event)
    """Set once all of it was sent to that page."""
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    """The secret part of the address."""
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Held from the start of sending on: the file is sent once."""

    @property
    def place(self) -> str:
        """The path of its URL."""
        return f"/{self.secret}/{quote(self.file.name, safe='')}"

    def url(self, port: int) -> str:
        """Return the URL that it is served at."""
        return f"http://{HOST}:{port}{self.place}"

    def link(self, port: int) -> str:
        """Return the address of Perfetto's page that fetches and shows it."""
        return f"{self.page}/#!/?url={self.url(port)}"


def server(served: Served, port: int = PORT) -> ThreadingHTTPServer:
    """Return a server of one file, bound to the loopback.

    Raises ``UsageError`` if the port is taken.
    """

    class Handler(_Handler):
        what = served

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        msg = (
            f"port {port} cannot be used ({error.strerror or error}), and Perfetto's"
            " page reads from no other: end what uses it, or drop the file on"
            f" {PAGE}"
        )
        raise UsageError(msg) from None


class _Handler(BaseHTTPRequestHandler):
    """Answers a GET of the file, and the browser's question whether it may ask."""

    what: Served
    server_version = "traceq"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Send the file, if that page requests it for the first time."""
        if not self._is_requested():
            return
        if not self.what.sending.acquire(blocking=False):
            self.send_error(HTTPStatus.GONE)
            return
        try:
            sent = self._send()
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            sent = False
        if sent:
            self.what.fetched.set()
        else:
            # The page did not get all of it, and may ask again.
            self.what.sending.release()

    def _send(self) -> bool:
        """Send the file; return whether it was there, and as long as it was."""
        try:
            file = self.what.file.open("rb")
        except OSError:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return False
        with file:
            size = os.fstat(file.fileno()).st_size
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(size))
            self._finish_headers()
            copyfileobj(file, self.wfile)
            return file.tell() == size

    def do_OPTIONS(self) -> None:
        """Answer that the page may ask, as a page on the network asks the loopback."""
        if self._is_requested():
            self.send_response(HTTPStatus.NO_CONTENT)
            self.send_header("Access-Control-Allow-Methods", "GET")
            # Chromium asks it of pages on the network before they reach the loopback.
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self._finish_headers()

    def _is_requested(self) -> bool:
        """Return whether it is the file, by the name it has here; else refuse.

        Another host's name for this address is how a stranger's page would get at it.
        """
        port = self.connection.getsockname()[1]
        hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        origin = self.headers.get("Origin")
        if self.path != self.what.place or self.headers.get("Host") not in hosts:
            self.send_error(HTTPStatus.NOT_FOUND)
            return False
        if origin != self.what.page:
            self.send_error(HTTPStatus.FORBIDDEN)
            return False
        return True

    def _finish_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", self.what.page)
        self.send_header("Vary", "Origin")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet: the command says what happens."""
