"""The screen of `potash top` in a browser on this machine.

textual-serve shows a Textual application in a browser: each page that is opened runs the command
anew, in a process of its own. It has no access control, so everything is below a path that nobody
can guess, and listens on 127.0.0.1 only.
"""

import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from textual_serve.server import Server

from potash.vm.parent_death import dies_with_parent

HEADERS = {
    # The page names fonts of another site, which are not to be fetched.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; connect-src 'self' ws://127.0.0.1:*; img-src 'self' data:; "
    "font-src 'self' data:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class PrivateServer(Server):
    """Serves a command below a secret path, at `address`; `listener` is where it listens."""

    def __init__(self, argv: Sequence[str], listener: socket.socket) -> None:
        self.token = secrets.token_urlsafe(24)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # Its processes are started by a shell, and do not end by themselves with this one.
        command = shlex.join(["exec", *dies_with_parent(argv)])
        super().__init__(command, title="potash top", public_url=address)
        self.address = f"{address}/{self.token}/"

    async def below_the_token(self) -> web.Application:
        """The application, with nothing anywhere else."""
        application = web.Application()
        application.on_response_prepare.append(_add_headers)
        application.add_subapp(f"/{self.token}", await self._make_app())
        return application

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: the caller says where the screen is."""


async def _add_headers(_: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def listening(port: int) -> socket.socket:
    """A socket on 127.0.0.1; port 0 is a free one. Raises OSError."""
    return socket.create_server(("127.0.0.1", port))


def server(place: Path, interval: float, listener: socket.socket) -> PrivateServer:
    """Serves the screen of the device whose status socket is `place`."""
    device = str(place.with_suffix(""))
    options = ["top", device, "--interval", str(interval)]
    return PrivateServer([sys.executable, "-m", "potash.cli.main", *options], listener)


def run(found: PrivateServer, listener: socket.socket) -> None:
    """Serve until an interrupt."""
    application = found.below_the_token()
    web.run_app(application, sock=listener, print=None, access_log=None, shutdown_timeout=1.0)
