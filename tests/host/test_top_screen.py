"""The screen of `potash top`: by Textual's pilot, and as a browser gets it."""

import asyncio
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from textual.widgets import DataTable, RichLog, Sparkline, Static

import potash.sdk
from potash.observing.live import LiveScreen
from potash.observing.rates import between
from potash.observing.status import ask, status_socket
from potash.vm.drive import serving
from potash_firmware.snapshot import LogLine
from support.extended import GUEST, written
from support.processes import descendants, name

LIMIT = 60
INTERVAL = 0.1


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    options = ("--size", "64M", "--log-level", "debug", "--time", "modelled")
    extend = ("--extend", written(tmp_path_factory.mktemp("extension"), GUEST))
    with serving(*options, *extend) as socket:
        yield socket


def panel(app: LiveScreen, name: str) -> str:
    return str(app.query_one(name, Static).content)


def test_it_shows_what_the_device_does(device: Path) -> None:
    async def look() -> None:
        app = LiveScreen(status_socket(str(device)), INTERVAL)
        async with app.run_test(size=(120, 50)) as pilot:
            with potash.sdk.open(f"vfio-user:{device}") as host:
                for _ in range(500):
                    host.write(3, bytes(4096))
                    host.read(3, 1)
                    await pilot.pause()
                    if "reads" in panel(app, "#latencies") and "writes" in panel(app, "#latencies"):
                        break
                latencies = panel(app, "#latencies")
                assert re.search(r"\d+ reads: \d+(\.\d)? (µs|ms) \(median\)", latencies)
                assert "█" in latencies
                assert "controller ready, a host is attached" in panel(app, "#summary")
                assert "write amplification" in panel(app, "#flash")
                queues = app.query_one("#queues", DataTable)
                assert queues.get_row_at(1)[0] == "1"
                host.admin(0xD8)
                calls = ""
                while calls != "1":
                    await pilot.pause(INTERVAL)
                    extensions = app.query_one("#extensions", DataTable)
                    rows = map(extensions.get_row_at, range(extensions.row_count))
                    (calls,) = (row[2] for row in rows if row[0] == "Notify")
                assert max(app.query(Sparkline).first().data or [0]) > 0
                await pilot.press("space")
                assert app.paused
                await pilot.press("space")
            for _ in range(100):
                await pilot.pause(INTERVAL / 2)
                if "no host" in panel(app, "#summary"):
                    break
            log = "\n".join(strip.text for strip in app.query_one(RichLog).lines)
            assert "board:" in log
            snapshot = ask(status_socket(str(device)))
            line = LogLine(time=0.0, level="info", component="rpu", message="clocks can be set")
            snapshot["log"] = [*snapshot["log"], line]
            app.show(snapshot, between(snapshot, snapshot))
            assert "clocks can be set" in app.query_one(RichLog).lines[-1].text
            await pilot.press("q")
        assert app.ended is None

    asyncio.run(look())


def fetched(address: str) -> tuple[int, dict[str, str], str]:
    try:
        with urllib.request.urlopen(address, timeout=LIMIT) as page:
            return page.status, dict(page.headers), page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), ""


def test_a_browser_needs_the_address_and_leaves_nothing(device: Path) -> None:
    command = [sys.executable, "-m", "potash.cli.main", "top", str(device), "--web"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        line = process.stdout.readline()
        found = re.fullmatch(
            r"the screen is at (http://127\.0\.0\.1:\d+/)([\w-]{32}/) \(Ctrl-C ends it\)\n", line
        )
        assert found, line
        root, token = found.groups()
        status, headers, page = fetched(root + token)
        assert status == 200
        assert f"{token}ws" in page
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        for elsewhere in ("", "ws", "static/js/textual.js", "a" * 32 + "/"):
            assert fetched(root + elsewhere)[0] == 404, elsewhere
        children = asyncio.run(interrupted_while_watched(root + token, process))
        assert process.wait(LIMIT) == 0
    assert len(children) >= 1
    deadline = time.monotonic() + LIMIT
    while any(map(name, children)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def interrupted_while_watched(address: str, process: subprocess.Popen[str]) -> list[int]:
    """Interrupt what serves a page while it is open; gives the processes that it has started."""
    import aiohttp  # here, as each worker of pytest reads this file, and one runs it

    async with (
        aiohttp.ClientSession() as browser,
        browser.ws_connect(f"{address}ws?width=120&height=40") as page,
    ):
        seen = b""
        while b"latency of reads" not in seen:
            message = await page.receive(LIMIT)
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), message
            seen += message.data if isinstance(message.data, bytes) else b""
        children = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        return children


def test_it_ends_with_the_device() -> None:
    async def look() -> None:
        with ExitStack() as ends:
            socket = ends.enter_context(serving("--size", "16M"))
            app = LiveScreen(status_socket(str(socket)), INTERVAL)
            async with app.run_test() as pilot:
                while "no host" not in panel(app, "#summary"):
                    await pilot.pause(INTERVAL)
                assert not app.query_one("#flash").display
                ends.close()
                while app.is_running:
                    await pilot.pause(INTERVAL)
        assert str(app.ended) == "the device has ended"

    asyncio.run(look())
