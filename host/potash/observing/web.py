"""The screen of `potash top` in a browser on this machine.

textual-serve shows a Textual application in a browser: each page that is opened runs the command
anew, in a process of its own. It has no access control, so everything is below a path that nobody
can guess, and listens on 127.0.0.1 only.
"""

import secrets
import shlex
import socket
import sys
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
    """Serves the screen of the device whose status socket is `place` below a secret path.

    It listens on 127.0.0.1, at a free port if `port` is 0; `address` is where. Raises OSError.
    """

    def __init__(self, place: Path, interval: float, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._token = secrets.token_urlsafe(24)
        address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        top = [sys.executable, "-m", "potash.cli.main", "top", str(place.with_suffix(""))]
        # Its processes are started by a shell, and do not end by themselves with this one.
        command = dies_with_parent([*top, "--interval", str(interval)])
        super().__init__(shlex.join(["exec", *command]), title="potash top", public_url=address)
        self.address = f"{address}/{self._token}/"

    def run(self) -> None:
        """Serve until an interrupt."""
        application = self.below_the_token()
        web.run_app(
            application, sock=self._listener, print=None, access_log=None, shutdown_timeout=1.0
        )

    async def below_the_token(self) -> web.Application:
        """The application, with nothing anywhere else."""
        application = web.Application()
        application.on_response_prepare.append(_add_headers)
        application.add_subapp(f"/{self._token}", await self._make_app())
        return application

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: the caller says where the screen is."""


async def _add_headers(_: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
