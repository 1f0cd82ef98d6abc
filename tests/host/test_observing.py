"""`potash top` and `potash serve --metrics`: what a running device says of itself to others."""

import fcntl
import json
import os
import pty
import re
import signal
import socket as sockets
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nvme_spec.opcodes import AdminOpcode, IoOpcode
from potash import sdk
from potash.observing import prometheus, status
from potash.sdk import CommandFailed
from potash.sdk.errors import DeviceNotFound, PotashError
from potash.vm.drive import device_process, serving
from potash_firmware.log_components import COMPONENTS
from support.apu import program
from support.bpf import exit_, insn, mov
from support.docs import ROOT
from support.in_process import potash
from support.processes import descendants
from support.prometheus import parse, value

LIMIT = 60
BLOCK = 4096
SMALL = ("--size", "16M")

SPIN = program(insn(0x05, offset=-1), exit_)
RETURN_7 = program(mov(0, 7), exit_)
FAULT = program(insn(0x79, dst=0, src=0), exit_)
"""Reads at address r0, which is no program's."""


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Served(NamedTuple):
    """A device with its socket, and where its metrics are."""

    process: subprocess.Popen[str]
    socket: Path
    metrics: str

    @property
    def port(self) -> int:
        return int(self.metrics.split(":")[2].partition("/")[0])

    def scrape(self) -> Any:
        with urllib.request.urlopen(self.metrics, timeout=LIMIT) as page:
            assert page.headers["Content-Type"].startswith("text/plain; version=")
            return parse(page.read().decode())

    def connect(self) -> sockets.socket:
        return sockets.create_connection(("127.0.0.1", self.port), timeout=LIMIT)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    path = folder / "device.sock"
    command = [sys.executable, "-m", "potash.cli.main", "serve", "--json", "--metrics", "0", *SMALL]
    with subprocess.Popen(
        [*command, "--socket", str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.readline())
        yield Served(process, path, report["metrics"])
        process.terminate()
        assert process.wait(LIMIT) == 0


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


def test_numbers_are_those_of_what_the_host_has_done(device: Served) -> None:
    before = device.scrape()
    with sdk.open(f"vfio-user:{device.socket}") as host:
        for _ in range(5):
            host.write(0, bytes(2 * BLOCK))
        for _ in range(3):
            host.read(1, 1)
        for _ in range(2):
            with pytest.raises(CommandFailed):
                host.io(IoOpcode.READ, nsid=1, cdw10=1 << 30, data_in_length=BLOCK)
        with pytest.raises(CommandFailed):
            host.io(0x7E)
        with pytest.raises(CommandFailed):
            host.admin(AdminOpcode.GET_LOG_PAGE, cdw10=0xEE, data_in_length=4)
        until(lambda: value(device.scrape(), "potash_host_attached") == 1)
        after = device.scrape()

    def added(metric: str, **labels: str) -> float:
        try:
            first = value(before, metric, **labels)
        except KeyError:
            first = 0.0
        return value(after, metric, **labels) - first

    assert value(after, "potash_up") == value(after, "potash_controller_ready") == 1
    assert added("potash_commands_total", queue="1", command="write") == 5
    assert added("potash_commands_total", queue="1", command="read") == 5
    assert added("potash_commands_total", queue="1", command="unknown") == 1
    assert added("potash_written_bytes_total") == 10 * BLOCK
    assert added("potash_read_bytes_total") == 3 * BLOCK
    known = {
        dict(labels)["status"]: dict(labels)["meaning"]
        for labels in after["potash_command_errors_total"].samples
    }
    assert set(known) == {"080", "001", "109"}
    assert added("potash_command_errors_total", status="080", meaning=known["080"]) == 2
    assert "LBA Out Of Range" in known["080"]
    assert value(after, "potash_namespace_bytes", nsid="1") == 16 << 20


def test_jobs_are_counted_by_how_they_ended(device: Served) -> None:
    before = device.scrape()

    def jobs(result: str, of: Any) -> float:
        return value(of, "potash_jobs_total", accelerator="0", result=result)

    with sdk.open(f"vfio-user:{device.socket}") as host:
        (accelerator,) = host.accelerators()
        accelerator.enable()
        accelerator.write_input(bytes(64))
        for image in (RETURN_7, RETURN_7, FAULT, SPIN):
            accelerator.send_firmware(image)
            accelerator.start(0)
            if image is SPIN:
                until(
                    lambda: (
                        value(device.scrape(), "potash_accelerator_running", accelerator="0") > 0
                    )
                )
                accelerator.stop()
            elif image is FAULT:
                with pytest.raises(PotashError):
                    accelerator.wait(LIMIT)
            else:
                accelerator.wait(LIMIT)
    until(lambda: jobs("stopped", device.scrape()) > jobs("stopped", before))
    after = device.scrape()
    assert [jobs(one, after) - jobs(one, before) for one in ("done", "failed", "stopped")] == [
        2, 1, 1
    ]  # fmt: skip
    assert value(after, "potash_job_input_bytes_total", accelerator="0") >= 2 * 64
    assert value(after, "potash_job_seconds_total", accelerator="0") > 0


def test_counts_outlive_an_application_processor(device: Served) -> None:
    before = device.scrape()
    with sdk.open(f"vfio-user:{device.socket}") as host:
        (accelerator,) = host.accelerators()
        accelerator.enable()
        accelerator.write_input(bytes(64))
        accelerator.send_firmware(SPIN)
        accelerator.start(0)
        apu = next(
            pid
            for pid in descendants(device.process.pid)
            if Path(f"/proc/{pid}/comm").read_text() == "potash-apu\n"
        )
        pidfd_kill(apu)
        name = "potash_apu_starts_total"
        until(lambda: value(device.scrape(), name) == value(before, name) + 1)
        until(lambda: failed(device) == failed(before) + 1)
    after = device.scrape()
    started = value(after, "potash_jobs_started_total", accelerator="0")
    assert started == sum(after["potash_jobs_total"].samples.values())


def failed(of: Any) -> float:
    found = of.scrape() if isinstance(of, Served) else of
    return value(found, "potash_jobs_total", accelerator="0", result="failed")


def pidfd_kill(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


# What comes in over the network.


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics/../secret HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\n", 501),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET /metrics SMTP\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_requests_and_what_is_none(device: Served, request_: bytes, code: int) -> None:
    with device.connect() as client:
        client.sendall(request_)
        answer = b""
        try:
            while piece := client.recv(1 << 16):
                answer += piece
        except ConnectionResetError:  # what was not read of a request that was too long
            pass
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % code)
    assert f"Content-Length: {len(body)}".encode() in head
    if code == 200:
        parse(body.decode())


def test_a_head_has_no_body(device: Served) -> None:
    request = urllib.request.Request(device.metrics, method="HEAD")
    with urllib.request.urlopen(request, timeout=LIMIT) as page:
        assert int(page.headers["Content-Length"]) > 1000
        assert page.read() == b""


def test_clients_that_say_nothing_keep_the_drive_from_nothing(device: Served) -> None:
    """More of them than are answered at a time, one of them half way through its request."""
    with ExitStack() as stack:
        idle = [stack.enter_context(device.connect()) for _ in range(40)]
        idle[0].sendall(b"GET /metr")
        with sdk.open(f"vfio-user:{device.socket}") as host:
            host.write(0, b"\x5a" * BLOCK)
            assert host.read(0, 1) == b"\x5a" * BLOCK
        assert status.ask(status.status_socket(str(device.socket)))["version"] == 1
    assert value(device.scrape(), "potash_up") == 1


def test_the_port_is_this_machines_own(device: Served) -> None:
    """Every address of 127.0.0.0/8 is this machine's, and only the first was bound."""
    with pytest.raises(ConnectionRefusedError):
        sockets.create_connection(("127.0.0.2", device.port), timeout=LIMIT)


def test_a_port_that_is_taken_is_named(device: Served, tmp_path: Path) -> None:
    place = tmp_path / "other.sock"
    done = potash("serve", "--socket", place, *SMALL, "--metrics", device.port)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert str(device.port) in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_page_outlives_the_device_and_nothing_outlives_both(tmp_path: Path) -> None:
    with served(tmp_path) as found:
        metrics = found.metrics
        below = descendants(found.process.pid)
        place = status.status_socket(f"vfio-user:{found.socket}")
        assert place == tmp_path / "device.sock.status"
        assert stat.S_IMODE(place.stat().st_mode) == 0o600, "it is its user's alone"
        parse(urllib.request.urlopen(metrics, timeout=LIMIT).read().decode())
    for pid in below:
        assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(metrics, timeout=LIMIT)
    assert not list(tmp_path.iterdir())


def test_a_device_that_does_not_answer_is_not_up() -> None:
    assert value(parse(prometheus.text(None).decode()), "potash_up") == 0


def test_labels_are_escaped(device: Served) -> None:
    snapshot = status.ask(status.status_socket(str(device.socket)))
    snapshot["errors"] = [{"status": 1, "meaning": 'a "b"\\\nc', "commands": 4}]
    families = parse(prometheus.text(snapshot).decode())
    meaning = 'a "b"\\\nc'
    assert value(families, "potash_command_errors_total", status="001", meaning=meaning) == 4


# The status socket.


def test_clients_that_read_nothing_are_not_waited_for(device: Served) -> None:
    place = status.status_socket(str(device.socket))
    with ExitStack() as stack:
        for _ in range(30):
            client = stack.enter_context(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM))
            client.connect(str(place))
            with suppress(BrokenPipeError):  # it has been answered already
                client.sendall(b"x" * 100)
        snapshot = status.ask(place)
    assert snapshot["pid"] == device.process.pid
    assert [one["id"] for one in snapshot["accelerators"]] == [0]


def test_a_path_that_has_no_room_for_another_costs_the_drive_nothing(tmp_path: Path) -> None:
    room = 107 - len(str(tmp_path)) - 1
    path = tmp_path / ("x" * room)
    with device_process(path, *SMALL), sdk.open(f"vfio-user:{path}") as host:
        assert host.read(0, 1) == bytes(BLOCK)
    refused = potash("serve", "--socket", path, *SMALL, "--metrics", 0)
    assert refused.returncode == 1
    assert "--metrics" in refused.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


# potash top.


def test_top_reports_an_interval_as_json(device: Served) -> None:
    with sdk.open(f"vfio-user:{device.socket}") as host:
        host.read(0, 1)
        command = ["top", device.socket, "--once", "--json", "--interval", 0.05]
        done = potash(*command)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["controller"]["host_attached"] is True
    assert report["controller"]["state"] == "ready"
    assert [one["qid"] for one in report["queues"]] == [0, 1]
    assert report["queues"][1]["commands"]["read"] >= 1
    assert report["rates"]["seconds"] >= 0.05


def test_top_shows_queues_and_accelerators(device: Served) -> None:
    done = potash("top", f"vfio-user:{device.socket}", "--once", "--interval", 0.05)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.split()[:2] == ["queue", "size"] for line in lines)
    assert any(line.split()[:2] == ["accelerator", "state"] for line in lines)
    assert str(device.process.pid) in lines[0]


def test_top_finds_the_one_device_that_another_command_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    nothing = potash("top", "--once")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (1, 1)
    with serving(*SMALL) as first:
        found = potash("top", "--once", "--interval", 0.05)
        assert found.stdout.startswith(f"{first}.status"), found.stderr
        with serving(*SMALL) as second:
            several = potash("top", "--once")
    assert (several.returncode, several.stderr.count("\n")) == (1, 1)
    assert str(first) in several.stderr and str(second) in several.stderr


def test_top_stays_on_a_terminal_until_it_is_ended(device: Served) -> None:
    terminal, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    command = [sys.executable, "-m", "potash.cli.main", "top", str(device.socket)]
    with (
        open(terminal, "r+b", buffering=0) as screen_,
        subprocess.Popen(
            [*command, "--interval", "0.05"], stdin=its, stdout=its, stderr=its
        ) as top,
    ):
        os.close(its)
        seen = b""
        with suppress(OSError):  # at the end: nobody has the terminal any more
            while piece := screen_.read(4096):
                seen += piece
                if b"latency of reads" in seen and b"accelerator" in seen:
                    screen_.write(b"\x03")
                    seen = b""
        assert top.wait(LIMIT) == 130


def test_top_of_nothing_is_one_sentence(tmp_path: Path) -> None:
    done = potash("top", tmp_path / "none")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no device" in done.stderr


def test_another_user_s_socket_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "potash-x"
    folder.mkdir()
    place = folder / "s.status"
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        assert status.running() == [place]
        monkeypatch.setattr(
            sockets.socket, "getsockopt", lambda *_: struct.pack("=iII", 1, 4242, 4242)
        )
        monkeypatch.setattr(os, "geteuid", lambda: 4243)
        assert status.running() == []
        with pytest.raises(PotashError, match=r"the device there is that of another user \(4242\)"):
            status.ask(place)


def test_the_socket_of_a_killed_device_is_no_running_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "potash-x").mkdir()
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "potash-x" / "s.status"))
    assert status.running() == []
    assert "no device runs" in potash("top").stderr


@pytest.mark.parametrize("said", [b"", b"[]\n", b"{", b"[" * 100_000, b'{"of": "else"}\n'])
def test_what_is_no_device_is_not_believed(tmp_path: Path, said: bytes) -> None:
    place = tmp_path / "x.status"
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as listener:
        listener.bind(str(place))
        listener.listen()

        def speak() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(said)

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(PotashError, match="says nothing of a device"):
            status.ask(place)
        thread.join(LIMIT)
    with pytest.raises(DeviceNotFound):
        status.ask(place)


# The page about all this.


def table(heading: str) -> list[list[str]]:
    """The rows of the first table behind a heading of the page, or a line of it."""
    text = (ROOT / "docs" / "observing.md").read_text().partition(heading)[2]
    rows = text[text.index("\n|") :].partition("\n\n")[0].strip().splitlines()[2:]
    return [line.replace("\\|", "/").strip("| ").split("|") for line in rows]


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([\w]+)`", cell))


def test_the_page_names_every_metric() -> None:
    named = set().union(*(words(row[0]) for row in table("## Prometheus")))
    assert named == {f"potash_{name}" for name in prometheus.METRICS}


def test_the_page_names_what_a_snapshot_has(device: Served) -> None:
    found: Mapping[str, Any] = status.ask(status.status_socket(str(device.socket)))
    rows = table("## potash top")
    assert set().union(*(words(row[0]) for row in rows)) == set(found)
    for (name,), about in [(list(words(row[0])), row[1]) for row in rows if len(words(row[0])) < 2]:
        inner = found[name]
        for one in inner if isinstance(inner, list) else [inner]:
            if isinstance(one, dict):
                assert set(one) <= words(about) | {"commands"}, name


def test_the_page_names_every_room() -> None:
    assert set().union(*(words(row[0]) for row in table("## The log"))) == set(COMPONENTS)
