"""`python -m potash.observing.metrics`: the process that serves metrics.

It isolates the device from clients of its port: it queries the device's status socket at most a few
times per second, however many requests it gets. As clients may be slow or send anything, each
connection has a time limit and gets one response, and the number of connections is limited.
"""

import argparse
import signal
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from potash.observing import prometheus, status
from potash.sdk.errors import PotashError
from potash_firmware.apu.process import set_name

CONNECTIONS = 32
"""Maximum number of connections; more wait in the listener's queue."""

DEADLINE = 5.0
"""Seconds for a connection, from its first byte to its last."""

FRESH = 0.2
"""Seconds for which a snapshot is given again."""

PATH = "/metrics"


class Server(ThreadingHTTPServer):
    """Answers connections to `listener` with the numbers of the device whose status socket is at
    `place`."""

    def __init__(self, listener: socket.socket, place: Path) -> None:
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._place = place
        self._room = threading.Semaphore(CONNECTIONS)
        self._lock = threading.Lock()
        self._text = b""
        self._asked = -FRESH

    def text(self) -> bytes:
        """The page, made anew when it is old."""
        with self._lock:
            if time.monotonic() - self._asked >= FRESH:
                try:
                    self._text = prometheus.text(status.ask(self._place))
                except (PotashError, KeyError, TypeError):
                    self._text = prometheus.text(None)
                self._asked = time.monotonic()
            return self._text

    def process_request(self, request: Any, client_address: Any) -> None:
        self._room.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever has asked may go at any time."""


class Handler(BaseHTTPRequestHandler):
    """One request, and its answer."""

    server: Server
    protocol_version = default_request_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self._timer = threading.Timer(DEADLINE, self._end)
        self._timer.start()

    def finish(self) -> None:
        self._timer.cancel()
        super().finish()

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == PATH:
            code, kind, text = HTTPStatus.OK, prometheus.CONTENT_TYPE, self.server.text()
        else:
            code, kind = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8"
            text = f"The device's numbers are at {PATH}.\n".encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: requests are not for the device's log."""

    def _end(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    parser = argparse.ArgumentParser(prog="potash.observing.metrics")
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--status", type=Path, required=True)
    arguments = parser.parse_args()
    set_name("potash-metrics")
    # An interrupt at the terminal is the device's to act on, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Server(socket.socket(fileno=arguments.listener), arguments.status) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
