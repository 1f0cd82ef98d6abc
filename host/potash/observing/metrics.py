"""`python -m potash.observing.metrics`: the process that answers a collector of numbers.

It stands between the device and whoever can reach its port: the device is asked by this process
alone, over its status socket and at most a few times a second, whatever comes in here. What does
come in may be slow, long or senseless; each connection has a time, a size and one answer, and there
are only so many at once.
"""

import argparse
import asyncio
import signal
import socket
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from potash.observing import prometheus, status
from potash.sdk.errors import PotashError
from potash_firmware.apu.process import set_name

CONNECTIONS = 32
"""At once; more wait in the listener's queue."""

REQUEST_LIMIT = 8192
"""Bytes of a request, which has no body."""

DEADLINE = 5.0
"""Seconds for a connection, from its first byte to its last."""

FRESH = 0.2
"""Seconds for which a snapshot is given again."""

PATH = "/metrics"

HINT = f"The device's numbers are at {PATH}.\n"


class Page:
    """The text of a device's numbers, made anew when it is old."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._text = ""
        self._asked = -FRESH
        self._lock = asyncio.Lock()

    async def text(self) -> str:
        """What a collector is given now."""
        async with self._lock:
            if time.monotonic() - self._asked >= FRESH:
                try:
                    found = await asyncio.to_thread(status.ask, self._place)
                    self._text = prometheus.text(found)
                except (PotashError, KeyError, TypeError):
                    self._text = prometheus.text(None)
                self._asked = time.monotonic()
            return self._text


class Answers:
    """Answers connections, so many at once."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._room = asyncio.Semaphore(CONNECTIONS)

    async def serve(self, listener: socket.socket) -> None:
        """Until this process is ended."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        while True:
            await self._room.acquire()
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:  # it has gone again, or there are no descriptors
                self._room.release()
                await asyncio.sleep(FRESH)
                continue
            task = asyncio.create_task(self._connection(client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _connection(self, client: socket.socket) -> None:
        try:
            with client, suppress(OSError, TimeoutError):
                async with asyncio.timeout(DEADLINE):
                    await self._answer(client)
        finally:
            self._room.release()

    async def _answer(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        request = b""
        while b"\r\n\r\n" not in request and len(request) <= REQUEST_LIMIT:
            piece = await loop.sock_recv(client, REQUEST_LIMIT)
            if not piece:
                return
            request += piece
        code, kind, text = await self._reply(request)
        body = text.encode()
        head = (
            f"HTTP/1.1 {code.value} {code.phrase}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        shown = b"" if request.startswith(b"HEAD ") else body
        await loop.sock_sendall(client, head.encode() + shown)
        client.shutdown(socket.SHUT_WR)

    async def _reply(self, request: bytes) -> tuple[HTTPStatus, str, str]:
        plain = "text/plain; charset=utf-8"
        if len(request) > REQUEST_LIMIT:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, plain, "The request is too long.\n"
        words = request.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return HTTPStatus.BAD_REQUEST, plain, "That is no request of HTTP/1.1.\n"
        if words[0] not in (b"GET", b"HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, plain, HINT
        if words[1].partition(b"?")[0] != PATH.encode():
            return HTTPStatus.NOT_FOUND, plain, HINT
        return HTTPStatus.OK, prometheus.CONTENT_TYPE, await self._page.text()


def main() -> None:
    parser = argparse.ArgumentParser(prog="potash.observing.metrics")
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--status", type=Path, required=True)
    arguments = parser.parse_args()
    set_name("potash-metrics")
    # An interrupt at the terminal is the device's to act on, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=arguments.listener) as listener:
        listener.setblocking(False)
        asyncio.run(Answers(Page(arguments.status)).serve(listener))


if __name__ == "__main__":
    main()
